"""The planner's table, with samples that are written when somebody looks: beats come by the ten
thousand a second, plans do not.

Memory: a node's free memory is measured while slices are loaded, so what is loaded is added back
before all promises are subtracted, and a declared memory caps both.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from din.domain.node import FleetNode, NodeHealth, NodeId
from din.placement.table import FleetTable


class Samples:
    """All nodes that are listed, and the newest sample of each."""

    def __init__(self, loaded_mib: Callable[[NodeId], int]) -> None:
        """`loaded_mib`: memory of slices that are loaded on a node."""
        self._loaded_mib = loaded_mib
        self._table = FleetTable()
        self._fresh: dict[NodeId, tuple[NodeHealth, float]] = {}
        """Not written yet."""

    def __contains__(self, node_id: NodeId) -> bool:
        return node_id in self._table

    def put(self, node: FleetNode) -> None:
        """All of a node anew, its sample too."""
        self._fresh.pop(node.profile.node_id, None)
        self._table.upsert(node)

    def take(self, node_id: NodeId, health: NodeHealth, score: float) -> None:
        """A beat's sample; it is the newest."""
        self._fresh[node_id] = (health, score)

    def set_score(self, node_id: NodeId, score: float) -> None:
        """Another score between beats."""
        fresh = self._fresh.get(node_id)
        if fresh is not None:
            self._fresh[node_id] = (fresh[0], score)
        elif node_id in self._table:
            self._table.set_health(node_id, score)

    def remove(self, node_id: NodeId) -> str | None:
        """The name of a node that is forgotten; None when it was not listed."""
        self._fresh.pop(node_id, None)
        if node_id not in self._table:
            return None
        name = self._table.name(self._table.row(node_id))
        self._table.remove(node_id)
        return name

    def table(self) -> FleetTable:
        """The table with every sample in it."""
        for node_id, (health, score) in self._fresh.items():
            if node_id in self._table:
                capped = self.capped(health, node_id, self._table.memory_mib_of(node_id))
                self._table.sample(node_id, capped, score)
        self._fresh.clear()
        return self._table

    def capped(self, health: NodeHealth, node_id: NodeId, memory_mib: int) -> NodeHealth:
        """A sample as if nothing were loaded, within the memory that the node offers."""
        if health.memory_mib_free is None:
            return health
        unloaded = min(health.memory_mib_free + self._loaded_mib(node_id), memory_mib)
        if unloaded == health.memory_mib_free:
            return health
        return replace(health, memory_mib_free=unloaded)
