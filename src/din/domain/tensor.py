"""Tensors as DIN names them: the Open Inference Protocol's datatype words, and shapes.

Knows sizes and words, never values: numpy belongs to the rooms above.
"""

from __future__ import annotations

from math import prod
from typing import Final

from msgspec import Struct

from din.errors import BadTensor

DTYPE_BYTES: Final[dict[str, int]] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
    "FP8": 1,
}
"""Bytes per element. BYTES is not here: its elements are a 4-byte little-endian length each."""

BYTES: Final = "BYTES"
ZSTD: Final = "zstd"
"""A tensor that lies in memory, or travels, as one zstd frame."""
BYTES_ELEMENTS_MAX: Final = 1_000_000
"""Elements of a BYTES tensor: each becomes an object, wherever they are looked at."""
TENSORS_MAX: Final = 1024
"""Inputs of one model or slice, and outputs: what is registered can also be asked."""
RANK_MAX: Final = 16
"""Dimensions of a tensor, wherever it comes from."""
TENSOR_ALIGNMENT_BYTES: Final = 64
"""Tensors start at multiples of this in arenas and in frame bodies (one cache line)."""

Dim = int | str | None
"""A fixed size, a symbol (same symbol = same size), or unknown."""


class TensorSpec(Struct, frozen=True):
    """What a model asks of one tensor: its name, datatype word and shape with free dims."""

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None

    def oip_shape(self) -> list[int]:
        """Shape as the Open Inference Protocol prints it: -1 for a free dim, [] if rank unknown."""
        return [dim if isinstance(dim, int) else -1 for dim in self.shape or ()]

    def shown_shape(self) -> str:
        """Shape for people: `[N, 3, ?]`, a free dim by its symbol, `[...]` if rank unknown."""
        if self.shape is None:
            return "[...]"
        return f"[{', '.join('?' if dim is None else str(dim) for dim in self.shape)}]"


class TensorMeta(Struct, frozen=True, array_like=True):
    """One concrete tensor: name, datatype word, shape, size in bytes as it lies in memory and
    travels."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    compression: str = ""
    """Empty = the bytes are the tensor's; `zstd` = they are a frame, smaller than the tensor."""


NO_SYMBOLS: Final = frozenset({"", "-1", "?", "None", "unk", "unknown"})
"""Exporters write these for "any size": two dims called so need not be equal."""
INFERRED_SYMBOL: Final = "unk__"
"""Prefix of the symbols that ONNX shape inference makes up."""


def is_symbol(text: str) -> bool:
    """Whether two dims with this name are promised to be equal."""
    return text not in NO_SYMBOLS and not text.startswith(INFERRED_SYMBOL)


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to the tensor alignment."""
    return -(-nbytes // TENSOR_ALIGNMENT_BYTES) * TENSOR_ALIGNMENT_BYTES


def offsets_of(tensors: tuple[TensorMeta, ...]) -> tuple[tuple[int, ...], int]:
    """Byte offsets of tensors laid one after the other, each aligned, and the total size."""
    offsets: list[int] = []
    end = 0
    for tensor in tensors:
        offsets.append(end)
        end -= -tensor.nbytes // TENSOR_ALIGNMENT_BYTES * TENSOR_ALIGNMENT_BYTES
    return tuple(offsets), end


def nbytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Size in bytes of a fixed-width tensor. Raises BadTensor for BYTES and unknown words."""
    width = DTYPE_BYTES.get(dtype)
    if width is None:
        raise BadTensor(
            f"datatype {dtype!r} has no fixed element size",
            hint=f"fixed-size datatypes are {', '.join(DTYPE_BYTES)}",
        )
    return width * prod(shape)


def is_sized(meta: TensorMeta) -> bool:
    """Whether there are as many bytes as dtype, shape and compression allow."""
    if meta.dtype == BYTES:
        return meta.nbytes >= 0 and not meta.compression
    width = DTYPE_BYTES.get(meta.dtype)
    if width is None or any(size < 0 for size in meta.shape):
        return False
    expected = width * prod(meta.shape)
    if meta.compression:
        return meta.compression == ZSTD and 0 < meta.nbytes < expected
    return meta.nbytes == expected


def check_tensor(spec: TensorSpec, meta: TensorMeta, symbols: dict[str, int]) -> None:
    """Hold one concrete tensor against its spec; `symbols` collects sizes bound so far.

    Raises BadTensor naming expected and actual dtype, shape or bytes.
    """
    if spec.dtype != meta.dtype:
        raise BadTensor(
            f"input {spec.name!r} is {meta.dtype} but the model takes {spec.dtype}",
            hint=f"convert the tensor to {spec.dtype} before sending it",
        )
    _check_shape(spec, meta, symbols)
    if meta.compression:
        _check_compressed(meta)
        return
    if meta.dtype == BYTES:
        return
    expected = nbytes_of(meta.dtype, meta.shape)
    if meta.nbytes != expected:
        raise BadTensor(
            f"input {spec.name!r} of shape {list(meta.shape)} {meta.dtype} needs {expected} bytes, "
            f"got {meta.nbytes}",
            hint="send row-major little-endian data without padding",
        )


def _check_compressed(meta: TensorMeta) -> None:
    if not is_sized(meta):
        raise BadTensor(
            f"input {meta.name!r} of shape {list(meta.shape)} {meta.dtype} came in {meta.nbytes} "
            f"bytes as {meta.compression!r:.40}, which cannot be",
            hint=f"what crosses may be compressed as {ZSTD!r}, into fewer bytes than the tensor "
            "has; BYTES never is",
        )


def _check_shape(spec: TensorSpec, meta: TensorMeta, symbols: dict[str, int]) -> None:
    if spec.shape is None or spec.shape == meta.shape:
        return
    fits = len(spec.shape) == len(meta.shape) and all(size >= 0 for size in meta.shape)
    if fits:
        for dim, size in zip(spec.shape, meta.shape, strict=True):
            wanted = symbols.setdefault(dim, size) if isinstance(dim, str) else dim
            fits = fits and (wanted is None or wanted == size)
    if not fits:
        raise BadTensor(
            f"input {spec.name!r} has shape {list(meta.shape)} but the model takes "
            f"{spec.shown_shape()}",
            hint=_shape_hint(spec.shape),
        )


def _shape_hint(shape: tuple[Dim, ...]) -> str:
    if all(isinstance(dim, int) for dim in shape):
        return "if the model can take other sizes, register it with `inputs` that leave dims free"
    return (
        "the same name must have the same size, '?' may have any; if the model can take others, "
        "register it with `inputs` that give the dims names of their own"
    )
