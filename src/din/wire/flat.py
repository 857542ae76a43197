"""FlatBuffers by a layout: one description of a table writes it, and reads it from strangers.

A layout names the fields of a table in the order of the schema; a field's slot is its place in it.
Reading follows no offset that was not held against the buffer, and visits at most VISITED_MAX
times as many bytes as the buffer has: offsets may point to one thing many times over. Fields that
a newer schema appended are not looked at. Knows no schema.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final, NamedTuple

from din.errors import TooLarge, UsageError

BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024
VISITED_MAX: Final = 8
TEXT_BYTES_MAX: Final = 1024 * 1024
NUMBER_MAX: Final = 1e15
"""Of a floating-point number: none that we carry comes near, and bars are drawn of them."""

_OFFSET: Final = struct.Struct("<I")
_BACK: Final = struct.Struct("<i")
_SMALL: Final = struct.Struct("<H")


class Number(NamedTuple):
    """A scalar; without a default it may be absent, which reads as None."""

    form: struct.Struct
    put: str
    """Of the library's Builder."""
    default: float | None = 0

    def write_ahead(self, _builder: Any, value: Any) -> Any:
        """Scalars lie in the table itself."""
        return value

    def write(self, builder: Any, slot: int, value: Any) -> None:
        """Into the open table."""
        getattr(builder, self.put)(slot, value, self.default)

    def read(self, table: FlatTable, slot: int) -> Any:
        """Raises UsageError for what is no number that we carry."""
        at = table.place(slot, self.form.size)
        if at is None:
            return self.default
        value = self.form.unpack_from(table.flat.view, at)[0]
        if isinstance(value, float) and not (isfinite(value) and abs(value) <= NUMBER_MAX):
            raise table.flat.damaged(f"a number is {value}", at)
        return value


class Far:
    """What lies outside of its table, which holds the offset to it; absent reads as empty."""

    def write(self, builder: Any, slot: int, value: Any) -> None:
        """Into the open table."""
        builder.PrependUOffsetTRelativeSlot(slot, value, 0)


class Text(Far):
    """UTF-8."""

    def __init__(self, *, is_required: bool = False) -> None:
        self.is_required = is_required

    def write_ahead(self, builder: Any, value: str) -> Any:
        """Raises TooLarge."""
        raw = value.encode("utf-8", "replace")
        if len(raw) > TEXT_BYTES_MAX:
            raise TooLarge(f"a text of {len(raw)} bytes; the limit is {TEXT_BYTES_MAX}")
        return builder.CreateString(raw) if raw or self.is_required else 0

    def read(self, table: FlatTable, slot: int) -> str:
        """Raises UsageError."""
        at = table.far(slot)
        if at is None:
            if self.is_required:
                raise table.flat.damaged(f"required field {slot} is not there", table.at)
            return ""
        return table.flat.text(at)


class Longs(Far):
    """A vector of 64-bit integers."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max

    def write_ahead(self, builder: Any, value: tuple[int, ...]) -> Any:
        """An empty one is left out."""
        if not value:
            return 0
        builder.StartVector(8, len(value), 8)
        for each in reversed(value):
            builder.PrependInt64(each)
        return builder.EndVector()

    def read(self, table: FlatTable, slot: int) -> tuple[int, ...]:
        """Raises UsageError."""
        at, count = table.vector(slot, 8, self.count_max)
        return struct.unpack_from(f"<{count}q", table.flat.view, at)


class Texts(Far):
    """A vector of texts."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max

    def write_ahead(self, builder: Any, value: tuple[str, ...]) -> Any:
        """An empty one is left out."""
        text = Text(is_required=True)
        return _write_offsets(builder, [text.write_ahead(builder, each) for each in value])

    def read(self, table: FlatTable, slot: int) -> tuple[str, ...]:
        """Raises UsageError."""
        return tuple(map(table.flat.text, table.offsets(slot, self.count_max)))


