import mmap
import os
import sys

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import threading

import numpy as np
import onnx_models as models
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from din.backends.onnxruntime_backend import BINDINGS_MAX, clean_message, load
from din.backends.onnxruntime_settings import session_options
from din.domain.tensor import TensorSpec
from din.errors import BadModel, BadTensor, ExecutionFailed, UsageError


def text(*elements: bytes) -> np.ndarray:
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


def test_specs_are_those_of_the_model():
    session = load(models.identity(TensorProto.INT8, (1, "N", None)), {})
    assert session.inputs == (TensorSpec("x", "INT8", (1, "N", None)),)
    assert session.outputs == (TensorSpec("y", "INT8", (1, "N", None)),)


@pytest.mark.parametrize("word", ["?", "unk__7", "unknown", "-1"])
def test_dims_that_exporters_call_unknown_are_not_promised_to_be_equal(word: str):
    session = load(models.identity(TensorProto.FLOAT, (word, 3, word)), {})
    assert session.inputs == (TensorSpec("x", "FP32", (None, 3, None)),)
    assert session.run({"x": np.ones((1, 3, 2), np.float32)}, (), {})["y"].shape == (1, 3, 2)


def test_an_unknown_rank_takes_any():
    session = load(models.identity(TensorProto.FLOAT, None), {})
    assert session.inputs == (TensorSpec("x", "FP32", None),)
    assert session.warm()
    assert session.run({"x": np.ones((2, 3), np.float32)}, (), {})["y"].shape == (2, 3)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (TensorProto.FLOAT, np.float32),
        (TensorProto.DOUBLE, np.float64),
        (TensorProto.FLOAT16, np.float16),
        (TensorProto.INT8, np.int8),
        (TensorProto.UINT8, np.uint8),
        (TensorProto.INT32, np.int32),
        (TensorProto.INT64, np.int64),
        (TensorProto.BOOL, np.bool_),
    ],
)
def test_each_dtype_comes_back_equal_into_a_target_and_without(kind: int, dtype: type):
    session = load(models.identity(kind), {})
    given = np.array([0, 1, 1, 0, 1]).astype(dtype)
    assert np.array_equal(session.run({"x": given}, (), {})["y"], given)
    target = np.zeros(5, dtype)
    assert session.run({"x": given}, ("y",), {"y": target})["y"] is target
    assert np.array_equal(target, given)


def test_bf16_and_fp8_pass_as_the_bits_they_are():
    """T36."""
    nodes = [
        helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("Identity", ["x"], ["z"]),
    ]
    data = models.model(
        nodes,
        [("x", TensorProto.BFLOAT16, ("N",))],
        [("y", TensorProto.FLOAT, ("N",)), ("z", TensorProto.BFLOAT16, ("N",))],
    )
    session = load(data, {})
    assert session.inputs[0].dtype == "BF16"
    bits = np.array([0x3F80, 0x4000, 0xC040], np.uint16)
    found = session.run({"x": bits}, (), {})
    assert found["y"].tolist() == [1.0, 2.0, -3.0]
    assert found["z"].tolist() == bits.tolist()
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)]
    data = models.model(
        nodes,
        [("x", TensorProto.FLOAT8E4M3FN, ("N",))],
        [("y", TensorProto.FLOAT, ("N",))],
        opset=19,
    )
    session = load(data, {})
    assert session.inputs[0].dtype == "FP8"
    assert session.run({"x": np.array([0x38, 0xB8], np.uint8)}, (), {})["y"].tolist() == [1, -1]


def test_empty_tensors_pass():
    """T38."""
    session = load(models.identity(TensorProto.FLOAT, ("N", 3)), {})
    assert session.run({"x": np.empty((0, 3), np.float32)}, (), {})["y"].shape == (0, 3)


def test_text_passes_with_empty_strings_and_without_elements():
    """T39."""
    session = load(models.identity(TensorProto.STRING), {})
    given = text("gesicht 脸 🙂".encode(), b"", b"%20")
    assert session.run({"x": given}, (), {})["y"].tolist() == given.tolist()
    assert session.run({"x": text()}, (), {})["y"].shape == (0,)


