"""Names that a person may have meant."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

NAMES_SHOWN_MAX: Final = 5
CANDIDATES_MAX: Final = 50_000
COMPARED_MAX: Final = 64
"""Compared letter by letter, which is slow: those that share the most with what is wanted."""
COMPARED_CHARACTERS_MAX: Final = 256
"""Of one name, half of them from its end."""
PIECE_CHARACTERS: Final = 3
PIECES_MAX: Final = 64
"""Of the wanted name, looked for in each other."""
NAME_CHARACTERS_MAX: Final = 120
"""Shown of one name: a file may give its operators names of any length."""


def nearest(wanted: str, names: Iterable[str]) -> str:
    """The nearest names as text, quoted; the first ones when none is near."""
    candidates = list(dict.fromkeys(names))[:CANDIDATES_MAX]
    shown: dict[str, str] = {}
    for each in candidates:
        shown.setdefault(_shortened(each), each)
    short = _shortened(wanted)
    found = get_close_matches(short, _promising(short, shown), n=NAMES_SHOWN_MAX, cutoff=0.5)
    return listed([shown[each] for each in found] or candidates)


def _promising(wanted: str, names: Iterable[str]) -> list[str]:
    """The names that hold the most pieces of the wanted one; of these, those of nearest length."""
    width = min(PIECE_CHARACTERS, len(wanted))
    pieces = list({wanted[at : at + width]: None for at in range(len(wanted) - width + 1)})
    step = -(-len(pieces) // PIECES_MAX)
    sought = pieces[:: max(step, 1)]

    def likeness(name: str) -> tuple[int, int]:
        return sum(piece in name for piece in sought), -abs(len(name) - len(wanted))

    return heapq.nlargest(COMPARED_MAX, names, key=likeness)


def _shortened(name: str) -> str:
    if len(name) <= COMPARED_CHARACTERS_MAX:
        return name
    half = COMPARED_CHARACTERS_MAX // 2
    return name[:half] + name[-half:]


def listed(names: Iterable[str]) -> str:
    """Up to NAMES_SHOWN_MAX names as text, then how many more there are."""
    every = list(names)
    shown = ", ".join(map(_quoted, every[:NAMES_SHOWN_MAX]))
    more = len(every) - NAMES_SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown or "none"


def _quoted(name: str) -> str:
    is_short = len(name) <= NAME_CHARACTERS_MAX
    return repr(name) if is_short else f"{name[:NAME_CHARACTERS_MAX]!r}…"
