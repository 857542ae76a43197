"""Between the fleet and the rest of the gateway: who hears of nodes, and what is asked of them."""

from __future__ import annotations

from typing import Protocol

from din.domain.foreign import ForeignServer
from din.domain.node import NodeId
from din.domain.plan import Plan
from din.gateway.deployment.holding import Known
from din.placement.table import FleetTable


class FleetListener(Protocol):
    """Who is told of changes."""

    def node_usable(self, node_id: NodeId) -> None:
        """A node became ready."""
        ...

    def node_unusable(self, node_id: NodeId, reason: str, *, is_final: bool) -> None:
        """A node is not routable; finally = lost or drained by force."""
        ...

    def node_moved(self, node_id: NodeId) -> None:
        """A node says something else of itself, its addresses for example."""
        ...

    def forgotten(self, name: str) -> None:
        """A node is in no list any more."""
        ...

    def evicted(self, node_id: NodeId, session: int, reason: str) -> None:
        """Links of this session are to be closed: the node dials again once it is registered."""
        ...

    def promised_mib(self, node_id: NodeId) -> int:
        """Memory promised to slices there."""
        ...

    def slices_held(self, node_id: NodeId) -> int:
        """How many slices lie there, loaded or loading."""
        ...

    def loaded_mib(self, node_id: NodeId) -> int:
        """The loaded part of it."""
        ...

    def takes_grants(self, node_id: NodeId) -> bool:
        """Whether sealed slices can be opened there."""
        ...

    def foreign_behind(self, node_id: NodeId) -> tuple[ForeignServer, ...]:
        """Servers of others there."""
        ...

    def measured_ms(self, slice_id: str, node_id: NodeId) -> float | None:
        """What a slice was measured to take there."""
        ...


class FleetFacts(Protocol):
    """What the deployer asks of the fleet."""

    def plan(self, known: Known) -> Plan:
        """Place a partition. Raises CannotPlace."""
        ...

    def is_routable(self, node_id: NodeId) -> bool:
        """Whether requests may go there now."""
        ...

    def is_member(self, node_id: NodeId) -> bool:
        """Whether the node may come back with what it holds: neither lost nor out by force."""
        ...

    def addresses(self, node_id: NodeId) -> tuple[str, ...]:
        """Where peers dial a node."""
        ...

    def table(self) -> FleetTable:
        """All nodes as the planner sees them; not to be changed."""
        ...

    def memory_changed(self) -> None:
        """Promises of memory changed."""
        ...
