"""The cheapest way through a chain within limits: memory of a node over all its slices, and the
number of slices.

Limits make a state of more than a node: partial ways are kept as labels, and dropped only when
another is no worse in everything, or when they must cost more than a way that is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from din.domain.estimates import SLICE_BASE_MIB
from din.placement.chain import (
    FINITE_MAX,
    ROUNDING,
    Chain,
    Flags,
    Matrix,
    Numbers,
    Way,
    is_within,
    unlimited,
)

LABELS_MAX: Final = 256
"""Partial ways that are followed at once under limits; when it bites, the answer is not exact."""
LABELS_FIRST: Final = 24
"""Followed in a quick first pass, whose answer is a limit for the second."""
LABELLED_NODES_MAX: Final = 24
"""Nodes that are looked at under limits."""


def cheapest(chain: Chain) -> Way | None:
    """The cheapest way within the limits; None when there is none (or, not exact, none found)."""
    way = unlimited(chain)
    if way is None or is_within(chain, way.nodes):
        return way
    kept = _promising(chain)
    if len(kept) == chain.nodes:
        return _limited(chain)
    found = _limited(chain.only(kept))
    if found is None:
        return None
    return Way(tuple(kept[list(found.nodes)].tolist()), found.cost, is_exact=False)


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

    def first(self, count: int) -> _Labels:
        return self.at(np.arange(min(len(self.cost), count)))


def _limited(chain: Chain) -> Way | None:
    """A quick pass follows what looks best and finds some way; the second follows everything that
    may cost less than that."""
    search = _Search(chain, _onward(chain), _twins(chain))
    first = search.quick(min(LABELS_FIRST, LABELS_MAX))
    if first is not None and first.is_exact:
        return first
    found = search.thorough(np.inf if first is None else first.cost * (1 + ROUNDING))
    if first is None or (found is not None and found.cost <= first.cost):
        return found
    return first


Thinning = Callable[[_Labels], tuple[_Labels, bool]]
"""Of labels, the most promising first, those to go on from, and whether nothing is lost by that."""


class _Search:
    def __init__(self, chain: Chain, onward: Matrix, twins: Numbers) -> None:
        self.chain = chain
        self.onward = onward
        self.twins = twins
        self.kinds = _Kinds(twins)

    def quick(self, labels_max: int) -> Way | None:
        return self._run(
            np.inf, lambda labels: (labels.first(labels_max), len(labels.cost) <= labels_max)
        )

    def thorough(self, limit: float) -> Way | None:
        return self._run(limit, lambda labels: _thinned(labels, self.kinds))

    def _run(self, limit: float, thin: Thinning) -> Way | None:
        chain = self.chain
        labels = _first(chain, self.twins)
        trail: list[_Labels] = []
        is_exact = True
        for block in range(chain.blocks):
            if block:
                labels = _extend(chain, labels, block, self.twins)
            bound = labels.cost + self.onward[block, labels.node]
            order = np.argsort(bound, kind="stable")
            order = order[: int(np.searchsorted(bound[order], min(limit, FINITE_MAX), "right"))]
            labels, is_whole = thin(labels.at(order))
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


class _Kinds:
    """Nodes that are the same in everything may change places."""

    def __init__(self, twins: Numbers) -> None:
        self.of = np.arange(len(twins))
        """For each node the first of its kind."""
        for node, twin in enumerate(twins.tolist()):
            self.of[node] = node if twin < 0 else self.of[twin]
        kinds = [np.flatnonzero(self.of == kind) for kind in set(self.of.tolist())]
        self.several = [same for same in kinds if len(same) > 1]


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


def _thinned(labels: _Labels, kinds: _Kinds) -> tuple[_Labels, bool]:
    """Without labels that others dominate; of the rest LABELS_MAX."""
    is_whole = len(labels.cost) <= 4 * LABELS_MAX
    labels = labels.first(4 * LABELS_MAX)
    of_label = kinds.of[labels.node]
    keep = np.ones(len(labels.cost), dtype=np.bool_)
    for kind in set(of_label.tolist()):
        rows = np.flatnonzero(of_label == kind)
        if len(rows) > 1:
            keep[rows] = _undominated(labels.at(rows), kinds)
    labels = labels.at(keep)
    return labels.first(LABELS_MAX), is_whole and len(labels.cost) <= LABELS_MAX


def _undominated(labels: _Labels, kinds: _Kinds) -> Flags:
    """Of labels that end on nodes of one kind: those to which no other is equal or better in
    everything, where nodes of a kind may change places."""
    # A slice whose values take less now may grow later: what counts is what it holds without them.
    count = len(labels.cost)
    rows = np.arange(count)
    here = labels.used[rows, labels.node]
    others = labels.used.copy()
    others[rows, labels.node] = 0.0
    for same in kinds.several:
        others[:, same] = np.sort(others[:, same], axis=1)
    no_worse = np.ones((count, count), dtype=np.bool_)
    for mark in (labels.cost, labels.slices, here - labels.peak, here, *others.T):
        if mark.min() < mark.max():  # what is equal for all says nothing
            no_worse &= mark[:, None] <= mark[None, :]
    # Of equal ones the first stays.
    no_worse[rows, rows] = False
    is_later = rows[:, None] < rows
    is_beaten: Flags = np.any(no_worse & (is_later | ~no_worse.T), axis=0)
    return ~is_beaten
