"""Small ONNX models for tests, built in code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import TensorProto, helper

Value = tuple[str, int, Sequence[int | str | None] | None]


def model(
    nodes: list[Any], inputs: list[Value], outputs: list[Value], opset: int = 17, **more: Any
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info(*each) for each in outputs],
        **more,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    return made.SerializeToString()


def identity(kind: int, shape: Sequence[int | str | None] | None = ("N",)) -> bytes:
    node = helper.make_node("Identity", ["x"], ["y"])
    return model([node], [("x", kind, shape)], [("y", kind, shape)])


def double(shape: Sequence[int | str | None] = (1, 4)) -> bytes:
    node = helper.make_node("Add", ["x", "x"], ["y"])
    return model([node], [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, shape)])


def plus_weight(location: str, offset: int) -> bytes:
    """Adds a weight of four floats, which lies in another file."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", "16")):
        weight.external_data.add(key=key, value=value)
    node = helper.make_node("Add", ["x", "w"], ["y"])
    taken, given = (("x", TensorProto.FLOAT, (1, 4)), ("y", TensorProto.FLOAT, (1, 4)))
    return model([node], [taken], [given], initializer=[weight])


def mismatched() -> bytes:
    """Declares free sizes of which few fit together."""
    node = helper.make_node("Concat", ["x", "z"], ["y"], axis=0)
    return model(
        [node],
        [("x", TensorProto.FLOAT, ("N", "M")), ("z", TensorProto.FLOAT, ("N", 7))],
        [("y", TensorProto.FLOAT, None)],
    )


def shape_of() -> bytes:
    """Takes a tensor and does nothing with its values."""
    node = helper.make_node("Shape", ["x"], ["y"])
    return model([node], [("x", TensorProto.FLOAT, (1, 150_000))], [("y", TensorProto.INT64, (2,))])


def non_zero() -> bytes:
    """An output whose shape depends on the values."""
    node = helper.make_node("NonZero", ["x"], ["y"])
    return model([node], [("x", TensorProto.FLOAT, ("N",))], [("y", TensorProto.INT64, (1, None))])


def endless() -> bytes:
    """Runs for ever when `x` is over zero."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["v", "v"], ["v_next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, (1,)),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v_next", TensorProto.FLOAT, (1,)),
        ],
    )
    zero = helper.make_tensor("zero", TensorProto.FLOAT, (1,), [2.0])
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["is_over"]),
        helper.make_node("Squeeze", ["is_over"], ["start"]),
        helper.make_node("Loop", ["", "start", "x"], ["y"], body=body),
    ]
    return model(
        nodes,
        [("x", TensorProto.FLOAT, (1,))],
        [("y", TensorProto.FLOAT, (1,))],
        initializer=[zero],
    )
