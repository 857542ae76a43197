"""Models of other people under any map, and what goes over the wire between the slices."""

from __future__ import annotations

import random
from contextlib import suppress

import numpy as np
import pytest

from din.bench.composed import Composed, engine
from din.bench.examples import EXAMPLES, feeds_of, shapes_of
from din.domain.deployment import Route
from din.domain.estimates import memory_mib
from din.domain.node import NodeId
from din.domain.request import SliceTiming
from din.domain.tensor import TensorMeta
from din.errors import BadStrategy
from din.placement.partitioning import choose_cuts, prepare
from din.placement.places import CutWishes, Device, RangeRule
from din.placement.ways import Ways
from din.slicing.cutting import slices_by_memory
from din.slicing.slicer import analyse
from din.slicing.table import cut_table
from din.slicing.together import kept_together
from din.wire.frame import body_parts, encode_head
from din.wire.messages import Run

SLICES = (2, 3, 5, 8)
EDGE_BYTES_MAX = 1024
CROSSING_MAX = 1.02


@pytest.fixture(scope="module", params=EXAMPLES)
def real(request, fetched):
    """Analysed model, feeds, and the answer of the whole without optimisations."""
    data, feeds = fetched(request.param), feeds_of(request.param)
    found = analyse(data, shapes_of(request.param))
    whole = {each.index: 0 for each in found.graph.dynamic}
    return found, feeds, Composed(found, whole, "off").run(feeds)


def random_acyclic(found, count, draw):
    """A random order that the graph allows, cut into `count` runs: branches come apart."""
    graph, waiting, followers = found.graph, {}, {}
    for each in graph.dynamic:
        makers = {graph.producer[name] for name in each.reads if not graph.is_fixed(name)
                  and name in graph.producer}  # fmt: skip
        waiting[each.index] = len(makers)
        for maker in makers:
            followers.setdefault(maker, []).append(each.index)
    ready = [index for index, number in waiting.items() if not number]
    order = []
    while ready:
        order.append(ready.pop(draw.randrange(len(ready))))
        for follower in followers.get(order[-1], ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    ends = sorted(draw.sample(range(1, len(order)), count - 1))
    slice_of = {index: sum(at >= end for end in ends) for at, index in enumerate(order)}
    return kept_together(graph, found.shapes, slice_of)


def check(found, slice_of, feeds, expected):
    composed = Composed(found, slice_of, "off")
    answer = composed.run(feeds)
    assert set(answer) == set(expected)
    for name, value in expected.items():
        assert answer[name].tobytes() == value.tobytes(), name
    spent, crossing = frame_bytes(composed), sum(v.nbytes for v in composed.crossed.values())
    assert crossing <= spent <= CROSSING_MAX * crossing + EDGE_BYTES_MAX * len(composed.crossed)
    return composed


def frame_bytes(composed):
    """Bytes of the frames that agents would send for what crossed, with timings of all upstream."""
    count = len(composed.parts)
    nodes = tuple(NodeId(f"{number:016x}") for number in range(count))
    route = Route((2**62, 2**31), False, nodes)
    frames = {}
    for (tensor, producer, consumer), value in composed.crossed.items():
        frames.setdefault((producer, consumer), []).append((tensor, value))
    total = 0
    for (producer, consumer), tensors in frames.items():
        metas = tuple(
            TensorMeta(name, "FP32", value.shape, value.nbytes) for name, value in tensors
        )
        timings = tuple(
            SliceTiming(number, nodes[number], 10**5, 10**5, 10**5, 0, 99.9)
            for number in range(producer + 1)
        )
        run = Run(2**62, 3, consumer, route, 60_000, metas, nodes[0], producer=producer,
                  timings=timings)  # fmt: skip
        _, body_bytes = body_parts([memoryview(np.ascontiguousarray(v)) for _, v in tensors])
        total += len(encode_head(run, body_bytes)) + body_bytes
    return total


@pytest.mark.parametrize("count", SLICES)
def test_random_acyclic_maps_answer_bit_by_bit_and_send_what_crosses(real, count):
    found, feeds, expected = real
    draw = random.Random(f"{found.graph.operators[0].name}{count}")
    composed = check(found, random_acyclic(found, count, draw), feeds, expected)
    assert len(composed.parts) >= 2


def test_cuts_by_memory_answer_bit_by_bit_and_send_what_crosses(real):
    """At the least memory that the largest operator allows."""
    found, feeds, expected = real
    dynamic = list(found.graph.dynamic)
    for limit_mib in range(41, 1000):
        with suppress(BadStrategy):
            slice_of = slices_by_memory(found.graph, found.sizes, limit_mib)
            break
    composed = check(found, slice_of, feeds, expected)
    if (
        sum(map(found.shapes.stored_bytes, found.graph.stored)) > 2**20
    ):  # else nothing but values takes room
        assert len(composed.parts) >= 2
    for part in composed.parts:
        weights = found.sizes.weights(
            {each.index for each in part.constants}, set(part.stored), list(part.dynamic)
        )
        assert memory_mib(weights, found.sizes.peak(list(part.dynamic))) <= limit_mib
    assert sum(len(part.dynamic) for part in composed.parts) == len(dynamic)


def test_cuts_that_placement_chooses_answer_bit_by_bit_and_send_what_crosses(real):
    """The first third on one node, the last on another: where in between is the choice."""
    found, feeds, expected = real
    table = cut_table(found.graph, found.shapes, found.sizes, "a" * 64)
    count = len(table.operators)
    one, two = (
        Device(node_id=NodeId(name), name=name, device_class="cpu", gflops=10.0, room_mib=8000)
        for name in ("one", "two")
    )
    rules = (
        RangeRule(first=0, last=count // 3, allowed=frozenset({one.node_id})),
        RangeRule(first=2 * count // 3, last=count - 1, allowed=frozenset({two.node_id})),
    )
    chosen = choose_cuts(prepare(table, rules), (one, two), CutWishes(rules=rules), Ways())
    assert len(set(chosen.assignment)) >= 2
    slice_of = dict(
        zip([each.index for each in found.graph.dynamic], chosen.assignment, strict=True)
    )
    check(found, slice_of, feeds, expected)


def test_the_whole_in_one_slice_is_bit_by_bit_what_the_file_answers(fetched):
    for name in EXAMPLES:
        if shapes_of(name):
            continue
        data, feeds = fetched(name), feeds_of(name)
        found = analyse(data, {})
        answer = Composed(found, {each.index: 0 for each in found.graph.dynamic}, "off").run(feeds)
        session = engine(data, "off")
        names = [each.name for each in session.get_outputs()]
        for each, value in zip(names, session.run(names, feeds), strict=True):
            assert answer[each].tobytes() == value.tobytes()
