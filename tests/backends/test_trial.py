"""The small model that an engine is tried with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from din.backends import onnxruntime_backend
from din.backends.trial import ANSWER, MODEL, question, try_engine
from din.errors import ExecutionFailed


def test_the_answer_is_what_the_network_computes_by_hand() -> None:
    model = onnx.load_model_from_string(MODEL)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == [
        "Conv", "Relu", "GlobalAveragePool", "Flatten", "Gemm",
    ]  # fmt: skip
    weights = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    padded = np.pad(question(), ((0, 0), (0, 0), (1, 1), (1, 1))).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    convolved = np.einsum("nchwij,ocij->nohw", windows, weights["w"])
    convolved += weights["b"].reshape(1, -1, 1, 1)
    pooled = np.maximum(convolved, 0).mean((2, 3))
    assert (pooled @ weights["g"] + weights["d"]).reshape(-1).tolist() == list(ANSWER)


def test_onnx_runtime_passes() -> None:
    try_engine(onnxruntime_backend)


def test_an_engine_that_computes_wrongly_is_found() -> None:
    class Wrong:
        def __getattr__(self, name: str) -> Any:
            return getattr(onnxruntime_backend, name)

        def load(self, *_: object) -> Any:
            return self

        def run(
            self, inputs: Mapping[str, Any], wanted: Sequence[str], _: object
        ) -> dict[str, Any]:
            del inputs
            return {wanted[0]: np.array([[ANSWER[0], ANSWER[1] * 1.01]], np.float32)}

        def unload(self) -> None:
            return

    with pytest.raises(ExecutionFailed, match="computes wrongly on this machine"):
        try_engine(Wrong())
