"""The fixed part of every route of a deployment: which slices run, in which order, fed by what.

A deployment has two shapes: the raw one (/v2) and, if the model has adapters, the adapted one.
Pure; made once per deployment.
"""

from __future__ import annotations

from din.domain.model import GATEWAY, Edge, Partition


class RouteShape:
    """One variant of a partition's edges, turned into the questions that dispatch asks."""

    def __init__(self, partition: Partition, *, is_adapted: bool) -> None:
        self.is_adapted = is_adapted
        self.edges: tuple[Edge, ...] = partition.adapted_edges if is_adapted else partition.edges
        self.slice_count = len(partition.slices)
        self.upstream = _upstream(self.edges)
        self.slices = _in_order(self.upstream)
        """Indexes of the slices that run, producers first."""
        self.single_slice = self.slices[0] if len(self.slices) == 1 else None
        """The only slice of this shape, or None when several run."""
        self.names: dict[int, str] = {index: partition.slices[index].name for index in self.slices}
        self.inputs: dict[int, tuple[str, ...]] = {
            index: tuple(
                edge.tensor
                for edge in self.edges
                if edge.producer == GATEWAY and index in edge.consumers
            )
            for index in self.slices
        }
        """Tensors that the gateway sends, by slice."""
        self.outputs: dict[str, int] = {
            edge.tensor: edge.producer for edge in self.edges if GATEWAY in edge.consumers
        }
        """Tensors that the gateway awaits, and which slice makes each."""
        self.is_random = any(partition.slices[index].is_random for index in self.slices)


def _upstream(edges: tuple[Edge, ...]) -> dict[int, frozenset[int]]:
    producers: dict[int, set[int]] = {}
    for edge in edges:
        if edge.producer != GATEWAY:
            producers.setdefault(edge.producer, set())
        for consumer in edge.consumers:
            if consumer != GATEWAY:
                feeding = producers.setdefault(consumer, set())
                if edge.producer != GATEWAY:
                    feeding.add(edge.producer)
    return {index: frozenset(feeding) for index, feeding in producers.items()}


def _in_order(upstream: dict[int, frozenset[int]]) -> tuple[int, ...]:
    order: list[int] = []
    left = dict(upstream)
    while left:
        free = sorted(index for index, feeding in left.items() if feeding.isdisjoint(left))
        assert free, f"the slices {sorted(left)} wait for each other: the carver checks for cycles"
        order.extend(free)
        for index in free:
            del left[index]
    return tuple(order)
