"""The fixed part of every route of a deployment: which slices run, in which order, fed by what.

A deployment has two shapes: the raw one (/v2) and, if the model has adapters, the adapted one.
Pure; made once per deployment.
"""

from __future__ import annotations

from collections.abc import Sequence

from din.domain.model import GATEWAY, Edge, Partition
from din.domain.tensor import TensorSpec


class RouteShape:
    """One variant of a partition's edges, turned into the questions that dispatch asks."""

    def __init__(
        self, partition: Partition, *, is_adapted: bool, signature: Sequence[TensorSpec] = ()
    ) -> None:
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
        given = _given(self.edges, signature)
        self.outputs: dict[str, int] = {
            name: producer for name, producer in given.items() if producer != GATEWAY
        }
        """Tensors that the gateway awaits, in the order of the signature, and which slice makes
        each."""
        self.returned = frozenset(given) - frozenset(self.outputs)
        """Inputs that are outputs as well: the gateway answers them from the request."""
        self.answered: tuple[str, ...] = tuple(given)
        """All that a caller gets who asks for no outputs by name."""
        self.is_random = any(partition.slices[index].is_random for index in self.slices)


def _given(edges: tuple[Edge, ...], signature: Sequence[TensorSpec]) -> dict[str, int]:
    """Output -> producer, in the order of the signature as far as it is known."""
    producers = {edge.tensor: edge.producer for edge in edges if GATEWAY in edge.consumers}
    named = [spec.name for spec in signature if spec.name in producers]
    return {name: producers[name] for name in (*named, *producers)}


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
