"""From a strategy to a map operator -> slice, and what is asked of each slice.

Where the user named the cuts, they stand, and a slice inherits what holds for the operators in it.
Where DIN cuts, a slice ends as well where what holds for operators changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from din.domain.model import CarveRequest
from din.domain.strategy import SLICES_MAX, SliceSetting, Strategy, default_name
from din.errors import BadStrategy
from din.slicing.claims import Claim, claims_by_ranges, merged
from din.slicing.cutting import Boundaries, boundaries_of, slices_by_memory
from din.slicing.operators import OperatorGraph
from din.slicing.points import (
    backends_by_ranges,
    backends_of_slices,
    slices_by_assignment,
    slices_by_points,
)
from din.slicing.sizes import Sizes

BACKEND_DEFAULT: Final = "onnxruntime"


@dataclass(frozen=True)
class Assignment:
    """Slice of each dynamic operator, and the setting of each slice with name and backend."""

    slice_of: dict[int, int]
    settings: tuple[SliceSetting, ...]


def assign(graph: OperatorGraph, sizes: Sizes, request: CarveRequest) -> Assignment:
    """Carry out the request's strategy. Raises BadStrategy."""
    strategy = request.strategy
    backend_of: dict[int, str] = {}
    if strategy.backend_map:
        backend_of = backends_by_ranges(graph, strategy.backend_map)
    claims_of = claims_by_ranges(graph, strategy.ranges)
    if strategy.partition_points and not request.assignment:
        slice_of = slices_by_points(graph, strategy.partition_points)
    else:
        whole = _cut_by_din(graph, sizes, request)
        slice_of = _refined(graph, whole, backend_of, claims_of)
    count = max(slice_of.values(), default=0) + 1
    _check_count(count, strategy)
    backends = backends_of_slices(graph, slice_of, backend_of) if backend_of else {}
    claims = _claims_of_slices(graph, slice_of, claims_of, count)
    settings = (
        _setting(index, strategy.slices, backends.get(index), claims[index])
        for index in range(count)
    )
    return Assignment(slice_of, tuple(settings))


def _cut_by_din(graph: OperatorGraph, sizes: Sizes, request: CarveRequest) -> dict[int, int]:
    strategy = request.strategy
    if request.assignment or (strategy.type == "auto" and not graph.dynamic):
        return slices_by_assignment(graph, request.assignment)
    if strategy.type == "auto":
        raise BadStrategy("type auto is not cut here", hint="name partition points")
    if strategy.type == "operator":
        return _slices_by_operators(graph, sizes, is_by_block=strategy.granularity == "block")
    limits = (request.memory_mib_max, strategy.memory_mib_max)
    memory_mib_max = min((each for each in limits if each is not None), default=None)
    if memory_mib_max is not None:
        return slices_by_memory(graph, sizes, memory_mib_max)
    return {each.index: 0 for each in graph.dynamic}


def _slices_by_operators(
    graph: OperatorGraph, sizes: Sizes, *, is_by_block: bool
) -> dict[int, int]:
    """A slice ends at every boundary where it may; by block, only where one tensor crosses.

    What cannot travel, and what belongs to one quantised operator, stays together.
    """
    bounds = boundaries_of(graph, sizes)
    places = _open_places(bounds)
    blocks = [place for place in places if bounds.tensors[place] == 1]
    ends = blocks if is_by_block else places
    if len(ends) >= SLICES_MAX:
        what = "blocks between single tensors" if is_by_block else "operators to cut between"
        fewer = len(blocks) + 1
        raise BadStrategy(
            f"the model has {len(ends) + 1} {what}, more than {SLICES_MAX} slices",
            hint=f'use "granularity": "block", which makes {fewer} slices'
            if not is_by_block and fewer <= SLICES_MAX
            else 'use type "auto", or name partition points',
        )
    slice_of: dict[int, int] = {}
    number, is_end = 0, set(ends)
    for place, each in enumerate(graph.dynamic):
        number += place in is_end
        slice_of[each.index] = number
    return slice_of


def _open_places(bounds: Boundaries) -> list[int]:
    return [place for place in range(1, len(bounds.is_open) - 1) if bounds.is_open[place]]


def _refined(
    graph: OperatorGraph,
    slice_of: dict[int, int],
    backend_of: dict[int, str],
    claims_of: dict[int, tuple[Claim, ...]],
) -> dict[int, int]:
    """The same map with a new slice wherever backend or claims change inside one."""
    if not (backend_of or claims_of):
        return slice_of
    refined: dict[int, int] = {}
    # Runs of one slice are taken apart, not of the order: slices may lie beside each other.
    last: dict[int, tuple[object, int]] = {}
    count = 0
    for each in graph.dynamic:
        wants = merged(f"operator {each.name!r}", claims_of.get(each.index, ()))
        now = (backend_of.get(each.index), wants.asked)
        before, number = last.get(slice_of[each.index], (None, -1))
        if now != before:
            number = count
            count += 1
            last[slice_of[each.index]] = (now, number)
        refined[each.index] = number
    return refined


def _claims_of_slices(
    graph: OperatorGraph,
    slice_of: dict[int, int],
    claims_of: dict[int, tuple[Claim, ...]],
    count: int,
) -> list[list[Claim]]:
    """By slice the claims of its operators, each once."""
    found: list[dict[Claim, None]] = [{} for _ in range(count)]
    for each in graph.dynamic:
        found[slice_of[each.index]].update(dict.fromkeys(claims_of.get(each.index, ())))
    return [list(each) for each in found]


def _setting(
    index: int, given: Sequence[SliceSetting], backend: str | None, claims: Sequence[Claim]
) -> SliceSetting:
    setting = given[index] if index < len(given) else SliceSetting()
    name = setting.name or default_name(index)
    own = Claim(f"slices[{index}]", setting.nodes, setting.not_nodes, sensitive=setting.sensitive)
    asked = merged(f"slice {name!r}", (own, *claims))
    return replace(
        setting,
        name=name,
        backend=setting.backend or backend or BACKEND_DEFAULT,
        nodes=asked.nodes,
        not_nodes=asked.not_nodes,
        sensitive=asked.sensitive,
    )


def _check_count(count: int, strategy: Strategy) -> None:
    if count > SLICES_MAX:
        raise BadStrategy(
            f"the strategy makes {count} slices, more than {SLICES_MAX}",
            hint="use fewer partition points or ranges",
        )
    if len(strategy.slices) > count:
        raise BadStrategy(
            f"the strategy describes {len(strategy.slices)} slices, it makes {count}",
            hint="describe at most as many slices as the points and ranges make",
        )