def test_text_that_is_not_utf8_is_a_bad_tensor_naming_the_element():
    session = load(models.identity(TensorProto.STRING), {})
    with pytest.raises(BadTensor, match="element 1 of input 'x'"):
        session.run({"x": text(b"a", b"\xff")}, (), {})


def test_a_target_of_a_shape_that_the_model_breaks_is_given_up():
    """T32: one symbol stands for two sizes."""
    nodes = [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)]
    data = models.model(
        nodes, [("x", TensorProto.FLOAT, ("N",))], [("y", TensorProto.FLOAT, ("N",))]
    )
    session = load(data, {})
    target = np.zeros(2, np.float32)
    for _ in range(2):
        found = session.run({"x": np.array([1, 2], np.float32)}, (), {"y": target})["y"]
        assert found.tolist() == [1, 2, 1, 2]


def test_more_places_than_are_remembered_each_get_their_own_results():
    """Also a smaller shape at an address that was used before, and places that come back."""
    session = load(models.double((1, "N")), {})
    region = np.zeros((3 * BINDINGS_MAX, 2, 4), np.float32)
    for _ in range(2):
        for number, (given, target) in enumerate(region):
            width = 4 - number % 2
            given[:] = number
            target[:] = -1
            session.run({"x": given[None, :width]}, (), {"y": target[None, :width]})
            assert target.tolist() == [2 * number] * width + [-1] * (4 - width)


def test_new_values_in_the_same_places_give_new_results():
    session = load(models.double(), {})
    given, target = np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32)
    for value in (1, 2, 3):
        given[:] = value
        session.run({"x": given}, (), {"y": target})
        assert target.tolist() == [[2 * value] * 4]
    other = np.zeros((1, 4), np.float32)
    session.run({"x": given}, (), {"y": other})
    assert other.tolist() == [[6.0] * 4]


@pytest.mark.parametrize(
    "data", [b"", b"not a model", models.double()[:40], b"\x00" * 1000], ids=range(4)
)
def test_a_file_that_is_no_model_is_refused_in_one_clean_line(data: bytes):
    with pytest.raises(BadModel) as caught:
        load(data, {})
    assert "\n" not in caught.value.message
    assert "onnxruntime_src" not in caught.value.message


def test_an_opset_or_operator_that_the_engine_lacks_is_a_bad_model():
    """T34."""
    shape = [("x", TensorProto.FLOAT, (1,))], [("y", TensorProto.FLOAT, (1,))]
    for data in (
        models.model([helper.make_node("Relu", ["x"], ["y"])], *shape, opset=99),
        models.model([helper.make_node("Magic", ["x"], ["y"], domain="evil")], *shape),
    ):
        with pytest.raises(BadModel, match="ONNX Runtime"):
            load(data, {})


def test_an_output_that_is_no_tensor_is_a_bad_model():
    node = helper.make_node("SequenceConstruct", ["x"], ["y"])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1,))],
        [helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, (1,))],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(BadModel, match="no tensor"):
        load(made.SerializeToString(), {})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimisation": "fast"}, ["optimisation='fast'", "off, basic, extended, all"]),
        ({"threads": "0"}, ["threads='0'", "1 to 256"]),
        ({"threads": "-1"}, ["threads='-1'"]),
        ({"threads": "many"}, ["threads='many'"]),
        ({"threads": "٣"}, ["threads='٣'"]),
        ({"threads": "257"}, ["threads='257'"]),
        ({"provider": "nvidia"}, ["provider='nvidia'", "cpu, cuda, tensorrt"]),
        ({"provider": "cpu,cpu"}, ["provider='cpu,cpu'"]),
        ({"arena": "yes"}, ["arena='yes'", "on, off"]),
    ],
)
def test_a_bad_option_names_option_value_and_what_is_allowed(
    options: dict[str, str], words: list[str]
):
    with pytest.raises(UsageError) as caught:
        load(models.double(), options)
    for word in words:
        assert word in caught.value.story()


def test_options_reach_the_engine():
    options = session_options({"optimisation": "off", "threads": "3"})
    assert options.intra_op_num_threads == 3
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    default = session_options({})
    assert default.intra_op_num_threads == min(2, len(os.sched_getaffinity(0)))
    assert default.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL


