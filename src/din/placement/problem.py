"""From slices and a fleet to the solver's numbers, and back to placements with reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from din.domain.model import Edge, Slice
from din.domain.node import NodeId
from din.domain.numerics import Numerics
from din.domain.plan import Placement
from din.placement.capability import Flags, Wish
from din.placement.constraints import may_take
from din.placement.layout import LinkGuess, Unit, penalties_of, units_of
from din.placement.policy import Policy
from din.placement.score import Outlook, temperature_steps
from din.placement.solver import Matrix, Numbers, Problem, Solution, solve
from din.placement.table import FleetTable, Rows

if TYPE_CHECKING:
    from random import Random

CANDIDATES_MAX: Final = 256
_NEAR: Final = 1e-9
_NOTHING: Final[Matrix] = np.zeros(0)
_NO_SLOTS: Final[Numbers] = np.zeros(0, dtype=np.int64)


class Unplaced(Exception):
    """No assignment exists. `slices` are those without a node, or all when they do not fit
    together."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        super().__init__("unplaced")
        self.slices = tuple(slices)


class Assigned(Struct, frozen=True):
    """One placement per slice, the transfers between them, and whether the optimum is proven."""

    placements: tuple[Placement, ...]
    transfer_ms: float
    is_exact: bool


class Task(Struct, kw_only=True):
    """One call of the planner: what is placed, where, by which rules, and what was given away."""

    slices: tuple[Slice, ...]
    edges: tuple[Edge, ...]
    table: FleetTable
    policy: Policy
    random: Random
    outlook: Outlook
    links: LinkGuess
    excluded: frozenset[NodeId]
    leaving: frozenset[NodeId] = frozenset()
    """They keep what they have and get nothing."""
    wished: Mapping[int, NodeId] = {}
    """Where the choice of cuts wants slices: followed where it can be."""
    room: Matrix = _NOTHING
    """What is left as placements of this task are made."""
    slots: Numbers = _NO_SLOTS
    """Slices that each row can still take, likewise."""

    def __post_init__(self) -> None:
        self.room = self.table.memory_mib_room[: self.table.size].astype(np.float64)
        self.slots = self.table.slots()

    def placement(self, part: Slice, node_id: NodeId, reason: str) -> Placement:
        """One slice on one node."""
        return Placement(
            slice_index=part.index,
            slice_name=part.name,
            node_id=node_id,
            node=self.table.name(self.table.row(node_id)),
            reason=reason,
            expected_ms=self.outlook.measured_ms(part, node_id),
            memory_mib=part.memory_mib,
        )

    def kept(self, slice_index: int, node_id: NodeId) -> Placement:
        """A replica that stays where it is."""
        part = next(part for part in self.slices if part.index == slice_index)
        return self.placement(part, node_id, "kept")

    def feasible(self, unit: Unit) -> Flags:
        """Per row whether the node may take the whole unit."""
        flags = self.room >= sum(part.memory_mib for part in unit)
        flags &= self.slots >= len(unit)
        for part in unit:
            flags &= may_take(self.table, part, self.policy)
        for node_id in self.excluded | self.leaving:
            if node_id in self.table:
                flags[self.table.row(node_id)] = False
        return flags

    def numerics(self, part: Slice, holders: Sequence[NodeId]) -> Numerics | None:
        """How integers have to come out where the slice goes as well; None = in any way."""
        here = (each for each in holders if each in self.table and each not in self.leaving)
        first = next(here, None)
        return self.table.numerics(first, part) if first is not None else None

    def alike(self, part: Slice, holders: Sequence[NodeId]) -> Flags | None:
        """Per row whether a replica there would answer as those that stay; None = as any would."""
        numerics = self.numerics(part, holders)
        return self.table.met_by(Wish(numerics=numerics)) if numerics is not None else None


def assign(task: Task, kept: Mapping[int, NodeId]) -> Assigned:
    """Place every slice once; `kept` slices stay. Raises Unplaced."""
    units = units_of(task.slices)
    allowed = [_allowed(task, unit, kept) for unit in units]
    homeless = [unit for unit, flags in zip(units, allowed, strict=True) if not flags.any()]
    if homeless:
        raise Unplaced([part for unit in homeless for part in unit])
    wished = [_wished(task, unit, flags) for unit, flags in zip(units, allowed, strict=True)]
    solved = _solve(task, units, wished, kept) if task.wished else None
    solved = solved or _solve(task, units, allowed, kept)
    if solved is None:
        raise Unplaced(task.slices)
    return solved


