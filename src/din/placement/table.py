"""The fleet as columns: one row per node, one numpy array per fact, so that a decision over
thousands of nodes is a dozen array operations.

Joining, leaving and changing status are rare and bump `version`; samples are frequent and touch
only the columns. Rows are reused; a row's generation tells a stale number from a living one. NaN in
a column is "not measured".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from din.domain.model import Slice
from din.domain.node import SLICES_HELD_MAX, FleetNode, NodeHealth, NodeId, NodeStatus
from din.domain.numerics import Numerics, computes_in_integers, numerics_of
from din.errors import NotFound
from din.placement.capability import CapabilityIndex, Flags, Wish, capability_of

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

CAPACITY_AT_START: Final = 64
CPU_LOAD_UNKNOWN: Final = 0.5
"""A node that cannot measure its CPU counts as half loaded: it neither attracts nor repels."""
CAPACITY_PERCENT_MIN: Final = 5
"""A node that says less counts as this."""
ELIGIBLE_CACHED_MAX: Final = 256

STATUS_CODE: Final[dict[NodeStatus, int]] = {
    "joining": 0,
    "ready": 1,
    "suspect": 2,
    "lost": 3,
    "draining": 4,
}
_READY: Final = STATUS_CODE["ready"]
_EMPTY: Final = 255
_NAN: Final = float("nan")


class FleetTable:
    """Columns over all known nodes. Rows 0..size-1 are in use or empty (status 255)."""

    def __init__(self, capacity: int = CAPACITY_AT_START) -> None:
        self.version = 0
        """Changes when a node joins, leaves, or changes status or kind."""
        self.size = 0
        self.capabilities = CapabilityIndex()
        self._rows: dict[NodeId, int] = {}
        self._nodes: list[FleetNode | None] = []
        self._free: list[int] = []
        self._eligible: OrderedDict[Wish, tuple[int, Flags]] = OrderedDict()
        self._named: OrderedDict[frozenset[str], tuple[int, Flags]] = OrderedDict()
        self.status = np.full(capacity, _EMPTY, dtype=np.uint8)
        self.kind = np.zeros(capacity, dtype=np.int32)
        self.generation = np.zeros(capacity, dtype=np.uint32)
        self.queue: Floats = np.zeros(capacity, dtype=np.float32)
        self.health: Floats = np.zeros(capacity, dtype=np.float32)
        self.cpu_percent: Floats = np.full(capacity, _NAN, dtype=np.float32)
        self.cpu_load: Floats = np.zeros(capacity, dtype=np.float32)
        self.temperature_c: Floats = np.full(capacity, _NAN, dtype=np.float32)
        self.memory_mib_total: Floats = np.zeros(capacity, dtype=np.float32)
        self.memory_mib_free: Floats = np.full(capacity, _NAN, dtype=np.float32)
        self.memory_mib_reserved: Floats = np.zeros(capacity, dtype=np.float32)
        self.memory_mib_room: Floats = np.zeros(capacity, dtype=np.float32)
        """Free (where unknown: total) minus reserved."""
        self.slowness: Floats = np.ones(capacity, dtype=np.float32)
        """What times are multiplied by while its governor or hardware slows it down; 1 = nothing
        does, or nothing could tell."""
        self.slices_held: Floats = np.zeros(capacity, dtype=np.float32)
        self.accelerator_mib_free: Floats = np.full(capacity, _NAN, dtype=np.float32)

    @classmethod
    def of(cls, nodes: Iterable[FleetNode]) -> FleetTable:
        """A table of these nodes."""
        table = cls()
        for node in nodes:
            table.upsert(node)
        return table

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._rows

    def row(self, node_id: NodeId) -> int:
        """The row of a node. Raises NotFound."""
        row = self._rows.get(node_id)
        if row is None:
            raise NotFound(
                f"node {node_id} is not in the fleet", hint="`din node list` shows who is"
            )
        return row

    def is_current(self, row: int, generation: int) -> bool:
        """Whether a row number kept from earlier still means the same node."""
        return row < self.size and int(self.generation[row]) == generation

    def capacity_percent_of(self, node_id: NodeId) -> int:
        """Share of its speed that governor and hardware leave a node; 100 = nothing is known."""
        row = self._rows.get(node_id)
        return 100 if row is None else round(100 / float(self.slowness[row]))

    def memory_mib_of(self, node_id: NodeId) -> int:
        """Memory that the node offers. Raises NotFound."""
        return self._stored(self.row(node_id)).profile.memory_mib

    def slots(self) -> Rows:
        """Per row how many slices more the node may hold; rows that are empty may say anything."""
        return (SLICES_HELD_MAX - self.slices_held[: self.size]).astype(np.int64)

    def node_id(self, row: int) -> NodeId:
        """The id of the node in a row that is in use."""
        return self._stored(row).profile.node_id

    def node_ids(self, rows: Rows) -> list[NodeId]:
        """The ids of the nodes in rows that are in use."""
        nodes = self._nodes
        found = [nodes[row] for row in rows.tolist()]
        return [each.profile.node_id for each in found if each is not None]

    def name(self, row: int) -> str:
        """The name of the node in a row that is in use."""
        return self._stored(row).profile.name

    def numerics(self, node_id: NodeId, part: Slice) -> Numerics | None:
        """How integers come out there; None where the slice has none, or the node is not here."""
        row = self._rows.get(node_id)
        if row is None or not computes_in_integers(part.needs):
            return None
        return numerics_of(self._stored(row).profile, part.backend)

    def node(self, row: int) -> FleetNode:
        """The node in a row, as it was last put as a whole; samples since are in the columns."""
        return self._stored(row)

    def rows(self) -> Rows:
        """All rows in use, ascending."""
        return np.flatnonzero(self.status[: self.size] != _EMPTY)

    def upsert(self, node: FleetNode) -> int:
        """Add a node or put all that is known of it anew. Returns its row."""
        node_id = node.profile.node_id
        row = self._rows.get(node_id)
        if row is None:
            row = self._free.pop() if self._free else self._new_row()
            self._rows[node_id] = row
        else:
            self.capabilities.release(int(self.kind[row]))
        self._nodes[row] = node
        self.kind[row] = self.capabilities.acquire(capability_of(node))
        self.status[row] = STATUS_CODE[node.status]
        self.memory_mib_total[row] = node.profile.memory_mib
        self.memory_mib_reserved[row] = node.memory_mib_reserved
        self.slices_held[row] = node.slices_held
        self.version += 1
        self.sample(node_id, node.health, node.health_score)
        return row

    def sample(self, node_id: NodeId, health: NodeHealth, health_score: float) -> None:
        """Take one heartbeat. Raises NotFound for a node that never joined."""
        row = self.row(node_id)
        cpu = health.cpu_percent
        free = health.memory_mib_free
        self.queue[row] = health.queue_length
        self.health[row] = health_score
        self.cpu_percent[row] = _NAN if cpu is None else cpu
        self.cpu_load[row] = CPU_LOAD_UNKNOWN if cpu is None else min(max(cpu, 0.0), 100.0) / 100
        self.temperature_c[row] = _NAN if health.temperature_c is None else health.temperature_c
        self.memory_mib_free[row] = _NAN if free is None else free
        accelerator = health.accelerator_memory_mib_free
        self.accelerator_mib_free[row] = _NAN if accelerator is None else accelerator
        self.slowness[row] = 100 / max(health.capacity_percent or 100, CAPACITY_PERCENT_MIN)
        self._set_room(row)

    def set_health(self, node_id: NodeId, health_score: float) -> None:
        """Change the health score between heartbeats, as after an error."""
        self.health[self.row(node_id)] = health_score

    def set_queue(self, node_id: NodeId, queue_length: int) -> None:
        """Change the queue length between heartbeats, as replies carry it."""
        self.queue[self.row(node_id)] = queue_length

    def set_status(self, node_id: NodeId, status: NodeStatus) -> None:
        """Change the status."""
        row = self.row(node_id)
        if self.status[row] != STATUS_CODE[status]:
            self.status[row] = STATUS_CODE[status]
            self._nodes[row] = replace(self._stored(row), status=status)
            self.version += 1

    def set_reserved(self, node_id: NodeId, memory_mib: int) -> None:
        """Memory promised there in total, after a slice was placed or taken away."""
        row = self.row(node_id)
        self.memory_mib_reserved[row] = memory_mib
        self._set_room(row)

    def remove(self, node_id: NodeId) -> None:
        """Forget a node; its row is reused under a new generation. Raises NotFound."""
        row = self.row(node_id)
        del self._rows[node_id]
        self.capabilities.release(int(self.kind[row]))
        self.status[row] = _EMPTY
        self.generation[row] += 1
        self._nodes[row] = None
        self._free.append(row)
        self.version += 1

    def status_of(self, row: int) -> NodeStatus:
        """The status word of a row that is in use."""
        return self._stored(row).status

    def met_by(self, wish: Wish) -> Flags:
        """Per row whether the node's kind meets a wish; rows that are empty may say anything."""
        return self.capabilities.fits(wish)[self.kind[: self.size]]

    def named(self, words: frozenset[str]) -> Flags:
        """Per row whether the node has one of these names or ids; do not write into it."""
        found = self._named.get(words)
        if found is not None and found[0] == self.version:
            return found[1]
        flags = np.zeros(self.size, dtype=np.bool_)
        for row, node in enumerate(self._nodes):
            if node is not None:
                flags[row] = node.profile.name in words or node.profile.node_id in words
        self._named[words] = (self.version, flags)
        self._named.move_to_end(words)
        if len(self._named) > ELIGIBLE_CACHED_MAX:
            self._named.popitem(last=False)
        return flags

    def eligible(self, wish: Wish) -> Flags:
        """Per row whether the node is ready and of a kind that meets the wish. Kept until
        `version` changes; do not write into it."""
        found = self._eligible.get(wish)
        if found is not None and found[0] == self.version:
            return found[1]
        flags = self.met_by(wish)
        flags &= self.status[: self.size] == _READY
        self._eligible[wish] = (self.version, flags)
        self._eligible.move_to_end(wish)
        if len(self._eligible) > ELIGIBLE_CACHED_MAX:
            self._eligible.popitem(last=False)
        return flags

    def _stored(self, row: int) -> FleetNode:
        node = self._nodes[row]
        assert node is not None, f"row {row} is empty"
        return node

    def _set_room(self, row: int) -> None:
        free = self.memory_mib_free[row]
        base = self.memory_mib_total[row] if free != free else free  # noqa: PLR0124 - NaN test
        self.memory_mib_room[row] = base - self.memory_mib_reserved[row]

    def _new_row(self) -> int:
        row = self.size
        if row == len(self.status):
            self._grow(row * 2)
        self.size += 1
        self._nodes.append(None)
        return row

    def _grow(self, capacity: int) -> None:
        for name in _COLUMNS:
            old = getattr(self, name)
            column = np.zeros(capacity, dtype=old.dtype)
            column[: len(old)] = old
            setattr(self, name, column)


_COLUMNS: Final = (
    "status",
    "kind",
    "generation",
    "queue",
    "health",
    "cpu_percent",
    "cpu_load",
    "temperature_c",
    "memory_mib_total",
    "memory_mib_free",
    "memory_mib_reserved",
    "memory_mib_room",
    "slowness",
    "slices_held",
    "accelerator_mib_free",
)


def table_of(fleet: FleetTable | Sequence[FleetNode]) -> FleetTable:
    """The table itself, or one made of a sequence of nodes."""
    return fleet if isinstance(fleet, FleetTable) else FleetTable.of(fleet)
