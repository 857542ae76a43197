"""LiteRT through the same protocol as every engine, held to its own interpreter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from din.backends import litert_backend, onnxruntime_backend
from din.backends.contract import Array
from din.errors import BadModel, BadTensor, UsageError
from tests import tflite_models
from tests.models import path_of


def test_a_real_model_gives_what_the_interpreter_gives_and_the_onnx_file_nearly() -> None:
    data = path_of("basic-pitch-lite").read_bytes()
    session = litert_backend.load(data, {"threads": "1"}, {})
    (spec,) = session.inputs
    seconds = np.arange(43844, dtype=np.float32) / 22050
    tone = sum(np.sin(2 * np.pi * hertz * seconds) for hertz in (261.63, 329.63, 392.0))
    sound: Array = (tone / 3).astype(np.float32).reshape(1, -1, 1)
    found = session.run({spec.name: sound}, (), {})
    interpreter = Interpreter(model_content=data, num_threads=1)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], sound)
    interpreter.invoke()
    for each in interpreter.get_output_details():
        assert (found[each["name"]] == interpreter.get_tensor(each["index"])).all()
    whole = onnxruntime_backend.load(path_of("basic-pitch").read_bytes(), {})
    wanted = whole.run({whole.inputs[0].name: sound}, (), {})
    assert {name: array.shape for name, array in found.items()} == {
        name: array.shape for name, array in wanted.items()
    }
    for name, array in wanted.items():
        assert np.abs(found[name] - array).max() < 1e-3


def test_free_sizes_change_from_run_to_run_and_a_refused_run_changes_nothing() -> None:
    session = litert_backend.load(tflite_models.dense(rows=None), {}, {})
    for rows in (3, 1, 7, 0, 2):
        x = np.linspace(-1, 1, rows * 4, dtype=np.float32).reshape(rows, 4)
        assert np.allclose(session.run({"x": x}, ("y",), {})["y"], tflite_models.dense_answer(x))
        for wrong in (np.ones((2, 5), np.float32), np.ones((2, 4), np.int32)):
            with pytest.raises(BadTensor, match="LiteRT"):
                session.run({"x": wrong}, (), {})
    with pytest.raises(BadTensor, match="input 'x' is missing"):
        session.run({}, (), {})


def test_an_answer_is_written_where_the_worker_wants_it() -> None:
    session = litert_backend.load(tflite_models.dense(), {}, {})
    x = np.ones((1, 4), np.float32)
    target = np.zeros((1, 2), np.float32)
    assert session.run({"x": x}, ("y",), {"y": target})["y"] is target
    assert (target == tflite_models.dense_answer(x)).all()
    kept = session.run({"x": x}, ("y",), {})["y"]
    session.run({"x": -x}, ("y",), {})
    assert (kept == target).all()


def test_bad_files_and_options_are_refused_with_the_librarys_words() -> None:
    with pytest.raises(BadModel, match="refuses the file"):
        litert_backend.load(tflite_models.dense()[:300], {}, {})
    with pytest.raises(BadModel, match="NobodyKnows"):
        litert_backend.load(tflite_models.dense(custom="NobodyKnows"), {}, {})
    with pytest.raises(BadModel, match="one file, 1 came"):
        litert_backend.load(tflite_models.dense(), {}, {"w": memoryview(b"w")})
    with pytest.raises(UsageError, match="threads"):
        litert_backend.load(tflite_models.dense(), {"threads": "many"}, {})


def test_it_describes_itself_after_a_right_answer_and_starts_no_thread() -> None:
    before = len(list(Path("/proc/self/task").iterdir()))
    facts = litert_backend.describe()
    assert facts.is_usable
    assert facts.version[0].isdigit()
    assert len(list(Path("/proc/self/task").iterdir())) <= before
