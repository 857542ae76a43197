"""Small ONNX files for tests of the road, each with what it computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 8
FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def save(path: Path, nodes: list[onnx.NodeProto], inputs, outputs, weights=()) -> Path:
    graph = helper.make_graph(nodes, "small", list(inputs), list(outputs), list(weights))
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9, producer_name="tests"
    )
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return path


def chain(path: Path, steps: int = 3, width: int = WIDTH) -> Path:
    """x [N, width] through `steps` named additions (add.0 adds 1, add.1 adds 2, ...) to y."""
    nodes, weights = [], []
    before = "x"
    for number in range(steps):
        after = "y" if number == steps - 1 else f"t{number}"
        step = np.full(width, number + 1, np.float32)
        weights.append(numpy_helper.from_array(step, f"w{number}"))
        nodes.append(helper.make_node("Add", [before, f"w{number}"], [after], name=f"add.{number}"))
        before = after
    return save(
        path,
        nodes,
        [helper.make_tensor_value_info("x", FLOAT, ["N", width])],
        [helper.make_tensor_value_info("y", FLOAT, ["N", width])],
        weights,
    )


def chain_answer(x: np.ndarray, steps: int = 3) -> np.ndarray:
    for number in range(steps):
        x = x + np.float32(number + 1)
    return x


def convolutions(path: Path, count: int = 40, channels: int = 64, side: int = 64) -> Path:
    """x through convolutions that keep its shape to y: much to compute, few weights, and a
    MiB over every cut."""
    random = np.random.default_rng(7)
    nodes, weights = [], []
    for number in range(count):
        kernel = random.standard_normal((channels, channels, 3, 3)).astype(np.float32)
        weights.append(
            numpy_helper.from_array(kernel / np.float32(np.sqrt(9 * channels)), f"w{number}")
        )
        ends = [f"t{number}" if number else "x"], [f"t{number + 1}" if number < count - 1 else "y"]
        nodes.append(
            helper.make_node(
                "Conv", [*ends[0], f"w{number}"], ends[1], name=f"conv.{number}", pads=[1] * 4
            )
        )
    shape = [1, channels, side, side]
    return save(
        path,
        nodes,
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, shape)],
        weights,
    )


def slow(path: Path, side: int = 192) -> Path:
    """Multiplies a matrix `rounds` times inside a Loop, so that the caller chooses how long."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["going_on"], name="keep"),
            helper.make_node("MatMul", ["state", "turn"], ["state_next"], name="multiply"),
        ],
        "body",
        [
            helper.make_tensor_value_info("number", INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", FLOAT, [side, side]),
        ],
        [
            helper.make_tensor_value_info("going_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state_next", FLOAT, [side, side]),
        ],
    )
    turn = np.roll(np.eye(side, dtype=np.float32), 1, axis=0)
    nodes = [
        helper.make_node("Loop", ["rounds", "", "start"], ["result"], name="loop", body=body),
        helper.make_node("ReduceSum", ["result"], ["y"], name="sum", keepdims=0),
    ]
    return save(
        path,
        nodes,
        [helper.make_tensor_value_info("rounds", INT64, [])],
        [helper.make_tensor_value_info("y", FLOAT, [])],
        [
            numpy_helper.from_array(turn, "turn"),
            numpy_helper.from_array(np.eye(side, dtype=np.float32), "start"),
        ],
    )


def texts(path: Path) -> Path:
    """Strings [N] in, the same joined into pairs [N, 2] out, over two named nodes."""
    nodes = [
        helper.make_node("Unsqueeze", ["s", "axis"], ["column"], name="column"),
        helper.make_node("Concat", ["column", "column"], ["pairs"], name="pair", axis=1),
    ]
    return save(
        path,
        nodes,
        [helper.make_tensor_value_info("s", STRING, ["N"])],
        [helper.make_tensor_value_info("pairs", STRING, ["N", 2])],
        [numpy_helper.from_array(np.array([1], np.int64), "axis")],
    )


def lookup(path: Path) -> Path:
    """`table` [4] looked up at `at` [1], behind one addition of zero."""
    nodes = [
        helper.make_node("Add", ["table", "zero"], ["same"], name="copy"),
        helper.make_node("Gather", ["same", "at"], ["y"], name="look"),
    ]
    return save(
        path,
        nodes,
        [
            helper.make_tensor_value_info("table", FLOAT, [4]),
            helper.make_tensor_value_info("at", INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", FLOAT, [1])],
        [numpy_helper.from_array(np.zeros(4, np.float32), "zero")],
    )


def many(path: Path, count: int) -> Path:
    """So many inputs x0, x1, ... of one number; each plus one comes back as y0, y1, ... ."""
    nodes = [
        helper.make_node("Neg", [f"x{number}"], [f"n{number}"], name=f"neg.{number}")
        for number in range(count)
    ]
    for number in range(count):
        nodes.append(helper.make_node("Neg", [f"n{number}"], [f"m{number}"], name=f"back.{number}"))
        nodes.append(helper.make_node("Add", [f"m{number}", "one"], [f"y{number}"]))
    return save(
        path,
        nodes,
        [helper.make_tensor_value_info(f"x{number}", FLOAT, [1]) for number in range(count)],
        [helper.make_tensor_value_info(f"y{number}", FLOAT, [1]) for number in range(count)],
        [numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )


def filler(path: Path, mib: int) -> Path:
    """The chain with a constant of so many MiB that takes room and cannot be compressed away."""
    values = np.random.default_rng(7).integers(0, 255, (mib * 1024 * 1024,), dtype=np.uint8)
    weights = [
        numpy_helper.from_array(values, "ballast"),
        numpy_helper.from_array(np.array([0, 1, 2, 3, 4, 5, 6, 7], np.int64), "some"),
    ]
    nodes = [
        helper.make_node("Gather", ["ballast", "some"], ["picked"], name="pick"),
        helper.make_node("Cast", ["picked"], ["numbers"], name="cast", to=FLOAT),
        helper.make_node("Mul", ["x", "numbers"], ["y"], name="scale"),
    ]
    return save(
        path,
        nodes,
        [helper.make_tensor_value_info("x", FLOAT, ["N", WIDTH])],
        [helper.make_tensor_value_info("y", FLOAT, ["N", WIDTH])],
        weights,
    )
