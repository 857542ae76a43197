"""The replicas of one attempt, chosen from what is ready on routable nodes right now. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Container
from random import Random

from din.domain.node import NodeId
from din.gateway.routes.serving import LiveReplica, Serving
from din.gateway.routes.shape import RouteShape
from din.placement.router import Candidate, choose_route

HealthOf = Callable[[NodeId], float | None]
"""Health score of a routable node; None when it must not be used now."""


def choose_now(
    serving: Serving,
    shape: RouteShape,
    health_of: HealthOf,
    random: Random,
    now_ms: float,
    avoided: Container[str] = (),
) -> dict[int, LiveReplica] | None:
    """A replica for each slice around the avoided nodes; a slice that nobody else holds goes back
    to them. None when a slice has no replica now."""
    if shape.single_slice is not None and len(serving.replicas(shape.single_slice)) == 1:
        ((node_id, replica),) = serving.replicas(shape.single_slice).items()  # nothing to weigh
        return {shape.single_slice: replica} if health_of(node_id) is not None else None
    offered: list[list[Candidate]] = []
    for index in shape.slices:
        candidates = [
            Candidate(
                node_id,
                replica.inflight,
                replica.fresh_mean_ms(now_ms),
                health,
                replica.is_local,
            )
            for node_id, replica in serving.replicas(index).items()
            if (health := health_of(node_id)) is not None
        ]
        if not candidates:
            return None
        others = [each for each in candidates if each.node_id not in avoided]
        offered.append(others or candidates)
    nodes = choose_route(offered, random)
    return {
        index: serving.replicas(index)[node_id]
        for index, node_id in zip(shape.slices, nodes, strict=True)
    }
