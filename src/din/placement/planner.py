"""Where the slices of a model go: constraints first, then the cheapest assignment as a whole.

Small problems are solved exactly. Over CANDIDATES_MAX possible nodes only the most promising are
looked at: for each unit those with the lowest cost, and those that are cheap for all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from din.domain.model import Edge, Slice
from din.domain.node import FleetNode, NodeId
from din.domain.numerics import Numerics
from din.domain.plan import Placement, Plan, Rejection, RejectionCount
from din.placement.explain import cannot_place, explain, rejection_counts
from din.placement.layout import LINK_GUESS, LinkGuess, crossings
from din.placement.policy import WEIGHTED_LEAST_LOAD, Policy
from din.placement.problem import Assigned, Task, Unplaced, assign, assign_what_fits
from din.placement.score import Outlook, TimesOf
from din.placement.table import FleetTable, table_of

if TYPE_CHECKING:
    from random import Random

REPLICAS_MAX: Final = 16
CUT_SHORT: Final = "the search was cut short: a better plan may exist"


def plan_deployment(
    slices: Sequence[Slice],
    edges: Sequence[Edge],
    fleet: FleetTable | Sequence[FleetNode],
    policy: Policy = WEIGHTED_LEAST_LOAD,
    *,
    random: Random,
    model_id: str = "",
    version: str = "",
    times: TimesOf | None = None,
    links: LinkGuess = LINK_GUESS,
    replicas: int = 1,
    existing: Mapping[int, Sequence[NodeId]] | None = None,
    excluded: Collection[NodeId] = (),
    leaving: Collection[NodeId] = (),
    wished: Mapping[int, NodeId] | None = None,
    is_explained: bool = False,
) -> Plan:
    """Place every slice once, and up to `replicas` times where memory allows.

    `existing` holds the nodes that have a slice already: those stay (reason `kept`) unless they are
    excluded or gone, so repair is the same call. What a `leaving` node has stays there too, and
    gets another home beside it where one can take it. `wished` is where the choice of cuts wants
    slices: followed where it can be. First placements come first. `is_explained`
    adds the full list of rejections. Raises CannotPlace with the reasons grouped.
    """
    table = table_of(fleet)
    task = Task(
        slices=tuple(slices),
        edges=tuple(edges),
        table=table,
        policy=policy,
        random=random,
        outlook=Outlook(table, policy, times),
        links=links,
        excluded=frozenset(excluded),
        leaving=frozenset(leaving),
        wished=wished or {},
    )
    held = _still_there(task, existing or {})
    first = _assign_or_refuse(task, {index: nodes[0] for index, nodes in held.items()})
    placed = {placement.slice_index: [placement] for placement in first.placements}
    _add_replicas(task, placed, held, min(replicas, REPLICAS_MAX))
    # Where only one replica is placed, any kind of node could have taken it.
    beside = {part.index for part in task.slices} if replicas > 1 else held.keys()
    plan = _as_plan(task, placed, first, beside, is_explained=is_explained)
    return replace(plan, model_id=model_id, version=version)


def _as_plan(
    task: Task,
    placed: Mapping[int, list[Placement]],
    first: Assigned,
    beside: Collection[int],
    *,
    is_explained: bool,
) -> Plan:
    """`beside`: slices whose further replicas have to fit the first."""
    chosen = {index: [each.node_id for each in group] for index, group in placed.items()}
    numerics = {
        part.index: task.numerics(part, chosen[part.index])
        for part in task.slices
        if part.index in beside
    }
    return Plan(
        plan_id=f"plan-{task.random.getrandbits(32):08x}",
        model_id="",
        version="",
        placements=_primaries_first(placed),
        rejections=_all_rejections(task, chosen, numerics) if is_explained else (),
        rejection_counts=_counts(task, chosen, numerics),
        relays=_relays(task, chosen),
        expected_ms=_expected_ms(first.placements, first.transfer_ms),
        policy=task.policy.name,
        policy_version=task.policy.version,
        notes=() if first.is_exact else (CUT_SHORT,),
    )


def plan_replicas(
    slices: Sequence[Slice],
    edges: Sequence[Edge],
    fleet: FleetTable | Sequence[FleetNode],
    policy: Policy = WEIGHTED_LEAST_LOAD,
    *,
    random: Random,
    existing: Mapping[int, Sequence[NodeId]],
    times: TimesOf | None = None,
    links: LinkGuess = LINK_GUESS,
    excluded: Collection[NodeId] = (),
) -> tuple[Placement, ...]:
    """One more replica of each slice where memory allows, on a node that has none. Never raises."""
    table = table_of(fleet)
    task = Task(
        slices=tuple(slices),
        edges=tuple(edges),
        table=table,
        policy=policy,
        random=random,
        outlook=Outlook(table, policy, times),
        links=links,
        excluded=frozenset(excluded),
    )
    return assign_what_fits(task, {part.index: existing.get(part.index, ()) for part in slices})


def _assign_or_refuse(task: Task, kept: Mapping[int, NodeId]) -> Assigned:
    try:
        return assign(task, kept)
    except Unplaced as refusal:
        raise cannot_place(
            refusal.slices, task.table, task.policy, excluded=task.excluded
        ) from None


def _still_there(task: Task, existing: Mapping[int, Sequence[NodeId]]) -> dict[int, list[NodeId]]:
    held = {
        part.index: [
            node
            for node in existing.get(part.index, ())
            if node in task.table and node not in task.excluded
        ]
        for part in task.slices
    }
    return {index: nodes for index, nodes in held.items() if nodes}


def _add_replicas(
    task: Task,
    placed: dict[int, list[Placement]],
    held: Mapping[int, Sequence[NodeId]],
    replicas: int,
) -> None:
    for index, nodes in held.items():
        first = placed[index][0].node_id
        placed[index] += [task.kept(index, node) for node in nodes if node != first]
    for wanted in range(1, replicas + 1):
        holders = {
            index: [each.node_id for each in group]
            for index, group in placed.items()
            if sum(each.node_id not in task.leaving for each in group) < wanted
        }
        for placement in assign_what_fits(task, holders) if holders else ():
            placed[placement.slice_index].append(placement)


def _primaries_first(placed: Mapping[int, Sequence[Placement]]) -> tuple[Placement, ...]:
    primaries = [placed[index][0] for index in sorted(placed)]
    return (*primaries, *(each for index in sorted(placed) for each in placed[index][1:]))


def _all_rejections(
    task: Task,
    chosen: Mapping[int, Collection[NodeId]],
    numerics: Mapping[int, Numerics | None],
) -> tuple[Rejection, ...]:
    return tuple(
        each
        for part in task.slices
        for each in explain(
            part,
            task.table,
            task.policy,
            chosen=chosen[part.index],
            excluded=task.excluded,
            outlook=task.outlook,
            numerics=numerics.get(part.index),
        )
    )


def _counts(
    task: Task,
    chosen: Mapping[int, Collection[NodeId]],
    numerics: Mapping[int, Numerics | None],
) -> tuple[RejectionCount, ...]:
    return rejection_counts(
        task.slices,
        task.table,
        task.policy,
        chosen=chosen,
        excluded=task.excluded,
        outlook=task.outlook,
        numerics=numerics,
    )


def _relays(task: Task, chosen: Mapping[int, Sequence[NodeId]]) -> tuple[tuple[str, str], ...]:
    pairs = {
        (source, target)
        for producer, consumer in crossings(task.edges)
        for source in chosen.get(producer, ())
        for target in chosen.get(consumer, ())
        if (source, target) in task.links.undialable
    }
    table = task.table
    return tuple(
        (table.name(table.row(source)), table.name(table.row(target)))
        for source, target in sorted(pairs)
    )


def _expected_ms(placements: Sequence[Placement], transfer_ms: float) -> float | None:
    total = transfer_ms
    for placement in placements:
        if placement.expected_ms is None:
            return None
        total += placement.expected_ms
    return total
