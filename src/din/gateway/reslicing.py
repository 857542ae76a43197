"""Choosing cuts again for a model that is deployed, and showing what cuts there are.

A new choice replaces what stands only when it wins by WIN_MIN: a deployment costs loading and
memory, and what is known of devices always moves a little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from din.access.scopes import owns
from din.domain.cuts import CutChoice, CutTable, CutWay
from din.domain.node import NodeId
from din.domain.trust import Caller
from din.domain.views import CutsView, SliceAgainView
from din.errors import BadStrategy, CannotPlace, Denied, DinError
from din.gateway.registration.cutting import wished_nodes
from din.gateway.registration.foreign import check_file
from din.gateway.registration.record import ModelRecord
from din.gateway.terrain import ways_of
from din.placement.boundaries import boundaries_of
from din.placement.partitioning import Chosen
from din.placement.speeds import measured_for, operator_ms
from din.placement.telling import told_ways

if TYPE_CHECKING:
    from din.gateway.core import Gateway

WIN_MIN: Final = 0.10
GFLOPS_SHOWN: Final = 40.0
"""For shares of time where no node is here."""


async def slice_again(gateway: Gateway, model_id: str, caller: Caller) -> SliceAgainView:
    """Decide anew for the nodes that are here. Raises NotFound, Denied, BadStrategy for a model
    whose strategy says where to cut, CannotPlace."""
    record = gateway.models.record(model_id)
    manifest = record.manifest
    if not owns(caller, manifest.tenant):
        raise Denied(
            f"model {manifest.model_id!r} belongs to tenant {manifest.tenant!r}",
            hint="a key of that tenant, or one with scope admin, may cut it again",
        )
    if record.order.slicing_strategy.type != "auto":
        raise BadStrategy(
            f"model {manifest.model_id!r} is cut as its strategy says",
            hint="register it with --auto, or with another strategy",
        )
    nodes = _nodes(gateway, record)
    cost = await gateway.cutter.cost_now(record.order, record.assignment, nodes)
    try:
        chosen = await gateway.cutter.choose(record.order)
    except CannotPlace as refusal:
        if cost is None or record.choice is None:
            raise
        # Other slices would have to fit beside those that serve until they are ready.
        reason = f"it stays as it is: beside it there is {refusal.message}"
        return _view(record, record.choice, cost, reason, is_changed=False)
    if chosen is None:
        raise CannotPlace(
            f"no node is here to choose cuts of {manifest.model_id!r} for",
            hint="start a node: din node start",
        )
    reason = _why_not(record, chosen, nodes, cost)
    if reason:
        return _view(record, chosen.choice, cost, reason, is_changed=False)
    record = await gateway.models.cut_again(record, chosen)
    return _view(record, chosen.choice, cost, chosen.choice.reason, is_changed=True)


async def cut_to_fit(gateway: Gateway, record: ModelRecord) -> None:
    """Cut a model that no node can hold, and deploy the slices. What stands in the way is told."""
    model_id = record.manifest.model_id
    try:
        chosen = await gateway.cutter.choose(record.order)
        if chosen is None:
            raise CannotPlace(f"no node is here to cut model {model_id!r} for")
        cut = await gateway.models.cut_to_fit(record, chosen)
    except DinError as error:
        gateway.effects.report("cut refused", model=model_id, reason=error.message)
        gateway.deployer.refuse(model_id, error)
        return
    slices = len(cut.partition.slices)
    gateway.effects.report("cut to fit", model=model_id, slices=slices, why=chosen.choice.reason)


def _view(
    record: ModelRecord, choice: CutChoice, cost: float | None, reason: str, *, is_changed: bool
) -> SliceAgainView:
    return SliceAgainView(
        model_id=record.manifest.model_id,
        version=record.manifest.version,
        is_changed=is_changed,
        reason=reason,
        cost_before=None if cost is None else round(cost, 3),
        choice=choice,
    )


async def cuts_of(gateway: Gateway, model_id: str, version: str | None) -> CutsView:
    """The graph of a model, its slices, and how long operators take. Raises NotFound and as the
    carver."""
    record = gateway.models.record(model_id, version)
    order, manifest = record.order, record.manifest
    check_file(order, record.partition.slices, "cut")
    table = await gateway.cutter.table(order)
    terrain = gateway.cutter.terrain(order)
    profiles = await gateway.cutter.profiles(order, table)
    fastest = max(terrain.devices, key=lambda each: each.gflops, default=None)
    measured = next(
        (
            (each, times)
            for each in terrain.devices
            if (times := measured_for(table, profiles, each.device_class)) is not None
        ),
        None,
    )
    device, times = measured if measured is not None else (fastest, None)
    speed = device.gflops if device is not None else GFLOPS_SHOWN
    model = [part for part in record.partition.slices if part.kind == "model"]
    nodes = _nodes(gateway, record)
    return CutsView(
        model_id=manifest.model_id,
        version=manifest.version,
        table=table,
        assignment=record.assignment,
        slices=tuple(
            (part.name, gateway.fleet.name_of(node) if node else "")
            for part, node in zip(model, nodes, strict=True)
        ),
        operator_ms=tuple(round(ms, 6) for ms in operator_ms(table, speed, times).tolist()),
        device=device.name if device is not None else "",
        times_from="flops" if times is None else "profile",
        ways=_present_ways(gateway, table, record.assignment, nodes),
    )


def _present_ways(
    gateway: Gateway, table: CutTable, assignment: tuple[int, ...], nodes: Sequence[NodeId]
) -> tuple[CutWay, ...]:
    """Nothing while a slice is on no node."""
    if not all(nodes) or len(assignment) != len(table.operators):
        return ()
    used = list(dict.fromkeys(nodes))
    named = [(node, gateway.fleet.name_of(node)) for node in used]
    places = [used.index(each) for each in nodes]
    ways = ways_of(gateway, used)
    return told_ways(boundaries_of(table), named, ways, np.array(assignment), places)


def _nodes(gateway: Gateway, record: ModelRecord) -> list[NodeId]:
    """Who holds each model slice, or should."""
    wished = wished_nodes(record.choice)
    holding = next((each for each in gateway.deployer.holdings() if each.record is record), None)
    found: list[NodeId] = []
    for part in record.partition.slices:
        if part.kind != "model":
            continue
        holders = [
            each.node_id
            for each in (holding.replicas() if holding is not None else ())
            if each.slice_index == part.index and each.state == "ready"
        ]
        wish = wished.get(part.index, NodeId(""))
        found.append(wish if wish in holders or not holders else holders[0])
    return found


def _why_not(record: ModelRecord, chosen: Chosen, nodes: list[NodeId], cost: float | None) -> str:
    """Why what stands stays; empty when the new choice is to be carried out."""
    choice = chosen.choice
    same_nodes = nodes == [each.node_id for each in choice.slices]
    if chosen.assignment == record.assignment and same_nodes:
        return f"it stays as it is: {choice.reason}"
    if cost is not None and choice.cost >= cost * (1 - WIN_MIN):
        return (
            f"it stays as it is: {cost:.1f} {choice.unit} now, {choice.cost:.1f} {choice.unit} by "
            f"other cuts, which is not {WIN_MIN:.0%} less"
        )
    return ""