def assign_what_fits(task: Task, holders: Mapping[int, Sequence[NodeId]]) -> tuple[Placement, ...]:
    """One more replica of the slices in `holders`, on nodes other than those named there. What
    does not fit is left out, the largest first."""
    wanted = [part for part in task.slices if part.index in holders]
    units: list[Unit] = []
    allowed: list[Flags] = []
    for unit in _units_among(task, wanted):
        flags = task.feasible(unit)
        for part in unit:
            for node_id in holders[part.index]:
                if node_id in task.table:
                    flags[task.table.row(node_id)] = False
            if (alike := task.alike(part, holders[part.index])) is not None:
                flags &= alike
        if flags.any():
            units.append(unit)
            allowed.append(flags)
    while units:
        solved = _solve(task, units, allowed, {})
        if solved is not None:
            return solved.placements
        largest = max(range(len(units)), key=lambda u: sum(p.memory_mib for p in units[u]))
        del units[largest], allowed[largest]
    return ()


def _units_among(task: Task, wanted: Sequence[Slice]) -> list[Unit]:
    """The units of all slices, reduced to the slices wanted."""
    indexes = {part.index for part in wanted}
    reduced = (tuple(p for p in unit if p.index in indexes) for unit in units_of(task.slices))
    return [unit for unit in reduced if unit]


def _allowed(task: Task, unit: Unit, kept: Mapping[int, NodeId]) -> Flags:
    """Where a unit may go: where a part of it is kept, if the rest fits there, else anywhere."""
    new = tuple(part for part in unit if part.index not in kept)
    anywhere = task.feasible(unit)
    stay = {kept[part.index] for part in unit if part.index in kept}
    for node_id in sorted(stay):
        row = task.table.row(node_id)
        if not new or task.feasible(new)[row]:
            flags = np.zeros(task.table.size, dtype=np.bool_)
            flags[row] = True
            return flags
    return anywhere


def _wished(task: Task, unit: Unit, allowed: Flags) -> Flags:
    """Where a unit may go if the choice of cuts is followed; anywhere when it cannot be."""
    flags = np.zeros_like(allowed)
    for part in unit:
        node_id = task.wished.get(part.index)
        if node_id is not None and node_id in task.table:
            flags[task.table.row(node_id)] = True
    flags &= allowed
    return flags if flags.any() else allowed


def _solve(
    task: Task, units: Sequence[Unit], allowed: Sequence[Flags], kept: Mapping[int, NodeId]
) -> Assigned | None:
    rows, cost = _costs(task, units, allowed)
    fresh = [[part for part in unit if part.index not in kept] for unit in units]
    memory = [float(sum(part.memory_mib for part in unit)) for unit in fresh]
    penalties = penalties_of(units, task.edges, task.links)
    problem = Problem(
        cost,
        penalties,
        memory,
        task.room[rows],
        _tie_order(task, rows),
        [len(unit) for unit in fresh],
        task.slots[rows],
    )
    solution = solve(problem)
    if solution is None:
        return None
    return _placed(task, _Solved(tuple(units), rows, problem, solution), kept)


def _costs(task: Task, units: Sequence[Unit], allowed: Sequence[Flags]) -> tuple[Rows, Matrix]:
    """The rows looked at, and units x rows of expected milliseconds under load."""
    rows = np.flatnonzero(np.logical_or.reduce(list(allowed)))
    if len(rows) > CANDIDATES_MAX:
        rows = _most_promising(task, allowed, rows)
    cost = np.empty((len(units), len(rows)))
    for number, unit in enumerate(units):
        total = np.zeros(len(rows))
        for part in unit:
            total += task.outlook.times_ms(part, rows)
        cost[number] = np.where(allowed[number][rows], total * task.outlook.factor[rows], np.inf)
    return rows, cost


