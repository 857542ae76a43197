"""Which slices run in which order, and what the gateway sends and awaits."""

import pytest
from gateway_fakes import SKIP_SHAPE, chain_of, part_of, skip_partition

from din.domain.model import CONTEXT_TENSOR, GATEWAY, Edge, Partition
from din.domain.tensor import TensorSpec
from din.gateway.registration.partition import _adapted_edges
from din.gateway.routes.shape import RouteShape

BEFORE, AFTER = 2, 3
MODEL_EDGES = (
    Edge("input", GATEWAY, (0,)),
    Edge("middle", 0, (1,)),
    Edge("heads", 1, (GATEWAY,)),
)
ADAPTED_EDGES = (
    Edge("input", BEFORE, (0,)),
    Edge("middle", 0, (1,)),
    Edge("heads", 1, (AFTER,)),
    Edge("photo", GATEWAY, (BEFORE,)),
    Edge("boxes", AFTER, (GATEWAY,)),
    Edge(CONTEXT_TENSOR, BEFORE, (AFTER,)),
)
ADAPTED = Partition(
    slices=tuple(part_of(i, (*MODEL_EDGES, *ADAPTED_EDGES)) for i in range(4)),
    edges=MODEL_EDGES,
    adapted_edges=ADAPTED_EDGES,
)


def test_slices_run_producers_first():
    assert RouteShape(ADAPTED, is_adapted=True).slices == (BEFORE, 0, 1, AFTER)
    assert RouteShape(chain_of(5), is_adapted=False).slices == (0, 1, 2, 3, 4)


def test_the_order_holds_when_indexes_run_against_the_edges():
    edges = (Edge("x", GATEWAY, (2,)), Edge("y", 2, (0,)), Edge("z", 0, (1,)),
             Edge("out", 1, (GATEWAY,)))  # fmt: skip
    partition = Partition(slices=tuple(part_of(i, edges) for i in range(3)), edges=edges)
    assert RouteShape(partition, is_adapted=False).slices == (2, 0, 1)


def test_the_raw_variant_leaves_the_adapters_out():
    shape = RouteShape(ADAPTED, is_adapted=False)
    assert shape.slices == (0, 1)
    assert shape.inputs == {0: ("input",), 1: ()}
    assert shape.outputs == {"heads": 1}


def test_the_adapted_variant_takes_photos_and_gives_boxes():
    shape = RouteShape(ADAPTED, is_adapted=True)
    assert shape.inputs[BEFORE] == ("photo",)
    assert shape.inputs[0] == ()
    assert shape.outputs == {"boxes": AFTER}
    assert shape.upstream[AFTER] == {BEFORE, 1}


def test_an_input_that_is_an_output_as_well_is_not_awaited_from_any_slice():
    edges = (Edge("x", GATEWAY, (GATEWAY, 0)), Edge("y", 0, (GATEWAY,)))
    partition = Partition(slices=(part_of(0, edges),), edges=edges)
    shape = RouteShape(partition, is_adapted=False)
    assert shape.outputs == {"y": 0}
    assert shape.returned == {"x"}
    assert shape.inputs == {0: ("x",)}


def test_outputs_come_in_the_order_of_the_signature_not_in_that_of_the_slices():
    edges = (
        Edge("x", GATEWAY, (GATEWAY, 0)),
        Edge("early", 0, (GATEWAY, 1)),
        Edge("late", 1, (GATEWAY,)),
    )
    partition = Partition(slices=tuple(part_of(i, edges) for i in range(2)), edges=edges)
    names = ("late", "x", "early")
    signature = [TensorSpec(name, "FP32", (1,)) for name in names]
    shape = RouteShape(partition, is_adapted=False, signature=signature)
    assert tuple(shape.outputs) == ("late", "early")
    assert shape.answered == names


def test_adapters_take_over_the_ends_of_an_input_that_is_handed_through():
    """A photo becomes the input that is an output too: the adapter after the model reads it."""
    raw = (Edge("x", GATEWAY, (GATEWAY, 0)), Edge("y", 0, (GATEWAY,)))
    spec = {name: TensorSpec(name, "FP32", (1,)) for name in ("photo", "x", "y", "boxes")}
    before, after = ((spec["photo"],), (spec["x"],)), ((spec["x"], spec["y"]), (spec["boxes"],))
    both = _adapted_edges(raw, before, 1, after, 2)
    assert Edge("x", 1, (0, 2)) in both
    only_before = _adapted_edges(raw, before, 1, None, None)
    assert Edge("x", 1, (GATEWAY, 0)) in only_before
    partition = Partition(slices=tuple(part_of(i, both) for i in range(3)), edges=raw,
                          adapted_edges=both)  # fmt: skip
    assert RouteShape(partition, is_adapted=True).returned == frozenset()
    made = Partition(slices=partition.slices[:2], edges=raw, adapted_edges=only_before)
    assert RouteShape(made, is_adapted=True).outputs == {"x": 1, "y": 0}
    only_after = _adapted_edges(raw, None, None, after, 1)
    assert Edge("x", GATEWAY, (0, 1)) in only_after


def test_a_skip_edge_makes_a_slice_wait_for_both_producers():
    assert SKIP_SHAPE.upstream == {0: frozenset(), 1: {0}, 2: {0, 1}}
    assert SKIP_SHAPE.outputs == {"labels": 1, "boxes": 2}


def test_one_input_that_several_slices_read_is_sent_to_each():
    edges = (Edge("x", GATEWAY, (0, 1)), Edge("y", 0, (GATEWAY,)), Edge("z", 1, (GATEWAY,)))
    partition = Partition(slices=tuple(part_of(i, edges) for i in range(2)), edges=edges)
    shape = RouteShape(partition, is_adapted=False)
    assert shape.inputs == {0: ("x",), 1: ("x",)}
    assert shape.single_slice is None


def test_a_slice_that_reads_nothing_still_runs():
    edges = (Edge("x", GATEWAY, (1,)), Edge("c", 0, (1,)), Edge("out", 1, (GATEWAY,)))
    partition = Partition(slices=tuple(part_of(i, edges) for i in range(2)), edges=edges)
    assert RouteShape(partition, is_adapted=False).slices == (0, 1)


def test_only_one_slice_alone_may_go_direct():
    assert RouteShape(chain_of(1), is_adapted=False).single_slice == 0
    assert SKIP_SHAPE.single_slice is None


def test_a_random_slice_makes_the_route_random():
    assert not SKIP_SHAPE.is_random
    assert RouteShape(skip_partition(is_random=True), is_adapted=False).is_random


def test_slices_that_wait_for_each_other_are_a_broken_promise_of_the_carver():
    edges = (Edge("a", 0, (1,)), Edge("b", 1, (0,)))
    partition = Partition(slices=tuple(part_of(i, edges) for i in range(2)), edges=edges)
    with pytest.raises(AssertionError, match="wait for each other"):
        RouteShape(partition, is_adapted=False)
