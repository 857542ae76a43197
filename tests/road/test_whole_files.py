"""Files of other forms than ONNX, served whole by engines that take them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from din.backends import ncnn_backend
from tests import tflite_models
from tests.road.processes import Network, wait_for
from tests.road.test_engines import offers

pytestmark = pytest.mark.system


@pytest.fixture
def board(network: Network) -> Network:
    """One node that offers ONNX Runtime alone, one that offers LiteRT alone."""
    network.start_gateway()
    network.start_node("plain", backends=("onnxruntime",))
    network.start_node("board", backends=("litert",))
    network.wait_ready("plain", "board")
    wait_for("LiteRT was asked", lambda: offers(network, "board") == ("litert",))
    return network


def written(network: Network, name: str, content: bytes) -> Path:
    path = network.folder / name
    path.write_bytes(content)
    return path


def test_a_tflite_file_is_served_whole_by_a_confined_worker(board: Network) -> None:
    path = written(board, "dense.tflite", tflite_models.dense(rows=None))
    done = board.din("model", "register", str(path), "--model-id", "dense")
    assert done.returncode == 0, done.stderr + board.logs()
    with board.client() as client:
        for rows in (1, 5, 2):
            x = np.linspace(-2, 3, rows * 4, dtype=np.float32).reshape(rows, 4)
            answer = client.infer("dense", x)
            assert np.allclose(answer.outputs["y"], tflite_models.dense_answer(x), rtol=1e-6)
            assert [step.node for step in answer.execution_trace] == ["board"]
    shown = board.din("model", "inspect", "dense", "-o", "json").stdout
    (part,) = json.loads(shown)["slices"]
    assert part["backend"] == "litert"
    assert "litert 2" in board.log_of("board")
    refused = board.din("model", "profile", "dense")
    assert refused.returncode != 0
    assert "litert runs its file whole" in refused.stderr


def test_a_damaged_file_is_refused_with_its_place_and_the_node_lives_on(board: Network) -> None:
    good = tflite_models.dense()
    for name, content, words in (
        ("cut.tflite", good[:220], "the file is damaged"),
        ("strange.tflite", tflite_models.dense(custom="NobodyKnows"), "NobodyKnows"),
    ):
        path = written(board, name, content)
        done = board.din(
            "model", "register", str(path), "--model-id", "bad", "--timeout-ms", "30000"
        )
        assert done.returncode != 0
        assert words in done.stderr, done.stderr
    path = written(board, "good.tflite", good)
    assert board.din("model", "register", str(path), "--model-id", "good").returncode == 0


def test_cuts_of_a_tflite_file_are_refused(board: Network) -> None:
    written(board, "dense.tflite", tflite_models.dense())
    strategy = {"partition_points": ["x"]}
    file = board.folder / "dense.json"
    file.write_text(
        json.dumps({"model_id": "d", "onnx_path": "dense.tflite", "slicing_strategy": strategy})
    )
    done = board.din("model", "register", "--config", str(file))
    assert done.returncode != 0
    assert "runs whole on litert" in done.stderr


def test_a_param_file_and_its_weights_are_served_by_ncnn(network: Network) -> None:
    network.start_gateway()
    network.start_node("phone", backends=("ncnn",))
    network.wait_ready("phone")
    wait_for("ncnn was asked", lambda: offers(network, "phone") == ("ncnn",))
    path = written(network, "net.param", ncnn_backend.TRIAL)
    refused = network.din("model", "register", str(path), "--model-id", "net")
    assert refused.returncode != 0
    assert "'net.bin', which is not in" in refused.stderr
    written(network, "net.bin", ncnn_backend.TRIAL_WEIGHTS[:-8])
    refused = network.din("model", "register", str(path), "--model-id", "net")
    assert refused.returncode != 0
    assert "does not hold the weights" in refused.stderr
    written(network, "net.bin", ncnn_backend.TRIAL_WEIGHTS)
    done = network.din("model", "register", str(path), "--model-id", "net")
    assert done.returncode == 0, done.stderr + network.logs()
    with network.client() as client:
        answer = client.infer("net", np.array(ncnn_backend.TRIAL_INPUT, np.float32))
    assert answer.outputs["y"].tolist() == list(ncnn_backend.TRIAL_ANSWER)
    assert "ncnn 1" in network.log_of("phone")
