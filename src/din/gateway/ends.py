"""Workers that ended on nodes, and slices that nodes keep out for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from din.domain.node import NodeId
from din.errors import Unavailable
from din.gateway.telemetry.crashes import CrashBook
from din.wire.messages import Lift, Revoked, WorkerDied

if TYPE_CHECKING:
    from din.gateway.core import Gateway


def crashes_of(gateway: Gateway) -> CrashBook:
    """The book of crashes, told of workers that the gateway feeds itself."""
    book = CrashBook(gateway.effects.clock, gateway.effects.wall_clock_iso)
    gateway.direct.on_cut_off = book.cut_off

    def end_worker(node_id: NodeId, worker_id: int) -> None:
        gateway.links.send(node_id, Revoked(worker_id))

    gateway.direct.on_stuck = end_worker
    return book


def note_death(gateway: Gateway, node_id: NodeId, message: WorkerDied) -> None:
    """A worker ended: counted, kept and told; what ran in it was answered or is run again."""
    name = gateway.fleet.name_of(node_id)
    gateway.effects.metrics.count_restart(name)
    model_id, slice_ = "", str(message.slice_index)
    for holding in gateway.deployer.holdings():
        if holding.serving.deployment.epoch == message.epoch:
            model_id = holding.record.manifest.model_id
            if 0 <= message.slice_index < len(holding.partition.slices):
                slice_ = f"{model_id}/{holding.partition.slices[message.slice_index].name}"
    death = message.death
    if death.kind != "left":  # a worker that could not be replaced yet is no new death
        key = (message.epoch, message.slice_index, node_id)
        death = gateway.crashes.died(key, name, model_id, slice_, death)
    gateway.effects.report(
        "worker died", node=name, slice=slice_, kind=death.kind, reason=death.story()
    )


def lift(gateway: Gateway, node_id: NodeId) -> None:
    """Have a node load slices again that it keeps out. Raises Unavailable without a link to it."""
    if not gateway.links.send(node_id, Lift()):
        raise Unavailable(
            f"node {gateway.fleet.name_of(node_id)} has no link now",
            hint="a node that was started anew keeps nothing out",
        )
    for holding in gateway.deployer.holdings():
        holding.lift(node_id)
    gateway.deployer.look()
