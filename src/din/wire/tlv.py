"""Tag, length, value: the byte form of registration, small enough for a field bus.

    body  = entry*
    entry = tag (u8) | length (u16, big-endian) | value (length bytes)
    list  = item*          item = length (u8) | UTF-8 text

Knows nothing about nodes. Unknown tags are kept by `split` and ignored by readers, so a newer node
may say more than an older gateway understands. A tag that a reader knows may appear once only.
Integers are unsigned, big-endian and as short as their value allows (zero = one byte), so equal
values have equal bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from din.errors import TooLarge, UsageError

ENTRY_HEADER: Final = struct.Struct(">BH")
INTEGER_BYTES_MAX: Final = 8
ITEM_BYTES_MAX: Final = 255
"""Longest text inside a list: its length is one byte."""

Buffer = bytes | bytearray | memoryview


class Writer:
    """Collects entries; absent values (None, empty text, empty list) leave no entry."""

    def __init__(self, what: str, bytes_max: int) -> None:
        self._what = what
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self._sizes: dict[str, int] = {}

    def raw(self, tag: int, field: str, value: bytes, bytes_max: int) -> None:
        """Append bytes. Raises TooLarge naming the field."""
        if len(value) > bytes_max:
            raise field_too_large(self._what, field, value, len(value), bytes_max)
        self._sizes[field] = ENTRY_HEADER.size + len(value)
        self._parts.append(ENTRY_HEADER.pack(tag, len(value)) + value)

    def text(self, tag: int, field: str, value: str | None, bytes_max: int) -> None:
        """Append UTF-8 text unless it is None or empty. Raises UsageError or TooLarge."""
        if value:
            self.raw(tag, field, utf8(self._what, field, value), bytes_max)

    def integer(self, tag: int, field: str, value: int | None, value_max: int) -> None:
        """Append an unsigned integer unless it is None. Raises UsageError outside 0..value_max."""
        if value is None:
            return
        if not 0 <= value <= value_max:
            raise out_of_range(self._what, field, value, value_max)
        nbytes = max(1, (value.bit_length() + 7) // 8)
        self.raw(tag, field, value.to_bytes(nbytes, "big"), INTEGER_BYTES_MAX)

    def texts(
        self, tag: int, field: str, values: Sequence[str], count_max: int, item_bytes_max: int
    ) -> None:
        """Append a list of texts unless it is empty. Raises UsageError or TooLarge."""
        if not values:
            return
        if len(values) > count_max:
            raise too_many(self._what, field, len(values), count_max)
        items = [utf8(self._what, field, each) for each in values]
        for item in items:
            if len(item) > item_bytes_max:
                raise field_too_large(self._what, field, item, len(item), item_bytes_max)
        packed = b"".join(bytes((len(item),)) + item for item in items)
        self.raw(tag, field, packed, count_max * (item_bytes_max + 1))

    def pairs(
        self,
        tag: int,
        field: str,
        values: Mapping[str, str],
        count_max: int,
        item_bytes_max: int,
    ) -> None:
        """Append a mapping as key, value, key, value, sorted by key. Raises as `texts` does."""
        flat = [text for key in sorted(values) for text in (key, values[key])]
        self.texts(tag, field, flat, 2 * count_max, item_bytes_max)

    def body(self) -> bytes:
        """All entries. Raises TooLarge naming the three largest fields."""
        body = b"".join(self._parts)
        if len(body) <= self._bytes_max:
            return body
        largest = sorted(self._sizes.items(), key=lambda each: -each[1])[:3]
        named = ", ".join(f"{field} {nbytes}" for field, nbytes in largest)
        raise TooLarge(
            f"{self._what} takes {len(body)} bytes, the limit is {self._bytes_max}",
            hint=f"shorten what is largest (bytes): {named}",
        )


class Reader:
    """Reads the entries that its caller knows; everything else in the body is skipped."""

    def __init__(self, what: str, body: Buffer, known: Iterable[int], bytes_max: int) -> None:
        """Split the body. Raises UsageError (truncated, duplicate) or TooLarge."""
        self._what = what
        self._values = split(what, body, frozenset(known), bytes_max)

    def raw(self, tag: int, field: str, bytes_max: int) -> bytes | None:
        """Bytes, or None when absent. Raises TooLarge."""
        value = self._values.get(tag)
        if value is not None and len(value) > bytes_max:
            raise field_too_large(self._what, field, value, len(value), bytes_max)
        return value

    def text(self, tag: int, field: str, bytes_max: int) -> str | None:
        """Printable text, or None when absent. Raises UsageError or TooLarge."""
        value = self.raw(tag, field, bytes_max)
        return None if value is None else printable(self._what, field, value)

    def integer(self, tag: int, field: str, value_max: int) -> int | None:
        """An unsigned integer, or None when absent. Raises UsageError."""
        value = self.raw(tag, field, INTEGER_BYTES_MAX)
        if value is None:
            return None
        if not value:
            raise UsageError(f"{self._what}: {field} is an integer of no bytes")
        number = int.from_bytes(value, "big")
        if number > value_max:
            raise out_of_range(self._what, field, number, value_max)
        return number

    def texts(self, tag: int, field: str, count_max: int, item_bytes_max: int) -> tuple[str, ...]:
        """A list of printable texts; empty when absent. Raises UsageError or TooLarge."""
        value = self.raw(tag, field, count_max * (item_bytes_max + 1))
        found: list[str] = []
        at = 0
        while value and at < len(value):
            end = at + 1 + value[at]
            if end > len(value):
                raise truncated(self._what, field, value[at], len(value) - at - 1)
            if value[at] > item_bytes_max:
                item = value[at + 1 : end]
                raise field_too_large(self._what, field, item, len(item), item_bytes_max)
            found.append(printable(self._what, field, value[at + 1 : end]))
            at = end
        if len(found) > count_max:
            raise too_many(self._what, field, len(found), count_max)
        return tuple(found)

    def pairs(self, tag: int, field: str, count_max: int, item_bytes_max: int) -> dict[str, str]:
        """A mapping; empty when absent. Raises UsageError for a key without value or twice."""
        flat = self.texts(tag, field, 2 * count_max, item_bytes_max)
        if len(flat) % 2:
            raise UsageError(f"{self._what}: {field} has key {flat[-1]!r} without a value")
        found = dict(zip(flat[::2], flat[1::2], strict=True))
        if len(found) * 2 != len(flat):
            raise UsageError(f"{self._what}: {field} names a key twice: {flat[::2]}")
        return found


def split(what: str, body: Buffer, known: frozenset[int], bytes_max: int) -> dict[int, bytes]:
    """Values by tag, unknown tags included (last one wins). Raises UsageError or TooLarge."""
    if len(body) > bytes_max:
        raise TooLarge(f"{what} takes {len(body)} bytes, the limit is {bytes_max}")
    view = memoryview(body)
    values: dict[int, bytes] = {}
    at = 0
    while at < len(view):
        if len(view) - at < ENTRY_HEADER.size:
            raise truncated(what, "entry header", ENTRY_HEADER.size, len(view) - at)
        tag, length = ENTRY_HEADER.unpack_from(view, at)
        at += ENTRY_HEADER.size
        if length > len(view) - at:
            raise truncated(what, f"tag {tag}", length, len(view) - at)
        if tag in known and tag in values:
            raise UsageError(f"{what} holds tag {tag} twice")
        values[tag] = bytes(view[at : at + length])
        at += length
    return values


def utf8(what: str, field: str, value: str) -> bytes:
    """Encode checked text. Raises UsageError for control characters or lone surrogates."""
    if not value.isprintable():
        raise UsageError(f"{what}: {field} {value!r} holds characters that cannot be printed")
    return value.encode()


def printable(what: str, field: str, value: bytes) -> str:
    """Decode and check text. Raises UsageError."""
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{what}: {field} {value[:40]!r} is not UTF-8 ({error.reason})") from None
    if not text.isprintable():
        raise UsageError(f"{what}: {field} {text[:40]!r} holds characters that cannot be printed")
    return text


def truncated(what: str, field: str, announced: int, left: int) -> UsageError:
    """The error for a length that points past the end."""
    return UsageError(
        f"{what} ends early: {field} announces {announced} bytes, {left} are left",
        hint="the body was cut on its way, or a length is wrong",
    )


def field_too_large(what: str, field: str, value: bytes, nbytes: int, bytes_max: int) -> TooLarge:
    """The error for one field over its limit."""
    shown = value[:24].decode(errors="replace")
    return TooLarge(f"{what}: {field} {shown!r} takes {nbytes} bytes, the limit is {bytes_max}")


def too_many(what: str, field: str, count: int, count_max: int) -> TooLarge:
    """The error for a list over its limit."""
    return TooLarge(f"{what}: {field} holds {count} entries, the limit is {count_max}")


def out_of_range(what: str, field: str, value: int, value_max: int) -> UsageError:
    """The error for an integer outside its range."""
    return UsageError(f"{what}: {field} {value} is outside 0..{value_max}")
