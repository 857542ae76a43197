"""Where to cut a model and which node takes which part, with the reasons.

Whatever is found is held against the best node alone. A split that does not win by SPLIT_WIN_MIN is
refused; one that memory or the strategy's ranges force is not, and says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
from msgspec.structs import replace

from din.domain.cuts import UNITS, CutChoice, CutTable, CutWay, NodeAlone
from din.domain.estimates import SLICE_BASE_MIB
from din.errors import CannotPlace
from din.placement.boundaries import Blocks, blocks_of, boundaries_of
from din.placement.branches import Fork, Ground, best_fork, heads_of
from din.placement.chain import Chain, Flags, Matrix, Numbers, Way, alone, runs_of
from din.placement.limited import cheapest
from din.placement.pipeline import alone_in_pipeline, fastest_pipeline
from din.placement.places import (
    NODES_MAX,
    CutWishes,
    Device,
    RangeRule,
    barred_by,
)
from din.placement.sharing import shares_of, sharing_notes
from din.placement.speeds import measured_for, operator_ms, times_of
from din.placement.telling import best_split, described, no_way, sentence, told_ways
from din.placement.ways import Ways, WayTimes, way_times

GFLOPS_TYPICAL: Final = 40.0
"""By which work is weighed against what every operator costs, when heads are looked for."""
SLICE_MS: Final = 0.06
"""What one more slice costs by itself: sessions and copies took 40 to 60 us."""
SPLIT_WIN_MIN: Final = 0.05
MS_IN_BYTES: Final = 1e-3
"""For the fewest bytes: among equals the sooner."""


@dataclass(frozen=True)
class Chosen:
    """A choice and the map that carries it out."""

    choice: CutChoice
    assignment: tuple[int, ...]
    """Slice of each operator."""


@dataclass(frozen=True)
class _Problem:
    blocks: Blocks
    devices: tuple[Device, ...]
    wishes: CutWishes
    speeds: Matrix
    """Milliseconds by operator and kind of device."""
    kind_of: Numbers
    """By node."""
    ways: Ways
    is_measured: Flags
    """By node: times come from a profile."""
    chain: Chain
    """In units of the objective."""

    @cached_property
    def times(self) -> Matrix:
        """Milliseconds by operator and node; infinite where it may not lie."""
        times = self.speeds[:, self.kind_of]
        for rule in self.wishes.rules:
            times[rule.first : rule.last + 1, barred_by(rule, self.devices)] = np.inf
        return times

    @property
    def table(self) -> CutTable:
        return self.blocks.boundaries.table


def prepare(table: CutTable, rules: Sequence[RangeRule] = ()) -> Blocks:
    """What a decision needs of a model, whichever nodes there are: worth keeping."""
    ends = {edge for rule in rules for edge in (rule.first, rule.last + 1)}
    blocks = blocks_of(boundaries_of(table), ends)
    return dataclasses.replace(blocks, heads=heads_of(blocks, operator_ms(table, GFLOPS_TYPICAL)))


def choose_cuts(
    blocks: Blocks,
    devices: Sequence[Device],
    wishes: CutWishes,
    ways: Ways,
    profiles: Mapping[str, Sequence[float]] | None = None,
) -> Chosen:
    """The best map of operators to slices and nodes.

    `profiles` holds measured milliseconds by operator for classes of devices. Raises CannotPlace
    with the numbers when no nodes may and can hold the model, or none has a meter for `energy`.
    """
    problem = _problem(blocks, devices, wishes, ways, profiles or {})
    is_pipeline = wishes.objective == "throughput"
    whole = alone_in_pipeline(problem.chain) if is_pipeline else alone(problem.chain)
    way = fastest_pipeline(problem.chain) if is_pipeline else cheapest(problem.chain)
    if way is None:
        needed = SLICE_BASE_MIB + problem.chain.held_mib.sum() + problem.chain.peak_mib.max()
        raise no_way(problem.devices, problem.chain, float(needed), wishes.rules)
    fork = _fork(problem) if wishes.objective == "latency" else None
    limit = whole.cost * (1 - SPLIT_WIN_MIN) if whole is not None else float("inf")
    if fork is not None and fork.cost < min(limit, way.cost):
        return _told(problem, fork.assignment, fork.nodes, fork.cost, whole, kind="fork")
    if whole is not None and (len(runs_of(way.nodes)) < 2 or way.cost > limit):
        return _refused(problem, whole, way)
    assignment, nodes = _map_of(blocks, way)
    return _told(problem, assignment, nodes, way.cost, whole, kind="chain", is_exact=way.is_exact)


def _map_of(blocks: Blocks, way: Way) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Slice of each operator, node of each slice."""
    runs = runs_of(way.nodes)
    of_block = np.repeat(np.arange(len(runs)), [end - start for start, end, _ in runs])
    assignment = tuple(np.repeat(of_block, np.diff(blocks.edges)).tolist())
    return assignment, tuple(node for _, _, node in runs)


