"""A model as a chain of blocks on nodes: the cheapest way through, exact.

    f[i, k] = min over j of f[i-1, j] + hop[j, k] + crossing[i] x per_byte[j, k] + cost[i, k]

A node may come again later in the chain. Two consecutive blocks on one node are one slice. Limits
are left aside here: see `din.placement.limited`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from din.domain.estimates import SLICE_BASE_MIB

Matrix = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

FINITE_MAX: Final = float(np.finfo(np.float64).max)
ROUNDING: Final = 1e-9
"""Share by which sums of the same numbers in another order may differ."""


@dataclass(frozen=True)
class Chain:
    """The problem, in any unit of cost. Rows are blocks, columns nodes."""

    cost: Matrix
    """Of each block on each node; infinite where it may not lie."""
    crossing: Matrix
    """Bytes from each block to the next: one fewer than there are blocks."""
    hop: Matrix
    """What a transfer costs by itself, node by node; 0 on the diagonal."""
    per_byte: Matrix
    """What each byte adds; 0 on the diagonal."""
    enter: Matrix
    """For the inputs to reach each node."""
    leave: Matrix
    """For the outputs to come back from each node."""
    held_mib: Matrix
    """Memory of each block's weights."""
    peak_mib: Matrix
    """Memory of each block's values: of a slice the largest counts."""
    room_mib: Matrix
    """Memory of each node."""
    slices_max: int
    shares: Matrix | None = None
    """Of processors, see `din.placement.sharing`; None = every node has its own."""

    @property
    def blocks(self) -> int:
        """How many blocks."""
        return self.cost.shape[0]

    @property
    def nodes(self) -> int:
        """How many nodes."""
        return self.cost.shape[1]

    def step(self, block: int) -> Matrix:
        """Cost of going from each node to each node between a block and the next."""
        return self.hop + self.per_byte * self.crossing[block]

    def only(self, nodes: Numbers) -> Chain:
        """The same with these nodes alone."""
        square = np.ix_(nodes, nodes)
        return replace(
            self,
            cost=self.cost[:, nodes],
            hop=self.hop[square],
            per_byte=self.per_byte[square],
            enter=self.enter[nodes],
            leave=self.leave[nodes],
            room_mib=self.room_mib[nodes],
            shares=None if self.shares is None else self.shares[square],
        )


@dataclass(frozen=True)
class Way:
    """Which node takes each block."""

    nodes: tuple[int, ...]
    cost: float
    is_exact: bool


def runs_of(nodes: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Slices of a way: (first block, one after its last block, node)."""
    edges = [0, *(i for i in range(1, len(nodes)) if nodes[i] != nodes[i - 1]), len(nodes)]
    return [(start, end, nodes[start]) for start, end in pairwise(edges)]


def memory_of(chain: Chain, nodes: tuple[int, ...]) -> dict[int, float]:
    """MiB that each node would hold, all its slices together."""
    held: dict[int, float] = {}
    for start, end, node in runs_of(nodes):
        slice_mib = chain.held_mib[start:end].sum() + chain.peak_mib[start:end].max()
        held[node] = held.get(node, 0.0) + SLICE_BASE_MIB + float(slice_mib)
    return held


def is_within(chain: Chain, nodes: tuple[int, ...]) -> bool:
    """Whether a way keeps the limits."""
    if len(runs_of(nodes)) > chain.slices_max:
        return False
    return all(mib <= chain.room_mib[node] for node, mib in memory_of(chain, nodes).items())


def alone(chain: Chain) -> Way | None:
    """The best node by itself; None when none may and can hold everything."""
    needed = SLICE_BASE_MIB + chain.held_mib.sum() + chain.peak_mib.max()
    totals = chain.enter + chain.cost.sum(axis=0) + chain.leave
    totals = np.where(chain.room_mib >= needed, totals, np.inf)
    best = int(totals.argmin())
    if not np.isfinite(totals[best]):
        return None
    return Way((best,) * chain.blocks, float(totals[best]), is_exact=True)


def unlimited(chain: Chain) -> Way | None:
    """The limits left aside. Only nodes are gone on from at which a way could be that is cheaper
    than one node alone: at the others even the least of all nodes for each block to come costs as
    much."""
    columns = np.arange(chain.nodes)
    totals = chain.enter + chain.cost.sum(axis=0) + chain.leave
    best = int(totals.argmin())
    whole = None
    if np.isfinite(totals[best]):
        whole = Way((best,) * chain.blocks, float(totals[best]), is_exact=True)
    limit = FINITE_MAX if whole is None else whole.cost * (1 - ROUNDING)
    ahead = np.cumsum(chain.cost.min(axis=1)[::-1])[::-1] + chain.leave.min()
    spent = chain.enter + chain.cost[0]
    came: list[Numbers] = []
    for block in range(1, chain.blocks):
        live = np.flatnonzero(spent + ahead[block] < limit)
        if not len(live):
            return whole
        step = chain.hop[live] + chain.per_byte[live] * chain.crossing[block - 1]
        moved = spent[live, None] + step
        before = moved.argmin(axis=0)
        spent = moved[before, columns] + chain.cost[block]
        came.append(live[before])
    spent = spent + chain.leave
    node = int(spent.argmin())
    if not spent[node] < limit:
        return whole
    nodes = [node]
    for before in reversed(came):
        nodes.append(int(before[nodes[-1]]))
    return Way(tuple(reversed(nodes)), float(spent[node]), is_exact=True)
