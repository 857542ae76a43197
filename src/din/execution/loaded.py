"""A loaded slice, seen from its edges: what it awaits, and who awaits its tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from din.domain.deployment import Epoch, Route
from din.domain.model import GATEWAY, Edge, Slice
from din.domain.strategy import Compression
from din.execution.events import SliceKey, SliceLoaded
from din.execution.limits import WAYS_MAX

Awaited = frozenset[tuple[int, str]]
"""(producer, tensor) pairs."""


class Way(Struct, frozen=True):
    """What one route makes of the edges of a slice."""

    is_fitting: bool
    """Whether the route names a node for each slice that the edges know; else all is empty."""
    awaited: Awaited = frozenset()
    """Tensors that must be there before the slice runs."""
    wanted: tuple[str, ...] = ()
    """Tensors that somebody consumes."""
    deliveries: dict[int, frozenset[str]] = {}
    """Consumer -> tensors for it; GATEWAY is one of the consumers."""
    compressible: dict[str, frozenset[str]] = {}
    """Tensors for slices alone, where the slice compresses -> the nodes of these slices."""


def way_of(
    index: int, edges: tuple[Edge, ...], route: Route, compression: Compression = "none"
) -> Way:
    """The way of slice `index` on a route."""
    nodes = route.nodes
    incoming = [edge for edge in edges if index in edge.consumers]
    produced = [edge for edge in edges if edge.producer == index]
    touched = {edge.producer for edge in incoming}.union(*(edge.consumers for edge in produced))
    if max(touched, default=0) >= len(nodes):
        return Way(False)

    def takes_part(each: int) -> bool:
        return each == GATEWAY or bool(nodes[each])

    deliveries: dict[int, set[str]] = {}
    for edge in produced:
        for consumer in filter(takes_part, edge.consumers):
            deliveries.setdefault(consumer, set()).add(edge.tensor)
    return Way(
        True,
        frozenset((edge.producer, edge.tensor) for edge in incoming if takes_part(edge.producer)),
        tuple(edge.tensor for edge in produced if any(map(takes_part, edge.consumers))),
        {consumer: frozenset(names) for consumer, names in deliveries.items()},
        _compressible(deliveries, route) if compression != "none" else {},
    )


def _compressible(
    deliveries: Mapping[int, Collection[str]], route: Route
) -> dict[str, frozenset[str]]:
    """An answer is read by somebody who knows nothing of slices, so it is never among them."""
    targets: dict[str, set[str]] = {}
    for consumer, names in deliveries.items():
        for name in names if consumer != GATEWAY else ():
            targets.setdefault(name, set()).add(route.nodes[consumer])
    answered = deliveries.get(GATEWAY, ())
    return {name: frozenset(nodes) for name, nodes in targets.items() if name not in answered}


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
        self._edges = {False: loaded.edges, True: loaded.adapted_edges}
        self._ways: dict[tuple[bool, tuple[str, ...]], Way] = {}

    @property
    def key(self) -> SliceKey:
        """How frames name it."""
        return (self.epoch, self.slice.index)

    def way(self, route: Route) -> Way:
        """The way of this slice on a route; few routes are in use at once, so they are kept."""
        key = (route.is_adapted, route.nodes)
        way = self._ways.get(key)
        if way is None:
            if len(self._ways) >= WAYS_MAX:
                self._ways.clear()
            edges = self._edges[route.is_adapted]
            way = way_of(self.slice.index, edges, route, self.slice.compression)
            self._ways[key] = way
        return way

    def observe(self, run_ms: float) -> None:
        """Smooth the time of a run in."""
        self.mean_ms = run_ms if not self.mean_ms else self.mean_ms * 0.8 + run_ms * 0.2
