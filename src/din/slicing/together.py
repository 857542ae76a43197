"""Joins slices of a map between which no tensor could go, and those that would then wait for each
other: what is left is a map that nodes can run."""

from __future__ import annotations

from collections.abc import Mapping

from din.slicing.elements import word_of
from din.slicing.operators import OperatorGraph
from din.slicing.parts import cycle_of
from din.slicing.shapes import Shapes


def kept_together(
    graph: OperatorGraph, shapes: Shapes, slice_of: Mapping[int, int]
) -> dict[int, int]:
    """The map with as many slices as can be: a sequence, map or optional stays where it is made.

    Slices are numbered anew, in the order of their first operators.
    """
    group = _Groups(set(slice_of.values()))
    for name, reading in graph.readers.items():
        maker = graph.producer.get(name)
        if maker is None or graph.is_fixed(name) or word_of(shapes.types.get(name)) is not None:
            continue
        for reader in reading:
            group.join(slice_of[maker], slice_of[reader])
    while cycle := cycle_of(_followers(graph, slice_of, group)):
        for number in cycle[1:]:
            group.join(cycle[0], number)
    numbers: dict[int, int] = {}
    for each in graph.dynamic:
        numbers.setdefault(group.of(slice_of[each.index]), len(numbers))
    return {index: numbers[group.of(number)] for index, number in slice_of.items()}


class _Groups:
    """Which slices have become one."""

    def __init__(self, slices: set[int]) -> None:
        self._above = {number: number for number in slices}

    def of(self, number: int) -> int:
        """The slice that stands for this one's group."""
        while self._above[number] != number:
            self._above[number] = self._above[self._above[number]]
            number = self._above[number]
        return number

    def join(self, one: int, other: int) -> None:
        """Make their groups one."""
        self._above[self.of(other)] = self.of(one)


def _followers(
    graph: OperatorGraph, slice_of: Mapping[int, int], group: _Groups
) -> dict[int, dict[int, str]]:
    """Group -> groups that read what it makes, each with a tensor."""
    found: dict[int, dict[int, str]] = {group.of(number): {} for number in slice_of.values()}
    for each in graph.dynamic:
        home = group.of(slice_of[each.index])
        for name in each.writes:
            for reader in graph.readers.get(name, ()):
                if group.of(slice_of[reader]) != home:
                    found[home].setdefault(group.of(slice_of[reader]), name)
    return found
