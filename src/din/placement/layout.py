"""What of a partition must lie together, and what it costs to lie apart.

A unit is what one node takes as a whole: a model slice, with the `before` adapter joined to the
first and the `after` adapter to the last. Units keep the order of the slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from din.domain.model import GATEWAY, Edge, Slice
from din.domain.node import NodeId
from din.domain.tensor import DTYPE_BYTES, TensorSpec, nbytes_of

TENSOR_BYTES_UNKNOWN: Final = 64 * 1024
"""Guess for a tensor with free dims that has not been seen yet; only weighs, is never shown."""
LINK_LATENCY_MS: Final = 0.3
LINK_MIB_PER_SECOND: Final = 500.0
_MIB: Final = 1024 * 1024

Unit = tuple[Slice, ...]


class LinkGuess(Struct, frozen=True, kw_only=True):
    """What is assumed of the way between two different nodes until it is measured."""

    latency_ms: float = LINK_LATENCY_MS
    mib_per_second: float = LINK_MIB_PER_SECOND
    tensor_bytes: Mapping[str, int] = {}
    """Sizes seen in runs, by tensor name; fixed shapes need none."""
    undialable: frozenset[tuple[NodeId, NodeId]] = frozenset()
    """Pairs (from, to) where the first cannot dial the second: the gateway relays."""

    def transfer_ms(self, nbytes: int) -> float:
        """Time for that many bytes between two nodes."""
        return self.latency_ms + nbytes / _MIB / self.mib_per_second * 1000


LINK_GUESS: Final = LinkGuess()


def units_of(slices: Sequence[Slice]) -> tuple[Unit, ...]:
    """The units of a partition, in order."""
    ordered = sorted(slices, key=lambda part: part.index)
    units: list[list[Slice]] = [[part] for part in ordered if part.kind == "model"]
    if not units:
        return tuple((part,) for part in ordered)
    units[0] = [part for part in ordered if part.kind == "before"] + units[0]
    units[-1] += [part for part in ordered if part.kind == "after"]
    return tuple(tuple(unit) for unit in units)


def crossings(edges: Iterable[Edge]) -> dict[tuple[int, int], frozenset[str]]:
    """(producer slice, consumer slice) -> tensors, the gateway left out."""
    found: dict[tuple[int, int], set[str]] = {}
    for edge in edges:
        for consumer in edge.consumers:
            if GATEWAY not in (edge.producer, consumer):
                found.setdefault((edge.producer, consumer), set()).add(edge.tensor)
    return {pair: frozenset(names) for pair, names in found.items()}


def tensor_bytes(slices: Sequence[Slice], links: LinkGuess) -> dict[str, int]:
    """Size of each tensor that a slice makes: seen, or computed from a fixed shape, or guessed."""
    sizes = {
        spec.name: _fixed_bytes(spec) or TENSOR_BYTES_UNKNOWN
        for part in slices
        for spec in part.outputs
    }
    return {**sizes, **links.tensor_bytes}


def penalties_of(
    units: Sequence[Unit], edges: Iterable[Edge], links: LinkGuess
) -> dict[tuple[int, int], float]:
    """(earlier unit, later unit) -> milliseconds when they lie on different nodes."""
    sizes = tensor_bytes([part for unit in units for part in unit], links)
    unit_of = {part.index: number for number, unit in enumerate(units) for part in unit}
    nbytes: dict[tuple[int, int], int] = {}
    for (producer, consumer), names in crossings(edges).items():
        if producer not in unit_of or consumer not in unit_of:
            continue
        earlier, later = sorted((unit_of[producer], unit_of[consumer]))
        if earlier != later:
            total = sum(sizes.get(name, TENSOR_BYTES_UNKNOWN) for name in names)
            nbytes[earlier, later] = nbytes.get((earlier, later), 0) + total
    return {pair: links.transfer_ms(size) for pair, size in nbytes.items()}


def _fixed_bytes(spec: TensorSpec) -> int | None:
    if spec.dtype not in DTYPE_BYTES or spec.shape is None:
        return None
    shape = tuple(dim for dim in spec.shape if isinstance(dim, int))
    return nbytes_of(spec.dtype, shape) if len(shape) == len(spec.shape) else None
