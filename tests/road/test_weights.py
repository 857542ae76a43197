"""A model that keeps its weights in a file beside it: sent, cut, fetched by hash and run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.road.processes import Network
from tests.road.small_models import FLOAT, helper, save

pytestmark = pytest.mark.system

MARKER = b"a-weight-that-nobody-may-read"
DIM = 512


def chain(folder: Path) -> Path:
    """x plus `shared`, `own`, `shared`: in one file of weights, as exporters write it."""
    row = np.frombuffer(MARKER.ljust(32, b"."), np.float32)
    shared, own = np.tile(row, DIM // 8), np.arange(DIM, dtype=np.float32)
    names = ("x", "a", "b", "y")
    weights = ("shared", "own", "shared")
    nodes = [
        helper.make_node("Add", [names[at], weight], [names[at + 1]], name=f"add.{at}")
        for at, weight in enumerate(weights)
    ]
    info = helper.make_tensor_value_info
    stored = [
        numpy_helper.from_array(value[None], name)
        for name, value in (("shared", shared), ("own", own))
    ]
    path = save(
        folder / "inside.onnx", nodes, [info("x", FLOAT, [1, DIM])], [info("y", FLOAT, [1, DIM])],
        stored,
    )  # fmt: skip
    target = folder / "model.onnx"
    onnx.save_model(onnx.load(path), target, save_as_external_data=True, location="w.bin")
    path.unlink()
    return target


@pytest.mark.parametrize("is_sealed", [False, True])
def test_weights_beside_a_model_reach_the_slices_that_need_them(
    network: Network, is_sealed: bool
) -> None:
    network.start_gateway()
    for name in ("one", "two"):
        network.start_node(name)
    network.wait_ready("one", "two")
    uploads = network.folder / "uploads"
    uploads.mkdir()
    model = chain(uploads)
    config = {
        "model_id": "beside",
        "onnx_path": model.name,
        "slicing_strategy": {"partition_points": ["add.0", "add.1"]},
        "encrypt": is_sealed,
    }
    (uploads / "config.json").write_text(json.dumps(config))
    done = network.din("model", "register", "--config", str(uploads / "config.json"))
    assert done.returncode == 0, done.stderr + network.logs()
    x = np.full((1, DIM), 0.5, np.float32)
    row = np.tile(np.frombuffer(MARKER.ljust(32, b"."), np.float32), DIM // 8)
    with network.client() as client:
        found = client.infer("beside", {"x": x}).outputs["y"]
        assert found.tobytes() == (x + row + np.arange(DIM, dtype=np.float32) + row).tobytes()
        kept = network.folder / "gateway" / "artifacts"
        # The model and its file of weights; three slices, and a pack for each of the two weights.
        assert len(list(kept.iterdir())) == 7
        for name in ("gateway", "one", "two"):
            files = [each for each in (network.folder / name).rglob("*") if each.is_file()]
            shown = [each for each in files if MARKER in each.read_bytes()]
            assert not shown or not is_sealed, shown
        client.remove("beside")

    # In one slice, the file of weights serves as it is.
    del config["slicing_strategy"]
    (uploads / "config.json").write_text(json.dumps(config))
    done = network.din("model", "register", "--config", str(uploads / "config.json"))
    assert done.returncode == 0, done.stderr + network.logs()
    with network.client() as client:
        assert client.infer("beside", {"x": x}).outputs["y"].tobytes() == found.tobytes()

    (uploads / "w.bin").unlink()
    done = network.din("model", "register", "--config", str(uploads / "config.json"))
    assert done.returncode != 0
    assert f"the model keeps weights in the file 'w.bin', which is not in {uploads}" in done.stderr
