"""From an analysed model to the table that cuts are chosen from. Compact: the graph is in it once,
boundaries are computed from it by whoever needs them."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from din.domain.cuts import CutTable, OperatorFacts, SharedWeights, ValueFacts
from din.domain.estimates import capped
from din.domain.model import GATEWAY
from din.slicing.cutting import splits_quantised
from din.slicing.elements import word_of
from din.slicing.operators import OperatorGraph
from din.slicing.shapes import Shapes
from din.slicing.sizes import Sizes

SHARED_BYTES_MIN: Final = 64 * 1024
"""Smaller weights count for each operator that uses them."""


def cut_table(graph: OperatorGraph, shapes: Shapes, sizes: Sizes, source_sha256: str) -> CutTable:
    """Operators, values and shared weights by place."""
    place = {each.index: number for number, each in enumerate(graph.dynamic)}
    own, shared = _weights(graph, sizes, place)
    operators = tuple(
        OperatorFacts(
            name=each.name,
            kind=each.proto.op_type,
            flops=capped(sizes.flops(each)),
            weight_bytes=capped(own[number]),
            live_bytes=capped(sizes.live_bytes[each.index]),
        )
        for number, each in enumerate(graph.dynamic)
    )
    return CutTable(
        source_sha256=source_sha256,
        operators=operators,
        values=_values(graph, shapes, place),
        shared=shared,
    )


def _weights(
    graph: OperatorGraph, sizes: Sizes, place: dict[int, int]
) -> tuple[list[int], tuple[SharedWeights, ...]]:
    uses: dict[int | str, list[int]] = defaultdict(list)
    for each in graph.dynamic:
        makers, stored = graph.constants_behind(list(each.reads))
        for key in (*sorted(makers), *sorted(stored), each.index):
            uses[key].append(place[each.index])
    own = [0] * len(graph.dynamic)
    shared: list[SharedWeights] = []
    for key, places in uses.items():
        nbytes = sizes.stored(key) if isinstance(key, str) else sizes.held(key)
        if len(places) > 1 and nbytes >= SHARED_BYTES_MIN:
            shared.append(SharedWeights(capped(nbytes), tuple(places)))
            continue
        for number in places:
            own[number] += nbytes
    return own, tuple(shared)


def _values(graph: OperatorGraph, shapes: Shapes, place: dict[int, int]) -> tuple[ValueFacts, ...]:
    outputs = set(graph.outputs)
    named = [(name, GATEWAY) for name in graph.inputs]
    named += [(name, place[each.index]) for each in graph.dynamic for name in each.writes]
    found: list[ValueFacts] = []
    for name, maker in named:
        readers = tuple(sorted(place[index] for index in graph.readers.get(name, ())))
        if not readers and name not in outputs:
            continue
        exact = shapes.nbytes(name)
        found.append(
            ValueFacts(
                tensor=name,
                maker=maker,
                readers=readers,
                nbytes=capped(shapes.estimate(name) if exact is None else exact),
                is_exact=exact is not None,
                is_output=name in outputs,
                can_travel=word_of(shapes.types.get(name)) is not None,
                is_pair=maker != GATEWAY and splits_quantised(graph, name),
            )
        )
    return tuple(found)
