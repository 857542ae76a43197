"""Orders whose like came before: what was checked and made for one holds for the next.

The same few slots come back all the time with tensors of the same shapes. An order that says the
same of its inputs, word by word, needs no second look at it, and its arrays lie where they lay.
Only contents change, so whatever depends on those (compressed tensors, BYTES) is never kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final, NamedTuple

import numpy as np

from din.backends.contract import NUMPY_TYPES, Array, Lasting
from din.domain.tensor import BYTES, RANK_MAX, TensorMeta, TensorSpec
from din.wire.worker import Compute, Placed
from din.worker.compression import COMPRESSED_BYTES_MIN
from din.worker.feed import Feed
from din.worker.tensors import resolved_shape

KNOWN_MAX: Final = 64
"""Orders, and places of the outputs of each."""


class Laid(NamedTuple):
    """Outputs in the output region, before the run that fills them."""

    targets: Mapping[str, Array]
    placed: Mapping[str, Placed]


class Known:
    """One order, without its ticket and its deadline."""

    __slots__ = ("_laid", "inputs", "names", "sized")

    def __init__(
        self, inputs: Mapping[str, Array], names: Sequence[str], sized: Sequence[TensorMeta]
    ) -> None:
        self.inputs = inputs
        self.names = names
        self.sized = sized
        """Outputs that can lie in their place before the run, as their sizes are known."""
        self._laid: dict[tuple[int, ...], Laid] = {}

    def laid(self, memory: memoryview, offsets: tuple[int, ...]) -> Laid:
        """The outputs at these places."""
        laid = self._laid.get(offsets)
        if laid is None:
            if len(self._laid) >= KNOWN_MAX:
                del self._laid[next(iter(self._laid))]
            at = list(zip(self.sized, offsets, strict=True))
            laid = self._laid[offsets] = Laid(
                Lasting(
                    (meta.name, np.ndarray(meta.shape, NUMPY_TYPES[meta.dtype], memory, offset))
                    for meta, offset in at
                ),
                {meta.name: Placed(meta, offset) for meta, offset in at},
            )
        return laid


class KnownOrders:
    """The newest orders of all feeds."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Known] = {}

    def find(self, feed: Feed, order: Compute) -> Known | None:
        """What was kept of an order that said the same."""
        return self._known.get((feed, order.inputs, order.outputs, order.compressed))

    def keep(self, feed: Feed, order: Compute, known: Known) -> None:
        """Keep what was found of an order, unless it depends on what its tensors contain."""
        if not may_last(order):
            return
        if len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[feed, order.inputs, order.outputs, order.compressed] = known

    def drop_closed(self) -> None:
        """Forget the orders of feeds that have gone."""
        self._known = {
            key: known
            for key, known in self._known.items()
            if isinstance(key[0], Feed) and key[0].is_open
        }


def may_last(order: Compute) -> bool:
    """Whether arrays of an order's inputs depend on nothing but where they lie."""
    return not any(each.meta.compression or each.meta.dtype == BYTES for each in order.inputs)


def sized_outputs(
    specs: Sequence[TensorSpec], symbols: Mapping[str, int], compressed: Sequence[str]
) -> tuple[TensorMeta, ...]:
    """Outputs whose shape is known before the run, and of which nothing else will lie there."""
    found: list[TensorMeta] = []
    for spec in specs:
        shape = resolved_shape(spec, symbols)
        if shape is None or spec.dtype == BYTES or len(shape) > RANK_MAX:
            continue
        nbytes = NUMPY_TYPES[spec.dtype].itemsize * prod(shape)
        may_shrink = nbytes >= COMPRESSED_BYTES_MIN and spec.name in compressed
        if nbytes and not may_shrink:
            found.append(TensorMeta(spec.name, spec.dtype, shape, nbytes))
    return tuple(found)
