"""Backends by name: which names were probably typed wrongly.

A name that nobody knows is no error: a node that brings such an engine may join later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from typing import Final

from din.domain.foreign import is_foreign
from din.domain.forms import WHOLE
from din.domain.strategy import Fault, Strategy
from din.domain.support import ACCELERATORS, ONNXRUNTIME

KNOWN_BACKENDS: Final = frozenset(
    (ONNXRUNTIME, "mnn", *ACCELERATORS, *(each for form in WHOLE for each in form.backends))
)
NAME_CHARACTERS_MAX: Final = 80
"""Shown and compared of a name."""
UNKNOWN_TOLD_MAX: Final = 16
"""Places of names that nobody knows, told of one strategy."""


def backend_meant(name: str, known: Iterable[str]) -> str | None:
    """The known name that comes nearest, or None when none is near."""
    found = get_close_matches(name[:NAME_CHARACTERS_MAX].lower(), sorted(known), n=1, cutoff=0.6)
    return found[0] if found else None


def unknown_backends(strategy: Strategy, offered: Collection[str] = ()) -> Iterator[Fault]:
    """Where a strategy names a backend that neither DIN knows nor a node offers, with what was
    probably meant; at most UNKNOWN_TOLD_MAX."""
    known = KNOWN_BACKENDS.union(offered)
    named = ((path, name) for path, name in _named(strategy) if not is_foreign(name))
    places = [(path, name) for path, name in named if name not in known]
    for path, name in places[:UNKNOWN_TOLD_MAX]:
        meant = backend_meant(name, known)
        yield Fault(
            path,
            f"no backend is known by the name {name[:NAME_CHARACTERS_MAX]!r}",
            (f"did you mean {meant!r}? " if meant else f"known are {', '.join(sorted(known))}; ")
            + "slices for it wait until a node joins that has it",
        )


def _named(strategy: Strategy) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for key, name in strategy.backend_map.items():
        yield ("backend_map", key), name
    for index, each in enumerate(strategy.slices):
        if each.backend is not None:
            yield ("slices", index, "backend"), each.backend
