"""What a request comes to: opens its files, lets `slicing` cut or analyse the model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
from msgspec.structs import replace

from din.carver.files import MODEL_FILE_BYTES_MAX, WEIGHTS_FILE_BYTES_MAX, Content, map_file
from din.carver.keeper import Store
from din.carver.spoken import PIECE_BYTES
from din.domain.cuts import CutTable
from din.domain.malformed import MALFORMED
from din.domain.model import (
    EXTERNAL_FILES_MAX,
    MODEL_FILE,
    AnalyseRequest,
    CarveAnswer,
    CarveRequest,
)
from din.errors import BadModel, TooLarge, UsageError
from din.system.descriptors import raise_limit

Request = CarveRequest | AnalyseRequest


def read_request(data: bytes) -> Request:
    """Raises UsageError naming the field that is wrong."""
    try:
        return msgspec.json.decode(data, type=Request)
    except (*MALFORMED, UnicodeError) as error:
        raise UsageError(
            f"the carver cannot read its request: {error}",
            hint="send one CarveRequest or AnalyseRequest as JSON on standard input",
        ) from None


def open_contents(request: Request) -> dict[str, Content]:
    """The model and the files beside it, mapped. Raises DinError that names the file."""
    path = Path(request.model_path)
    if len(request.external) > EXTERNAL_FILES_MAX:
        raise TooLarge(
            f"{path} has {len(request.external)} files of weights beside it, more than "
            f"{EXTERNAL_FILES_MAX}",
            hint="save the weights in one file: onnx.save_model(..., all_tensors_to_one_file=True)",
        )
    raise_limit()  # each mapping keeps its file open
    contents = {MODEL_FILE: map_file(path, MODEL_FILE_BYTES_MAX)}
    for location, file in request.external.items():
        contents[location] = map_file(Path(file.path), WEIGHTS_FILE_BYTES_MAX)
    return contents


def carve(
    request: Request, contents: Mapping[str, Content], store: Store, din_version: str
) -> CarveAnswer | CutTable:
    """Cut or analyse the model. Raises DinError; a bad model's names the file."""
    path = request.model_path
    size = len(contents[MODEL_FILE])
    if not request.source_sha256:
        request = replace(request, source_sha256=sha256(contents[MODEL_FILE]).hexdigest())
    try:
        if isinstance(request, AnalyseRequest):
            return _analyse(request, contents)
        return _cut(request, contents, store, din_version)
    except (BadModel, TooLarge) as error:
        message = error.message
        if path not in message:
            raise type(error)(f"{path}: {message}", hint=error.hint) from None
        raise
    except MemoryError:
        raise TooLarge(
            f"{path}: carving {size} bytes needs more memory than the carver may take",
            hint="the file may be damaged; else register a smaller model",
        ) from None


def din_version() -> str:
    """Of the package, as it goes into slices; to be asked while there are files."""
    try:
        return version("din-network")
    except PackageNotFoundError:
        return "unknown"


def _analyse(request: AnalyseRequest, contents: Mapping[str, Content]) -> CutTable:
    from din.slicing.slicer import table_of
    from din.slicing.whole import form_in, refuse_cuts

    form = form_in(_views(contents))
    if form is not None:
        raise refuse_cuts(form)
    return table_of(
        _views(contents),
        request.input_shapes,
        request.source_sha256,
        request.ranges,
        request.rewrite,
    )


def _cut(
    request: CarveRequest, contents: Mapping[str, Content], store: Store, din_version: str
) -> CarveAnswer:
    from din.carver.packs import Packer
    from din.slicing.slicer import slice_model
    from din.slicing.whole import form_in, take_whole

    form = form_in(_views(contents))
    if form is not None:
        return take_whole(form, _views(contents), request, partial(_kept, request, contents, store))
    names = {MODEL_FILE: request.source_sha256}
    names |= {location: file.sha256 for location, file in request.external.items()}
    packer = Packer(contents, names, store)
    sliced = slice_model(_views(contents), request, din_version, packer)
    for data in sliced.files.values():
        store([data], len(data))
    return sliced.answer


def _kept(
    request: CarveRequest, contents: Mapping[str, Content], store: Store, location: str
) -> str:
    """A file of a model that runs whole, which serves as it is where nodes could fetch it so."""
    if location in request.as_is:
        own = request.external[location].sha256 if location else request.source_sha256
        if own:
            return own
    view = memoryview(contents[location])
    pieces = (view[at : at + PIECE_BYTES] for at in range(0, len(view), PIECE_BYTES))
    return store(pieces, len(view))


def _views(contents: Mapping[str, Content]) -> dict[str, memoryview]:
    return {name: memoryview(content) for name, content in contents.items()}
