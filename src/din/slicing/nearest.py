"""Names that a person may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

NAMES_SHOWN_MAX: Final = 5
CANDIDATES_MAX: Final = 50_000
NAME_CHARACTERS_MAX: Final = 120
"""Shown of one name: a file may give its operators names of any length."""


def nearest(wanted: str, names: Iterable[str]) -> str:
    """The nearest names as text, quoted; the first ones when none is near."""
    candidates = list(dict.fromkeys(names))[:CANDIDATES_MAX]
    found = get_close_matches(wanted, candidates, n=NAMES_SHOWN_MAX, cutoff=0.5)
    return listed(found or candidates)


def listed(names: Iterable[str]) -> str:
    """Up to NAMES_SHOWN_MAX names as text, then how many more there are."""
    every = list(names)
    shown = ", ".join(map(_quoted, every[:NAMES_SHOWN_MAX]))
    more = len(every) - NAMES_SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown or "none"


def _quoted(name: str) -> str:
    is_short = len(name) <= NAME_CHARACTERS_MAX
    return repr(name) if is_short else f"{name[:NAME_CHARACTERS_MAX]!r}…"
