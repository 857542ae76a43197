"""A model cut in this process, with everything in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from din.carver.files import Piece
from din.carver.packs import Packer
from din.domain.model import MODEL_FILE, CarveRequest
from din.slicing.slicer import Sliced, slice_model


def carved(data: bytes, request: CarveRequest, beside: Mapping[str, bytes] | None = None) -> Sliced:
    """Cut a model; the files hold packs as well as models. `beside`: files with weights, by the
    location that the model gives. Raises as `slice_model`."""
    contents = {MODEL_FILE: data, **(beside or {})}
    names = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    packs = {names[name]: contents[name] for name in request.as_is}

    def store(pieces: Iterable[Piece], _nbytes: int) -> str:
        pack = b"".join(pieces)
        name = hashlib.sha256(pack).hexdigest()
        packs[name] = pack
        return name

    views = {name: memoryview(content) for name, content in contents.items()}
    sliced = slice_model(views, request, "bench", Packer(contents, names, store))
    return Sliced(sliced.answer, packs | sliced.files)
