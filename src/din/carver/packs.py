"""Packs of weights, written as they are read: once, and never whole in memory."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Mapping
from typing import Final

from din.carver.files import Content, Piece
from din.carver.keeper import Store
from din.slicing.packs import Pack, Written
from din.slicing.weights import Place

PIECE_BYTES: Final = 1024 * 1024


class Packer:
    """Writes the packs of one model. Implements slicing.packs.PackWriter."""

    def __init__(
        self, contents: Mapping[str, Content], names: Mapping[str, str], store: Store
    ) -> None:
        """`names`: the SHA256 of the files that may serve as they are."""
        self._contents = contents
        self._names = names
        self._store = store

    def __call__(self, pack: Pack) -> Written:
        """See PackWriter."""
        digests: dict[Place, bytes] = {}
        if pack.as_is is None:
            sha256 = self._store(self._laid_out(pack, digests), pack.nbytes)
        else:
            sha256 = self._names[pack.as_is]
            for place in pack.offsets:
                for _ in self._read(place, digests):
                    pass
        return Written(sha256, digests)

    def _laid_out(self, pack: Pack, digests: dict[Place, bytes]) -> Iterator[Piece]:
        end = 0
        for place, offset in pack.offsets.items():
            yield bytes(offset - end)
            yield from self._read(place, digests)
            end = offset + place.nbytes

    def _read(self, place: Place, digests: dict[Place, bytes]) -> Iterator[memoryview]:
        """One weight in pieces, hashed on the way; what was read is let go of."""
        content = self._contents[place.file]
        view = memoryview(content)
        digest = hashlib.sha256()
        end = place.offset + place.nbytes
        for start in range(place.offset, end, PIECE_BYTES):
            piece = view[start : min(end, start + PIECE_BYTES)]
            digest.update(piece)
            yield piece
            if isinstance(content, mmap.mmap):
                page = start - start % mmap.PAGESIZE
                content.madvise(mmap.MADV_DONTNEED, page, start + len(piece) - page)
        digests[place] = digest.digest()