class Rows(Far):
    """A vector of tables of one layout, each made by `kind` of its fields."""

    def __init__(self, layout: Layout, kind: Callable[..., Any], count_max: int) -> None:
        self.layout = layout
        self.kind = kind
        self.count_max = count_max

    def write_ahead(self, builder: Any, value: tuple[Any, ...]) -> Any:
        """An empty one is left out. Raises TooLarge."""
        if len(value) > self.count_max:
            raise TooLarge(f"{len(value)} rows of one kind; the limit is {self.count_max}")
        rows = (_fields_of(each, self.layout) for each in value)
        return _write_offsets(builder, [_write_table(builder, self.layout, row) for row in rows])

    def read(self, table: FlatTable, slot: int) -> tuple[Any, ...]:
        """Raises UsageError."""
        places = table.offsets(slot, self.count_max)
        return tuple(self.kind(**FlatTable(table.flat, at).fields(self.layout)) for at in places)


class Nested(Far):
    """One table, which may be absent: its fields by name, or None."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def write_ahead(self, builder: Any, value: Any) -> Any:
        """None is left out."""
        if value is None:
            return 0
        return _write_table(builder, self.layout, _fields_of(value, self.layout))

    def read(self, table: FlatTable, slot: int) -> dict[str, Any] | None:
        """Raises UsageError."""
        at = table.far(slot)
        return None if at is None else FlatTable(table.flat, at).fields(self.layout)


Kind = Number | Text | Longs | Texts | Rows | Nested
Layout = Mapping[str, Kind]

DOUBLE: Final = Number(struct.Struct("<d"), "PrependFloat64Slot", 0.0)
DOUBLE_OR_NONE: Final = DOUBLE._replace(default=None)
INT: Final = Number(struct.Struct("<i"), "PrependInt32Slot")
UINT: Final = Number(struct.Struct("<I"), "PrependUint32Slot")
ULONG: Final = Number(struct.Struct("<Q"), "PrependUint64Slot")
BOOL: Final = Number(struct.Struct("<?"), "PrependBoolSlot", default=False)


def encode_flat(layout: Layout, fields: Mapping[str, Any], identifier: bytes) -> bytes:
    """A table with its length before it, from its fields by name. Raises TooLarge."""
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    root = _write_table(builder, layout, [fields[name] for name in layout])
    builder.FinishSizePrefixed(root, identifier)
    made = bytes(builder.Output())
    if len(made) > BUFFER_BYTES_MAX:
        raise TooLarge(f"a table of {len(made)} bytes; the limit is {BUFFER_BYTES_MAX}")
    return made


def _fields_of(value: object, layout: Layout) -> list[Any]:
    return [getattr(value, name) for name in layout]


def _write_table(builder: Any, layout: Layout, fields: list[Any]) -> Any:
    ahead = [
        kind.write_ahead(builder, each) for kind, each in zip(layout.values(), fields, strict=True)
    ]
    builder.StartObject(len(layout))
    for slot, (kind, each) in enumerate(zip(layout.values(), ahead, strict=True)):
        kind.write(builder, slot, each)
    return builder.EndObject()


def _write_offsets(builder: Any, offsets: list[Any]) -> Any:
    if not offsets:
        return 0
    builder.StartVector(4, len(offsets), 4)
    for each in reversed(offsets):
        builder.PrependUOffsetTRelative(each)
    return builder.EndVector()


class FlatReader:
    """One buffer with its length before it, of whoever."""

    def __init__(self, data: memoryview, identifier: bytes, what: str) -> None:
        """`data` may be longer than the table. Raises UsageError or TooLarge."""
        self.what = what
        self.view = data
        if len(data) < 12:
            raise self.damaged(f"it has {len(data)} bytes", 0)
        size = int(_OFFSET.unpack_from(data, 0)[0])
        if bytes(data[8:12]) != identifier:
            raise self.damaged(f"it holds {bytes(data[8:12])!r} instead of {identifier!r}", 8)
        if size > BUFFER_BYTES_MAX:
            raise TooLarge(f"{what} has a table of {size} bytes; the limit is {BUFFER_BYTES_MAX}")
        if not 8 <= size <= len(data) - 4:
            raise self.damaged(f"it says {size} bytes and has {len(data) - 4}", 0)
        self.end = 4 + size
        self.view = data[: self.end]
        self._left = VISITED_MAX * self.end

    def fields(self, layout: Layout) -> dict[str, Any]:
        """The root table's fields by name. Raises UsageError or TooLarge."""
        return FlatTable(self, self.follow(4)).fields(layout)

    def damaged(self, reason: str, at: int) -> UsageError:
        """What is wrong, and where."""
        return UsageError(
            f"{self.what} cannot be read: {reason} (at byte {at})",
            hint="it is damaged or of another kind: fetch it again from where it comes",
        )

    def check(self, at: int, nbytes: int) -> int:
        """`at`, where so many bytes are. Raises UsageError, TooLarge over the limit of visits."""
        if not 0 <= at <= self.end - nbytes:
            raise self.damaged(f"{nbytes} bytes end outside of {self.end}", at)
        self._left -= nbytes
        if self._left < 0:
            raise TooLarge(
                f"{self.what} means over {VISITED_MAX} times as much as its {self.end} bytes",
                hint="its offsets point to the same bytes again and again",
            )
        return at

    def follow(self, at: int) -> int:
        """Where the offset at `at` points. Raises UsageError."""
        return at + int(_OFFSET.unpack_from(self.view, self.check(at, 4))[0])

    def text(self, at: int) -> str:
        """The string at `at`. Raises UsageError or TooLarge."""
        nbytes = int(_OFFSET.unpack_from(self.view, self.check(at, 4))[0])
        if nbytes > TEXT_BYTES_MAX:
            raise TooLarge(f"{self.what} has a text of {nbytes} bytes, over {TEXT_BYTES_MAX}")
        raw = self.view[self.check(at + 4, nbytes + 1) :][: nbytes + 1]
        if raw[nbytes] != 0:
            raise self.damaged("a text has no end", at)
        try:
            return str(raw[:nbytes], "utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"a text is not UTF-8: {error.reason}", at + 4) from None


class FlatTable:
    """One table of a buffer."""

    def __init__(self, flat: FlatReader, at: int) -> None:
        """Raises UsageError when its bounds are not those of a table."""
        self.flat = flat
        self.at = at
        back = int(_BACK.unpack_from(flat.view, flat.check(at, 4))[0])
        self._slots_at = flat.check(at - back, 4)
        self._slots_nbytes, self._nbytes = struct.unpack_from("<HH", flat.view, self._slots_at)
        if self._slots_nbytes < 4 or self._slots_nbytes % 2 or self._nbytes < 4:
            raise flat.damaged("a table has no bounds", self._slots_at)
        flat.check(self._slots_at, self._slots_nbytes)
        flat.check(at, self._nbytes)

    def fields(self, layout: Layout) -> dict[str, Any]:
        """Every field that the layout names. Raises UsageError or TooLarge."""
        return {name: kind.read(self, slot) for slot, (name, kind) in enumerate(layout.items())}

    def place(self, slot: int, nbytes: int) -> int | None:
        """Where a field lies in the table; None = it is absent. Raises UsageError."""
        entry = 4 + 2 * slot
        if entry >= self._slots_nbytes:
            return None
        offset = int(_SMALL.unpack_from(self.flat.view, self._slots_at + entry)[0])
        if offset == 0:
            return None
        if not 4 <= offset <= self._nbytes - nbytes:
            raise self.flat.damaged(f"field {slot} lies outside of its table", self.at)
        return self.at + offset

    def far(self, slot: int) -> int | None:
        """Where the offset in a field points; None = it is absent. Raises UsageError."""
        at = self.place(slot, 4)
        return None if at is None else self.flat.follow(at)

    def vector(self, slot: int, item_nbytes: int, count_max: int) -> tuple[int, int]:
        """Where its items begin, and how many. Raises UsageError or TooLarge."""
        at = self.far(slot)
        if at is None:
            return 0, 0
        count = int(_OFFSET.unpack_from(self.flat.view, self.flat.check(at, 4))[0])
        if count > count_max:
            raise TooLarge(f"{self.flat.what} lists {count} of what may be {count_max}")
        return self.flat.check(at + 4, count * item_nbytes), count

    def offsets(self, slot: int, count_max: int) -> list[int]:
        """Where the offsets in a vector point. Raises UsageError or TooLarge."""
        at, count = self.vector(slot, 4, count_max)
        return [self.flat.follow(at + 4 * index) for index in range(count)]
