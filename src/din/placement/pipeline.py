"""A model as a pipeline: the way with the most answers a second.

Every node takes one run of consecutive blocks, or none. While one request is in one stage, the next
is in the stage before, so what counts is the slowest stage or transfer:

    g[S + k, e] = min over i, j of max(g[S, i] ending on j, transfer j -> k, time of i..e on k)

Over all sets S of nodes this is exact; it is done for few nodes. For more, nodes are taken in some
fixed orders (any may be left out), which is a heuristic, and the answer says so.

Nodes of one machine share its processor: there the times of their stages add up. Of the best way
with one node of each machine and the best over all nodes the better is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from din.domain.estimates import SLICE_BASE_MIB
from din.placement.chain import ROUNDING, Chain, Matrix, Numbers, Way
from din.placement.sharing import leaders_of, least_pace, paced

EXACT_NODES_MAX: Final = 6
ORDERED_NODES_MAX: Final = 16
GAIN_MIN: Final = 1e-9
"""A stage more is taken only when it spares at least this share."""


@dataclass(frozen=True)
class _Reached:
    """Best slowest stage by number of blocks done, with where it came from."""

    slowest: Matrix
    before: Sequence[_Reached | None]
    """By number of blocks done: what the last stage follows."""
    start: Numbers
    """By number of blocks done: where the last stage begins."""
    node: int
    used: frozenset[int]


def alone_in_pipeline(chain: Chain) -> Way | None:
    """The best node by itself; None when none may and can hold everything."""
    stages, _ = _stages(chain)
    slowest = np.maximum(np.maximum(chain.enter, chain.leave), stages[:, 0, chain.blocks])
    best = int(slowest.argmin())
    if not np.isfinite(slowest[best]):
        return None
    return Way((best,) * chain.blocks, float(slowest[best]), is_exact=True)


def fastest_pipeline(chain: Chain) -> Way | None:
    """The way with the least time between two answers; of equal ones one with the fewest stages."""
    way = _unshared(chain)
    if way is None or chain.shares is None:
        return way
    shared = paced(chain, way)
    kept = _best_by_machine(chain, chain.shares)
    if shared.cost > way.cost and len(kept) < chain.nodes:
        found = _unshared(chain.only(kept))
        if found is not None and found.cost <= shared.cost:
            nodes = tuple(int(kept[node]) for node in found.nodes)
            shared = paced(chain, Way(nodes, found.cost, found.is_exact))
    least = max(way.cost, least_pace(chain, len(kept)))
    is_exact = way.is_exact and shared.cost <= least * (1 + ROUNDING)
    return Way(shared.nodes, shared.cost, is_exact)


def _best_by_machine(chain: Chain, shares: Matrix) -> Numbers:
    """The best node of each machine: that can hold everything, then the fastest, the roomiest."""
    needed = SLICE_BASE_MIB + chain.held_mib.sum() + chain.peak_mib.max()
    totals = chain.cost.sum(axis=0)
    holds = np.isfinite(totals) & (chain.room_mib >= needed)
    leaders = leaders_of(shares)
    order = np.lexsort((-chain.room_mib, totals, ~holds, leaders))
    return np.sort(order[np.unique(leaders[order], return_index=True)[1]])


def _unshared(chain: Chain) -> Way | None:
    """As if each node had a processor of its own."""
    if chain.nodes <= EXACT_NODES_MAX:
        return _best(chain, _by_sets, is_exact=True)
    speed = np.where(np.isfinite(chain.cost), chain.cost, np.inf).min(axis=0)
    kept = np.sort(np.argsort(speed, kind="stable")[:ORDERED_NODES_MAX])
    small = chain.only(kept)
    found: Way | None = None
    for order in _orders(small):
        way = _best(small.only(order), _by_order, is_exact=False)
        if way is not None and (found is None or way.cost < found.cost):
            nodes = tuple(int(kept[order[node]]) for node in way.nodes)
            found = Way(nodes, way.cost, is_exact=False)
    return found


Growing = Callable[["_Search", Sequence[_Reached]], Iterator[_Reached]]


@dataclass
class _Search:
    chain: Chain
    stages: Matrix
    steps: list[Matrix]

    def first(self) -> list[_Reached]:
        zeros = np.zeros(self.chain.blocks + 1, dtype=np.int64)
        return [
            _Reached(
                np.maximum(self.chain.enter[node], self.stages[node, 0]),
                [None] * len(zeros),
                zeros,
                node,
                frozenset((node,)),
            )
            for node in range(self.chain.nodes)
        ]

    def extended(self, before: _Reached, node: int) -> _Reached:
        arriving = np.full(self.chain.blocks + 1, np.inf)
        arriving[1:-1] = [step[before.node, node] for step in self.steps]
        reached = np.maximum(before.slowest, arriving)[:, None]
        slowest = np.maximum(reached, self.stages[node])
        start = slowest.argmin(axis=0)
        return _Reached(
            slowest[start, np.arange(len(start))],
            [before] * len(start),
            start,
            node,
            before.used | {node},
        )


def _best(chain: Chain, grow: Growing, *, is_exact: bool) -> Way | None:
    stages, steps = _stages(chain)
    search = _Search(chain, stages, steps)
    best: _Reached | None = None
    cost = float("inf")
    layer: Sequence[_Reached] = search.first()
    for _ in range(min(chain.slices_max, chain.nodes, chain.blocks)):
        before = cost
        for each in layer:
            total = max(float(each.slowest[-1]), float(chain.leave[each.node]))
            if total < cost * (1 - GAIN_MIN) or (best is None and np.isfinite(total)):
                best, cost = each, total
        if not is_exact and cost == before < float("inf"):
            break  # one stage more spared nothing
        layer = [each for each in grow(search, layer) if np.isfinite(each.slowest).any()]
    return None if best is None else Way(_nodes(best), cost, is_exact)


def _by_sets(search: _Search, layer: Sequence[_Reached]) -> Iterator[_Reached]:
    """Every set of nodes with one more; one for each set and last node."""
    found: dict[tuple[frozenset[int], int], list[_Reached]] = {}
    for each in layer:
        for node in set(range(search.chain.nodes)) - each.used:
            found.setdefault((each.used | {node}, node), []).append(search.extended(each, node))
    yield from map(_merged, found.values())


def _merged(ways: Sequence[_Reached]) -> _Reached:
    """The best of ways over the same nodes for each number of blocks done."""
    slowest = np.stack([each.slowest for each in ways])
    best = slowest.argmin(axis=0)
    columns = np.arange(slowest.shape[1])
    return _Reached(
        slowest[best, columns],
        [ways[row].before[column] for column, row in enumerate(best.tolist())],
        np.stack([each.start for each in ways])[best, columns],
        ways[0].node,
        ways[0].used,
    )


def _by_order(search: _Search, layer: Sequence[_Reached]) -> Iterator[_Reached]:
    """Nodes in the order of their numbers; one for each last node."""
    found: dict[int, list[_Reached]] = {}
    for each in layer:
        for node in range(each.node + 1, search.chain.nodes):
            found.setdefault(node, []).append(search.extended(each, node))
    yield from map(_merged, found.values())


def _orders(chain: Chain) -> Iterator[Numbers]:
    """Fastest first, slowest first, and from the fastest always to the nearest next."""
    speed = np.where(np.isfinite(chain.cost), chain.cost, np.inf).min(axis=0)
    fastest = np.argsort(speed, kind="stable")
    yield fastest
    yield fastest[::-1]
    typical = float(chain.crossing.mean()) if len(chain.crossing) else 0.0
    apart = chain.hop + chain.per_byte * typical
    path = [int(fastest[0])]
    while len(path) < chain.nodes:
        ahead = apart[path[-1]].copy()
        ahead[path] = np.inf
        path.append(int(ahead.argmin()))
    yield np.array(path, dtype=np.int64)


def _stages(chain: Chain) -> tuple[Matrix, list[Matrix]]:
    """Time of blocks i..e on each node, infinite where these do not fit; and every step."""
    size = chain.blocks + 1
    spent = np.zeros((chain.nodes, size))
    np.cumsum(np.where(np.isfinite(chain.cost), chain.cost, 0.0).T, axis=1, out=spent[:, 1:])
    barred = np.zeros((chain.nodes, size), dtype=np.int64)
    np.cumsum(~np.isfinite(chain.cost).T, axis=1, out=barred[:, 1:])
    held = np.concatenate(([0.0], np.cumsum(chain.held_mib)))
    peak = np.full((size, size), np.inf)
    for start in range(chain.blocks):
        peak[start, start + 1 :] = np.maximum.accumulate(chain.peak_mib[start:])
    needed = SLICE_BASE_MIB + held[None, :] - held[:, None] + peak
    is_free = barred[:, None, :] == barred[:, :, None]
    fits = needed[None] <= chain.room_mib[:, None, None]
    stages = np.where(is_free & fits, spent[:, None, :] - spent[:, :, None], np.inf)
    return stages, [chain.step(block) for block in range(chain.blocks - 1)]


def _nodes(reached: _Reached) -> tuple[int, ...]:
    nodes: list[int] = []
    end = len(reached.slowest) - 1
    each: _Reached | None = reached
    while each is not None:
        start = int(each.start[end])
        nodes = [each.node] * (end - start) + nodes
        each, end = each.before[end], start
    return tuple(nodes)
