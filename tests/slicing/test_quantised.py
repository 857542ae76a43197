"""Graphs with QuantizeLinear and DequantizeLinear: an operator is never parted from its scales."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from din.bench.composed import Composed, engine
from din.domain.numerics import computes_in_integers
from din.errors import BadStrategy
from din.placement.boundaries import blocks_of
from din.placement.boundaries import boundaries_of as placement_boundaries
from din.slicing.cutting import boundaries_of, slices_by_memory
from din.slicing.needs import needs_of
from din.slicing.slicer import analyse
from din.slicing.table import cut_table

node = helper.make_node
SIDE = 512
STEP = {"scale": np.float32(0.05), "zero": np.uint8(128)}
X = {"x": np.random.default_rng(3).normal(0, 1, (4, SIDE)).astype(np.float32)}


def quantised(build, units, skip=False):
    """Q, then `units` times DQ, MatMul with an 8-bit weight, Q; a DQ at the end."""
    chance = np.random.default_rng(5)
    stored = dict(STEP) | {"weight_scale": np.float32(0.002)}
    nodes = [node("QuantizeLinear", ["x", "scale", "zero"], ["q0"], "q0")]
    for number in range(units):
        stored[f"w{number}"] = chance.integers(-127, 128, (SIDE, SIDE), dtype=np.int8)
        nodes += [
            node("DequantizeLinear", [f"q{number}", "scale", "zero"], [f"d{number}"]),
            node("DequantizeLinear", [f"w{number}", "weight_scale"], [f"v{number}"]),
            node("MatMul", [f"d{number}", f"v{number}"], [f"m{number}"], f"mul{number}"),
            node("QuantizeLinear", [f"m{number}", "scale", "zero"], [f"q{number + 1}"]),
        ]
    nodes.append(
        node("DequantizeLinear", [f"q{units}", "scale", "zero"], ["y" if not skip else "e"])
    )
    if skip:
        nodes.append(node("Add", ["e", "d0"], ["y"], "skip"))
    return build(nodes, [f"x:FLOAT:4,{SIDE}"], [f"y:FLOAT:4,{SIDE}"], stored)


@pytest.mark.parametrize("units", [2, 5])
def test_cuts_by_memory_carry_integers_and_change_no_bit_of_optimised_kernels(build, units):
    data = quantised(build, units).SerializeToString()
    found = analyse(data, {})
    slice_of = slices_by_memory(found.graph, found.sizes, 44)
    assert len(set(slice_of.values())) == units
    composed = Composed(found, slice_of, "all")
    crossing = {edge.tensor for edge in composed.edges if edge.producer >= 0} - {"y"}
    assert crossing == {f"q{number}" for number in range(1, units)}
    assert composed.run(X)["y"].tobytes() == engine(data, "all").run(None, X)[0].tobytes()


def test_what_it_asks_of_a_backend_says_that_it_computes_in_integers(build):
    """T40: its replicas are held to one kind of processor by that."""
    model = quantised(build, 2)
    found = analyse(model.SerializeToString(), {})
    assert computes_in_integers(needs_of(model, found.graph.dynamic, 17))
    floats = build([node("Relu", ["x"], ["y"])], ["x:FLOAT:2"], ["y:FLOAT:2"])
    found = analyse(floats.SerializeToString(), {})
    assert not computes_in_integers(needs_of(floats, found.graph.dynamic, 17))


def test_every_boundary_inside_a_quantised_unit_is_closed(build):
    found = analyse(quantised(build, 3).SerializeToString(), {})
    bounds = boundaries_of(found.graph, found.sizes)
    kinds = [each.proto.op_type for each in found.graph.dynamic]
    for place in range(1, len(kinds)):
        between = (kinds[place - 1], kinds[place]) == ("QuantizeLinear", "DequantizeLinear")
        assert bounds.is_open[place] == between


def test_blocks_that_placement_chooses_among_end_between_quantised_units(build):
    found = analyse(quantised(build, 4).SerializeToString(), {})
    table = cut_table(found.graph, found.shapes, found.sizes, "a" * 64)
    kinds = [each.proto.op_type for each in found.graph.dynamic]
    inner = blocks_of(placement_boundaries(table)).edges[1:-1]
    assert inner
    for place in inner:
        assert (kinds[place - 1], kinds[place]) == ("QuantizeLinear", "DequantizeLinear")


def test_what_skips_over_units_closes_them_for_as_long_as_it_crosses(build):
    found = analyse(quantised(build, 3, skip=True).SerializeToString(), {})
    bounds = boundaries_of(found.graph, found.sizes)
    assert not any(bounds.is_open[2:-1])


def test_a_quantised_unit_that_does_not_fit_is_not_parted_but_refused(build):
    """The skip keeps the whole model in one piece."""
    found = analyse(quantised(build, 4, skip=True).SerializeToString(), {})
    with pytest.raises(BadStrategy, match="inside a quantised operator"):
        slices_by_memory(found.graph, found.sizes, 44)


def test_a_value_that_is_quantised_and_read_otherwise_may_cross_behind_its_quantisation(build):
    nodes = [
        node("Relu", ["x"], ["a"], "first"),
        node("QuantizeLinear", ["a", "scale", "zero"], ["q"], "quantise"),
        node("DequantizeLinear", ["q", "scale", "zero"], ["d"], "dequantise"),
        node("Add", ["d", "a"], ["y"], "sum"),
    ]
    found = analyse(build(nodes, ["x"], ["y"], dict(STEP)).SerializeToString(), {})
    assert boundaries_of(found.graph, found.sizes).is_open[1:4] == [False, True, False]


@pytest.mark.parametrize(
    ("point", "is_warned"), [("mul0", True), ("d1", True), ("q1", False), ("q0", False)]
)
def test_a_point_of_a_person_is_obeyed_and_warned_of_where_it_parts_a_unit(
    bench, build, point, is_warned
):
    answer = bench.cut(quantised(build, 2), point).answer
    assert len(answer.slices) == 2
    assert bool(answer.warnings) == is_warned
    assert all("cut between QuantizeLinear and DequantizeLinear" in e for e in answer.warnings)
