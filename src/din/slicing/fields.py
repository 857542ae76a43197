"""The fields of a protobuf message, found in its bytes without a copy of them.

What is refused here is refused by protobuf too; what is passed over it reads itself afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from din.errors import BadModel

VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = 0, 1, 2, 3, 4, 5
"""Wire types."""

SHORT_VARINT_BYTES: Final = 5
"""Of tags and lengths, which are below 2**32."""
VARINT_BYTES: Final = 10
GROUPS_DEEP_MAX: Final = 100

Field = tuple[int, int, int, int, int]
"""Number, wire type, and where the field begins, its value begins, and both end."""


def fields_of(data: memoryview, start: int, end: int) -> Iterator[Field]:
    """Every field of the message in `data[start:end]`. Raises BadModel where the form breaks."""
    at = start
    while at < end:
        first = at
        tag = data[at]
        at += 1
        if tag > 127:
            tag, at = varint(data, first, end, SHORT_VARINT_BYTES)
        kind, number = tag & 7, tag >> 3
        value = at
        if kind == BYTES and number:
            size = data[at] if at < end else 128
            value = at = at + 1
            if size > 127:
                size, value = varint(data, at - 1, end, SHORT_VARINT_BYTES)
                at = value
            at += size
            if at > end:
                raise malformed(first, f"a field of {size} bytes ends behind what holds it")
        else:
            at = _after(data, at, end, number, kind)
        yield number, kind, first, value, at


def varint(data: memoryview, at: int, end: int, bytes_max: int = VARINT_BYTES) -> tuple[int, int]:
    """A number and where it ends. Raises BadModel."""
    result = shift = 0
    stop = min(end, at + bytes_max)
    for place in range(at, stop):
        byte = data[place]
        result |= (byte & 127) << shift
        if byte < 128:
            return result, place + 1
        shift += 7
    raise malformed(at, "a number is cut off or too long")


def encoded(number: int) -> bytes:
    """A number as varint."""
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def head_of(number: int, nbytes: int) -> bytes:
    """What stands before the bytes of a field with a length."""
    return encoded(number << 3 | BYTES) + encoded(nbytes)


def malformed(at: int, what: str) -> BadModel:
    """The error for bytes that are no protobuf message."""
    return BadModel(
        f"the file is not ONNX or is damaged: at byte {at} {what}",
        hint="compare its size and SHA256 with the original; DIN reads .onnx, .tflite and .param "
        "files",
    )


def _after(data: memoryview, at: int, end: int, number: int, kind: int) -> int:
    """Where a field without a length ends; `at` is where its value begins."""
    if kind == GROUP and number:
        return _after_group(data, at, end, number)
    return _after_plain(data, at, end, number, kind)


def _after_plain(data: memoryview, at: int, end: int, number: int, kind: int) -> int:
    if number == 0:
        raise malformed(at, "a field has the number 0")
    if kind == VARINT:
        return varint(data, at, end)[1]
    if kind == BYTES:
        size, at = varint(data, at, end, SHORT_VARINT_BYTES)
        at += size
    elif kind in (FIXED32, FIXED64):
        at += 4 if kind == FIXED32 else 8
    else:
        raise malformed(at, f"a field has the wire type {kind}")
    if at > end:
        raise malformed(at, "a field ends behind what holds it")
    return at


def _after_group(data: memoryview, at: int, end: int, number: int) -> int:
    """Where a group ends: an old form of nesting, which ONNX does not use and protobuf reads."""
    open_groups = [number]
    while open_groups:
        tag, at = varint(data, at, end, SHORT_VARINT_BYTES)
        kind, number = tag & 7, tag >> 3
        if kind == GROUP and number:
            open_groups.append(number)
            if len(open_groups) > GROUPS_DEEP_MAX:
                raise malformed(at, "groups are nested too deeply")
        elif kind == GROUP_END:
            if open_groups.pop() != number:
                raise malformed(at, "a group ends that was not open")
        else:
            at = _after_plain(data, at, end, number, kind)
    return at
