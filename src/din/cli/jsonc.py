"""JSON with `//` and `/* */` comments and trailing commas, as the seeds write their strategies.

Remembers where each value stands, so that a complaint about its meaning can name line and column.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from math import isinf
from typing import Final, NamedTuple

from din.errors import UsageError

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
DEPTH_MAX: Final = 64

Path = tuple[str | int, ...]
"""Keys and positions from the top of a document to a value."""

_BLANK: Final = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_WORD: Final = re.compile(r"[-\w.]+")
_WORDS: Final[dict[str, object]] = {"true": True, "false": False, "null": None}
_FORM: Final = "comments and trailing commas are allowed; names and text need double quotes"


class Spot(NamedTuple):
    """Where a value stands, and its key where it has one: offsets into the text."""

    value: int
    key: int


class Document:
    """What a text holds, and where."""

    def __init__(self, value: object, where: str, text: str, spots: dict[Path, Spot]) -> None:
        self.value = value
        self.where = where
        self._spots = spots
        self._lines = _line_starts(text)

    def __contains__(self, path: Path) -> bool:
        return path in self._spots

    def at(self, path: Path, *, is_key: bool = False) -> str:
        """`file:line:column` of a value or its key; of what is around it when it is not there."""
        while path not in self._spots:
            path, is_key = path[:-1], False
        spot = self._spots[path]
        return _place(self.where, self._lines, spot.key if is_key else spot.value)


def parse_jsonc(text: str, where: str) -> object:
    """The value that a text holds. Raises UsageError with line and column."""
    return read_jsonc(text, where).value


def read_jsonc(text: str, where: str) -> Document:
    """The value that a text holds, with places. Raises UsageError with line and column."""
    if len(text) > FILE_BYTES_MAX:
        raise UsageError(
            f"{where} has {len(text)} characters; the limit is {FILE_BYTES_MAX}",
            hint="a configuration is a few lines; is it the model itself?",
        )
    reader = _Reader(text)
    try:
        value = reader.whole()
    except _Wrong as error:
        place = _place(where, _line_starts(text), error.offset)
        raise UsageError(f"{place}: {error.message}", hint=error.hint) from None
    return Document(value, where, text, reader.spots)


class _Wrong(Exception):
    def __init__(self, offset: int, message: str, hint: str = _FORM) -> None:
        super().__init__(message)
        self.offset = offset
        self.message = message
        self.hint = hint


class _Reader:
    """Reads one value from the front of a text to its end."""

    def __init__(self, text: str) -> None:
        self.spots: dict[Path, Spot] = {}
        self._text = text
        self._at = 1 if text.startswith("\ufeff") else 0

    def whole(self) -> object:
        value = self._value((), None)
        self._skip()
        if self._at < len(self._text):
            raise self._unexpected("the end of the file")
        return value

    def _value(self, path: Path, key: int | None) -> object:
        if len(path) > DEPTH_MAX:
            raise _Wrong(self._at, f"more than {DEPTH_MAX} levels are nested too deeply")
        self._skip()
        start = self._at
        self.spots[path] = Spot(start, start if key is None else key)
        sign = self._text[start : start + 1]
        if sign == "{":
            return self._object(path)
        if sign == "[":
            return self._array(path)
        if sign == '"':
            return self._string()
        number = _NUMBER.match(self._text, start)
        word = _WORD.match(self._text, start)
        if number is not None and word is not None and number.end() == word.end():
            self._at = number.end()
            return _number(number, start)
        if word is None:
            raise self._unexpected("a value")
        if word.group() not in _WORDS:
            raise _Wrong(start, f"{word.group()} is no JSON value")
        self._at = word.end()
        return _WORDS[word.group()]

    def _object(self, path: Path) -> dict[str, object]:
        found: dict[str, object] = {}
        self._at += 1
        while not self._ends("}", found):
            key_at = self._at
            if self._text[key_at : key_at + 1] != '"':
                raise self._unexpected("a name in double quotes")
            key = self._string()
            if key in found:
                raise _Wrong(key_at, f"key {key!r} is given twice", "leave one of them out")
            self._skip()
            if self._text[self._at : self._at + 1] != ":":
                raise self._unexpected(f"':' after {key!r}")
            self._at += 1
            found[key] = self._value((*path, key), key_at)
        return found

    def _array(self, path: Path) -> list[object]:
        found: list[object] = []
        self._at += 1
        while not self._ends("]", found):
            found.append(self._value((*path, len(found)), None))
        return found

    def _ends(self, sign: str, found: dict[str, object] | list[object]) -> bool:
        """Whether the container ends here; else stands on its next entry."""
        self._skip()
        if found and self._text[self._at : self._at + 1] not in (",", sign):
            raise self._unexpected(f"',' or '{sign}'")
        if found and self._text[self._at] == ",":
            self._at += 1
            self._skip()
        if self._text[self._at : self._at + 1] != sign:
            return False
        self._at += 1
        return True

    def _string(self) -> str:
        found = _STRING.match(self._text, self._at)
        if found is None:
            raise _Wrong(self._at, "the text has no closing quote on its line")
        try:
            value: str = json.loads(found.group())
        except json.JSONDecodeError as error:
            what = error.msg[:1].lower() + error.msg[1:]
            raise _Wrong(
                self._at + error.pos, what, "write \\\\ for a backslash, \\n for a new line"
            ) from None
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = value[error.start : error.end][:1].encode("unicode_escape").decode()
            raise _Wrong(
                self._at,
                f"the text holds half a character, {half}",
                "write the character itself, or both halves of it",
            ) from None
        self._at = found.end()
        return value

    def _skip(self) -> None:
        found = _BLANK.match(self._text, self._at)
        self._at = found.end() if found is not None else self._at
        if self._text.startswith("/*", self._at):
            raise _Wrong(self._at, "the comment has no end", "end it with */")

    def _unexpected(self, wanted: str) -> _Wrong:
        seen = self._text[self._at : self._at + 1]
        before = repr(seen) if seen else "the end of the file"
        hint = "comments begin with // or stand between /* and */" if seen == "#" else _FORM
        return _Wrong(self._at, f"{wanted} is missing before {before}", hint)


def _number(found: re.Match[str], start: int) -> int | float:
    text = found.group()
    if found.group(1) or found.group(2):
        if isinf(float(text)):
            raise _Wrong(start, f"{text:.20} is too large for a number")
        return float(text)
    try:
        return int(text)
    except ValueError:  # Python refuses to convert thousands of digits
        raise _Wrong(start, f"a number of {len(text)} digits is too long") from None


def _line_starts(text: str) -> list[int]:
    return [0, *(found.end() for found in re.finditer("\n", text))]


def _place(where: str, lines: list[int], offset: int) -> str:
    line = bisect_right(lines, offset)
    return f"{where}:{line}:{offset - lines[line - 1] + 1}"
