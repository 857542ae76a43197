"""The table that cuts are chosen from, and carving exactly what was chosen."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from onnx import helper

from din.domain.cuts import CutTable
from din.domain.model import GATEWAY
from din.errors import BadStrategy
from din.slicing.slicer import table_of

node = helper.make_node


@pytest.fixture
def forked(build):
    """A trunk, two heads and a weight that both use."""
    nodes = [
        node("Relu", ["x"], ["a"], "trunk"),
        node("MatMul", ["a", "w"], ["l"], "left"),
        node("MatMul", ["a", "w"], ["r"], "right"),
        node("Exp", ["l"], ["y"], "y_out"),
        node("Neg", ["r"], ["z"], "z_out"),
    ]
    stored = {"w": np.ones((200, 200), np.float32)}
    return build(nodes, ["x:FLOAT:2,200"], ["y:FLOAT:2,200", "z:FLOAT:2,200"], stored)


def test_the_table_names_operators_work_and_what_flows(forked):
    table = table_of(forked.SerializeToString(), {})
    assert [each.name for each in table.operators] == ["trunk", "left", "right", "y_out", "z_out"]
    assert [each.kind for each in table.operators][:2] == ["Relu", "MatMul"]
    assert table.operators[1].flops == 2 * 2 * 200 * 200
    values = {each.tensor: each for each in table.values}
    assert values["x"].maker == GATEWAY
    assert values["a"].readers == (1, 2)
    assert values["a"].nbytes == 2 * 200 * 4
    assert values["a"].is_exact
    assert values["y"].is_output
    assert values["y"].readers == ()


def test_weights_that_operators_share_are_listed_once(forked):
    table = table_of(forked.SerializeToString(), {})
    assert [(each.nbytes, each.readers) for each in table.shared] == [(160_000, (1, 2))]
    assert sum(each.weight_bytes for each in table.operators) == 0


def test_a_size_that_depends_on_the_input_is_marked_as_an_estimate(build):
    model = build([node("Relu", ["x"], ["a"]), node("Exp", ["a"], ["y"])],
                  ["x:FLOAT:N,8"], ["y:FLOAT:N,8"])  # fmt: skip
    values = {each.tensor: each for each in table_of(model.SerializeToString(), {}).values}
    assert not values["a"].is_exact
    assert values["a"].nbytes == 32
    fixed = {
        each.tensor: each for each in table_of(model.SerializeToString(), {"x": (4, 8)}).values
    }
    assert fixed["a"].is_exact
    assert fixed["a"].nbytes == 128


def test_a_size_of_minus_one_counts_as_free(build):
    model = build([node("Relu", ["x"], ["a"]), node("Exp", ["a"], ["y"])],
                  ["x:FLOAT:-1,8"], ["y:FLOAT:-1,8"], is_checked=False)  # fmt: skip
    table = table_of(model.SerializeToString(), {})
    assert [each.flops for each in table.operators] == [8, 8]


def test_what_cannot_travel_and_quantised_pairs_are_marked(build):
    nodes = [
        node("QuantizeLinear", ["x", "s", "p"], ["q"], "quantise"),
        node("DequantizeLinear", ["q", "s", "p"], ["d"], "dequantise"),
        node("SplitToSequence", ["d"], ["parts"], "split", axis=0),
        node("ConcatFromSequence", ["parts"], ["y"], "join", axis=0),
    ]
    stored = {"s": np.float32(1), "p": np.uint8(0)}
    table = table_of(build(nodes, ["x"], ["y:FLOAT:M,K"], stored).SerializeToString(), {})
    values = {each.tensor: each for each in table.values}
    assert values["d"].is_pair
    assert not values["parts"].can_travel


def test_the_table_of_a_large_graph_is_small(fetched):
    table = table_of(fetched("ppocr-rec"), {})
    said = msgspec.json.encode(table)
    assert len(table.operators) > 400
    assert len(said) < 64 * 1024
    assert msgspec.json.decode(said, type=CutTable) == table


def test_an_assignment_is_carved_as_it_is(bench, forked):
    feeds = {"x": np.random.default_rng(0).random((2, 200), np.float32)}
    sliced = bench.check(forked, feeds, assignment=(0, 1, 2, 1, 2))
    assert [each.operators for each in sliced.answer.slices] == [1, 2, 2]


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ((0, 1), "names 2 operators, the graph has 5"),
        ((0, 1, 0, 1, 1), "wait for each other"),
        ((0, 2, 2, 2, 2), "slice 1 would hold no operator"),
    ],
)
def test_an_assignment_that_cannot_be_is_refused(bench, forked, assignment, says):
    if "wait" in says:
        assignment = (0, 1, 0, 0, 0)
        forked.graph.node[4].input.append("y")
        forked.graph.node[4].op_type = "Add"
    with pytest.raises(BadStrategy) as failed:
        bench.cut(forked, assignment=assignment)
    assert says in failed.value.message


def test_a_rewrite_is_in_the_table_too_and_one_without_effect_is_refused(build):
    resize = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    scales = {"scales": np.array([1, 1, 2, 2], np.float32)}
    model = build([resize], ["x:FLOAT:1,1,3,3"], ["y:FLOAT:1,1,6,6"], scales)
    rewrite = ("resize_half_pixel_to_asymmetric",)
    assert table_of(model.SerializeToString(), {}, rewrite=rewrite).operators
    plain = build([helper.make_node("Relu", ["x"], ["y"])], ["x:FLOAT:1"], ["y:FLOAT:1"])
    with pytest.raises(BadStrategy, match="finds nothing to change"):
        table_of(plain.SerializeToString(), {}, rewrite=rewrite)
