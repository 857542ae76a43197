"""Tensors in the arena as numpy arrays, and back. Knows layouts, not models."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from math import prod

import numpy as np

from din.backends.contract import NUMPY_TYPES, Array
from din.domain.tensor import BYTES, BYTES_ELEMENTS_MAX, RANK_MAX, TensorMeta, TensorSpec
from din.errors import BadTensor, ExecutionFailed, TooLarge


def array_at(memory: memoryview, meta: TensorMeta, offset: int) -> Array:
    """A view of a fixed-width tensor, or the decoded elements of a BYTES tensor.

    Raises BadTensor for BYTES whose lengths do not add up.
    """
    if meta.dtype == BYTES:
        return decode_bytes_tensor(memory[offset : offset + meta.nbytes], meta)
    dtype = NUMPY_TYPES[meta.dtype]
    if meta.nbytes == 0:
        return np.empty(meta.shape, dtype)
    return np.ndarray(meta.shape, dtype, memory, offset)


def decode_bytes_tensor(data: memoryview, meta: TensorMeta) -> Array:
    """Object array of `bytes` from 4-byte little-endian lengths and bytes. Raises BadTensor."""
    count = prod(meta.shape)
    if count > BYTES_ELEMENTS_MAX:
        raise BadTensor(
            f"tensor {meta.name!r} has {count} elements",
            hint=f"a BYTES tensor has at most {BYTES_ELEMENTS_MAX}",
        )
    elements = np.empty(count, np.object_)
    end = 0
    for position in range(count):
        start = end + 4
        if start > len(data):
            raise _short(meta, position, count)
        end = start + int.from_bytes(data[start - 4 : start], "little")
        if end > len(data):
            raise _short(meta, position, count)
        elements[position] = bytes(data[start:end])
    if end != len(data):
        raise BadTensor(
            f"tensor {meta.name!r} has {len(data) - end} bytes after its {count} elements",
            hint="each element is a 4-byte little-endian length and that many bytes",
        )
    return elements.reshape(meta.shape)


def encode_bytes_tensor(array: Array) -> bytes:
    """The wire form of an object array of `bytes`."""
    parts: list[bytes] = []
    for element in array.reshape(-1):
        parts.append(struct.pack("<I", len(element)))
        parts.append(element)
    return b"".join(parts)


def resolved_shape(spec: TensorSpec, symbols: Mapping[str, int]) -> tuple[int, ...] | None:
    """The shape of an output when the sizes of the inputs tell it."""
    if spec.shape is None:
        return None
    shape: list[int] = []
    for dim in spec.shape:
        size = symbols.get(dim) if isinstance(dim, str) else dim
        if size is None:
            return None
        shape.append(size)
    return tuple(shape)


def check_output(spec: TensorSpec, array: Array) -> None:
    """Raises ExecutionFailed when an engine or adapter breaks its own word about a dtype, TooLarge
    for what no answer carries: the values of the inputs may make it so."""
    if array.ndim > RANK_MAX:
        raise TooLarge(
            f"output {spec.name!r} came out with {array.ndim} dimensions; the limit is {RANK_MAX}"
        )
    if spec.dtype == BYTES and array.size > BYTES_ELEMENTS_MAX:
        raise TooLarge(
            f"output {spec.name!r} came out with {array.size} elements; a BYTES tensor has at "
            f"most {BYTES_ELEMENTS_MAX}"
        )
    wanted = np.dtype(np.object_) if spec.dtype == BYTES else NUMPY_TYPES[spec.dtype]
    if array.dtype != wanted:
        raise ExecutionFailed(
            f"output {spec.name!r} came out as {array.dtype}, but {spec.dtype} was declared"
        )


def _short(meta: TensorMeta, position: int, count: int) -> BadTensor:
    return BadTensor(
        f"tensor {meta.name!r} ends inside element {position} of {count}",
        hint="each element is a 4-byte little-endian length and that many bytes",
    )
