"""Who holds which slice of one deployment: replicas assigned, ready, failed. Pure book-keeping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from din.domain.deployment import Replica
from din.domain.model import ModelManifest, Partition, Slice
from din.domain.node import NodeId
from din.domain.plan import Placement, Plan
from din.errors import CannotPlace, DinError, Quarantined
from din.gateway.registration.record import ModelRecord
from din.gateway.routes.serving import Serving

KEPT: Final = "kept"
"""The planner's word for a replica that stays where it is."""
SPARE_PLAN_MS: Final = 10_000.0
"""How often a second replica is looked for while nothing changed."""
RETRY_AFTER_MS: Final = 2_000.0
RETRY_AFTER_MS_MAX: Final = 120_000.0


class Known(Struct, frozen=True, kw_only=True):
    """What the planner is told of a deployment."""

    model_id: str
    version: str
    slices: tuple[Slice, ...]
    """Memory already times the workers of a replica."""
    record: ModelRecord
    existing: Mapping[int, tuple[NodeId, ...]]
    excluded: frozenset[NodeId]
    undialable: frozenset[tuple[NodeId, NodeId]]
    leaving: frozenset[NodeId]
    """Nodes that are to become empty: they get nothing, and what they have needs another home."""
    replicas: int
    is_satisfied: bool
    """Nothing is missing: no planning needed."""


class _Trouble(Struct):
    error: DinError
    retry_at_ms: float
    count: int


