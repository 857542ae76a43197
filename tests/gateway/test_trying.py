"""Plans for slices that nobody has registered."""

from __future__ import annotations

import pytest
from gateway_fakes import part_of
from msgspec.structs import replace

from din.domain.model import GATEWAY, Edge
from din.domain.views import PlanSlices
from din.errors import CannotPlace, UsageError
from din.gateway.trying import plan_slices
from din.placement.policy import WEIGHTED_LEAST_LOAD
from din.placement.table import FleetTable

EDGES = (Edge("x", GATEWAY, (0,)), Edge("a", 0, (1,)), Edge("y", 1, (GATEWAY,)))


class Nodes:
    """What is asked of the fleet."""

    policy = WEIGHTED_LEAST_LOAD

    def __init__(self, *names: str) -> None:
        from din.domain.node import FleetNode, NodeHealth, NodeId, NodeProfile

        self._table = FleetTable.of(
            FleetNode(
                profile=NodeProfile(
                    node_id=NodeId(f"{number:016x}"),
                    session=1,
                    name=name,
                    device_type="x86_64",
                    cpu_model="any",
                    cpu_isa=(),
                    cpu_cores=2,
                    memory_mib=8000,
                    backends=("onnxruntime",),
                ),
                health=NodeHealth(memory_mib_free=4000),
                status="ready",
                health_score=1.0,
            )
            for number, name in enumerate(names)
        )

    def table(self) -> FleetTable:
        return self._table


def asked(**first) -> PlanSlices:
    slices = (replace(part_of(0, EDGES), **first), part_of(1, EDGES))
    return PlanSlices(slices=slices, edges=EDGES)


def test_slices_are_placed_over_the_fleet_with_reasons_and_the_same_when_asked_again() -> None:
    fleet = Nodes("edge-1", "edge-2")
    plan = plan_slices(fleet, asked(nodes=("edge-2",)))
    assert plan.placements[0].node == "edge-2"
    assert ("edge-1", "pinned to node edge-2") in {(e.node, e.required) for e in plan.rejections}
    assert plan_slices(fleet, asked(nodes=("edge-2",))).placements == plan.placements


def test_what_nobody_can_take_is_refused_with_the_reasons() -> None:
    with pytest.raises(CannotPlace, match="no compatible device found for backend tensorrt"):
        plan_slices(Nodes("edge-1"), asked(backend="tensorrt"))


def test_slices_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="the same index"):
        plan_slices(Nodes("a"), asked(index=1))
    lost = PlanSlices(slices=(part_of(0, EDGES),), edges=EDGES)
    with pytest.raises(UsageError, match="tensor 'a' names slice 1"):
        plan_slices(Nodes("a"), lost)
