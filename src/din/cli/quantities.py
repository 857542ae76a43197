"""Spans of time and sizes as people write them: 90m, 7d, 8MiB."""

from __future__ import annotations

import re
from typing import Final

from din.errors import UsageError

_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_BYTES: Final = {
    "": 1, "b": 1, "k": 1024, "kb": 1000, "kib": 1024, "m": 1024**2, "mb": 1000**2,
    "mib": 1024**2, "g": 1024**3, "gb": 1000**3, "gib": 1024**3,
}  # fmt: skip
_QUANTITY: Final = re.compile(r"(\d{1,15})([A-Za-z]*)")


def parse_duration_s(option: str, text: str | None) -> int | None:
    """Seconds; None for None. Raises UsageError naming the option."""
    return _parse(option, text, _SECONDS, "a number with s, m, h, d or w, such as 90d")


def parse_bytes(option: str, text: str | None) -> int | None:
    """Bytes; None for None. Raises UsageError naming the option."""
    return _parse(option, text, _BYTES, "a number of bytes, or such as 512KiB, 8MiB, 1GiB")


def _parse(option: str, text: str | None, units: dict[str, int], hint: str) -> int | None:
    if text is None:
        return None
    found = _QUANTITY.fullmatch(text)
    if found is None or found[2].lower() not in units:
        raise UsageError(f"{option} is {text!r:.40}", hint=f"it is {hint}")
    return int(found[1]) * units[found[2].lower()]
