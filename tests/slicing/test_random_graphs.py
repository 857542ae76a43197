"""Any graph, any map: the slices together answer bit by bit as the whole, or the map is refused."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from din.bench.composed import Composed, engine
from din.errors import BadStrategy
from din.slicing.elements import word_of
from din.slicing.parts import divide
from din.slicing.slicer import analyse
from din.slicing.together import kept_together
from tests.slicing.random_graphs import RandomGraph, random_graphs

CALM = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SLICES = 5


def answer_of(graph: RandomGraph):
    session = engine(graph.model.SerializeToString(), "off")
    names = [each.name for each in session.get_outputs()]
    given_names = {each.name for each in session.get_inputs()}
    feeds = {name: value for name, value in graph.feeds.items() if name in given_names}
    return dict(zip(names, session.run(names, feeds), strict=True))


def draw_map(data, found):
    """Slices in any order of the operators that the graph allows, so that branches part."""
    left, order = list(found.graph.dynamic), []
    made = set(found.graph.inputs)
    while left:
        ready = [
            each
            for each in left
            if all(name in made or found.graph.is_fixed(name) for name in each.reads)
        ]
        chosen = data.draw(st.sampled_from(ready))
        left.remove(chosen)
        order.append(chosen)
        made.update(chosen.writes)
    count = data.draw(st.integers(min(2, len(order)), min(SLICES, len(order))))
    ends = sorted(data.draw(st.permutations(range(1, len(order))))[: count - 1])
    return {each.index: sum(place >= end for end in ends) for place, each in enumerate(order)}


@given(graph=random_graphs(), data=st.data())
@CALM
def test_slices_of_any_map_answer_bit_by_bit_as_the_whole(graph, data):
    found = analyse(graph.careless, {})
    untyped = {name for each in found.graph.dynamic for name in each.writes}
    assert untyped <= set(found.shapes.types), "what has no type cannot cross"
    slice_of = kept_together(found.graph, found.shapes, draw_map(data, found))
    answer = Composed(found, slice_of, "off").run(graph.feeds)
    expected = answer_of(graph)
    assert set(answer) == set(expected)
    for name, value in expected.items():
        assert answer[name].dtype == value.dtype
        assert answer[name].shape == value.shape
        assert answer[name].tobytes() == value.tobytes(), name


def reasons_against(found, slice_of, count):
    """Why a map must be refused, found by trying: texts of the errors."""
    graph, reasons = found.graph, []
    if set(slice_of.values()) != set(range(count)):
        reasons.append("would hold no operator")
    reaches = {number: {number} for number in range(count)}
    crossing = [
        (slice_of[each.index], slice_of[reader], name)
        for each in graph.dynamic
        for name in each.writes
        for reader in graph.readers.get(name, ())
        if slice_of[each.index] != slice_of[reader]
    ]
    for _ in range(count):
        for source, target, _ in crossing:
            reaches[source] |= reaches[target]
    if any(source in reaches[target] for source, target, _ in crossing):
        reasons.append("slices would wait for each other")
    if any(word_of(found.shapes.types.get(name)) is None for _, _, name in crossing):
        reasons.append("cannot leave its slice")
    return reasons


@given(graph=random_graphs(), data=st.data())
@CALM
def test_any_map_at_all_is_carried_out_or_refused_with_the_right_reason(graph, data):
    found = analyse(graph.careless, {})
    count = data.draw(st.integers(1, 3))
    slice_of = {each.index: data.draw(st.integers(0, count - 1)) for each in found.graph.dynamic}
    reasons = reasons_against(found, slice_of, count) if slice_of else []
    if reasons:
        with pytest.raises(BadStrategy) as refused:
            divide(found.graph, found.shapes, slice_of, count)
        assert any(reason in refused.value.message for reason in reasons)
    elif slice_of:
        answer = Composed(found, slice_of, "off").run(graph.feeds)
        for name, value in answer_of(graph).items():
            assert answer[name].tobytes() == value.tobytes(), name
