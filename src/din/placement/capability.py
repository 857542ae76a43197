"""What a node can, interned: nodes that can the same share one small number.

Backend, device type and labels change seldom, so they are compared once per kind of node and not
once per node: a table column holds the kind, and a wish is a lookup `fits[kind]`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from din.domain.foreign import backends_of
from din.domain.model import Slice
from din.domain.node import ZSTD_WORD, FleetNode
from din.domain.numerics import Numerics
from din.domain.probe import PROBE, PROBED
from din.domain.support import NOTHING, Engine, Needs, engines_of, runs

WISHES_CACHED_MAX: Final = 256
"""Different wishes whose answers are kept; the one not asked for longest goes first."""
KINDS_AT_START: Final = 16

Labels = frozenset[tuple[str, str]]
TRUST_LABEL: Final = "trust"
TRUSTED: Final[Labels] = frozenset(((TRUST_LABEL, "high"),))
Flags = npt.NDArray[np.bool_]


class Capability(NamedTuple):
    """The static part of a node that decides what it may run."""

    device_type: str
    backends: frozenset[str]
    labels: Labels
    takes_grants: bool = True
    """Sealed slices can be opened there."""
    engines: tuple[Engine, ...] = ()
    """The backends with their versions."""
    cpu_isa: tuple[str, ...] = ()
    """Instruction sets, sorted."""
    has_zstd: bool = True
    """Reads and writes what crosses compressed."""


class Wish(NamedTuple):
    """What a slice asks of the static part; None and the empty set ask nothing."""

    backend: str | None = None
    device_type: str | None = None
    labels: Labels = frozenset()
    is_sealed: bool = False
    needs: Needs = NOTHING
    """Operators that one backend has to run; a node without that backend lacks no operator."""
    engine: str = ""
    """That backend."""
    numerics: Numerics | None = None
    """Integers have to come out as there."""
    needs_zstd: bool = False

    def is_met_by(self, capability: Capability) -> bool:
        """Compare exactly, case included."""
        return (
            (self.backend is None or self.backend in capability.backends)
            and (self.device_type is None or self.device_type == capability.device_type)
            and self.labels <= capability.labels
            and (capability.takes_grants or not self.is_sealed)
            and (capability.has_zstd or not self.needs_zstd)
            and (self.needs is NOTHING or runs(self.needs, capability.engines, self.engine))
            and (self.numerics is None or self._is_alike(capability, self.numerics))
        )

    @staticmethod
    def _is_alike(capability: Capability, numerics: Numerics) -> bool:
        found = (capability.device_type, capability.cpu_isa)
        has_engine = numerics.engine in capability.engines
        return has_engine and found == (numerics.device_type, numerics.cpu_isa)


def capability_of(node: FleetNode) -> Capability:
    """The static part of a node."""
    profile = node.profile
    return Capability(
        profile.device_type,
        frozenset((*profile.backends, *backends_of(node.foreign))),
        frozenset(profile.labels.items()),
        node.takes_grants,
        engines_of(profile.backends, profile.versions, profile.device_type),
        tuple(sorted(profile.cpu_isa)),
        ZSTD_WORD in profile.versions,
    )


def wish_of(part: Slice) -> Wish:
    """What a slice asks. Adapters run in every worker, so they ask for no backend; probes look at
    the one that runs models."""
    backend = PROBED if part.backend == PROBE else part.backend
    return Wish(
        backend=backend if part.kind == "model" else None,
        device_type=part.device_type,
        labels=frozenset(part.labels.items()) | trust_wish(part),
        is_sealed=part.is_sealed,
        needs=part.needs,
        engine=backend,
        needs_zstd=part.compression == "zstd",
    )


def operators_wish(part: Slice) -> Wish:
    """The part of it that says what the backend has to run."""
    wish = wish_of(part)
    return Wish(needs=wish.needs, engine=wish.engine)


def trust_wish(part: Slice) -> Labels:
    """The label that a sensitive slice asks for beside its own."""
    return TRUSTED if part.is_sensitive else frozenset()


class CapabilityIndex:
    """Numbers for kinds of nodes, counted so that a kind nobody has any more is reused."""

    def __init__(self) -> None:
        self._numbers: dict[Capability, int] = {}
        self._kinds: list[Capability | None] = []
        self._users: list[int] = []
        self._free: list[int] = []
        self._fits: OrderedDict[Wish, Flags] = OrderedDict()

    def acquire(self, capability: Capability) -> int:
        """The number of a kind; each node that has it acquires it once."""
        number = self._numbers.get(capability)
        if number is None:
            number = self._assign(capability)
        self._users[number] += 1
        return number

    def release(self, number: int) -> None:
        """One node less has this kind."""
        self._users[number] -= 1
        if self._users[number] == 0:
            kind = self._kinds[number]
            assert kind is not None, f"kind {number} was released more often than acquired"
            del self._numbers[kind]
            self._kinds[number] = None
            self._free.append(number)

    def fits(self, wish: Wish) -> Flags:
        """For each number whether nodes of this kind meet the wish."""
        flags = self._fits.get(wish)
        if flags is None:
            flags = np.zeros(max(len(self._kinds), KINDS_AT_START), dtype=np.bool_)
            for number, kind in enumerate(self._kinds):
                flags[number] = kind is not None and wish.is_met_by(kind)
            self._fits[wish] = flags
            if len(self._fits) > WISHES_CACHED_MAX:
                self._fits.popitem(last=False)
        else:
            self._fits.move_to_end(wish)
        return flags

    def kinds(self) -> Iterable[Capability]:
        """Every kind that some node has."""
        return self._numbers.keys()

    def _assign(self, capability: Capability) -> int:
        if self._free:
            number = self._free.pop()
            self._kinds[number] = capability
        else:
            number = len(self._kinds)
            self._kinds.append(capability)
            self._users.append(0)
        self._numbers[capability] = number
        for wish, flags in self._fits.items():
            if number >= len(flags):
                grown = np.zeros(len(flags) * 2, dtype=np.bool_)
                grown[: len(flags)] = flags
                self._fits[wish] = flags = grown  # noqa: PLW2901 - the array that holds the answer
            flags[number] = wish.is_met_by(capability)
        return number
