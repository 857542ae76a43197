"""What an inference engine said of itself on a node, or why it cannot be used there."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

DEVICES_MAX: Final = 16
WORDS_CHARACTERS_MAX: Final = 400
"""Of a reason or a hint."""


class EngineFacts(Struct, frozen=True, kw_only=True):
    """One backend of a node, as a process of its own found it."""

    backend: str
    version: str = ""
    """Of the library; "" = it was not asked."""
    devices: tuple[str, ...] = ()
    """Devices or execution providers that the library says it has, in its own words."""
    trouble: str = ""
    """Why no slice can run with it here; "" = one can."""
    hint: str = ""
    """What to do about that."""

    @property
    def is_usable(self) -> bool:
        """Slices can be placed on it."""
        return not self.trouble

    def __str__(self) -> str:
        """One line for people."""
        name = f"{self.backend} {self.version}".strip()
        if self.trouble:
            return f"{name}: {self.trouble}"
        return f"{name} ({', '.join(self.devices)})" if self.devices else name


def bounded(text: str) -> str:
    """Words of a library in one printable line of bounded length."""
    line = "".join(each if each.isprintable() else " " for each in text)
    line = " ".join(line.split())
    return line if len(line) <= WORDS_CHARACTERS_MAX else line[: WORDS_CHARACTERS_MAX - 1] + "…"
