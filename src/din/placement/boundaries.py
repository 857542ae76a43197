"""What lies between the operators of a model: what crosses each boundary, and which are worth it.

Boundary b lies before operator b; 0 and the last one are the ends of the model. Inputs of the model
do not cross: the gateway sends them to whoever reads them. Outputs go to the gateway as they come.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from din.domain.cuts import CutTable, ValueFacts
from din.domain.estimates import ACTIVATIONS_FACTOR, MIB, WEIGHTS_FACTOR

Counts = npt.NDArray[np.int64]
Amounts = npt.NDArray[np.float64]
Marks = npt.NDArray[np.bool_]

BLOCKS_MAX: Final = 48
"""Blocks that are placed one by one: over 48 blocks and 100 nodes a decision takes about 1 ms."""


@dataclass(frozen=True)
class Reads:
    """Columns: which value, by which operator made, by which read."""

    value: Counts
    maker: Counts
    reader: Counts
    nbytes: Counts
    is_exact: Marks

    def across(self, assignment: Counts) -> Reads:
        """Those of one slice by another, each value once for each slice that reads it; makers and
        readers are slices."""
        maker, reader = assignment[self.maker], assignment[self.reader]
        rows = np.flatnonzero(maker != reader)
        slices = int(assignment.max(initial=0)) + 1
        rows = rows[np.unique(self.value[rows] * slices + reader[rows], return_index=True)[1]]
        return Reads(
            self.value[rows], maker[rows], reader[rows], self.nbytes[rows], self.is_exact[rows]
        )


@dataclass(frozen=True)
class Boundaries:
    """Columns over the boundaries 0..n of a model of n operators."""

    table: CutTable
    nbytes: Counts
    width: Counts
    """Values that cross."""
    is_open: Marks
    """Everything that crosses can travel, and no quantised operator is parted from its scales."""
    is_exact: Marks
    """Whether `nbytes` is no estimate."""

    @cached_property
    def flops(self) -> Counts:
        """Of each operator."""
        return np.array([each.flops for each in self.table.operators], dtype=np.int64)

    @cached_property
    def work(self) -> Counts:
        """FLOPs before each boundary."""
        return _before(self.flops)

    @cached_property
    def own_bytes(self) -> Counts:
        """Weights that each operator uses alone."""
        return np.array([each.weight_bytes for each in self.table.operators], dtype=np.int64)

    @cached_property
    def live_bytes(self) -> Counts:
        """Of values that are alive while each operator runs."""
        return np.array([each.live_bytes for each in self.table.operators], dtype=np.int64)

    @cached_property
    def weights(self) -> Counts:
        """Bytes of weights before each boundary; what is shared counts at its first use."""
        own = self.own_bytes.copy()
        for each in self.table.shared:
            own[each.readers[0]] += each.nbytes
        return _before(own)

    @cached_property
    def inputs(self) -> tuple[ValueFacts, ...]:
        """Of the model."""
        return tuple(each for each in self.table.values if each.maker < 0)

    @cached_property
    def outputs(self) -> tuple[ValueFacts, ...]:
        """Of the model."""
        return tuple(each for each in self.table.values if each.is_output)

    @cached_property
    def reads(self) -> Reads:
        """Every reading of a value that an operator made."""
        values = self.table.values
        pairs = [(n, r) for n, each in enumerate(values) if each.maker >= 0 for r in each.readers]
        value, reader = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        makers = np.array([each.maker for each in values], dtype=np.int64)
        nbytes = np.array([each.nbytes for each in values], dtype=np.int64)
        exact = np.array([each.is_exact for each in values], dtype=np.bool_)
        return Reads(value, makers[value], reader, nbytes[value], exact[value])


@dataclass(frozen=True)
class Heads:
    """A model as trunk, heads and tail; trunk or tail may be empty."""

    trunk: tuple[int, ...]
    heads: tuple[tuple[int, ...], ...]
    tail: tuple[int, ...]

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Trunk, heads, tail."""
        return (self.trunk, *self.heads, self.tail)


