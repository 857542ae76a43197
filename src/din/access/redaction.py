"""What may be written down of a change, bounded, and what may be said: both without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

TEXT_CHARACTERS_MAX: Final = 256
ITEMS_MAX: Final = 32
DEPTH_MAX: Final = 6
HIDDEN: Final = "[hidden]"

_SECRET_NAME: Final = re.compile(
    r"(?i)secret|token(?!_id)|passw|authorization|api.?key|private|csr|^key$"
)
_SECRET_TEXT: Final = re.compile(
    r"(din_[0-9a-f]{8}|DIN1\.[0-9a-fA-F]{8,64}\.[0-9a-f]{8})\.[A-Za-z0-9_-]{16,}"
    r"|-----BEGIN[^-]{0,40}PRIVATE KEY-----.*",
    re.DOTALL,
)


def redacted(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as the audit log keeps them. A key or token keeps its id and loses its secret."""
    return {
        str(name)[:TEXT_CHARACTERS_MAX]: HIDDEN
        if _SECRET_NAME.search(str(name)) and value
        else _value(value, 1)
        for name, value in list(facts.items())[:ITEMS_MAX]
    }


def without_secrets(text: str) -> str:
    """A text in which keys and tokens have lost their secrets."""
    return _SECRET_TEXT.sub(lambda found: f"{found.group(1) or ''}.{HIDDEN}", text)


def redacted_text(text: str) -> str:
    """One text without secrets, cut where it is too long."""
    shown = without_secrets(text)
    return shown if len(shown) <= TEXT_CHARACTERS_MAX else shown[:TEXT_CHARACTERS_MAX] + "…"


def _value(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return redacted_text(value)
    if depth >= DEPTH_MAX:
        return "…"
    if isinstance(value, Mapping):
        named = cast("Mapping[str, Any]", value)
        return {
            str(name)[:TEXT_CHARACTERS_MAX]: HIDDEN
            if _SECRET_NAME.search(str(name)) and each
            else _value(each, depth + 1)
            for name, each in list(named.items())[:ITEMS_MAX]
        }
    if isinstance(value, list | tuple | set | frozenset):
        items = list(cast("list[Any]", value))
        return [_value(each, depth + 1) for each in items[:ITEMS_MAX]]
    return redacted_text(str(value))
