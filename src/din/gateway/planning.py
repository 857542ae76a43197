"""What a request would do now: the plan of a deployment, judged against one node alone."""

from __future__ import annotations

from msgspec.structs import replace

from din.domain.plan import Plan
from din.gateway.core import Gateway
from din.gateway.routes.serving import Serving
from din.gateway.viewing import plan_notes
from din.placement.compare import compare_split


def plan_now(gateway: Gateway, model_id: str, version: str | None, *, is_adapted: bool) -> Plan:
    """As if nothing were placed by chance, but what is stays. Raises NotFound, CannotPlace."""
    serving = gateway.models.serving(model_id, version)
    holding = gateway.deployer.holding(serving)
    assert holding is not None, "a serving deployment has its holding"
    leaving = gateway.drains.leaving()
    known = holding.known(gateway.fleet.is_routable, leaving, gateway.effects.clock())
    shape = serving.shape(is_adapted=is_adapted)
    plan = gateway.fleet.plan(known, is_explained=True, slices=shape.slices)
    placements = tuple(holding.explained(each) for each in plan.placements)
    notes = (*plan.notes, *plan_notes(holding.record, shape.slices))
    plan = replace(plan, placements=placements, notes=notes)
    return plan if shape.single_slice is not None else _judged(gateway, plan, serving)


def _judged(gateway: Gateway, plan: Plan, serving: Serving) -> Plan:
    """A plan of several slices, with what one node alone would take where that is known."""
    model = [each for each in serving.deployment.partition.slices if each.kind == "model"]
    indexes = {each.index for each in model}
    nodes = {each.node_id for each in plan.placements if each.slice_index in indexes}
    if len(model) < 2 or len(nodes) < 2:
        return plan
    found = compare_split(
        model,
        serving.deployment.partition.edges,
        [each for each in plan.placements if each.slice_index in indexes],
        gateway.measured_ms,
        whole_ms=gateway.models.whole_ms(serving.deployment.manifest.source_sha256),
        names={each.profile.node_id: each.profile.name for each in gateway.fleet.members()},
    )
    return replace(
        plan,
        is_split_refused=bool(found.is_split_refused),
        notes=(*plan.notes, found.verdict),
    )
