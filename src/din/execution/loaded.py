"""A loaded slice, seen from its edges: what it awaits, and who awaits its tensors."""

from __future__ import annotations

from din.domain.deployment import Epoch, Route
from din.domain.model import GATEWAY, Edge, Slice
from din.execution.events import SliceKey, SliceLoaded

Awaited = frozenset[tuple[int, str]]
"""(producer, tensor) pairs."""


class _Side:
    """One variant of the edges: raw, or through the adapters."""

    def __init__(self, index: int, edges: tuple[Edge, ...]) -> None:
        self.awaited: Awaited = frozenset(
            (edge.producer, edge.tensor) for edge in edges if index in edge.consumers
        )
        self.produced = tuple(edge for edge in edges if edge.producer == index)
        self.reaches = max((max(edge.consumers, default=0) for edge in self.produced), default=0)


class LoadedSlice:
    """Facts of one slice, and how fast it has been."""

    def __init__(self, loaded: SliceLoaded) -> None:
        self.epoch: Epoch = loaded.epoch
        self.mean_ms = 0.0
        """Smoothed time of a run; 0 = none yet."""
        self.busy_ms = 0.0
        """When a task of it last ended, or when it was unloaded."""
        self.tasks: set[int] = set()
        """Accepted and not computed."""
        self.workers: set[int] = set()
        self.update(loaded)

    def update(self, loaded: SliceLoaded) -> None:
        """Take new edges; the slice itself does not change within an epoch."""
        self.slice: Slice = loaded.slice_
        self.inputs = {spec.name: spec for spec in loaded.slice_.inputs}
        index = loaded.slice_.index
        self._sides = {
            False: _Side(index, loaded.edges),
            True: _Side(index, loaded.adapted_edges),
        }

    @property
    def key(self) -> SliceKey:
        """How frames name it."""
        return (self.epoch, self.slice.index)

    def awaited(self, route: Route) -> Awaited:
        """Tensors that must be there before it runs on this route."""
        return frozenset(
            pair
            for pair in self._sides[route.is_adapted].awaited
            if pair[0] == GATEWAY or route.nodes[pair[0]]
        )

    def fits(self, route: Route) -> bool:
        """Whether the route names a node for each slice that the edges know."""
        side = self._sides[route.is_adapted]
        highest = max(side.reaches, max((each for each, _ in side.awaited), default=0))
        return highest < len(route.nodes)

    def wanted(self, route: Route) -> tuple[str, ...]:
        """Tensors that somebody on this route consumes."""
        return tuple(
            edge.tensor
            for edge in self._sides[route.is_adapted].produced
            if any(each == GATEWAY or route.nodes[each] for each in edge.consumers)
        )

    def deliveries(self, route: Route) -> dict[int, frozenset[str]]:
        """Consumer -> tensors for it; GATEWAY is one of the consumers."""
        found: dict[int, set[str]] = {}
        for edge in self._sides[route.is_adapted].produced:
            for consumer in edge.consumers:
                if consumer == GATEWAY or route.nodes[consumer]:
                    found.setdefault(consumer, set()).add(edge.tensor)
        return {consumer: frozenset(names) for consumer, names in found.items()}

    def observe(self, run_ms: float) -> None:
        """Smooth the time of a run in."""
        self.mean_ms = run_ms if not self.mean_ms else self.mean_ms * 0.8 + run_ms * 0.2
