"""Which weights lie together in one file: those that the same slices use.

What two slices share is stored and fetched once. A file of the model that every slice needs nearly
whole serves as it is and is not written again; other slices it would show what is not their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from din.slicing.weights import Place

ALIGNMENT_BYTES: Final = 64
PACKS_MAX: Final = 16
"""Of one slice, files that serve as they are not counted."""
AS_IS_MAX: Final = 8
AS_IS_SHARE: Final = 0.9
"""Of a file's bytes that must be weights, for it to serve as it is."""

Users = tuple[int, ...]
"""Indexes of slices, rising."""


@dataclass(frozen=True)
class Pack:
    """One file of weights: where each begins in it, in this order."""

    users: Users
    offsets: Mapping[Place, int]
    nbytes: int
    as_is: str | None = None
    """The file that serves as this pack."""


@dataclass(frozen=True)
class Written:
    """A pack as it is stored: its name, and the SHA256 of each weight in it."""

    sha256: str
    digests: Mapping[Place, bytes] = field(repr=False)


class PackWriter(Protocol):
    """Stores packs."""

    def __call__(self, pack: Pack) -> Written:
        """Read every weight once; write what does not serve as it is. Raises DinError."""
        ...


def packs_of(uses: Sequence[Iterable[Place]], file_bytes: Mapping[str, int]) -> tuple[Pack, ...]:
    """Packs for what each slice uses. `file_bytes`: sizes of files that may serve as they are."""
    users: dict[Place, list[int]] = {}
    for index, used in enumerate(uses):
        for place in dict.fromkeys(used):
            users.setdefault(place, []).append(index)
    groups: dict[Users, list[Place]] = {}
    for place, indexes in users.items():
        groups.setdefault(tuple(indexes), []).append(place)
    packs = _as_is(groups.get(tuple(range(len(uses))), []), file_bytes, len(uses))
    for pack in packs:
        groups[pack.users] = [each for each in groups[pack.users] if each.file != pack.as_is]
    return (*packs, *(_laid_out(*each) for each in _few(groups) if each[1]))


def _as_is(needed: Sequence[Place], file_bytes: Mapping[str, int], slices: int) -> list[Pack]:
    """Of the weights that all slices need."""
    packs: list[Pack] = []
    for file, nbytes in file_bytes.items():
        offsets = {place: place.offset for place in needed if place.file == file}
        is_worth = sum(place.nbytes for place in offsets) >= AS_IS_SHARE * nbytes
        if offsets and is_worth and len(packs) < AS_IS_MAX:
            packs.append(Pack(tuple(range(slices)), offsets, nbytes, as_is=file))
    return packs


def _few(groups: Mapping[Users, list[Place]]) -> list[tuple[Users, list[Place]]]:
    """The groups, with the smallest of the shared ones made one so that no slice has too many."""
    kept: dict[Users, list[Place]] = {}
    rest: list[Users] = []
    count: Counter[int] = Counter()
    by_size = sorted(groups, key=lambda users: -sum(each.nbytes for each in groups[users]))
    for users in by_size:
        if len(users) > 1 and any(count[each] >= PACKS_MAX - 2 for each in users):
            rest.append(users)
            continue
        kept[users] = groups[users]
        count.update(users if len(users) > 1 else ())
    found = [(users, places) for users, places in groups.items() if users in kept]
    if rest:
        together = tuple(sorted({each for users in rest for each in users}))
        places = [place for users in groups if users in rest for place in groups[users]]
        found.append((together, places))
    return found


def _laid_out(users: Users, places: Iterable[Place]) -> Pack:
    offsets: dict[Place, int] = {}
    end = 0
    for place in places:
        start = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        offsets[place] = start
        end = start + place.nbytes
    return Pack(users, offsets, end)
