"""FlatBuffers read from a stranger's file: each step is held against the end of the file, so that
nothing is read beside it and a table that is its own child ends nothing but this reading."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from din.errors import BadModel, TooLarge

ELEMENTS_MAX: Final = 100_000
"""Of one list of tables or texts."""
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")


class Table:
    """One table, fields by their number in the schema. All calls raise BadModel for what lies
    outside of the file."""

    def __init__(self, data: memoryview, at: int) -> None:
        """At this byte; `root_of` finds the first."""
        self._data, self._at = data, at
        self._fields = at - _read(_I32, data, at)
        self._size = _read(_U16, data, self._fields)

    def number(self, field: int, form: str, otherwise: int = 0) -> int:
        """A number in the form of `struct`."""
        place = self._place(field)
        return otherwise if place is None else _read(struct.Struct(f"<{form}"), self._data, place)

    def table(self, field: int) -> Table | None:
        """A table within this one."""
        place = self._place(field)
        return None if place is None else Table(self._data, self._led_to(place))

    def text(self, field: int) -> str:
        """A text; empty where there is none."""
        start, count = self._list(field, 1)
        try:
            return str(self._data[start : start + count], "utf-8")
        except UnicodeDecodeError as error:
            raise BadModel(f"a name in the file is not UTF-8: {error.reason}") from None

    def numbers(self, field: int, form: str = "i") -> tuple[int, ...]:
        """A list of numbers."""
        size = struct.calcsize(f"<{form}")
        start, count = self._list(field, size)
        if count > ELEMENTS_MAX:
            raise _too_many(count)
        return struct.unpack_from(f"<{count}{form}", self._data, start)

    def length(self, field: int) -> int:
        """How many bytes a list of bytes holds."""
        return self._list(field, 1)[1]

    def tables(self, field: int) -> Iterator[Table]:
        """A list of tables. Raises TooLarge for more than ELEMENTS_MAX."""
        start, count = self._list(field, 4)
        if count > ELEMENTS_MAX:
            raise _too_many(count)
        for place in range(start, start + 4 * count, 4):
            yield Table(self._data, self._led_to(place))

    def _place(self, field: int) -> int | None:
        slot = 4 + 2 * field
        if slot + 2 > self._size:
            return None
        offset = _read(_U16, self._data, self._fields + slot)
        return self._at + offset if offset else None

    def _led_to(self, place: int) -> int:
        return place + _read(_U32, self._data, place)

    def _list(self, field: int, element_bytes: int) -> tuple[int, int]:
        """Where a list begins, and how many it holds."""
        place = self._place(field)
        if place is None:
            return 0, 0
        start = self._led_to(place)
        count = _read(_U32, self._data, start)
        if start + 4 + count * element_bytes > len(self._data):
            raise BadModel(
                f"the file is damaged: a list of {count} at byte {start} ends behind its end",
                hint="compare its size and SHA256 with the original",
            )
        return start + 4, count


def root_of(data: memoryview) -> Table:
    """The outermost table of a file. Raises BadModel."""
    return Table(data, _read(_U32, data, 0))


def _read(form: struct.Struct, data: memoryview, at: int) -> int:
    if not 0 <= at <= len(data) - form.size:
        raise BadModel(
            f"the file is damaged: it leads to byte {at} of {len(data)}",
            hint="compare its size and SHA256 with the original",
        )
    return int(form.unpack_from(data, at)[0])


def _too_many(count: int) -> TooLarge:
    return TooLarge(
        f"a list in the file has {count} elements, more than {ELEMENTS_MAX}",
        hint="the file may be damaged; compare its SHA256 with the original",
    )
