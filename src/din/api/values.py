"""Tensor bytes to JSON values and back, little-endian, without numpy.

`array` and `memoryview.cast` do the work; both know ranges and refuse wrong types.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import pairwise
from math import inf, prod
from typing import Any, Final, Literal, cast

from din.domain.tensor import BYTES, BYTES_ELEMENTS_MAX, TensorMeta
from din.errors import BadTensor

_Format = Literal["B", "H", "I", "Q", "b", "h", "i", "q", "f", "d"]
FORMATS: Final[dict[str, _Format]] = {
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP32": "f",
    "FP64": "d",
}
RAW_ONLY: Final = frozenset({"FP16", "BF16", "FP8"})
"""Datatypes without a JSON form in the protocol."""
SHORTEST_COUNT_MAX: Final = 4096
"""Up to here FP32 values are printed as the shortest decimal that reads back to the same bits."""

if sys.byteorder != "little":  # pragma: no cover - no such machine is supported or at hand
    raise ImportError("tensors are little-endian and this machine is not")


def encode_values(name: str, dtype: str, shape: tuple[int, ...], data: Any) -> bytes:
    """JSON values, flat or nested like `shape`, as row-major bytes. Raises BadTensor."""
    if dtype in RAW_ONLY:
        raise BadTensor(
            f"input {name!r}: {dtype} has no JSON form",
            hint="send it as raw bytes with the binary_tensor_data extension",
        )
    flat = _flat(name, shape, data)
    if dtype == BYTES:
        return b"".join(_element(name, index, value) for index, value in enumerate(flat))
    if dtype == "BOOL":
        return _booleans(name, flat)
    code = FORMATS.get(dtype)
    if code is None:
        raise BadTensor(
            f"input {name!r} has unknown datatype {dtype!r}",
            hint=f"datatypes are BOOL, BYTES, {', '.join([*FORMATS, *sorted(RAW_ONLY)])}",
        )
    return _numbers(name, dtype, code, flat)


def _numbers(name: str, dtype: str, code: str, flat: list[Any]) -> bytes:
    try:
        numbers = array(code, flat)
    except (TypeError, OverflowError, ValueError):
        raise _bad_value(name, dtype, code, flat) from None
    if code == "f" and (inf in numbers or -inf in numbers):
        raise _bad_value(name, dtype, code, flat)
    return numbers.tobytes()


def _bad_value(name: str, dtype: str, code: str, flat: list[Any]) -> BadTensor:
    index, value = 0, None
    for index, value in enumerate(flat):  # noqa: B007 - used after the break
        try:
            single = array(code, [value])
        except (TypeError, OverflowError, ValueError):
            break
        if code == "f" and single[0] in (inf, -inf):
            break
    shown = repr(cast("object", value))[:40]
    return BadTensor(
        f"input {name!r}: element {index} is {shown}, which is no {dtype} or out of its range",
        hint="send numbers of the datatype that the request names",
    )


def _booleans(name: str, flat: list[Any]) -> bytes:
    for index, value in enumerate(flat):
        if value is not True and value is not False and value not in (0, 1):
            raise BadTensor(
                f"input {name!r}: element {index} is {value!r:.40}, which is no BOOL",
                hint="true, false, 1 and 0 are BOOL",
            )
    return bytes(map(bool, flat))


def _element(name: str, index: int, value: Any) -> bytes:
    if not isinstance(value, str):
        raise BadTensor(
            f"input {name!r}: element {index} is {value!r:.40}, but BYTES elements are strings",
            hint="send bytes that are no text with the binary_tensor_data extension",
        )
    raw = value.encode("utf-8", "surrogatepass")
    return len(raw).to_bytes(4, "little") + raw


def _flat(name: str, shape: tuple[int, ...], data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise BadTensor(
            f"input {name!r}: `data` is {type(data).__name__}, but must be a list",
            hint="give the numbers row by row, nested or flat",
        )
    level = cast("list[Any]", data)
    count = prod(shape)
    if not any(isinstance(each, list) for each in level[:1]) and len(shape) != 1:
        return _counted(name, shape, level, count)
    for depth, size in enumerate(shape):
        last = depth == len(shape) - 1
        level = _counted(name, shape, level, prod(shape[: depth + 1]))
        if last:
            break
        rows: list[Any] = []
        for row in level:
            if not isinstance(row, list) or len(cast("list[Any]", row)) != shape[depth + 1]:
                raise _ragged(name, shape, depth, size)
            rows.extend(cast("list[Any]", row))
        level = rows
    return level


def _counted(name: str, shape: tuple[int, ...], level: list[Any], count: int) -> list[Any]:
    if len(level) != count:
        raise BadTensor(
            f"input {name!r} of shape {list(shape)} needs {count} elements, got {len(level)}",
            hint="`data` is flat in row-major order, or nested exactly like the shape",
        )
    return level


def _ragged(name: str, shape: tuple[int, ...], depth: int, size: int) -> BadTensor:
    return BadTensor(
        f"input {name!r}: `data` is not nested like the shape {list(shape)} "
        f"(dimension {depth + 1} under one of {size} rows)",
        hint="`data` is flat in row-major order, or nested exactly like the shape",
    )


def decode_values(meta: TensorMeta, view: memoryview) -> list[Any]:
    """Row-major bytes as a flat list of JSON values. Raises BadTensor for datatypes without one."""
    if meta.dtype == BYTES:
        return [_text(element) for element in byte_elements(meta.name, bytes(view))]
    if meta.dtype == "BOOL":
        return [each != 0 for each in view.cast("B")]
    code = FORMATS.get(meta.dtype)
    if code is None:
        raise BadTensor(
            f"output {meta.name!r}: {meta.dtype} has no JSON form",
            hint="ask for it with the parameter binary_data: true, or leave it out of `outputs`",
        )
    if view.nbytes == 0:
        return []
    values: list[Any] = view.cast("B").cast(code).tolist()
    if code == "f" and len(values) <= SHORTEST_COUNT_MAX:
        return [shortest(each) for each in values]
    return values


def shortest(value: float) -> float:
    """The shortest decimal that is the same 32-bit float, so 0.9 prints as 0.9."""
    packed = struct.pack("f", value)
    for form in ("%.6g", "%.7g", "%.8g", "%.9g"):
        rounded = float(form % value)
        try:
            if struct.pack("f", rounded) == packed:
                return rounded
        except OverflowError:
            continue
    return value


def nested(flat: list[Any], shape: Sequence[int]) -> list[Any]:
    """A flat list folded into lists like `shape`; a zero-size dim gives empty lists."""
    level = flat
    for depth in range(len(shape) - 1, 0, -1):
        size, rows = shape[depth], prod(shape[:depth])
        level = [level[row * size : (row + 1) * size] for row in range(rows)]
    return level


def element_starts(name: str, raw: bytes) -> list[int]:
    """Where each element of a BYTES tensor begins, and at last the end. Raises BadTensor where a
    length points past the end, and for more than BYTES_ELEMENTS_MAX."""
    starts = [0]
    start, end = 0, len(raw)
    while start < end:
        size = int.from_bytes(raw[start : start + 4], "little")
        if start + 4 + size > end:
            raise BadTensor(
                f"tensor {name!r}: BYTES element {len(starts) - 1} at byte {start} claims {size} "
                f"bytes, but only {max(0, end - start - 4)} follow",
                hint="each element is a 4-byte little-endian length and then its bytes",
            )
        start += 4 + size
        starts.append(start)
        if len(starts) > BYTES_ELEMENTS_MAX + 1:
            raise BadTensor(
                f"tensor {name!r} has over {BYTES_ELEMENTS_MAX} elements, the limit of BYTES",
                hint="send fewer at once",
            )
    return starts


def byte_elements(name: str, raw: bytes) -> list[bytes]:
    """Elements of a BYTES tensor. Raises as `element_starts`."""
    starts = element_starts(name, raw)
    return [raw[start + 4 : end] for start, end in pairwise(starts)]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
