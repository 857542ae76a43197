"""From the strategy's words to a map operator -> slice: partition points and backend ranges."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from din.errors import BadStrategy
from din.slicing.nearest import listed, nearest
from din.slicing.operators import Operator, OperatorGraph

UNKNOWN_HINTED_MAX: Final = 3
"""Unknown points of which the nearest names are told."""


def slices_by_points(graph: OperatorGraph, points: Sequence[str]) -> dict[int, int]:
    """Slice of each dynamic operator: all up to and including a point's operator, in topological
    order, lie before the cut. Points may come in any order.

    Raises BadStrategy for an unknown, ambiguous, constant or doubled point and for empty slices.
    """
    _check_known(graph, points)
    ends: dict[int, str] = {}
    for point in points:
        index = locate(graph, point)
        if index in ends:
            raise BadStrategy(
                f"partition points {ends[index]!r} and {point!r} cut at the same place",
                hint="remove one of them",
            )
        ends[index] = point
    bounds = sorted(ends)
    slice_of = {each.index: bisect_left(bounds, each.index) for each in graph.dynamic}
    held = set(slice_of.values())
    for number, bound in enumerate(bounds):
        if number not in held or number + 1 not in held:
            side = "before" if number not in held else "after"
            raise BadStrategy(
                f"partition point {ends[bound]!r} leaves no operator {side} it in its slice",
                hint="a point ends a slice: it cannot be the last operator, "
                "and operators must lie between two points; remove it",
            )
    return slice_of


def slices_by_assignment(graph: OperatorGraph, assignment: Sequence[int]) -> dict[int, int]:
    """Slice of each dynamic operator as a list in topological order gives it.

    Raises BadStrategy for another number of operators than the graph has.
    """
    if len(assignment) != len(graph.dynamic):
        raise BadStrategy(
            f"the assignment names {len(assignment)} operators, the graph has {len(graph.dynamic)} "
            "that depend on the input",
            hint="give one slice number for each; analyse the model again at these input shapes",
        )
    return {each.index: number for each, number in zip(graph.dynamic, assignment, strict=True)}


def locate(graph: OperatorGraph, point: str) -> int:
    """Index of the operator that a point names by node name or output tensor name."""
    named = {each.name: each.index for each in graph.operators}.get(point)
    written = graph.producer.get(point)
    if point in graph.duplicates and written is None:
        same = [each.name for each in graph.operators if each.proto.name == point]
        raise BadStrategy(
            f"partition point {point!r} names {len(same)} operators",
            hint=f"use an output tensor's name, or DIN's names {listed(same)}",
        )
    if named is not None and written is not None and named != written:
        raise BadStrategy(
            f"partition point {point!r} names one operator and the output of another, "
            f"{graph.operators[written].name!r}",
            hint=f"use an output tensor's name, such as {graph.operators[named].writes[0]!r}",
        )
    index = named if named is not None else written
    if index is None:
        raise _stored(graph, point)
    if graph.operators[index].is_constant:
        raise BadStrategy(
            f"partition point {point!r} is computed from constants alone, nothing ends there",
            hint="constants move into the slices that use them; name an operator that depends "
            "on the input",
        )
    return index


def _check_known(graph: OperatorGraph, points: Sequence[str]) -> None:
    """Say of all points at once which ones the graph does not know. Raises BadStrategy."""
    names = {each.name for each in graph.operators} | graph.duplicates
    known = names | graph.producer.keys() | graph.stored | set(graph.inputs)
    unknown = [point for point in dict.fromkeys(points) if point not in known]
    if not unknown:
        return
    offered = [name for each in graph.dynamic for name in (each.name, *each.writes)]
    if len(unknown) == 1:
        what = f"partition point {unknown[0]!r} is neither a node nor an output tensor"
        near = nearest(unknown[0], offered)
    else:
        what = f"partition points {listed(unknown)} are neither nodes nor output tensors"
        shown = unknown[:UNKNOWN_HINTED_MAX]
        near = "; ".join(f"to {point!r}: {nearest(point, offered)}" for point in shown)
    raise BadStrategy(
        f"{what} of the graph",
        hint=f"the nearest names are {near}; operators inside If or Loop cannot end a slice",
    )


def _stored(graph: OperatorGraph, point: str) -> BadStrategy:
    what = "an input" if point in graph.inputs else "a weight"
    return BadStrategy(
        f"partition point {point!r} is {what} of the model, no operator's output",
        hint="name a node or an output tensor of a node",
    )


def backends_by_ranges(graph: OperatorGraph, ranges: dict[str, str]) -> dict[int, str]:
    """Backend of each dynamic operator from ranges "from:to" of name prefixes.

    A range reaches from the first operator whose name begins with `from` to the last one whose
    name begins with `to`, in topological order; "a" alone is "a:a". A prefix ends where a part of
    a name ends, so model.1 is not model.10. Raises BadStrategy for unknown prefixes, overlaps and
    operators that are in no range.
    """
    backend_of: dict[int, str] = {}
    owner: dict[int, str] = {}
    for words, backend in ranges.items():
        start, end = places_of(graph, words, "backend range")
        for each in graph.dynamic[start : end + 1]:
            if each.index in owner:
                raise BadStrategy(
                    f"operator {each.name!r} is in two backend ranges, "
                    f"{owner[each.index]!r} and {words!r}",
                    hint="let the ranges follow each other without overlap",
                )
            backend_of[each.index] = backend
            owner[each.index] = words
    unmapped = [each.name for each in graph.dynamic if each.index not in backend_of]
    if unmapped:
        raise BadStrategy(
            f"backend_map leaves {len(unmapped)} of {len(graph.dynamic)} operators unmapped: "
            f"{listed(unmapped)}",
            hint=f"add a range that reaches up to {unmapped[-1]!r}, "
            "or leave backend_map out to use one backend",
        )
    return backend_of


def places_of(graph: OperatorGraph, words: str, kind: str) -> tuple[int, int]:
    """First and last place of a range "from:to" among the dynamic operators. Raises BadStrategy."""
    starts, ends = _ends_of(graph, words, kind)
    start, end = min(starts), max(ends)
    if start > end:
        raise BadStrategy(
            f"{kind} {words!r} ends before it begins",
            hint="write the earlier part of the graph first",
        )
    return start, end


def _ends_of(graph: OperatorGraph, words: str, kind: str) -> tuple[list[int], list[int]]:
    """Places that the two halves of a range match; names may hold colons, so each is tried."""
    halves = [(words[:at], words[at + 1 :]) for at, sign in enumerate(words) if sign == ":"]
    for first, last in (*halves, (words, words)):
        starts, ends = _matching(graph, first), _matching(graph, last)
        if starts and ends:
            return starts, ends
    first, last = halves[0] if halves else (words, words)
    missing = last if _matching(graph, first) else first
    raise BadStrategy(
        f"{kind} {words!r}: no operator's name begins with {missing!r}",
        hint=f"names of this graph are such as {nearest(missing, (e.name for e in graph.dynamic))}",
    )


def _matching(graph: OperatorGraph, prefix: str) -> list[int]:
    return [place for place, each in enumerate(graph.dynamic) if _begins(each, prefix)]


def _begins(operator: Operator, prefix: str) -> bool:
    wanted = prefix.lstrip("/")
    if not wanted:
        return False
    for name in (operator.name, *operator.writes):
        head = name.lstrip("/")
        if head.startswith(wanted) and not head[len(wanted) : len(wanted) + 1].isalnum():
            return True
    return False


def backends_of_slices(
    graph: OperatorGraph, slice_of: dict[int, int], backend_of: dict[int, str]
) -> dict[int, str]:
    """Backend of each slice. Raises BadStrategy when a slice has operators of two."""
    found: dict[int, tuple[str, Operator]] = {}
    for each in graph.dynamic:
        number, backend = slice_of[each.index], backend_of[each.index]
        known, first = found.setdefault(number, (backend, each))
        if known != backend:
            raise BadStrategy(
                f"slice {number} mixes backends: {first.name!r} is mapped to {known}, "
                f"{each.name!r} to {backend}",
                hint="add a partition point where the backend changes",
            )
    return {number: backend for number, (backend, _) in found.items()}
