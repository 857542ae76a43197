"""What a worker says of its outputs, held against what tensors can be and what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from din.domain.tensor import RANK_MAX, TENSOR_ALIGNMENT_BYTES, TensorMeta, is_sized
from din.errors import Internal
from din.wire.worker import ArenaLayout, Placed

Range = tuple[int, int]
"""First byte in the arena, and the one after the last."""


class Sound(NamedTuple):
    """Outputs that are well formed, inside the output region, and apart from each other."""

    metas: tuple[TensorMeta, ...]
    places: list[Range]
    ranges: list[Range]
    """The places of those that are not empty."""


def sound_of(outputs: tuple[Placed, ...], layout: ArenaLayout) -> Sound:
    """Everything that can be checked of outputs by themselves. Raises Internal."""
    metas = tuple(placed.meta for placed in outputs)
    check_metas(metas)
    places = [_place_of(placed, layout) for placed in outputs]
    ranges = [each for each in places if each[0] < each[1]]
    check_apart(sorted(ranges))
    return Sound(metas, places, ranges)


def _place_of(placed: Placed, layout: ArenaLayout) -> Range:
    start, end = placed.offset, placed.offset + placed.meta.nbytes
    is_inside = layout.input_bytes <= start and end <= layout.arena_bytes
    if not is_inside or start % TENSOR_ALIGNMENT_BYTES:
        raise Internal(f"{said_of(placed.meta)} at {start} is not inside the output region")
    return start, end


def check_apart(ranges: Sequence[Range]) -> None:
    """Sorted ranges do not overlap. Raises Internal."""
    for (_, end), (start, _) in pairwise(ranges):
        if start < end:
            raise Internal(f"an output at {start} lies over another one that ends at {end}")


def check_metas(metas: Sequence[TensorMeta]) -> None:
    """Names are unique and sizes those of dtype and shape. Raises Internal."""
    names = [meta.name for meta in metas]
    if len(set(names)) != len(names):
        raise Internal(f"outputs {names} came, one of them twice")
    for meta in metas:
        has_shape = len(meta.shape) <= RANK_MAX and all(size >= 0 for size in meta.shape)
        if not (has_shape and is_sized(meta)):
            raise Internal(f"{said_of(meta)} is not a tensor")


def check_asked(
    metas: Sequence[TensorMeta], wanted: tuple[str, ...], compressed: tuple[str, ...]
) -> None:
    """The outputs asked for, in their order; any where none are named. Compressed only what may
    be: who reads an answer takes it as it is. Raises Internal."""
    names = tuple(meta.name for meta in metas)
    if wanted and names != wanted:
        raise Internal(f"outputs {names} came, {wanted} were asked for")
    for meta in metas:
        if meta.compression and meta.name not in compressed:
            raise Internal(f"{said_of(meta)} came compressed, and nobody asked for that")


def said_of(meta: TensorMeta) -> str:
    """An output in words."""
    return f"output {meta.name!r} {meta.dtype} {list(meta.shape)} of {meta.nbytes} bytes"
