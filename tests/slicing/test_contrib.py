"""Operators of com.microsoft: their outputs have types, so they can cross to another slice."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from din.bench.composed import engine
from din.errors import BadStrategy
from din.slicing.slicer import analyse

node = helper.make_node
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
WIDE = np.ones(4, np.float32)
X = {"x": np.arange(8, dtype=np.float32).reshape(2, 4) / 4 - 1}
IMAGE = {"x": np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4) / 16 - 1}
QUANTISED = {"s": np.float32(0.05), "z": np.uint8(128), "b": np.full((2, 4), 9, np.uint8)}
KERNEL = np.ones((3, 2, 3, 3), np.float32)


def micro(op_type, inputs, outputs=("a",), **attributes):
    return node(op_type, list(inputs), list(outputs), "it", domain="com.microsoft", **attributes)


@pytest.mark.parametrize(
    ("nodes", "feeds", "stored"),
    [
        ([micro("Gelu", ["x"])], X, {}),
        ([micro("FastGelu", ["x"])], X, {}),
        ([micro("QuickGelu", ["x"], alpha=1.0)], X, {}),
        ([micro("BiasGelu", ["x", "w"])], X, {"w": WIDE}),
        ([micro("FusedMatMul", ["x", "w"], alpha=2.0)], X, {"w": np.eye(4, dtype=np.float32)}),
        ([micro("FusedMatMul", ["x", "x"], transB=1)], X, {}),
        ([micro("FusedConv", ["x", "w"], activation="Relu", pads=[1] * 4)], IMAGE, {"w": KERNEL}),
        (
            [micro("FusedGemm", ["x", "w"], activation="Relu")],
            X,
            {"w": np.ones((4, 3), np.float32)},
        ),
        (
            [
                node("Unsqueeze", ["x", "axis"], ["u"], "u"),
                micro("SkipLayerNormalization", ["u", "u", "w"], epsilon=1e-5),
            ],
            X,
            {"w": WIDE, "axis": np.array([0])},
        ),
        (
            [
                node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
                micro("QLinearAdd", ["q", "s", "z", "b", "s", "z", "s", "z"]),
            ],
            X,
            QUANTISED,
        ),
        ([micro("QuantizeLinear", ["x", "s", "z"])], X, QUANTISED),
        (
            [micro("DynamicQuantizeMatMul", ["x", "w", "s"])],
            X,
            {"w": np.ones((4, 4), np.uint8), "s": np.float32(0.1)},
        ),
    ],
    ids=lambda value: value[-1].op_type if isinstance(value, list) else "",
)
def test_a_cut_behind_it_carries_what_the_runtime_makes(bench, build, nodes, feeds, stored):
    shape = ",".join(map(str, feeds["x"].shape))
    plain = build(nodes, [f"x:FLOAT:{shape}"], ["a"], stored, False, opset_imports=OPSETS)
    del plain.graph.output[0].type.tensor_type.shape.dim[:]
    plain.graph.output[0].ClearField("type")
    made = engine(plain.SerializeToString(), "off").run(None, feeds)[0]
    last = helper.np_dtype_to_tensor_dtype(made.dtype)
    kind = TensorProto.DataType.Name(last)
    size = ",".join(map(str, made.shape))
    model = build(
        [*nodes, node("Identity", ["a"], ["y"], "behind")],
        [f"x:FLOAT:{shape}"],
        [f"y:{kind}:{size}"],
        stored,
        False,
        opset_imports=OPSETS,
    )
    (crossing,) = bench.check(model, feeds, "it").answer.slices[1].inputs
    assert crossing.name == "a"
    if crossing.shape is not None:
        assert crossing.shape == made.shape


def test_outputs_that_are_left_out_and_further_ones_are_typed_by_their_place(build):
    model = build(
        [
            node("Unsqueeze", ["x", "axis"], ["u"], "u"),
            micro("SkipLayerNormalization", ["u", "u", "w"], ["a", "", "", "sum"], epsilon=1e-5),
            node("Add", ["a", "sum"], ["y"], "add"),
        ],
        ["x:FLOAT:2,4"],
        ["y:FLOAT:1,2,4"],
        {"w": WIDE, "axis": np.array([0])},
        False,
        opset_imports=OPSETS,
    )
    types = analyse(model.SerializeToString(), {}).shapes.types
    for name in ("a", "sum", "y"):
        assert types[name].tensor_type.elem_type == TensorProto.FLOAT
        assert [dim.dim_value for dim in types[name].tensor_type.shape.dim] == [1, 2, 4]


def test_an_operator_that_nobody_knows_is_not_cut_behind(bench, build):
    model = build(
        [micro("OfNobody", ["x"]), node("Identity", ["a"], ["y"], "behind")],
        ["x:FLOAT:2,4"],
        ["y:FLOAT:2,4"],
        is_checked=False,
        opset_imports=OPSETS,
    )
    with pytest.raises(BadStrategy, match=r"'a', made by OfNobody 'it' .* value of unknown type"):
        bench.cut(model, "it")
