"""Reading nodes from the wire form and adding outputs to it, held against `onnx`."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from onnx_models import model
from probe_play import scalar, step, value, whole

from din.backends.graph_wire import nodes_of, with_outputs
from din.errors import BadModel


def test_nodes_are_read_as_onnx_reads_them() -> None:
    nodes = [
        helper.make_node("Dropout", ["x"], ["a", ""], name="näme"),
        helper.make_node("Identity", ["a"], ["y"]),
    ]
    data = model(nodes, [value("x")], [value("y")])
    expected = [
        (n.name, n.op_type, tuple(n.output)) for n in onnx.load_from_string(data).graph.node
    ]
    assert [tuple(each) for each in nodes_of(data)] == expected


def test_nodes_of_subgraphs_are_not_among_them() -> None:
    body = helper.make_graph([step("Neg", ["x"], "n")], "b", [], [value_info("n")])
    node = helper.make_node("If", ["c"], ["y"], name="if", then_branch=body, else_branch=body)
    data = model([node], [value("x")], [value("y")], initializer=[scalar("c", True)])
    assert [each.name for each in nodes_of(data)] == ["if"]


def value_info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)


def test_outputs_that_are_added_are_outputs_of_the_same_model() -> None:
    grown = onnx.load_from_string(with_outputs(whole(), ["t", "y", "t"]))
    assert [each.name for each in grown.graph.output] == ["y", "t"]
    assert grown.graph.node == onnx.load_from_string(whole()).graph.node
    assert with_outputs(whole(), []) == whole()


@given(st.binary(max_size=200))
def test_nonsense_is_refused_or_read_and_never_runs_away(data: bytes) -> None:
    try:
        nodes_of(data)
    except BadModel:
        return


@pytest.mark.parametrize("end", [1, 5, 40])
def test_a_file_that_was_cut_short_is_damaged(end: int) -> None:
    with pytest.raises(BadModel, match="damaged"):
        nodes_of(whole()[:-end])
