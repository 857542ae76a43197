"""Tensors between slices as zstd frames, and back.

Frames are a stranger's: what they say of themselves is held against dtype and shape before a byte
is decompressed, so that none costs more memory or time than the tensor that it stands for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np
import zstandard

from din.backends.contract import NUMPY_TYPES, Array
from din.domain.tensor import TensorMeta, nbytes_of
from din.errors import SpoiledTensor

LEVEL: Final = 1
"""Of zstd: 1.4 ms of processor time a MiB; higher ones left hardly less."""
COMPRESSED_BYTES_MIN: Final = 16 * 1024
"""Smaller tensors cross as they are: they are on their way before they would be compressed."""
SHARE_MAX: Final = 0.95
"""Of its bytes; a tensor of which more is left crosses as it is, and its reader is spared."""
PIECE_BYTES: Final = 8 * 1024 * 1024
"""Larger tensors are compressed in pieces, between which one may stop: a fourth slower."""
WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
"""How far back a frame may refer, which is what its reader would have to remember."""


class Compressor:
    """Of one worker; its memory is used again for each tensor."""

    def __init__(self) -> None:
        self._packing = zstandard.ZstdCompressor(
            level=LEVEL, write_checksum=True, write_content_size=True, write_dict_id=False
        )
        self._unpacking = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
        self._spent_ns = 0

    def take_spent_us(self) -> int:
        """Time that both ways took since this was last asked."""
        spent_ns, self._spent_ns = self._spent_ns, 0
        return spent_ns // 1000

    def compress(
        self, array: Array, check: Callable[[], None] = lambda: None
    ) -> bytes | bytearray | None:
        """One frame; None where the tensor shall cross as it is. `check` is called before each
        piece and may raise, which ends it. Raises MemoryError."""
        if array.nbytes < COMPRESSED_BYTES_MIN:
            return None
        started_ns = time.perf_counter_ns()
        plain = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        check()
        try:
            if array.nbytes <= PIECE_BYTES:
                frame = self._packing.compress(plain.data)
            else:
                frame = self._compress_pieces(plain.data, check)
        except zstandard.ZstdError as error:
            _check_memory(error)
            raise
        self._spent_ns += time.perf_counter_ns() - started_ns
        return frame if len(frame) <= array.nbytes * SHARE_MAX else None

    def _compress_pieces(self, plain: memoryview, check: Callable[[], None]) -> bytearray:
        """Ends early where too much is left already."""
        packing = self._packing.compressobj(size=plain.nbytes)
        frame = bytearray()
        for start in range(0, plain.nbytes, PIECE_BYTES):
            check()
            frame += packing.compress(plain[start : start + PIECE_BYTES])
            if len(frame) > plain.nbytes * SHARE_MAX:
                return frame
        frame += packing.flush()
        return frame

    def decompress(self, frame: memoryview, meta: TensorMeta) -> Array:
        """The tensor, which may not be written to. Raises SpoiledTensor for what is not exactly one
        whole frame of it, and MemoryError."""
        nbytes = nbytes_of(meta.dtype, meta.shape)
        started_ns = time.perf_counter_ns()
        try:
            _check_head(frame, meta, nbytes)
            plain = self._unpacking.decompress(frame, allow_extra_data=False)
        except zstandard.ZstdError as error:
            _check_memory(error)
            raise _unreadable(meta, str(error)) from error
        if len(plain) != nbytes:
            raise _unreadable(meta, f"{len(plain)} bytes came out, {nbytes} were announced")
        self._spent_ns += time.perf_counter_ns() - started_ns
        return np.frombuffer(plain, NUMPY_TYPES[meta.dtype]).reshape(meta.shape)


def _check_head(frame: memoryview, meta: TensorMeta, nbytes: int) -> None:
    head = zstandard.get_frame_parameters(frame)
    if head.content_size != nbytes:
        size = head.content_size
        said = "no size" if size == zstandard.CONTENTSIZE_UNKNOWN else f"{size} bytes"
        raise _unreadable(meta, f"its frame announces {said}, its shape {nbytes} bytes")
    if head.dict_id:
        raise _unreadable(meta, f"its frame needs dictionary {head.dict_id}")
    if not head.has_checksum:
        raise _unreadable(meta, "its frame has no checksum")
    if head.window_size > max(WINDOW_BYTES_MAX, nbytes):
        raise _unreadable(meta, f"its frame refers back over {head.window_size} bytes")


def _check_memory(error: zstandard.ZstdError) -> None:
    """What the library says of its own memory says nothing of the tensor."""
    if "not enough memory" in str(error):
        raise MemoryError(str(error)) from error


def _unreadable(meta: TensorMeta, why: str) -> SpoiledTensor:
    return SpoiledTensor(
        f"input {meta.name!r} {meta.dtype} {list(meta.shape)} came compressed into {meta.nbytes} "
        f"bytes that cannot be read: {why}",
        hint="the node that made it may be of another version of DIN, or broken",
        tensor=meta.name,
    )
