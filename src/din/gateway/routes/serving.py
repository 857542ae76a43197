"""A deployment as dispatch sees it: which replicas are ready on routable nodes right now.

The deployer changes it, dispatch reads it, both on one event loop. Knows no link and no clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from din.domain.deployment import Deployment
from din.domain.node import NodeId
from din.domain.numerics import Numerics
from din.domain.tensor import TensorMeta, TensorSpec
from din.flow.recent import RecentMedian
from din.flow.timeout import Timeouts
from din.gateway.routes.shape import RouteShape

STALE_MS: Final = 10_000.0
SHAPES_MAX: Final = 8
"""Of inputs, for which a replica's times are kept; those that came first go first."""
COMPUTES_MAX: Final = 15
COMPUTE_EVERY_MS: Final = 50.0
"""So often a run is looked at: small requests come by the thousand a second."""
COMPUTES_MIN: Final = 5
"""Fewer runs tell more of a cold start than of a slice."""

Shapes = frozenset[tuple[str, tuple[int, ...]]]
"""Names and shapes of a model's inputs."""


class Shaped(Protocol):
    """A tensor of a request, or of a profile."""

    @property
    def name(self) -> str:
        """Of an input."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """As it came."""
        ...


def shapes_in(tensors: Iterable[Shaped]) -> Shapes:
    """The shapes of these inputs."""
    return frozenset([(each.name, each.shape) for each in tensors])


class LiveReplica:
    """One ready slice on one node: requests under way, and how long the slice takes there."""

    __slots__ = (
        "_computed_at_ms", "_computes", "_key", "_measured_at_ms", "_timeouts",
        "inflight", "is_local", "node_id", "numerics",
    )  # fmt: skip

    def __init__(
        self,
        slice_id: str,
        node_id: NodeId,
        *,
        is_local: bool,
        timeouts: Timeouts,
        numerics: Numerics | None = None,
    ) -> None:
        self.node_id = node_id
        self.is_local = is_local
        self.numerics = numerics
        self.inflight = 0
        self._key = (slice_id, node_id)
        self._measured_at_ms = 0.0
        self._timeouts = timeouts
        self._computes: dict[Shapes, RecentMedian] = {}
        self._computed_at_ms = -COMPUTE_EVERY_MS

    @property
    def mean_ms(self) -> float | None:
        """Sliding mean of queue + compute; a failure counts as one time-out. None = not yet run."""
        return self._timeouts.mean_ms(*self._key)

    @property
    def timeout_ms(self) -> float:
        """How long one run may take: three times the mean."""
        return self._timeouts.timeout_ms(*self._key)

    def fresh_mean_ms(self, now_ms: float) -> float | None:
        """The mean for choosing: None when it is old, so that a node which was slow once is tried
        again instead of never hearing of it."""
        return self.mean_ms if now_ms - self._measured_at_ms < STALE_MS else None

    def observe(self, elapsed_ms: float, now_ms: float) -> None:
        """Take one more measured time."""
        self._measured_at_ms = now_ms
        self._timeouts.observe(*self._key, elapsed_ms)

    def is_compute_due(self, now_ms: float) -> bool:
        """Whether the next `observe_compute` is wanted."""
        return now_ms - self._computed_at_ms >= COMPUTE_EVERY_MS

    def observe_compute(self, shapes: Shapes | None, compute_ms: float, now_ms: float) -> None:
        """Take what a run took inside the engine, at these shapes of the model's inputs; None =
        they are not known, and nothing is learned."""
        self._computed_at_ms = now_ms
        if shapes is None:
            return
        recent = self._computes.get(shapes)
        if recent is None:
            if len(self._computes) >= SHAPES_MAX:
                del self._computes[next(iter(self._computes))]
            recent = self._computes[shapes] = RecentMedian(COMPUTES_MAX)
        recent.note(compute_ms, now_ms)

    def compute_ms(self, shapes: Shapes, now_ms: float) -> float | None:
        """The median of these times; None where there are too few of late."""
        recent = self._computes.get(shapes)
        return recent.middle(now_ms, COMPUTES_MIN) if recent is not None else None

    def observe_failure(self, now_ms: float) -> None:
        """A failure or silence counts as the whole time that would have been waited.

        Not before the first success: the cold-start value would stand for the node for ever, since
        nobody chooses the slowest. The health score, which heals, keeps traffic off until then.
        """
        if self.mean_ms is not None:
            self._measured_at_ms = now_ms
            self._timeouts.observe_timeout(*self._key)


class Serving:
    """One deployment with its live replicas and those who wait for it."""

    def __init__(self, deployment: Deployment, timeouts: Timeouts) -> None:
        self.deployment = deployment
        self._timeouts = timeouts
        partition = deployment.partition
        raw, adapted = deployment.manifest.outputs, deployment.manifest.adapted_outputs
        self.raw = RouteShape(partition, is_adapted=False, signature=raw)
        self.adapted = (
            RouteShape(partition, is_adapted=True, signature=adapted)
            if partition.adapted_edges
            else None
        )
        self._fixed_shapes = _fixed(deployment.manifest.inputs)
        self.is_retired = False
        """A newer version took over, or the model was removed: it never becomes ready again."""
        self.asked_ms = 0.0
        """When a request came last."""
        self.is_idle = False
        """Nothing is loaded, for nobody asked: `want` has it loaded."""
        self.is_returning = False
        """It was idle and is not ready again."""
        self.is_kept = False
        """Never idle: a probe is not asked by requests."""
        self.on_wanted: Callable[[], None] = lambda: None
        self._live: list[dict[NodeId, LiveReplica]] = [{} for _ in partition.slices]
        self._held_back: list[dict[NodeId, LiveReplica]] = [{} for _ in partition.slices]
        """Ready as well, but integers come out otherwise there than on those that serve."""
        self._changed = asyncio.Event()
        self._waiting = 0

    @property
    def is_used(self) -> bool:
        """Whether a request waits for it or runs in it."""
        live = (*self._live, *self._held_back)
        return self._waiting > 0 or any(one.inflight for each in live for one in each.values())

    def shape(self, *, is_adapted: bool) -> RouteShape:
        """The shape asked for; a model without adapters has the raw one only."""
        return self.adapted if is_adapted and self.adapted is not None else self.raw

    def shapes_of(self, shape: RouteShape, metas: Iterable[TensorMeta]) -> Shapes | None:
        """The shapes of the model's inputs in a request; None where an adapter makes them and they
        are not fixed."""
        if self._fixed_shapes is not None:
            return self._fixed_shapes
        return None if shape is self.adapted else shapes_in(metas)

    def replicas(self, slice_index: int) -> dict[NodeId, LiveReplica]:
        """Ready replicas of one slice by node."""
        return self._live[slice_index]

    def held_back_by(self, slice_index: int, node_id: NodeId) -> NodeId | None:
        """Who serves instead of a ready replica that would answer otherwise."""
        if node_id not in self._held_back[slice_index]:
            return None
        return next(iter(self._live[slice_index]), None)

    def add(
        self,
        slice_index: int,
        node_id: NodeId,
        *,
        is_local: bool,
        numerics: Numerics | None = None,
    ) -> None:
        """A replica became ready. Only those of equal `numerics` serve at a time: the first."""
        live, held_back = self._live[slice_index], self._held_back[slice_index]
        if node_id not in live and node_id not in held_back:
            slice_id = self.deployment.partition.slices[slice_index].slice_id
            # It was away, and its last figures are those of its trouble: it starts anew.
            self._timeouts.forget(slice_id, node_id)
            is_alike = all(each.numerics == numerics for each in live.values())
            (live if is_alike else held_back)[node_id] = LiveReplica(
                slice_id, node_id, is_local=is_local, timeouts=self._timeouts, numerics=numerics
            )
        self.notify()

    def drop(self, slice_index: int, node_id: NodeId) -> None:
        """A replica is not ready any more."""
        live, held_back = self._live[slice_index], self._held_back[slice_index]
        live.pop(node_id, None)
        held_back.pop(node_id, None)
        if held_back and not live:
            numerics = next(iter(held_back.values())).numerics
            for other in [each for each in held_back.values() if each.numerics == numerics]:
                live[other.node_id] = held_back.pop(other.node_id)
            self.notify()

    def drop_node(self, node_id: NodeId) -> None:
        """No replica on this node is ready any more."""
        for slice_index in range(len(self._live)):
            self.drop(slice_index, node_id)

    def is_ready(self, shape: RouteShape) -> bool:
        """Whether every slice of a shape has a ready replica."""
        return all(self._live[index] for index in shape.slices)

    @property
    def is_complete(self) -> bool:
        """Whether requests of every kind find what they need."""
        return self.is_ready(self.raw) and (self.adapted is None or self.is_ready(self.adapted))

    @property
    def is_available(self) -> bool:
        """Whether raw requests are answered: at once, or as soon as it is loaded again."""
        return self.is_idle or self.is_ready(self.raw)

    def want(self) -> None:
        """A request waits for it."""
        if self.is_idle:
            self.is_idle, self.is_returning = False, True
            self.on_wanted()

    def notify(self) -> None:
        """Wake those who wait: something about readiness changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self, seconds_max: float) -> None:
        """Return at the next change or when the time is up."""
        # Not wait_for: in Python 3.11 it loses a cancellation that comes with the event.
        self._waiting += 1
        try:
            async with asyncio.timeout(seconds_max):
                await self._changed.wait()
        except TimeoutError:
            return
        finally:
            self._waiting -= 1


def _fixed(inputs: Iterable[TensorSpec]) -> Shapes | None:
    """The shapes of a model that takes no others."""
    found: set[tuple[str, tuple[int, ...]]] = set()
    for each in inputs:
        shape = tuple([dim for dim in each.shape or () if isinstance(dim, int)])
        if each.shape is None or len(shape) != len(each.shape):
            return None
        found.add((each.name, shape))
    return frozenset(found)
