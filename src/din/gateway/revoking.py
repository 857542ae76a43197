"""A node is thrown out for good: it is cut off, the others are told, and what operators wished of
it goes with it, since its id never comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from din.domain.enrolment import RevokedView
from din.domain.node import NodeId
from din.errors import DinError
from din.wire.messages import ThrownOut

if TYPE_CHECKING:
    from din.gateway.core import Gateway


async def revoke(gateway: Gateway, node_id: NodeId, name: str) -> RevokedView:
    """Throw a node out. Raises Unavailable when the disk cannot hold that."""
    is_new = await gateway.roll.revoke(node_id, name)
    gateway.beats.forget(node_id)
    gateway.links.tell_all(ThrownOut((node_id,)))
    session = gateway.fleet.session_of(node_id)
    if session is not None:
        gateway.fleet.left(node_id, session, "was revoked")
    gateway.effects.report("node revoked", node=name, id=node_id)
    await _strike_out(gateway, node_id)
    return RevokedView(node_id=node_id, name=name, is_new=is_new)


async def strike_out_revoked(gateway: Gateway) -> None:
    """Of nodes that were thrown out before this start. Once, when drains and labels are loaded."""
    for node_id in sorted({*gateway.drains.leaving(), *gateway.labels.nodes()}):
        if gateway.roll.is_revoked(node_id):
            await _strike_out(gateway, NodeId(node_id))


async def _strike_out(gateway: Gateway, node_id: NodeId) -> None:
    """A store that cannot do it now is asked again at the next start: the revocation stands."""
    try:
        await gateway.drains.end(node_id)
        await gateway.labels.forget(node_id)
    except DinError as error:
        gateway.effects.report("wishes of a revoked node kept", id=node_id, error=error.message)
        return
    if gateway.fleet.is_known(node_id):
        gateway.fleet.undrain(node_id)
