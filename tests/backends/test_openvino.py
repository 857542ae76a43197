"""OpenVINO against ONNX Runtime, on the models of this project."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import onnx
import onnx_models as models
import pytest
from onnx import TensorProto, helper

from din.backends import onnxruntime_backend, openvino_backend
from din.backends.contract import Array
from din.backends.probe_numbers import distance
from din.domain.support import Need, Needs
from din.errors import BadModel, BadTensor, ExecutionFailed, UsageError

DTYPES = {
    "FLOAT": np.float32, "FLOAT16": np.float16, "DOUBLE": np.float64, "BOOL": np.bool_,
    "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "BFLOAT16": np.uint16, "FLOAT8E4M3FN": np.uint8, "FLOAT8E5M2": np.uint8,
}  # fmt: skip


def one_step(kind: str, dtype: int, shape: list[object], **attributes: object) -> bytes:
    graph = helper.make_graph(
        [helper.make_node(kind, ["x"], ["y"], name="step", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", dtype, shape)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return made.SerializeToString()


def chain(length: int) -> bytes:
    """Enough work to be stopped in."""
    weight = helper.make_tensor(
        "w",
        TensorProto.FLOAT,
        [512, 512],
        np.full((512, 512), 1e-3, np.float32).tobytes(),
        raw=True,
    )
    nodes = [
        helper.make_node("MatMul", [f"t{i}" if i else "x", "w"], [f"t{i + 1}"])
        for i in range(length)
    ]
    nodes.append(helper.make_node("Relu", [f"t{length}"], ["y"]))
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1024, 512])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1024, 512])
    graph = helper.make_graph(nodes, "g", [value], [result], [weight])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_that_din_carries_passes_through_bit_by_bit(name: str) -> None:
    session = openvino_backend.load(
        one_step("Identity", TensorProto.DataType.Value(name), [2, 3]), {}, {}
    )
    given: Array = np.arange(6).reshape(2, 3).astype(DTYPES[name])
    assert session.inputs[0].shape == (2, 3)
    made = session.run({"x": given}, (), {})["y"]
    assert made.dtype == DTYPES[name]
    assert made.tobytes() == given.tobytes()


def test_free_sizes_change_from_run_to_run_and_read_only_input_is_taken() -> None:
    session = openvino_backend.load(one_step("Neg", TensorProto.FLOAT, ["N", 3]), {}, {})
    for rows in (4, 1, 9, 0, 2):
        given = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        given.flags.writeable = False
        assert (session.run({"x": given}, ("y",), {})["y"] == -given).all()
    strided = np.ones((4, 6), np.float32)[:, ::2]
    assert session.run({"x": strided}, (), {})["y"].shape == (4, 3)


def test_weights_are_handed_over_in_memory() -> None:
    data = models.plus_weight("ab" * 32, 8)
    held = {"ab" * 32: memoryview(bytes(8) + np.arange(4, dtype=np.float32).tobytes())}
    session = openvino_backend.load(data, {"threads": "1"}, held)
    plain = onnxruntime_backend.load(data, {"threads": "1"}, held)
    given = {
        spec.name: np.ones([each if isinstance(each, int) else 2 for each in spec.shape or ()], "f")
        for spec in session.inputs
    }
    expected, found = plain.run(given, (), {}), session.run(given, (), {})
    assert found.keys() == expected.keys()
    for spec in session.outputs:
        assert distance(spec.dtype, expected[spec.name], found[spec.name], is_exact=False).is_within


@pytest.mark.parametrize("broken", [b"", b"garbage", b"\x08\x07\x12\x05ab", b"\xff" * 4096])
def test_a_broken_file_is_refused(broken: bytes) -> None:
    with pytest.raises(BadModel):
        openvino_backend.load(broken, {}, {})


def test_an_operator_that_it_lacks_is_named() -> None:
    made = onnx.load_from_string(one_step("Neg", TensorProto.FLOAT, [2]))
    made.graph.node[0].op_type, made.graph.node[0].domain = "Sorcery", "my.own"
    made.opset_import.append(helper.make_opsetid("my.own", 1))
    with pytest.raises(BadModel, match=r"my\.own\.Sorcery") as caught:
        openvino_backend.load(made.SerializeToString(), {}, {})
    assert "/src/" not in caught.value.message


def test_wrong_input_is_the_callers_fault() -> None:
    session = openvino_backend.load(one_step("Neg", TensorProto.FLOAT, ["N", 3]), {}, {})
    with pytest.raises(BadTensor, match="incompatible"):
        session.run({"x": np.ones((2, 4), np.float32)}, (), {})
    with pytest.raises(BadTensor, match="float64"):
        session.run({"x": np.ones((2, 3))}, (), {})
    with pytest.raises(BadTensor, match="'x' is missing"):
        session.run({}, (), {})
    assert session.warm()


def test_a_run_that_is_stopped_says_so_and_the_next_one_runs() -> None:
    session = openvino_backend.load(chain(100), {"threads": "1"}, {})
    given = {"x": np.ones((1024, 512), np.float32)}
    timer = threading.Timer(0.03, session.stop)
    timer.start()
    with pytest.raises(ExecutionFailed, match="stopped"):
        session.run(given, (), {})
    timer.join()
    quick = openvino_backend.load(one_step("Neg", TensorProto.FLOAT, [2]), {}, {})
    quick.stop()
    assert quick.run({"x": np.ones(2, np.float32)}, (), {})["y"].tolist() == [-1, -1]
    quick.unload()


def test_text_is_refused_when_it_is_loaded() -> None:
    with pytest.raises(BadModel):
        openvino_backend.load(one_step("Identity", TensorProto.STRING, [2]), {}, {})


def test_a_bad_option_is_named() -> None:
    with pytest.raises(UsageError, match="threads='none'"):
        openvino_backend.load(b"", {"threads": "none"}, {})


def test_what_no_rule_tells_is_left_to_the_engine() -> None:
    needs = Needs(opset=17, operators=(Need(operator="Conv", since=11, node="c"),))
    assert openvino_backend.supports(needs) == ()


def test_importing_it_starts_no_thread_and_nothing_that_reports() -> None:
    program = """
import os, sys
import din.backends.openvino_backend
print(len(os.listdir("/proc/self/task")))
print([n for n, m in sys.modules.items() if m is not None and "telemetry" in n or n == "requests"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=True, timeout=60,
        env={"OPENBLAS_NUM_THREADS": "1", "PATH": ""},
    )  # fmt: skip
    assert done.stdout.split() == ["1", "[]"]