class Holding:
    """One deployment's replicas."""

    def __init__(
        self,
        record: ModelRecord,
        serving: Serving,
        needed_mib: Callable[[Slice, ModelManifest], int] | None = None,
    ) -> None:
        """`needed_mib`: what one worker of a slice is planned to need; None = its estimate."""
        self.record = record
        self.serving = serving
        self.plan: Plan | None = None
        self.planned: object = None
        """What the last planning knew."""
        self.plan_again_ms = 0.0
        self.renew_at_ms = 0.0
        """When the leases of its sealed slices are prolonged next."""
        self.hint = ""
        self.error_code = ""
        self.stuck: frozenset[int] = frozenset()
        """Slices that only draining nodes hold, as the last planning found nobody else."""
        self.cut_refusal: DinError | None = None
        """Why DIN could not cut it to fit either."""
        strategy = record.order.slicing_strategy
        is_left_to_din = strategy.is_uncut or strategy.type == "auto"
        is_cut = record.choice is not None or record.manifest.is_cut_by_din
        self.may_be_cut = is_left_to_din and not is_cut and not serving.deployment.tenant
        self._assigned: dict[tuple[int, NodeId], float] = {}
        """(slice, node) -> when it was asked for."""
        self._ready: set[tuple[int, NodeId]] = set()
        self._troubles: dict[tuple[int, NodeId], _Trouble] = {}
        self._undialable: set[tuple[NodeId, NodeId]] = set()
        self._reasons: dict[tuple[int, NodeId], str] = {}
        self._needed_mib = needed_mib
        self._measured: dict[tuple[int, NodeId], int] = {}
        """MiB that one worker takes there."""

    @property
    def partition(self) -> Partition:
        """The slices and edges."""
        return self.record.partition

    # Changing.

    def chosen(self, placements: Iterable[Placement]) -> None:
        """Remember why the planner chose each node: later plans say only that it is kept."""
        for each in placements:
            if each.reason != KEPT:
                self._reasons[each.slice_index, each.node_id] = each.reason

    def assign(self, index: int, node_id: NodeId, now_ms: float) -> None:
        """A node is asked to load a slice."""
        self._ready.discard((index, node_id))
        self._assigned[index, node_id] = now_ms

    def loaded(self, index: int, node_id: NodeId, undialable: tuple[str, ...]) -> bool:
        """A node says that it is loaded; False when it was not asked to."""
        key = (index, node_id)
        if key not in self._assigned and key not in self._ready:
            return False
        self._assigned.pop(key, None)
        self._troubles.pop(key, None)
        self._ready.add(key)
        self._undialable = {pair for pair in self._undialable if pair[0] != node_id}
        self._undialable |= {(node_id, NodeId(peer)) for peer in undialable}
        return True

    def failed(self, index: int, node_id: NodeId, error: DinError, now_ms: float) -> None:
        """A node could not load it: not asked again for a while that doubles."""
        key = (index, node_id)
        self._assigned.pop(key, None)
        self._ready.discard(key)
        count = self._troubles[key].count + 1 if key in self._troubles else 1
        pause_ms = min(RETRY_AFTER_MS * 2 ** (count - 1), RETRY_AFTER_MS_MAX)
        self._troubles[key] = _Trouble(error, now_ms + pause_ms, count)

    def measured(self, index: int, node_id: NodeId, memory_mib: int) -> None:
        """One worker of a slice takes so much there."""
        self._measured[index, node_id] = memory_mib

    def release(self, index: int, node_id: NodeId) -> None:
        """A node shall not hold a slice any more: others have it."""
        self._assigned.pop((index, node_id), None)
        self._ready.discard((index, node_id))

    def lift(self, node_id: NodeId) -> None:
        """Ask a node again at once for what it refused."""
        for key, trouble in self._troubles.items():
            if key[1] == node_id:
                trouble.retry_at_ms = 0.0
        self.plan_again_ms = 0.0

    def quarantined(self, node_id: NodeId) -> tuple[tuple[int, str], ...]:
        """Slices that the node keeps out for what they did to their workers, and why."""
        return tuple(
            (index, trouble.error.message)
            for (index, node), trouble in self._troubles.items()
            if node == node_id and isinstance(trouble.error, Quarantined)
        )

    def forget_node(self, node_id: NodeId) -> None:
        """A node is gone for good."""
        for table in (self._assigned, self._troubles, self._reasons, self._measured):
            for key in [key for key in table if key[1] == node_id]:
                del table[key]
        self._ready = {key for key in self._ready if key[1] != node_id}
        self._undialable = {pair for pair in self._undialable if node_id not in pair}

    # Asking.

    def slice_name(self, index: int) -> tuple[str, str]:
        """(model id/version, slice id): the same after a restart of the gateway."""
        manifest = self.record.manifest
        tenant = self.serving.deployment.tenant
        deployed = f"{manifest.model_id}/{manifest.version}" + (f" for {tenant}" if tenant else "")
        return deployed, self.partition.slices[index].slice_id

    def names_on(self, node_id: NodeId) -> frozenset[tuple[str, str]]:
        """Of slices that a node holds or loads."""
        return frozenset(self.slice_name(index) for index in self.indexes_on(node_id))

    def slice_names(self) -> tuple[tuple[str, str], ...]:
        """Of all slices."""
        return tuple(self.slice_name(part.index) for part in self.partition.slices)

    def explained(self, placement: Placement) -> Placement:
        """A placement with the reason for which its node was chosen at first."""
        key = (placement.slice_index, placement.node_id)
        reason = self._reasons.get(key, placement.reason) if placement.reason == KEPT else None
        expected_ms = placement.expected_ms
        return replace(
            placement,
            reason=reason or placement.reason,
            expected_ms=None if expected_ms is None else round(expected_ms, 3),
        )

    def has(self, index: int, node_id: NodeId) -> bool:
        """Whether the node holds the slice or is loading it."""
        return (index, node_id) in self._ready or (index, node_id) in self._assigned

    def pairs(self) -> tuple[tuple[int, NodeId], ...]:
        """(slice, node) of everything held or loading."""
        return (*self._ready, *self._assigned)

    def nodes(self) -> tuple[NodeId, ...]:
        """Every node that holds or loads something."""
        return tuple(sorted({node for _, node in (*self._ready, *self._assigned)}))

    def indexes_on(self, node_id: NodeId) -> tuple[int, ...]:
        """Slices that a node holds or loads."""
        return tuple(
            sorted(index for index, node in (*self._ready, *self._assigned) if node == node_id)
        )

    def ready_on(self, node_id: NodeId) -> tuple[int, ...]:
        """Slices that a node has loaded."""
        return tuple(sorted(index for index, node in self._ready if node == node_id))

    def fail_overdue(self, now_ms: float, patience_ms: float) -> None:
        """Give up loads that were asked for so long ago and have not been answered."""
        late = [key for key, asked_ms in self._assigned.items() if asked_ms < now_ms - patience_ms]
        error = CannotPlace(f"not loaded within {patience_ms / 1000:g} s")
        for index, node_id in late:
            self.failed(index, node_id, error, now_ms)

    def promised_mib(self, node_id: NodeId) -> int:
        """Memory of what the node holds or loads."""
        return sum(self._memory_mib(index, node_id) for index in self.indexes_on(node_id))

    def loaded_mib(self, node_id: NodeId) -> int:
        """Memory of what the node has loaded."""
        return sum(self._memory_mib(index, node_id) for index in self.ready_on(node_id))

    def relays(self) -> frozenset[tuple[NodeId, NodeId]]:
        """Pairs whose first node cannot dial the second."""
        return frozenset(self._undialable)

    def known(
        self, is_routable: Callable[[NodeId], bool], leaving: frozenset[NodeId], now_ms: float
    ) -> Known:
        """What the planner needs. A suspect node's replicas do not count, but its return is
        awaited before a second replica is placed elsewhere. A leaving node's are no home."""
        manifest = self.record.manifest
        existing: dict[int, tuple[NodeId, ...]] = {}
        is_satisfied = True
        for part in self.partition.slices:
            holders = [node for i, node in (*self._ready, *self._assigned) if i == part.index]
            live = [node for node in holders if is_routable(node)]
            existing[part.index] = tuple(sorted(live, key=self._order(part, leaving)))
            is_home = any(node not in leaving for node in live)
            staying = [node for node in holders if node not in leaving]
            is_satisfied = is_satisfied and is_home and len(staying) >= manifest.replicas_max
        return Known(
            model_id=manifest.model_id,
            version=manifest.version,
            slices=tuple(
                replace(part, memory_mib=self._memory_mib(part.index))
                for part in self.partition.slices
            ),
            record=self.record,
            existing=existing,
            excluded=frozenset(
                node
                for (_, node), trouble in self._troubles.items()
                if trouble.retry_at_ms > now_ms
            ),
            undialable=frozenset(self._undialable),
            leaving=leaving,
            replicas=manifest.replicas_max,
            is_satisfied=is_satisfied,
        )

    def is_worth_planning(self, known: Known, now_ms: float) -> bool:
        """A slice without a home is planned at every look. One that only lacks a second replica is
        planned when who holds what has changed, else seldom: memory may have become free."""
        facts = (known.existing, known.excluded, known.leaving)
        is_served = all(known.existing[part.index] for part in known.slices)
        if is_served and self.planned == facts and now_ms < self.plan_again_ms:
            return False
        self.planned = facts
        self.plan_again_ms = now_ms + SPARE_PLAN_MS
        return True

    def replicas(self) -> tuple[Replica, ...]:
        """All replicas as people see them."""
        found = [Replica(slice_index=i, node_id=n, state="ready") for i, n in self._ready]
        found += [Replica(slice_index=i, node_id=n, state="assigned") for i, n in self._assigned]
        found += [
            Replica(slice_index=i, node_id=n, state="failed", reason=_in_one_line(trouble.error))
            for (i, n), trouble in self._troubles.items()
            if (i, n) not in self._assigned
        ]
        return tuple(sorted(found, key=lambda each: (each.slice_index, each.node_id)))

    def latest_error(self) -> DinError | None:
        """Why something was not loaded, most recently."""
        latest = max(self._troubles.values(), key=lambda each: each.retry_at_ms, default=None)
        return latest.error if latest is not None else None

    def trouble(self) -> str:
        """The latest reason why something is not loaded, or nothing."""
        error = self.latest_error()
        return error.message if error is not None else ""

    def is_only_memory(self, refusal: CannotPlace) -> bool:
        """Whether a node with more memory would have been enough."""
        return "memory" in refusal.message

    def measured_mib(self, index: int, node_id: NodeId) -> int | None:
        """What one worker takes on a node that has it loaded."""
        return self._measured.get((index, node_id)) if (index, node_id) in self._ready else None

    def _memory_mib(self, index: int, node_id: NodeId | None = None) -> int:
        """Of all workers of a replica: as measured there, else as planned."""
        manifest, part = self.record.manifest, self.partition.slices[index]
        found = self.measured_mib(index, node_id) if node_id is not None else None
        if found is None:
            find = self._needed_mib
            found = part.memory_mib if find is None else find(part, manifest)
        return found * manifest.workers

    def _order(
        self, part: Slice, leaving: frozenset[NodeId]
    ) -> Callable[[NodeId], tuple[bool, bool, NodeId]]:
        return lambda node: (node in leaving, (part.index, node) not in self._ready, node)


def _in_one_line(error: DinError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message
