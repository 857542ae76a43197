"""Carries out one request: reads the model, lets `slicing` cut it, writes the slices."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from din.carver.confine import confine
from din.carver.files import give_slice, load_model, model_size, store_slice
from din.domain.cuts import CutTable
from din.domain.model import AnalyseRequest, CarveAnswer, CarveRequest
from din.errors import BadModel, TooLarge, UsageError

Request = CarveRequest | AnalyseRequest


def read_request(data: bytes) -> Request:
    """Raises UsageError naming the field that is wrong."""
    try:
        return msgspec.json.decode(data, type=Request)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise UsageError(
            f"the carver cannot read its request: {error}",
            hint="send one CarveRequest or AnalyseRequest as JSON on standard input",
        ) from None


def answer(request: Request) -> CarveAnswer | CutTable:
    """Confine this process, then cut or analyse the model. Raises DinError; a bad model's names
    the file."""
    path = Path(request.model_path)
    size = model_size(path)
    confine(size)
    try:
        if isinstance(request, AnalyseRequest):
            return _analyse(request, path, size)
        return _cut(request, path, size)
    except (BadModel, TooLarge) as error:
        message = error.message
        if str(path) not in message:
            raise type(error)(f"{path}: {message}", hint=error.hint) from None
        raise
    except MemoryError:
        raise TooLarge(
            f"{path}: carving {size} bytes needs more memory than the carver may take",
            hint="the file may be damaged; else register a smaller model",
        ) from None


def _analyse(request: AnalyseRequest, path: Path, size: int) -> CutTable:
    from din.slicing.slicer import table_of

    return table_of(load_model(path, size), request.input_shapes)


def _cut(request: CarveRequest, path: Path, size: int) -> CarveAnswer:
    # After the limits: `onnx` is the first code that could be turned against this process.
    from din.slicing.slicer import slice_model

    sliced = slice_model(load_model(path, size), request, _din_version())
    for sha256, data in () if request.is_dry_run else sliced.files.items():
        if request.output_fd >= 0:
            give_slice(request.output_fd, sha256, data)
            continue
        store_slice(Path(request.output_path), sha256, data)
    return sliced.answer


def _din_version() -> str:
    try:
        return version("din-network")
    except PackageNotFoundError:
        return "unknown"
