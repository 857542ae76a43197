"""A model as a chain of blocks on nodes: the cheapest way through, exact.

    f[i, k] = min over j of f[i-1, j] + hop[j, k] + crossing[i] x per_byte[j, k] + cost[i, k]

A node may come again later in the chain. Two consecutive blocks on one node are one slice. Limits -
memory of a node over all its slices, number of slices - make a state of more than a node: then
partial ways are kept as labels, and dropped only when another is no worse in everything.
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

LABELS_MAX: Final = 256
"""Partial ways that are followed at once under limits; when it bites, the answer is not exact."""
LABELLED_NODES_MAX: Final = 24
"""Nodes that are looked at under limits."""


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


def cheapest(chain: Chain) -> Way | None:
    """The cheapest way within the limits; None when there is none (or, not exact, none found)."""
    way = _unlimited(chain)
    if way is None or is_within(chain, way.nodes):
        return way
    kept = _promising(chain)
    if len(kept) == chain.nodes:
        return _labelled(chain)
    found = _labelled(chain.only(kept))
    if found is None:
        return None
    return Way(tuple(kept[list(found.nodes)].tolist()), found.cost, is_exact=False)


def _unlimited(chain: Chain) -> Way | None:
    columns = np.arange(chain.nodes)
    spent = chain.enter + chain.cost[0]
    came: list[Numbers] = []
    for block in range(1, chain.blocks):
        moved = spent[:, None] + chain.step(block - 1)
        before = moved.argmin(axis=0)
        spent = moved[before, columns] + chain.cost[block]
        came.append(before)
    spent = spent + chain.leave
    node = int(spent.argmin())
    if not np.isfinite(spent[node]):
        return None
    nodes = [node]
    for before in reversed(came):
        nodes.append(int(before[nodes[-1]]))
    return Way(tuple(reversed(nodes)), float(spent[node]), is_exact=True)


def _promising(chain: Chain) -> Numbers:
    """Half of the nodes that are looked at by speed, half by room."""
    if chain.nodes <= LABELLED_NODES_MAX:
        return np.arange(chain.nodes)
    speed = np.where(np.isfinite(chain.cost), chain.cost, 0.0).mean(axis=0)
    is_of_use = np.isfinite(chain.cost).any(axis=0)
    by_speed = np.lexsort((speed, ~is_of_use))[: LABELLED_NODES_MAX // 2]
    by_room = np.lexsort((speed, -chain.room_mib, ~is_of_use))
    left = [node for node in by_room.tolist() if node not in set(by_speed.tolist())]
    rest = left[: LABELLED_NODES_MAX - len(by_speed)]
    return np.array(sorted({*by_speed.tolist(), *rest}), dtype=np.int64)


@dataclass(frozen=True)
class _Labels:
    """Partial ways that end with the same block."""

    cost: Matrix
    node: Numbers
    used: Matrix
    """MiB by label and node, the current slice included."""
    peak: Matrix
    """Of the current slice."""
    slices: Numbers
    parent: Numbers

    def at(self, rows: Numbers | Flags) -> _Labels:
        return _Labels(
            self.cost[rows],
            self.node[rows],
            self.used[rows],
            self.peak[rows],
            self.slices[rows],
            self.parent[rows],
        )


def _labelled(chain: Chain) -> Way | None:
    onward = _onward(chain)
    twins = _twins(chain)
    kinds = _kinds(twins)
    labels = _first(chain, twins)
    trail: list[_Labels] = []
    is_exact = True
    for block in range(chain.blocks):
        if block:
            labels = _extend(chain, labels, block, twins)
        bound = labels.cost + onward[block, labels.node]
        labels, is_whole = _thinned(labels, bound, kinds)
        is_exact = is_exact and is_whole
        if not len(labels.cost):
            return None
        trail.append(labels)
    totals = labels.cost + chain.leave[labels.node]
    row = int(totals.argmin())
    cost = float(totals[row])
    nodes: list[int] = []
    for each in reversed(trail):
        nodes.append(int(each.node[row]))
        row = int(each.parent[row])
    return Way(tuple(reversed(nodes)), cost, is_exact)


def _onward(chain: Chain) -> Matrix:
    """Least cost from after each block on each node to the end, the limits left aside."""
    left = np.empty((chain.blocks, chain.nodes))
    left[-1] = chain.leave
    for block in range(chain.blocks - 2, -1, -1):
        ahead = chain.cost[block + 1] + left[block + 1]
        left[block] = (chain.step(block) + ahead[None, :]).min(axis=1)
    return left


def _twins(chain: Chain) -> Numbers:
    """For each node an earlier one that is the same in everything, or -1: it is used first."""
    twins = np.full(chain.nodes, -1, dtype=np.int64)
    for later in range(chain.nodes):
        for earlier in range(later - 1, -1, -1):
            if _are_alike(chain, earlier, later):
                twins[later] = earlier
                break
    return twins


def _kinds(twins: Numbers) -> Numbers:
    """For each node the first of those that are the same in everything."""
    kinds = np.arange(len(twins))
    for node, twin in enumerate(twins.tolist()):
        kinds[node] = node if twin < 0 else kinds[twin]
    return kinds


def _are_alike(chain: Chain, one: int, other: int) -> bool:
    lines = (chain.enter, chain.leave, chain.room_mib)
    if any(line[one] != line[other] for line in lines):
        return False
    if not np.array_equal(chain.cost[:, one], chain.cost[:, other]):
        return False
    swapped = np.arange(chain.nodes)
    swapped[[one, other]] = other, one
    square = np.ix_(swapped, swapped)
    return all(np.array_equal(each, each[square]) for each in (chain.hop, chain.per_byte))


def _first(chain: Chain, twins: Numbers) -> _Labels:
    needed = SLICE_BASE_MIB + chain.held_mib[0] + chain.peak_mib[0]
    cost = chain.enter + chain.cost[0]
    nodes = np.flatnonzero(np.isfinite(cost) & (chain.room_mib >= needed) & (twins < 0))
    used = np.zeros((len(nodes), chain.nodes))
    used[np.arange(len(nodes)), nodes] = needed
    ones = np.ones(len(nodes), dtype=np.int64)
    return _Labels(cost[nodes], nodes, used, np.full(len(nodes), chain.peak_mib[0]), ones, ones - 1)


def _extend(chain: Chain, labels: _Labels, block: int, twins: Numbers) -> _Labels:
    stays = labels.node[:, None] == np.arange(chain.nodes)[None, :]
    cost = labels.cost[:, None] + chain.step(block - 1)[labels.node] + chain.cost[block][None, :]
    grown = np.maximum(labels.peak, chain.peak_mib[block])
    fresh = SLICE_BASE_MIB + chain.peak_mib[block]
    extra = chain.held_mib[block] + np.where(stays, (grown - labels.peak)[:, None], fresh)
    slices = labels.slices[:, None] + ~stays
    is_turn = (labels.used[:, twins] > 0) | (twins < 0)[None, :]
    fits = (labels.used + extra <= chain.room_mib[None, :]) & (slices <= chain.slices_max)
    rows, nodes = np.nonzero(np.isfinite(cost) & fits & (is_turn | stays))
    used = labels.used[rows]
    used[np.arange(len(rows)), nodes] += extra[rows, nodes]
    is_same = stays[rows, nodes]
    peak = np.where(is_same, grown[rows], chain.peak_mib[block])
    return _Labels(cost[rows, nodes], nodes, used, peak, slices[rows, nodes], rows)


def _thinned(labels: _Labels, bound: Matrix, kinds: Numbers) -> tuple[_Labels, bool]:
    """Without labels that others dominate; of the rest the LABELS_MAX with the lowest bound."""
    order = np.argsort(bound, kind="stable")
    order = order[np.isfinite(bound[order])]
    is_whole = len(order) <= 4 * LABELS_MAX
    labels = labels.at(order[: 4 * LABELS_MAX])
    keep = np.ones(len(labels.cost), dtype=np.bool_)
    for kind in np.unique(kinds[labels.node]):
        rows = np.flatnonzero(kinds[labels.node] == kind)
        keep[rows] = _undominated(labels.at(rows), kinds)
    labels = labels.at(keep)
    is_whole = is_whole and len(labels.cost) <= LABELS_MAX
    return labels.at(np.arange(min(len(labels.cost), LABELS_MAX))), is_whole


def _undominated(labels: _Labels, kinds: Numbers) -> Flags:
    """Of labels that end on nodes of one kind: those to which no other is equal or better in
    everything, where nodes of a kind may change places."""
    # A slice whose values take less now may grow later: what counts is what it holds without them.
    rows = np.arange(len(labels.cost))
    here = labels.used[rows, labels.node]
    others = labels.used.copy()
    others[rows, labels.node] = 0.0
    for kind in np.unique(kinds):
        same = np.flatnonzero(kinds == kind)
        others[:, same] = np.sort(others[:, same], axis=1)
    marks = np.column_stack((labels.cost, labels.slices, here - labels.peak, here, others))
    marks = marks[:, marks.min(axis=0) < marks.max(axis=0)]  # what is equal for all says nothing
    no_worse = np.all(marks[:, None, :] <= marks[None, :, :], axis=2)
    strictly = no_worse & ~no_worse.T
    equal_before = np.tril((no_worse & no_worse.T).T, -1).any(axis=1)
    return ~(strictly.any(axis=0) | equal_before)