def _problem(
    blocks: Blocks,
    devices: Sequence[Device],
    wishes: CutWishes,
    ways: Ways,
    profiles: Mapping[str, Sequence[float]],
) -> _Problem:
    table = blocks.boundaries.table
    metered = [each for each in devices if each.watts is not None]
    if wishes.objective == "energy":
        if not metered:
            raise CannotPlace(
                f"objective energy: none of {len(devices)} nodes measures its power",
                hint="choose latency or throughput; `din node inspect` shows power_w where a node "
                "has a meter",
            )
        devices = metered
    by_speed: dict[tuple[str, float], Matrix] = {}
    flops = blocks.boundaries.flops
    for each in devices:
        key = (each.device_class, each.gflops)
        if key not in by_speed:
            measured = measured_for(table, profiles, each.device_class)
            by_speed[key] = times_of(flops, each.gflops, measured)
    kept = _nearest(devices, by_speed)
    places = {key: number for number, key in enumerate(by_speed)}
    kind_of = np.array([places[each.device_class, each.gflops] for each in kept])
    speeds = np.stack(tuple(by_speed.values()), axis=1)
    cost = blocks.sums(speeds.T).T[:, kind_of]
    for rule in wishes.rules:
        first, last = blocks.block_of(rule.first), blocks.block_of(rule.last)
        cost[first : last + 1, barred_by(rule, kept)] = np.inf
    between = way_times([each.node_id for each in kept], ways)
    is_measured = {name: measured_for(table, profiles, name) is not None for name, _ in by_speed}
    flags = np.array([is_measured[each.device_class] for each in kept])
    chain = _chain(blocks, kept, wishes, cost, between)
    return _Problem(blocks, kept, wishes, speeds, kind_of, ways, flags, chain)