def _most_promising(task: Task, allowed: Sequence[Flags], rows: Rows) -> Rows:
    """At most CANDIDATES_MAX rows: the least loaded for each unit, and the least loaded that may
    take the most units."""
    share = CANDIDATES_MAX // (len(allowed) + 1)
    takes = np.sum([flags[rows] for flags in allowed], axis=0)
    groups = [rows[np.lexsort((task.outlook.factor[rows], -takes))[:share]]]
    for flags in allowed:
        own = np.flatnonzero(flags)
        groups.append(own[np.argsort(task.outlook.factor[own], kind="stable")[:share]])
    return np.unique(np.concatenate(groups))


def _tie_order(task: Task, rows: Rows) -> Matrix:
    """Coolest first, then by chance."""
    chance = np.array([task.random.random() for _ in range(len(rows))])
    return temperature_steps(task.table, rows) + chance


class _Solved(Struct, frozen=True):
    """A problem with its solution and what its numbers stand for."""

    units: tuple[Unit, ...]
    rows: Rows
    problem: Problem
    solution: Solution

    def row(self, unit: int) -> int:
        """The table's row that a unit goes to."""
        return int(self.rows[self.solution.nodes[unit]])

    def partners_beside(self, unit: int) -> list[int]:
        """Units on the same node that exchange tensors with this one."""
        nodes = self.solution.nodes
        return [
            pair[0] if pair[1] == unit else pair[1]
            for pair in self.problem.penalties
            if unit in pair and nodes[pair[0]] == nodes[pair[1]]
        ]

    def transfer_ms(self) -> float:
        """What the tensors that leave their node cost."""
        nodes = self.solution.nodes
        return sum(
            penalty
            for (earlier, later), penalty in self.problem.penalties.items()
            if nodes[earlier] != nodes[later]
        )


def _placed(task: Task, solved: _Solved, kept: Mapping[int, NodeId]) -> Assigned:
    placements: list[Placement] = []
    for number, unit in enumerate(solved.units):
        row = solved.row(number)
        node_id = task.table.node_id(row)
        reason = _reason(task, solved, number)
        for part in unit:
            word = "kept" if kept.get(part.index) == node_id else reason
            placements.append(task.placement(part, node_id, word))
        task.room[row] -= solved.problem.memory[number]
        task.slots[row] -= solved.problem.parts[number]
    placements.sort(key=lambda each: each.slice_index)
    return Assigned(tuple(placements), solved.transfer_ms(), solved.solution.is_exact)


def _reason(task: Task, solved: _Solved, number: int) -> str:
    """The word that explains best why this node."""
    cost = solved.problem.cost[number]
    possible = np.flatnonzero(np.isfinite(cost))
    if any(part.device_type is not None for part in solved.units[number]):
        return "pinned_device_type"
    mine = task.table.node_id(solved.row(number))
    if any(task.wished.get(part.index) == mine for part in solved.units[number]):
        return "chosen_with_cuts"
    if len(possible) == 1:
        return "only_candidate"
    ties = possible[cost[possible] <= cost.min() + _NEAR]
    beside = solved.partners_beside(number)
    if solved.solution.nodes[number] not in ties:
        return "keeps_tensors_local" if beside else "fits_memory"
    if len(ties) == 1:
        return _why_cheapest(task, solved.rows[possible], solved.row(number))
    if beside and min(beside) < number:
        return "keeps_tensors_local"
    return _why_among_equals(task, solved.rows[ties], solved.row(number))


def _why_cheapest(task: Task, rows: Rows, mine: int) -> str:
    """The load decided, unless another has less or all have the same: then it is the speed."""
    factor = task.outlook.factor
    lowest = float(factor[rows].min())
    is_load_alike = float(factor[rows].max()) - lowest <= _NEAR
    return "fastest" if is_load_alike or float(factor[mine]) > lowest else "lowest_load"


def _why_among_equals(task: Task, rows: Rows, mine: int) -> str:
    """Equal scores were settled by temperature, if it was measured and differs."""
    steps = temperature_steps(task.table, rows)
    is_measured = not np.isnan(task.table.temperature_c[mine])
    is_coolest = temperature_steps(task.table, np.array([mine]))[0] == steps.min() < steps.max()
    return "lowest_temperature" if is_measured and is_coolest else "lowest_load"