@dataclass(frozen=True)
class Blocks:
    """Runs of operators between chosen boundaries: what is placed as a whole."""

    boundaries: Boundaries
    edges: tuple[int, ...]
    """Boundaries, from 0 to the number of operators."""
    heads: Heads | None = None
    """Where enough work could run beside other work."""

    def __len__(self) -> int:
        return len(self.edges) - 1

    @cached_property
    def crossing(self) -> Amounts:
        """Bytes over each inner edge."""
        return self.boundaries.nbytes[list(self.edges[1:-1])].astype(np.float64)

    @cached_property
    def held_mib(self) -> Amounts:
        """Memory that the weights of each block take; shared ones count in each that uses them."""
        held = np.diff(_before(self.boundaries.own_bytes)[list(self.edges)]).astype(np.float64)
        for each in self.boundaries.table.shared:
            held[sorted({self.block_of(place) for place in each.readers})] += each.nbytes
        return held * WEIGHTS_FACTOR / MIB

    @cached_property
    def peak_mib(self) -> Amounts:
        """Memory for the values that are alive at once in each block."""
        live = self.boundaries.live_bytes
        return np.maximum.reduceat(live, self.edges[:-1]) * ACTIVATIONS_FACTOR / MIB

    def block_of(self, place: int) -> int:
        """The block that an operator is in."""
        return int(np.searchsorted(self.edges, place, side="right")) - 1

    def sums(self, amounts: Amounts) -> Amounts:
        """Sums over the blocks of amounts per operator (last axis)."""
        return np.add.reduceat(amounts, self.edges[:-1], axis=-1)


def boundaries_of(table: CutTable) -> Boundaries:
    """Sweep over all values."""
    size = len(table.operators) + 1
    nbytes, width, closed, guessed = (np.zeros(size + 1, dtype=np.int64) for _ in range(4))
    for value in table.values:
        if value.maker < 0 or not value.readers:
            continue
        start, end = value.maker + 1, value.readers[-1] + 1
        for line, amount in (
            (nbytes, value.nbytes),
            (width, 1),
            (closed, int(value.is_pair or not value.can_travel)),
            (guessed, int(not value.is_exact)),
        ):
            line[start] += amount
            line[end] -= amount
    return Boundaries(
        table,
        nbytes=np.cumsum(nbytes)[:size],
        width=np.cumsum(width)[:size],
        is_open=np.cumsum(closed)[:size] == 0,
        is_exact=np.cumsum(guessed)[:size] == 0,
    )


def blocks_of(
    boundaries: Boundaries, wanted: Collection[int] = (), blocks_max: int = BLOCKS_MAX
) -> Blocks:
    """At most `blocks_max` blocks, and those that end at the boundaries `wanted` where these are
    open. The graph is walked in equal steps of work and weights; in each the boundary with the
    fewest bytes is taken, of equal ones the narrowest, and of these the last: what is computed
    element by element stays with the operator before it, as engines compute both at once."""
    count = len(boundaries.table.operators)
    inner = np.flatnonzero(boundaries.is_open[1:count]) + 1
    steps = _steps(boundaries, blocks_max - 1)[inner]
    order = np.lexsort((-inner, boundaries.width[inner], boundaries.nbytes[inner], steps))
    first = np.unique(steps[order], return_index=True)[1]
    chosen = set(inner[order[first]].tolist())
    chosen |= {each for each in wanted if 0 < each < count and boundaries.is_open[each]}
    return Blocks(boundaries, (0, *sorted(chosen), count))


def best_cuts(boundaries: Boundaries) -> tuple[int, ...]:
    """The Pareto front: open boundaries that have fewer bytes than every earlier one. Where nothing
    is known of a size (an estimate of 0) nobody can say so."""
    found: list[int] = []
    least = None
    for place in range(1, len(boundaries.table.operators)):
        if not boundaries.is_open[place]:
            continue
        nbytes = int(boundaries.nbytes[place])
        is_known = nbytes > 0 or boundaries.is_exact[place]
        if is_known and (least is None or nbytes < least):
            found.append(place)
            least = nbytes
    return tuple(found)


def _steps(boundaries: Boundaries, count: int) -> Counts:
    """Number of the step in which each boundary lies."""
    shares = np.linspace(0.0, 1.0, len(boundaries.nbytes)) / 10
    for line, part in ((boundaries.work, 0.5), (boundaries.weights, 0.4)):
        total = float(line[-1])
        shares = shares + part * (line / total if total else np.linspace(0.0, 1.0, len(line)))
    return np.minimum((shares * count).astype(np.int64), count - 1)


def _before(amounts: Counts) -> Counts:
    return np.concatenate(([0], np.cumsum(amounts)))
