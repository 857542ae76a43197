"""From a node that is to become empty to the others, slice by slice: make before break."""

from __future__ import annotations

from din.domain.node import NodeId
from din.gateway.deployment.drains import DrainBook
from din.gateway.deployment.holding import Holding
from din.gateway.requests.relay import Sender
from din.wire.messages import Unload


def let_go(holding: Holding, drains: DrainBook, sender: Sender) -> bool:
    """Draining nodes unload what others serve; one without a link is told when it is back. True
    when one was told."""
    epoch = holding.serving.deployment.epoch
    is_told = False
    for node_id in drains.leaving().intersection(holding.nodes()):
        for index in holding.indexes_on(node_id):
            if all(map(drains.is_leaving, holding.serving.replicas(index))):
                continue
            if sender.send(node_id, Unload(epoch, index)):
                holding.release(index, node_id)
                holding.serving.drop(index, node_id)
                drains.let_go(node_id, holding.slice_name(index))
                is_told = True
    return is_told


def kept_on(holding: Holding, drains: DrainBook, node_id: NodeId) -> tuple[int, ...]:
    """What a draining node served before it or the gateway was away, and nobody serves now."""
    kept = drains.kept(node_id)
    return tuple(
        part.index
        for part in (holding.partition.slices if kept else ())
        if holding.slice_name(part.index) in kept
        and not holding.has(part.index, node_id)
        and not holding.serving.replicas(part.index)
    )


def only_on_leaving(holding: Holding, drains: DrainBook) -> frozenset[int]:
    """Slices that nobody but draining nodes holds or loads."""
    homes = {index for index, node in holding.pairs() if not drains.is_leaving(node)}
    return frozenset(index for index, _ in holding.pairs() if index not in homes)
