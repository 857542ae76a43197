"""Outputs that no last operator makes: inputs, weights, constants, the same one twice."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

from din.domain.model import GATEWAY, Edge
from din.errors import BadModel

node = helper.make_node
X = {"x": np.arange(6, dtype=np.float32).reshape(2, 3) - 2}
W = {"w": np.full((2, 3), 3, np.float32)}


def two_steps(build, outputs, inputs=("x",), stored=None):
    nodes = [node("Relu", ["x"], ["a"], "first"), node("Exp", ["a"], ["y"], "second")]
    return build(nodes, list(inputs), list(outputs), stored)


def test_an_input_that_is_an_output_goes_from_the_gateway_to_the_gateway(bench, build):
    answer = bench.check(two_steps(build, ["y", "x"]), X, "first").answer
    assert Edge("x", GATEWAY, (GATEWAY, 0)) in answer.edges
    assert [each.name for each in answer.outputs] == ["y", "x"]
    assert all("x" not in [spec.name for spec in each.outputs] for each in answer.slices)
    assert answer.unused_inputs == ()


def test_an_input_that_is_nothing_but_an_output_reaches_no_slice(bench, build):
    feeds = X | {"tag": np.ones((2, 3), np.float32)}
    model = two_steps(build, ["tag", "y"], inputs=("x", "tag"))
    answer = bench.check(model, feeds, "first").answer
    assert Edge("tag", GATEWAY, (GATEWAY,)) in answer.edges


def test_an_input_that_is_an_output_keeps_its_shape_when_inputs_get_another(bench, build):
    model = two_steps(build, ["y", "x"])
    answer = bench.cut(model, "first", input_shapes={"x": (5, 3)}).answer
    assert [each.shape for each in answer.outputs] == [(5, 3), (5, 3)]
    assert answer.slices[0].inputs[0].shape == (5, 3)


@pytest.mark.parametrize("points", [(), ("first",)])
def test_a_weight_that_is_an_output_comes_from_the_first_slice(bench, build, points):
    answer = bench.check(two_steps(build, ["y", "w"], stored=W), X, *points).answer
    assert Edge("w", 0, (GATEWAY,)) in answer.edges


def test_a_weight_that_is_an_output_and_is_read_in_a_later_slice_travels_only_home(bench, build):
    nodes = [node("Relu", ["x"], ["a"], "first"), node("Add", ["a", "w"], ["y"], "second")]
    answer = bench.check(build(nodes, ["x"], ["y", "w"], W), X, "first").answer
    assert Edge("w", 0, (GATEWAY,)) in answer.edges
    assert [each.bytes_weights for each in answer.slices] == [24, 24]


def test_a_model_of_nothing_but_constants_is_one_slice_without_inputs(bench, build):
    constant = node("Constant", [], ["k"], "k", value=numpy_helper.from_array(W["w"]))
    answer = bench.check(build([constant], [], ["k"]), {}).answer
    assert answer.edges == (Edge("k", 0, (GATEWAY,)),)


def test_an_output_that_is_listed_twice_is_answered_once_and_told(bench, build):
    answer = bench.check(two_steps(build, ["y", "y"]), X, "first").answer
    assert [each.name for each in answer.outputs] == ["y"]
    assert answer.warnings == ("1 outputs are listed more than once; each is answered once",)


def test_a_model_that_only_hands_its_inputs_through_is_refused(bench, build):
    model = two_steps(build, ["x"])
    with pytest.raises(BadModel, match="every output is an input handed through"):
        bench.cut(model)
