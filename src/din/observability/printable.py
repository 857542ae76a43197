"""Text that came from elsewhere, on its way to people: it steers no terminal and forges no line."""

from __future__ import annotations

import re
from typing import Final

SAID_CHARACTERS_MAX: Final = 1_000
_IN_JSON: Final = re.compile(r"[^\x20-\x7e\n]")


def printable(text: str) -> str:
    """The same lines, without what would steer a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each in "\n\t" else _visible(each) for each in text)


def one_line(text: str, characters_max: int | None = None) -> str:
    """The same without ends of lines, which stay visible, and cut where it is too long."""
    if characters_max is not None and len(text) > characters_max:
        text = text[:characters_max] + "…"
    return text if text.isprintable() else "".join(map(_visible, text))


def printable_json(document: str) -> str:
    """The same document: what would steer a terminal is written with the escapes of JSON."""
    return _IN_JSON.sub(lambda found: _escaped(found[0]), document)


def _visible(character: str) -> str:
    return character if character.isprintable() else f"\\x{ord(character):02x}"


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
