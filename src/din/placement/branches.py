"""Heads that can run at the same time on different nodes, and what that would spare.

For some boundary, every operator before it is coloured by what of the crossing values (or, at the
end, of the outputs) it reaches. One that reaches several is of the trunk; those that reach one
alone are that value's head. A head never feeds another, so the map trunk -> heads -> tail has no
cycle. A slice sends when it is done, so the trunk is a slice of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from din.domain.cuts import CutTable
from din.domain.estimates import ACTIVATIONS_FACTOR, MIB, SLICE_BASE_MIB, WEIGHTS_FACTOR
from din.domain.model import GATEWAY
from din.placement.boundaries import Blocks, Heads
from din.placement.chain import Matrix
from din.placement.sharing import Turns

HEADS_MAX: Final = 16
PARALLEL_SHARE_MIN: Final = 0.1
"""Of all work: less that could run beside something else is not looked at."""
TRUNK_NODES_MAX: Final = 8


@dataclass(frozen=True)
class Fork:
    """Heads placed: one slice for each part and node."""

    assignment: tuple[int, ...]
    """Slice of each operator."""
    nodes: tuple[int, ...]
    """Node of each slice."""
    cost: float


@dataclass(frozen=True)
class Ground:
    """What forks are judged by, in milliseconds. Rows are operators, columns nodes."""

    times: Matrix
    hop: Matrix
    per_byte: Matrix
    enter: Matrix
    leave: Matrix
    room_mib: Matrix
    slices_max: int
    shares: Matrix | None = None
    """Of processors, see `din.placement.sharing`."""


def heads_of(blocks: Blocks, work: Matrix) -> Heads | None:
    """The division with the most work that can run beside other work; None when that is little."""
    table = blocks.boundaries.table
    best: Heads | None = None
    spared = float(work.sum()) * PARALLEL_SHARE_MIN
    for end in (*blocks.edges[2:-1], len(table.operators)):
        found = _divided(table, end)
        if found is None:
            continue
        loads = [float(work[list(head)].sum()) for head in found.heads]
        if sum(loads) - max(loads) > spared and _can_be_apart(table, found):
            best, spared = found, sum(loads) - max(loads)
    return best


def best_fork(table: CutTable, heads: Heads, ground: Ground) -> Fork | None:
    """Heads spread over nodes, each to where it ends first; None when memory or limits forbid."""
    times = np.stack([ground.times[list(group)].sum(axis=0) for group in heads.groups()])
    flows = _Flows.of(table, heads)
    speed = np.where(np.isfinite(times[0] + times[-1]), times[0] + times[-1], np.inf)
    homes = np.argsort(speed + times[1:-1].mean(axis=0), kind="stable")[:TRUNK_NODES_MAX]
    best: Fork | None = None
    for home in homes.tolist():
        placed = _spread(times, flows, ground, home)
        if not np.isfinite(placed.cost) or (best is not None and placed.cost >= best.cost):
            continue
        fork = _numbered(table, heads, placed.nodes, home, placed.cost)
        if len(fork.nodes) <= ground.slices_max and _fits(table, fork, ground):
            best = fork
    return best


def _divided(table: CutTable, end: int) -> Heads | None:
    reach = [0] * end
    bits: dict[int, int] = {}
    by_maker: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for value in table.values:
        if not 0 <= value.maker < end:
            continue
        by_maker[value.maker].append(value.readers)
        leaves = value.is_output or (value.readers and value.readers[-1] >= end)
        if leaves and value.maker not in bits:
            bits[value.maker] = 1 << len(bits)
    if not 2 <= len(bits) <= HEADS_MAX:
        return None
    for place in range(end - 1, -1, -1):
        colours = bits.get(place, 0)
        for readers in by_maker[place]:
            for reader in readers:
                if reader < end:
                    colours |= reach[reader]
        reach[place] = colours
    heads: dict[int, list[int]] = defaultdict(list)
    trunk: list[int] = []
    for place, colours in enumerate(reach):
        (heads[colours] if colours.bit_count() == 1 else trunk).append(place)
    if len(heads) < 2:
        return None
    tail = tuple(range(end, len(table.operators)))
    return Heads(tuple(trunk), tuple(map(tuple, heads.values())), tail)


def _can_be_apart(table: CutTable, heads: Heads) -> bool:
    part = _part_of(heads)
    for value in table.values:
        if value.maker == GATEWAY:
            continue
        leaves = any(part[reader] != part[value.maker] for reader in value.readers)
        if leaves and (not value.can_travel or value.is_pair):
            return False
    return True


def _part_of(heads: Heads) -> dict[int, int]:
    return {place: number for number, group in enumerate(heads.groups()) for place in group}


@dataclass(frozen=True)
class _Flows:
    """Bytes between the parts."""

    to_head: tuple[int, ...]
    from_head: tuple[int, ...]
    """To the tail."""
    past: int
    """From the trunk to the tail."""

    @classmethod
    def of(cls, table: CutTable, heads: Heads) -> _Flows:
        part, last = _part_of(heads), len(heads.heads) + 1
        sums: dict[tuple[int, int], int] = defaultdict(int)
        for value in table.values:
            if value.maker == GATEWAY:
                continue
            for target in {part[reader] for reader in value.readers} - {part[value.maker]}:
                sums[part[value.maker], target] += value.nbytes
        numbers = range(1, last)
        return cls(
            tuple(sums[0, number] for number in numbers),
            tuple(sums[number, last] for number in numbers),
            sums[0, last],
        )


@dataclass(frozen=True)
class _Spread:
    nodes: tuple[int, ...]
    """Node of each head."""
    cost: float


def _spread(times: Matrix, flows: _Flows, ground: Ground, home: int) -> _Spread:
    """Largest heads first, each where it ends first, with trunk and tail at home."""
    count = len(flows.to_head)
    start = float(ground.enter[home] + times[0, home])
    has_trunk = bool(times[0].any())
    free = np.where(np.arange(len(ground.enter)) == home, start, 0.0)
    turns = Turns(np.eye(len(free)) if ground.shares is None else ground.shares)
    nodes = [0] * count
    done = 0.0
    for head in np.argsort(-times[1:-1].min(axis=1), kind="stable").tolist():
        way = ground.hop + ground.per_byte * flows.to_head[head]
        arrives = start + way[home] if has_trunk else ground.enter
        ends = np.maximum(np.maximum(free, turns.free_ms()), arrives) + times[1 + head]
        back = (ground.hop + ground.per_byte * flows.from_head[head])[:, home]
        total = ends + (back if times[-1].any() else ground.leave)
        node = int(total.argmin())
        nodes[head] = node
        free[node] = ends[node]
        turns.take(node, float(ends[node]))
        done = max(done, float(total[node]))
    done = max(done, start)
    if times[-1].any():
        done += float(times[-1, home] + ground.leave[home])
    return _Spread(tuple(nodes), done)


def _numbered(
    table: CutTable, heads: Heads, nodes: tuple[int, ...], home: int, cost: float
) -> Fork:
    """Heads on one node are one slice; slices are numbered in the order in which they run."""
    groups: list[tuple[int, Iterable[int]]] = [(home, heads.trunk)] if heads.trunk else []
    by_node: dict[int, list[int]] = defaultdict(list)
    for node, head in zip(nodes, heads.heads, strict=True):
        by_node[node].extend(head)
    groups += sorted(by_node.items(), key=lambda each: min(each[1]))
    groups += [(home, heads.tail)] if heads.tail else []
    slice_of: Mapping[int, int] = {
        place: number for number, (_, places) in enumerate(groups) for place in places
    }
    assignment = tuple(slice_of[place] for place in range(len(table.operators)))
    return Fork(assignment, tuple(node for node, _ in groups), cost)


def _fits(table: CutTable, fork: Fork, ground: Ground) -> bool:
    held: dict[int, float] = defaultdict(float)
    peaks = [0] * len(fork.nodes)
    for operator, number in zip(table.operators, fork.assignment, strict=True):
        held[fork.nodes[number]] += operator.weight_bytes * WEIGHTS_FACTOR / MIB
        peaks[number] = max(peaks[number], operator.live_bytes)
    for each in table.shared:
        for number in {fork.assignment[place] for place in each.readers}:
            held[fork.nodes[number]] += each.nbytes * WEIGHTS_FACTOR / MIB
    for number, node in enumerate(fork.nodes):
        held[node] += SLICE_BASE_MIB + peaks[number] * ACTIVATIONS_FACTOR / MIB
    return all(mib <= ground.room_mib[node] for node, mib in held.items())
