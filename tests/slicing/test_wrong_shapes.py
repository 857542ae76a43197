"""Files that declare shapes which do not hold: the engine runs them whole, so DIN runs them cut."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from din.domain.tensor import TensorMeta, check_tensor
from din.errors import BadTensor

node = helper.make_node
X = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}


def model(build, inside, taken="N,3", given="N,3"):
    made = build(
        [
            node("Relu", ["x"], ["a"], "first"),
            node("Exp", ["a"], ["b"], "second"),
            node("Neg", ["b"], ["y"], "third"),
        ],
        [f"x:FLOAT:{taken}"],
        [f"y:FLOAT:{given}"],
        is_checked=False,
    )
    if inside is not None:
        made.graph.value_info.append(
            helper.make_tensor_value_info("a", TensorProto.FLOAT, list(inside))
        )
    return made


@pytest.mark.parametrize("inside", [(1, 3), (7, 7), (1, 3, 1), ("N", "N"), ()])
def test_a_wrong_shape_of_a_value_inside_harms_no_cut(bench, build, inside):
    answer = bench.check(model(build, inside), X, "first").answer
    assert answer.slices[1].inputs[0].shape == ("N", 3)
    assert answer.outputs[0].shape == ("N", 3)


@pytest.mark.parametrize("given", ["1,3", "9,9", "N,N"])
def test_a_wrong_shape_of_an_output_that_is_read_on_harms_no_cut(bench, build, given):
    made = model(build, None, given=given)
    made.graph.node.append(node("Tanh", ["y"], ["z"], "fourth"))
    made.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 3]))
    answer = bench.check(made, X, "third").answer
    assert answer.slices[1].inputs[0].shape == ("N", 3)


def test_what_cannot_be_inferred_has_the_declared_type_and_any_shape(bench, build):
    unknown = node("OfNobody", ["x"], ["a"], "it", domain="com.nobody")
    made = build(
        [unknown, node("Identity", ["a"], ["y"], "behind")],
        ["x:FLOAT:N,3"],
        ["y:FLOAT:N,4"],
        is_checked=False,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.nobody", 1)],
    )
    made.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [1, 4]))
    answer = bench.cut(made, "it").answer
    assert (answer.slices[1].inputs[0].dtype, answer.slices[1].inputs[0].shape) == ("FP32", None)
    assert answer.outputs[0].shape == ("N", 4), "people are told what the file says"


def test_one_symbol_for_two_sizes_is_refused_at_the_door_with_both(bench, build):
    """T32. The exporter wrote N for two dims that differ; `inputs` of the strategy frees them."""
    made = model(build, None, taken="N,N", given="N,N")
    (spec,) = bench.cut(made, "first").answer.inputs
    meta = TensorMeta("x", "FP32", (2, 3), 24)
    with pytest.raises(BadTensor) as refused:
        check_tensor(spec, meta, {})
    assert "[2, 3]" in refused.value.message
    assert "[N, N]" in refused.value.message
    assert "inputs" in refused.value.hint
    bench.check(made, X, "first", input_shapes={"x": ("A", "B")})
