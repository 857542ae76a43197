"""The gateway's decisions in a simulation: the real membership, table, planner and router, with the
instructions carried out on plain dicts."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from msgspec import Struct

from din.discovery.events import (
    AnswerBeat,
    EvictSession,
    MembershipEvent,
    MembershipInstruction,
    PublishChanged,
    PublishForgotten,
    PublishJoined,
    PublishLost,
    PublishUpdated,
    RecordHealth,
    RecordScore,
)
from din.discovery.membership import Membership
from din.domain.model import GATEWAY, Edge, Slice
from din.domain.node import FleetNode, NodeHealth, NodeId
from din.domain.plan import Placement
from din.errors import CannotPlace
from din.flow.timeout import Timeouts
from din.placement.planner import plan_deployment
from din.placement.policy import WEIGHTED_LEAST_LOAD, Policy
from din.placement.router import Candidate, choose_route
from din.placement.table import STATUS_CODE, FleetTable
from din.sim.scenario import Counts, Scenario

RETRY_REFUSED_MS: Final = 1_000
"""A refused plan is tried again after this, or as soon as the fleet changes."""
REPLICAS_MAX: Final = 4
_READY: Final = STATUS_CODE["ready"]
_NEVER_MS: Final = 2**62


class SimReplica(Struct):
    """A slice on a node: being loaded, or ready."""

    is_ready: bool = False
    inflight: int = 0


class SimDeployment:
    """Slices, and which nodes hold them."""

    def __init__(self, number: int, slices: tuple[Slice, ...], edges: tuple[Edge, ...]) -> None:
        self.number = number
        self.slices = slices
        self.edges = edges
        self.replicas: list[dict[NodeId, SimReplica]] = [{} for _ in slices]
        self.refused_version = -1
        """Fleet version at which no place was found; -1 = a place was found since."""
        self.refused_ms: int | None = None


class Control:
    """Takes membership events; keeps table and deployments in step with the answers."""

    def __init__(self, scenario: Scenario, random: Random, counts: Counts) -> None:
        self.membership = Membership()
        self.table = FleetTable()
        self.timeouts = Timeouts()
        self.policy: Policy = WEIGHTED_LEAST_LOAD
        self.random = random
        self.counts = counts
        self.evicted: Callable[[EvictSession], None] = lambda _: None
        self.loading: Callable[[SimDeployment, int, NodeId], None] = lambda *_: None
        self.deployments = [_deployment(n, scenario, random) for n in range(scenario.deployments)]
        self.is_deploying = False
        """Models are registered once the fleet has begun to join."""
        self._repaired_version = -1
        self._retry_ms = _NEVER_MS
        self._holders: dict[NodeId, set[tuple[int, int]]] = {}
        self._reserved: dict[NodeId, int] = {}

    def handle(self, now_ms: int, event: MembershipEvent) -> tuple[MembershipInstruction, ...]:
        """Ask membership and carry out what it orders."""
        orders = self.membership.handle(now_ms, event)
        for order in orders:
            self._carry_out(order)
        return orders

    def is_ready(self, node_id: NodeId) -> bool:
        """Whether the table has the node as routable."""
        return node_id in self.table and int(self.table.status[self.table.row(node_id)]) == _READY

    def session_of(self, node_id: NodeId) -> int:
        """The session that the table knows."""
        return self.table.node(self.table.row(node_id)).profile.session

    def holding(self) -> list[NodeId]:
        """Nodes that hold some slice."""
        return sorted(node_id for node_id, held in self._holders.items() if held)

    def route(self, deployment: SimDeployment, excluded: set[NodeId]) -> tuple[NodeId, ...]:
        """Nodes for one attempt. Raises CannotPlace."""
        offered = [
            [
                Candidate(
                    node_id,
                    replica.inflight,
                    self.timeouts.mean_ms(part.slice_id, node_id),
                    float(self.table.health[self.table.row(node_id)]),
                )
                for node_id, replica in holders.items()
                if replica.is_ready and self.is_ready(node_id)
            ]
            for part, holders in zip(deployment.slices, deployment.replicas, strict=True)
        ]
        return choose_route(offered, self.random, excluded=excluded)

    def missing(self, deployment: SimDeployment) -> list[int]:
        """Slices without a replica, ready or being loaded, on a node that is ready."""
        return [
            index
            for index, holders in enumerate(deployment.replicas)
            if not any(self.is_ready(node_id) for node_id in holders)
        ]

    def repair(self, now_ms: int) -> bool:
        """Place every slice that lacks a usable replica, as far as the fleet allows. False when
        nothing has changed since the last time, so that nothing was looked at."""
        is_same_fleet = self._repaired_version == self.table.version
        if not self.is_deploying or (is_same_fleet and now_ms < self._retry_ms):
            return False
        self._repaired_version, self._retry_ms = self.table.version, _NEVER_MS
        for deployment in self.deployments:
            if self.missing(deployment):
                self._place(now_ms, deployment)
        return True

    def loaded(self, deployment: SimDeployment, slice_index: int, node_id: NodeId) -> bool:
        """The node says that it holds the slice; False when it was taken away meanwhile."""
        replica = deployment.replicas[slice_index].get(node_id)
        if replica is None:
            return False
        replica.is_ready = True
        return True

    def _place(self, now_ms: int, deployment: SimDeployment) -> None:
        existing = {
            index: [node_id for node_id in holders if self.is_ready(node_id)]
            for index, holders in enumerate(deployment.replicas)
        }
        is_first = not any(deployment.replicas)
        try:
            plan = plan_deployment(
                deployment.slices,
                deployment.edges,
                self.table,
                self.policy,
                random=self.random,
                times=self.timeouts.mean_ms,
                replicas=2 if is_first else 1,
                existing=existing,
            )
        except CannotPlace:
            self.counts.refusals += 1
            deployment.refused_version = self.table.version
            deployment.refused_ms = now_ms
            self._retry_ms = now_ms + RETRY_REFUSED_MS
            return
        deployment.refused_version = -1
        self.counts.repairs += not is_first
        for placement in plan.placements:
            if placement.reason != "kept":
                self._add(deployment, placement)

    def _add(self, deployment: SimDeployment, placement: Placement) -> None:
        node_id, index = placement.node_id, placement.slice_index
        holders = deployment.replicas[index]
        if len(holders) >= REPLICAS_MAX:
            away = next((each for each in holders if not self.is_ready(each)), None)
            if away is not None:
                self._drop(deployment, index, away)
        holders[node_id] = SimReplica()
        self._holders.setdefault(node_id, set()).add((deployment.number, index))
        self._reserve(node_id, placement.memory_mib)
        self.loading(deployment, index, node_id)

    def _load_again(self, node_id: NodeId) -> None:
        """A node that can be reached again may have missed what it was told to load."""
        for number, index in sorted(self._holders.get(node_id, ())):
            deployment = self.deployments[number]
            if not deployment.replicas[index][node_id].is_ready:
                self.loading(deployment, index, node_id)

    def _drop(self, deployment: SimDeployment, index: int, node_id: NodeId) -> None:
        del deployment.replicas[index][node_id]
        self._holders[node_id].discard((deployment.number, index))
        self._reserve(node_id, -deployment.slices[index].memory_mib)

    def _drop_node(self, node_id: NodeId) -> None:
        for number, index in sorted(self._holders.get(node_id, ())):
            self._drop(self.deployments[number], index, node_id)

    def _reserve(self, node_id: NodeId, memory_mib: int) -> None:
        total = self._reserved.get(node_id, 0) + memory_mib
        self._reserved[node_id] = total
        if node_id in self.table:
            self.table.set_reserved(node_id, total)

    def _carry_out(self, order: MembershipInstruction) -> None:
        match order:
            case RecordHealth():
                self.table.sample(order.node_id, order.health, order.health_score)
            case RecordScore():
                self.table.set_health(order.node_id, order.health_score)
            case PublishChanged():
                self.table.set_status(order.node_id, order.status)
                self.counts.suspected += order.status == "suspect"
                if order.status == "ready":
                    self._load_again(order.node_id)
            case PublishJoined():
                self._drop_node(order.profile.node_id)
                self.table.upsert(
                    FleetNode(profile=order.profile, health=NodeHealth(), status="joining")
                )
                self.counts.joins += 1
            case PublishUpdated():
                row = self.table.row(order.profile.node_id)
                status = self.table.status_of(row)
                held = self._reserved.get(order.profile.node_id, 0)
                self.table.upsert(
                    FleetNode(
                        profile=order.profile,
                        health=NodeHealth(),
                        status=status,
                        memory_mib_reserved=held,
                    )
                )
            case PublishLost():
                self.table.set_status(order.node_id, "lost")
                self._drop_node(order.node_id)
                self.counts.lost += 1
            case PublishForgotten():
                self.table.remove(order.node_id)
            case EvictSession():
                self.evicted(order)
            case AnswerBeat() | _:
                pass


def _deployment(number: int, scenario: Scenario, random: Random) -> SimDeployment:
    count = scenario.slices
    slices = tuple(
        Slice(
            index=index,
            slice_id=f"{number}/{index}",
            name=f"part-{index}",
            inputs=(),
            outputs=(),
            memory_mib=random.randrange(50, 500),
        )
        for index in range(count)
    )
    edges = (
        Edge("in", GATEWAY, (0,)),
        *(Edge(f"t{index}", index, (index + 1,)) for index in range(count - 1)),
        Edge("out", count - 1, (GATEWAY,)),
    )
    return SimDeployment(number, slices, edges)
