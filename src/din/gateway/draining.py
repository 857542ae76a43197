"""Emptying a node: it serves each slice until another node does, then lets go of it.

drain     the wish is stored, the planner looks for another home of every slice on the node
replaced  as soon as another replica is ready the node is told to unload its own
stuck     a slice that nobody else can take stays and is served; each look tries again
force     it serves nothing from that moment, whatever that costs
undrain   the wish is forgotten: what the node still holds stays
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from din.domain.node import NodeHealth, NodeId
from din.domain.plan import Rejection
from din.domain.views import NodeView, StuckSlice
from din.errors import CannotPlace, NotFound
from din.gateway.core import Gateway
from din.gateway.deployment.holding import Holding
from din.gateway.viewing import node_view, slice_label

REASONS_MAX: Final = 32
"""Nodes named for one slice that nobody else can take."""


class Draining:
    """What the control API does about nodes that are to become empty."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def drain(self, name_or_id: str, *, is_forced: bool, is_dry_run: bool) -> NodeView:
        """Empty a node, or say what would happen. Raises NotFound, Conflict or Unavailable."""
        gateway = self._gateway
        profile = gateway.fleet.find(name_or_id).profile
        node_id = profile.node_id
        if is_dry_run:
            return self.view(node_id, leaving=gateway.drains.leaving() | {node_id})
        lost = self.view(node_id, leaving=gateway.drains.leaving() | {node_id}).stuck
        kept = gateway.deployer.slices_on(node_id)
        await gateway.drains.begin(node_id, profile.name, kept, is_forced=is_forced)
        gateway.fleet.drain(node_id)
        gateway.deployer.look_now(node_id)
        view = self.view(node_id)
        # A node that was forced out holds nothing now: what that cost was known before.
        return replace(view, stuck=lost) if view.is_drain_forced else view

    def drained(self, name_or_id: str) -> NodeId:
        """Id of a node, also of one that is drained and not here. Raises NotFound or Conflict."""
        try:
            return self._gateway.fleet.find(name_or_id).profile.node_id
        except NotFound:
            return self._gateway.drains.find(name_or_id).node_id

    async def undrain(self, node_id: NodeId) -> NodeView:
        """Let a node take slices again. Raises NotFound or Unavailable."""
        gateway = self._gateway
        if not gateway.fleet.is_known(node_id):
            drain = gateway.drains.find(node_id)
            await gateway.drains.end(node_id)
            return _forgotten(node_id, drain.name)
        await gateway.drains.end(node_id)
        gateway.fleet.undrain(node_id)
        return self.view(node_id)

    def view(self, node_id: NodeId, leaving: frozenset[NodeId] | None = None) -> NodeView:
        """One node with what holds it up, node by node. Raises NotFound."""
        gateway = self._gateway
        member = gateway.fleet.find(node_id)
        if leaving is None:
            leaving = gateway.drains.leaving()
        found = (
            StuckSlice(slice=slice_label(holding, index), reasons=reasons)
            for holding in gateway.deployer.holdings()
            for index in (holding.indexes_on(node_id) if node_id in leaving else ())
            if (reasons := self._reasons(holding, index, leaving))
        )
        return node_view(gateway, member, is_whole=True, stuck=tuple(found))

    def _reasons(self, holding: Holding, index: int, leaving: frozenset[NodeId]) -> tuple[str, ...]:
        """Why no other node can take a slice; nothing where one can, or has it already."""
        gateway = self._gateway
        known = holding.known(gateway.fleet.is_routable, leaving, gateway.effects.clock())
        if any(node not in leaving for node in known.existing[index]):
            return ()
        try:
            plan = gateway.fleet.plan(known, is_explained=True)
        except CannotPlace as refusal:
            return tuple(refusal.message.splitlines())
        homes = {each.node_id for each in plan.placements if each.slice_index == index}
        if homes - leaving:
            return ()
        failed = {
            each.node_id: each.reason
            for each in holding.replicas()
            if each.slice_index == index and each.state == "failed"
        }
        others = [
            each
            for each in plan.rejections
            if each.slice_index == index and each.node_id not in leaving
        ]
        lines = [_line(each, failed.get(each.node_id, "")) for each in others[:REASONS_MAX]]
        lines += [
            f"{gateway.fleet.name_of(node)}: it is drained as well"
            for node in sorted(leaving - homes)[:REASONS_MAX]
            if gateway.fleet.is_routable(node)
        ]
        if len(others) > REASONS_MAX:
            lines.append(f"and {len(others) - REASONS_MAX} more reasons")
        return tuple(lines) or ("no other node is in the cluster",)


def _line(rejection: Rejection, failure: str) -> str:
    if failure:
        return f"{rejection.node}: could not load it: {failure}"
    if rejection.constraint == "score":
        return f"{rejection.node}: not beside the other slices that need a new home"
    detail = f" ({rejection.detail})" if rejection.detail else ""
    # What trust is seen as names itself: `trust: low`, `no trust label`.
    what = "" if rejection.constraint == "trust" else f"{rejection.constraint} is "
    return f"{rejection.node}: {what}{rejection.observed}, needs {rejection.required}{detail}"


def _forgotten(node_id: NodeId, name: str) -> NodeView:
    return NodeView(
        node_id=node_id,
        name=name,
        status="lost",
        reason="it has not been here for long",
        device_type="",
        health=NodeHealth(),
        health_score=0.0,
        heartbeat_age_ms=0,
        memory_mib=0,
        memory_mib_reserved=0,
        slices=(),
    )
