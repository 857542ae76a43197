"""What nodes may still hold although they shall not: told to them at once, or when they return."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from din.domain.deployment import Epoch
from din.domain.node import NodeId
from din.gateway.requests.relay import Sender
from din.wire.messages import Unload

NODES_MAX: Final = 1_000
EPOCHS_MAX: Final = 256
"""Per absent node: a node that is away for longer than that has most likely been restarted."""


class Leftovers:
    """Unloads whole deployments from nodes, also from those that are away now."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._left: dict[NodeId, set[Epoch]] = {}
        self._told: dict[NodeId, None] = {}
        """Nodes that know which epochs of earlier gateway sessions are over."""

    def unload(self, node_id: NodeId, epoch: Epoch) -> None:
        """Now if there is a link, else when the node returns."""
        if self._sender.send(node_id, Unload(epoch)):
            return
        _make_room(self._left, node_id)
        epochs = self._left.setdefault(node_id, set())
        if len(epochs) < EPOCHS_MAX:
            epochs.add(epoch)

    def node_connected(
        self, node_id: NodeId, former: Iterable[Epoch], is_held: Callable[[Epoch], bool]
    ) -> None:
        """A node is back: it drops what it was to drop; `is_held` says what it is to keep."""
        epochs = self._left.pop(node_id, set[Epoch]())
        if node_id not in self._told:
            _make_room(self._told, node_id)
            self._told[node_id] = None
            epochs |= set(former)
        for epoch in sorted(epochs):
            if not is_held(epoch):
                self.unload(node_id, epoch)


def _make_room(table: dict[NodeId, set[Epoch]] | dict[NodeId, None], node_id: NodeId) -> None:
    while node_id not in table and len(table) >= NODES_MAX:
        del table[next(iter(table))]
