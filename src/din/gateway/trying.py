"""What would be if slices were registered: a plan over the fleet as it is, without any trace."""

from __future__ import annotations

from random import Random
from typing import Final

from din.domain.model import GATEWAY
from din.domain.plan import Plan
from din.domain.views import PlanSlices
from din.errors import UsageError
from din.gateway.nodes.fleet import Fleet
from din.placement.planner import plan_deployment

SEED: Final = 1
"""Chance decides between equal nodes only; asked twice, it answers the same."""


def plan_slices(fleet: Fleet, asked: PlanSlices) -> Plan:
    """Where these slices would go, with the reasons against each other node. Raises UsageError,
    CannotPlace."""
    indexes = [part.index for part in asked.slices]
    if len(set(indexes)) < len(indexes):
        raise UsageError("two slices have the same index", hint="number them from 0")
    known = {*indexes, GATEWAY}
    for edge in asked.edges:
        for end in (edge.producer, *edge.consumers):
            if end not in known:
                raise UsageError(
                    f"the edge of tensor {edge.tensor!r} names slice {end}, which is not there",
                    hint=f"slices are {min(indexes)} to {max(indexes)}, the gateway is {GATEWAY}",
                )
    return plan_deployment(
        asked.slices,
        asked.edges,
        fleet.table(),
        fleet.policy,
        random=Random(SEED),
        is_explained=True,
    )
