"""From a map operator -> slice to parts with signatures and edges. Any acyclic map will do.

Points, ranges of backends, single operators and parallel branches all come down to such a map.
Constants are not in it: each part takes copies of the ones it needs, so weights never travel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from din.domain.model import GATEWAY, CutFacts, Edge
from din.domain.tensor import TENSORS_MAX
from din.errors import BadStrategy
from din.slicing.elements import describe, word_of
from din.slicing.operators import Operator, OperatorGraph
from din.slicing.shapes import Shapes

_PLACE: Final = attrgetter("index")


@dataclass(frozen=True)
class Part:
    """One slice to be made: what it holds, takes and gives."""

    index: int
    dynamic: tuple[Operator, ...]
    constants: tuple[Operator, ...]
    stored: frozenset[str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def operators(self) -> tuple[Operator, ...]:
        """All operators in topological order."""
        return tuple(sorted((*self.constants, *self.dynamic), key=_PLACE))


def divide(
    graph: OperatorGraph, shapes: Shapes, slice_of: Mapping[int, int], count: int
) -> tuple[tuple[Part, ...], tuple[Edge, ...]]:
    """Parts and edges for a map from every dynamic operator's index to a slice 0..count-1.

    Raises BadStrategy for an incomplete map, an empty slice, slices that wait for each other,
    values that cannot travel between slices, and slices with more of them than one may have.
    """
    members = _members(graph, slice_of, count)
    edges = _edges(graph, slice_of)
    _check_acyclic(edges, count)
    _check_crossing(graph, shapes, edges)
    parts = tuple(_part(graph, edges, index, members[index]) for index in range(count))
    _check_counts(parts)
    fixed_outputs = [name for name in graph.outputs if graph.is_fixed(name)]
    edges += tuple(Edge(name, 0, (GATEWAY,)) for name in fixed_outputs)
    return parts, edges


def cut_facts(shapes: Shapes, edges: tuple[Edge, ...], count: int) -> tuple[CutFacts, ...]:
    """What crosses after each slice but the last, for a partition that is a chain."""
    facts: list[CutFacts] = []
    for after in range(count - 1):
        crossing = [
            edge.tensor
            for edge in edges
            if 0 <= edge.producer <= after and any(each > after for each in edge.consumers)
        ]
        sizes = [shapes.nbytes(name) for name in crossing]
        known = [size for size in sizes if size is not None]
        total = sum(known) if len(known) == len(sizes) else None
        facts.append(CutFacts(after_slice=after, tensors=tuple(crossing), nbytes=total))
    return tuple(facts)


def _members(
    graph: OperatorGraph, slice_of: Mapping[int, int], count: int
) -> list[tuple[Operator, ...]]:
    members: list[list[Operator]] = [[] for _ in range(count)]
    for each in graph.dynamic:
        target = slice_of.get(each.index)
        if target is None or not 0 <= target < count:
            raise BadStrategy(
                f"operator {each.name!r} is mapped to slice {target}, of slices 0..{count - 1}",
                hint="map every operator to one of the slices",
            )
        members[target].append(each)
    if graph.dynamic:
        for index, found in enumerate(members):
            if not found:
                raise BadStrategy(
                    f"slice {index} would hold no operator that depends on the input",
                    hint="remove the partition point that ends it",
                )
    return [tuple(each) for each in members]


def _edges(graph: OperatorGraph, slice_of: Mapping[int, int]) -> tuple[Edge, ...]:
    edges: list[Edge] = []
    outputs, readers = set(graph.outputs), graph.readers
    for name in graph.inputs:
        consumers = {slice_of[index] for index in readers.get(name, ())}
        if name in outputs:
            consumers.add(GATEWAY)  # handed through: the gateway keeps it for the answer
        if consumers:
            edges.append(Edge(name, GATEWAY, tuple(sorted(consumers))))
    for each in graph.dynamic:
        home = slice_of[each.index]
        for name in each.writes:
            consumers = {slice_of[index] for index in readers.get(name, ())}
            consumers.discard(home)
            if name in outputs:
                consumers.add(GATEWAY)
            if consumers:
                edges.append(Edge(name, home, tuple(sorted(consumers))))
    return tuple(edges)


def _part(
    graph: OperatorGraph,
    edges: tuple[Edge, ...],
    index: int,
    dynamic: tuple[Operator, ...],
) -> Part:
    reads = [name for each in dynamic for name in each.reads]
    fixed_outputs = [name for name in graph.outputs if index == 0 and graph.is_fixed(name)]
    makers, stored = graph.constants_behind(reads + fixed_outputs)
    given = {edge.tensor for edge in edges if edge.producer == index}
    given.update(fixed_outputs)
    inputs = [edge.tensor for edge in edges if index in edge.consumers and edge.producer != index]
    outputs = [name for name in graph.outputs if name in given]
    outputs += [edge.tensor for edge in edges if edge.producer == index]
    return Part(
        index=index,
        dynamic=dynamic,
        constants=tuple(graph.operators[each] for each in sorted(makers)),
        stored=frozenset(stored),
        inputs=tuple(dict.fromkeys(inputs)),
        outputs=tuple(dict.fromkeys(outputs)),
    )


def _check_crossing(graph: OperatorGraph, shapes: Shapes, edges: tuple[Edge, ...]) -> None:
    for edge in edges:
        kind = shapes.types.get(edge.tensor)
        if word_of(kind) is not None or edge.producer == GATEWAY or edge.consumers == (GATEWAY,):
            continue  # what the model itself takes and gives was looked at with its signature
        maker = graph.operators[graph.producer[edge.tensor]]
        raise BadStrategy(
            f"{edge.tensor!r}, made by {maker.proto.op_type} {maker.name!r} in slice "
            f"{edge.producer}, is {describe(kind)} and cannot leave its slice",
            hint="cut where plain tensors cross: before the operator that makes it, "
            "or after those that read it",
        )


def _check_counts(parts: tuple[Part, ...]) -> None:
    for part in parts:
        for side, names in (("inputs", part.inputs), ("outputs", part.outputs)):
            if len(names) > TENSORS_MAX:
                raise BadStrategy(
                    f"slice {part.index} would have {len(names)} {side}; "
                    f"the limit is {TENSORS_MAX}",
                    hint="cut where fewer tensors cross",
                )


def _check_acyclic(edges: tuple[Edge, ...], count: int) -> None:
    after: dict[int, dict[int, str]] = {index: {} for index in range(count)}
    for edge in edges:
        for consumer in edge.consumers:
            if GATEWAY not in (edge.producer, consumer):
                after[edge.producer].setdefault(consumer, edge.tensor)
    cycle = cycle_of(after)
    if cycle:
        steps = [
            f"slice {source} -> slice {target} by {after[source][target]!r}"
            for source, target in zip(cycle, [*cycle[1:], cycle[0]], strict=True)
        ]
        raise BadStrategy(
            f"slices would wait for each other: {'; '.join(steps)}",
            hint="put the operators of the cycle into one slice",
        )


def cycle_of(after: dict[int, dict[int, str]]) -> list[int]:
    """Some cycle of slices, given which follow each; [] if there is none.

    Found by walking back from what never becomes free.
    """
    waiting = dict.fromkeys(after, 0)
    for targets in after.values():
        for target in targets:
            waiting[target] += 1
    ready = [index for index, number in waiting.items() if number == 0]
    while ready:
        index = ready.pop()
        del waiting[index]
        for target in after[index]:
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    if not waiting:
        return []
    # Every slice that is left has one before it that is left: walking back must meet itself.
    path = [min(waiting)]
    while True:
        before = min(index for index in waiting if path[-1] in after[index])
        if before in path:
            return path[path.index(before) :][::-1]
        path.append(before)