def test_a_loaded_model_is_not_kept_as_a_file_in_memory_too():
    data = bytes(bytearray(models.double()))  # nobody else holds this copy
    held = sys.getrefcount(data)
    session = load(data, {})
    assert sys.getrefcount(data) == held
    assert session.warm()


@pytest.mark.parametrize("optimisation", ["off", "basic", "extended", "all"])
def test_weights_handed_over_in_memory_need_not_stay_there(optimisation: str):
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    memory[64:80] = np.arange(4, dtype=np.float32).tobytes()
    with memoryview(memory) as view:
        data = models.plus_weight("ab" * 32, offset=64)
        session = load(data, {"optimisation": optimisation}, {"ab" * 32: view})
    memory.close()  # unmapped: a read of it would end this process
    found = session.run({"x": np.ones((1, 4), np.float32)}, (), {})
    assert found["y"].tolist() == [[1, 2, 3, 4]]


def test_weights_that_end_before_a_tensor_does_are_a_bad_model():
    with pytest.raises(BadModel):
        load(models.plus_weight("w", offset=64), {}, {"w": memoryview(bytes(72))})


def test_a_run_without_end_is_stopped_and_the_session_lives():
    session = load(models.endless(), {})
    timer = threading.Timer(0.1, session.stop)
    timer.start()
    with pytest.raises(ExecutionFailed):
        session.run({"x": np.array([5], np.float32)}, (), {})
    timer.join()
    assert session.run({"x": np.array([1], np.float32)}, (), {})["y"].tolist() == [1]


def test_warming_runs_and_forgives_inputs_that_cannot_be_guessed():
    assert load(models.double(), {}).warm()
    assert load(models.identity(TensorProto.STRING), {}).warm()
    assert not load(models.mismatched(), {}).warm()
    assert not load(models.identity(TensorProto.FLOAT, (1, 1 << 30)), {}).warm()


def test_messages_lose_source_paths_and_are_bounded():
    error = RuntimeError(
        "[ONNXRuntimeError] : 1 : FAIL : /onnxruntime_src/onnxruntime/core/a.cc:87 virtual "
        "OrtValue* onnxruntime::OpKernelContext::Output(int, const Shape&) bad\n\n thing\x07"
    )
    assert clean_message(error) == "bad thing?"
    assert len(clean_message(RuntimeError("x" * 5000))) <= 600
    assert clean_message(RuntimeError("")) == "RuntimeError"


def failing(operator: str, *kinds: int) -> bytes:
    """One operator whose inputs may not fit together; the engine's shapes say nothing."""
    inputs = [(f"x{number}", kind, (None,)) for number, kind in enumerate(kinds)]
    node = helper.make_node(operator, [name for name, _, _ in inputs], ["y"])
    return models.model([node], inputs, [("y", kinds[0], None)])


FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


@pytest.mark.parametrize(
    ("operator", "second"),
    [
        ("Gather", np.array([9])),
        ("Gather", np.array([-5])),
        ("Reshape", np.array([3])),
        ("Expand", np.array([-3])),
        ("Add", np.ones(3, np.float32)),
        ("Tile", np.array([1, 1])),
    ],
)
def test_what_the_values_of_the_inputs_make_impossible_is_a_bad_tensor(
    operator: str, second: np.ndarray
):
    """Every other node would fail alike: asking them, or blaming this one, helps nobody."""
    session = load(failing(operator, FLOAT, FLOAT if operator == "Add" else INT64), {})
    with pytest.raises(BadTensor, match=operator) as caught:
        session.run({"x0": np.ones(4, np.float32), "x1": second}, (), {})
    assert "change them" in caught.value.hint


def test_a_run_without_memory_for_it_may_succeed_elsewhere():
    session = load(failing("Expand", FLOAT, INT64), {})
    with pytest.raises(ExecutionFailed, match="allocate"):
        session.run({"x0": np.ones(1, np.float32), "x1": np.array([1 << 44])}, (), {})


def test_a_node_without_memory_for_a_model_does_not_call_the_model_bad(monkeypatch):
    """Another node may have enough."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc")

    monkeypatch.setattr(ort, "InferenceSession", refuse)
    with pytest.raises(MemoryError, match="bad_alloc"):
        load(models.double(), {})