def _nearest(
    devices: Sequence[Device], by_speed: Mapping[tuple[str, float], Matrix]
) -> tuple[Device, ...]:
    """At most NODES_MAX: the fastest, and of the rest those with the most room."""
    if len(devices) <= NODES_MAX:
        return tuple(devices)
    totals = {key: float(times.sum()) for key, times in by_speed.items()}
    by_time = sorted(devices, key=lambda each: totals[each.device_class, each.gflops])
    fast, rest = by_time[: NODES_MAX * 4 // 5], by_time[NODES_MAX * 4 // 5 :]
    rest.sort(key=lambda each: (not each.is_trusted, -each.room_mib))
    return (*fast, *rest[: NODES_MAX - len(fast)])


def _chain(
    blocks: Blocks,
    devices: Sequence[Device],
    wishes: CutWishes,
    cost: Matrix,
    ways: WayTimes,
) -> Chain:
    given = sum(each.nbytes for each in blocks.boundaries.inputs)
    taken = sum(each.nbytes for each in blocks.boundaries.outputs)
    hop = ways.hop + SLICE_MS * (1 - np.eye(len(devices)))
    enter = ways.gateway_hop + ways.gateway_per_byte * given + SLICE_MS
    leave = ways.gateway_hop + ways.gateway_per_byte * taken
    per_byte = ways.per_byte
    room = np.array([each.room_mib for each in devices], dtype=np.float64)
    if wishes.memory_mib_max is not None:
        room = np.minimum(room, wishes.memory_mib_max)
    if wishes.objective == "energy":
        watts = np.array([each.watts or 0.0 for each in devices])
        both = watts[:, None] + watts[None, :]
        cost, hop, per_byte = cost * watts, hop * both, per_byte * both
        enter, leave = enter * watts, leave * watts
    elif wishes.objective == "bytes":
        apart = 1 - np.eye(len(devices))
        cost, hop, per_byte = cost * MS_IN_BYTES, hop * MS_IN_BYTES, per_byte * MS_IN_BYTES + apart
        enter, leave = enter * MS_IN_BYTES, leave * MS_IN_BYTES
    return Chain(
        cost=cost,
        crossing=blocks.crossing,
        hop=hop,
        per_byte=per_byte,
        enter=enter,
        leave=leave,
        held_mib=blocks.held_mib,
        peak_mib=blocks.peak_mib,
        room_mib=room,
        slices_max=wishes.slices_max,
        shares=shares_of(devices),
    )


def _fork(problem: _Problem) -> Fork | None:
    """Heads side by side, where the graph has some and more than one node could take them."""
    if len(problem.devices) < 2 or problem.wishes.slices_max < 3:
        return None
    heads = problem.blocks.heads
    if heads is None:
        return None
    chain = problem.chain
    ground = Ground(
        problem.times,
        chain.hop,
        chain.per_byte,
        chain.enter,
        chain.leave,
        chain.room_mib,
        chain.slices_max,
        chain.shares,
    )
    return best_fork(problem.table, heads, ground)


def _refused(problem: _Problem, whole: Way, way: Way) -> Chosen:
    """One node alone, with what the best split would have cost."""
    is_pipeline = problem.wishes.objective == "throughput"
    other = best_split(problem.chain, way, is_pipeline=is_pipeline)
    assignment = (0,) * len(problem.table.operators)
    return _told(
        problem, assignment, (whole.nodes[0],), whole.cost, whole, kind="alone", refused=other
    )


Kind = Literal["fork", "chain", "alone"]


def _told(
    problem: _Problem,
    assignment: tuple[int, ...],
    nodes: tuple[int, ...],
    cost: float,
    whole: Way | None,
    *,
    kind: Kind,
    is_exact: bool = True,
    refused: Way | None = None,
) -> Chosen:
    objective = problem.wishes.objective
    devices = problem.devices
    assignment, nodes = _by_rules(problem.wishes, assignment, nodes)
    times = [problem.speeds[:, problem.kind_of[node]] for node in nodes]
    bounds = problem.blocks.boundaries
    slices = described(bounds, problem.wishes, devices, times, np.array(assignment), nodes)
    if objective == "bytes":
        cost = float(sum(each.crossing_bytes for each in slices))
    lone = None
    if whole is not None:
        device = devices[whole.nodes[0]]
        whole_cost = 0.0 if objective == "bytes" else whole.cost
        lone = NodeAlone(node_id=device.node_id, node=device.name, cost=round(whole_cost, 3))
    is_split = kind != "alone" and len(nodes) > 1
    choice = CutChoice(
        objective=objective,
        unit=UNITS[objective],
        cost=round(cost, 3),
        slices=slices,
        alone=lone,
        wins_by=round(1 - cost / whole.cost, 3)
        if is_split and whole is not None and objective != "bytes"
        else None,
        is_split_refused=kind == "alone",
        best_split=None if refused is None else round(refused.cost, 3),
        reason="",
        times_from=_source(problem, nodes),
        is_exact=is_exact,
        nodes_considered=len(devices),
        blocks=len(problem.blocks),
        notes=tuple(sharing_notes(devices)) if objective == "throughput" else (),
        ways=_ways(
            problem, *(_map_of(problem.blocks, refused) if refused else (assignment, nodes))
        ),
    )
    reason = sentence(choice, problem.chain, is_fork=kind == "fork")
    return Chosen(replace(choice, reason=reason), assignment)


def _source(problem: _Problem, nodes: tuple[int, ...]) -> Literal["profile", "flops", "both"]:
    flags = {bool(problem.is_measured[node]) for node in nodes}
    if flags == {True, False}:
        return "both"
    return "profile" if True in flags else "flops"


def _ways(
    problem: _Problem, assignment: tuple[int, ...], nodes: tuple[int, ...]
) -> tuple[CutWay, ...]:
    named = [(each.node_id, each.name) for each in problem.devices]
    bounds = problem.blocks.boundaries
    return told_ways(bounds, named, problem.ways, np.array(assignment), nodes)


def _by_rules(
    wishes: CutWishes, assignment: tuple[int, ...], nodes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Slices cut again where what holds for operators changes, numbered as they come."""
    if not any(rule.ends_slices for rule in wishes.rules):
        return assignment, nodes
    holds: list[tuple[int, ...]] = [()] * len(assignment)
    for number, rule in enumerate(wishes.rules):
        if rule.ends_slices:
            for place in range(rule.first, rule.last + 1):
                holds[place] = (*holds[place], number)
    latest: dict[int, tuple[int, tuple[int, ...]]] = {}
    """By slice: the last of its parts, and what holds for that."""
    places: list[int] = []
    parts: list[int] = []
    for number, rules in zip(assignment, holds, strict=True):
        if number not in latest or latest[number][1] != rules:
            # The same rules again further on are a new part: one of both would wait for itself.
            latest[number] = (len(places), rules)
            places.append(nodes[number])
        parts.append(latest[number][0])
    return tuple(parts), tuple(places)
