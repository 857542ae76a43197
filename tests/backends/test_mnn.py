"""MNN on slices as they are: converted in the worker, held to ONNX Runtime."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from din.backends import mnn_backend, onnxruntime_backend
from din.backends.graph_signature import signature_of
from din.backends.trial import try_engine
from din.domain.tensor import TensorSpec
from din.errors import BadModel, BadTensor
from tests.models import path_of


def one_step(kind: str, dtype: int, shape: list[object]) -> bytes:
    ends = [helper.make_tensor_value_info(name, dtype, shape) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node(kind, ["x"], ["y"])], "g", ends[:1], ends[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made.SerializeToString()


def test_the_small_network_of_the_trial_is_computed_right() -> None:
    try_engine(mnn_backend)


@pytest.mark.parametrize(
    ("name", "shape"), [("basic-pitch", (1, 43844, 1)), ("ppocr-cls", (2, 3, 48, 192))]
)
def test_real_models_agree_with_onnx_runtime(name: str, shape: tuple[int, ...]) -> None:
    data = path_of(name).read_bytes()
    session = mnn_backend.load(data, {"threads": "2"}, {})
    whole = onnxruntime_backend.load(data, {})
    (spec,) = session.inputs
    given = {spec.name: np.random.default_rng(5).random(shape, dtype=np.float32)}
    found, wanted = session.run(given, (), {}), whole.run(given, (), {})
    assert list(found) == list(wanted)
    for tensor, array in wanted.items():
        assert found[tensor].shape == array.shape
        assert np.abs(found[tensor] - array).max() < 1e-5


def test_weights_beside_the_model_are_put_into_it() -> None:
    weight = np.arange(6, dtype=np.float32).reshape(3, 2)
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [3, 2], weight.tobytes(), raw=True)
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2]),
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    stored = model.graph.initializer[0]
    stored.ClearField("raw_data")
    stored.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "pack"), ("offset", "0"), ("length", "24")):
        stored.external_data.add(key=key, value=value)
    weights = {"pack": memoryview(weight.tobytes())}
    session = mnn_backend.load(model.SerializeToString(), {}, weights)
    for rows in (1, 4, 2):
        x = np.random.default_rng(rows).random((rows, 3), dtype=np.float32)
        assert np.allclose(session.run({"x": x}, ("y",), {})["y"], x @ weight, rtol=1e-5)


def test_whole_numbers_of_64_bits_pass_where_they_fit_into_32() -> None:
    session = mnn_backend.load(one_step("Neg", TensorProto.INT64, ["N"]), {}, {})
    found = session.run({"x": np.array([5, -7], np.int64)}, (), {})["y"]
    assert found.dtype == np.int64
    assert found.tolist() == [-5, 7]
    with pytest.raises(BadTensor, match="beyond 32 bits"):
        session.run({"x": np.array([1 << 40], np.int64)}, (), {})


def test_bad_inputs_are_refused_by_name_and_the_session_lives_on() -> None:
    session = mnn_backend.load(one_step("Relu", TensorProto.FLOAT, ["N", 3]), {}, {})
    for given, said in (
        ({}, "'x' is missing"),
        ({"x": np.ones((2, 3), np.float64)}, "is float64"),
        ({"x": np.ones((0, 3), np.float32)}, "no elements"),
    ):
        with pytest.raises(BadTensor, match=said):
            session.run(given, (), {})
    assert (session.run({"x": np.ones((2, 3), np.float32)}, (), {})["y"] == 1).all()


def test_what_mnn_lacks_is_refused_and_not_passed_on() -> None:
    with pytest.raises(BadModel, match="'x' is FP64"):
        mnn_backend.load(one_step("Neg", TensorProto.DOUBLE, [2]), {}, {})
    with pytest.raises(BadModel, match=r"MNN .* refuses the model"):
        mnn_backend.load(one_step("NobodyKnows", TensorProto.FLOAT, [2]), {}, {})
    with pytest.raises(BadModel, match="no tensor of numbers"):
        mnn_backend.load(one_step("Identity", TensorProto.STRING, [2]), {}, {})


def test_the_signature_of_a_graph_is_what_onnx_says() -> None:
    model = onnx.load_from_string(one_step("Neg", TensorProto.INT64, ["N", 4]))
    assert signature_of(model.SerializeToString()).inputs == (TensorSpec("x", "INT64", ("N", 4)),)
    for name in ("centerface", "ppocr-det"):
        data = path_of(name).read_bytes()
        whole = onnxruntime_backend.load(data, {})
        found = signature_of(data)
        assert [(each.name, each.dtype) for each in found.inputs] == [
            (each.name, each.dtype) for each in whole.inputs
        ]
        assert [each.name for each in found.outputs] == [each.name for each in whole.outputs]


def test_the_tools_that_report_their_use_are_never_imported() -> None:
    assert sys.modules["MNN.tools"] is None
    assert not [name for name in sys.modules if name.startswith("aliyun")]
