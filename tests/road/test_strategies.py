"""Strategies over real nodes: pinned ranges, blocks, batches taken apart, names in traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.road import small_models
from tests.road.processes import Network, wait_for

pytestmark = pytest.mark.system


@pytest.fixture
def pair(network: Network) -> Network:
    network.start_gateway()
    network.start_node("home", labels={"trust": "high"})
    network.start_node("away")
    network.wait_ready("home", "away")
    return network


def config_of(network: Network, model_id: str, **strategy: Any) -> str:
    small_models.chain(network.folder / "chain.onnx", steps=6)
    path = network.folder / f"{model_id}.json"
    content = {"model_id": model_id, "onnx_path": "chain.onnx", "slicing_strategy": strategy}
    path.write_text(json.dumps(content, indent=1))
    return str(path)


def register(network: Network, model_id: str, **strategy: Any) -> None:
    path = config_of(network, model_id, **strategy)
    done = network.din("model", "register", "--config", path)
    assert done.returncode == 0, done.stderr + network.logs()


def holders(network: Network, model_id: str) -> set[str]:
    with network.client() as client:
        (part,) = client.model(model_id).slices
    return {each.node for each in part.replicas if each.state == "ready"}


def phases(answer) -> list[tuple[str, str]]:
    return [(step.phase, step.node) for step in answer.execution_trace]


def test_named_slices_are_the_phases_and_ranges_are_kept_to_their_nodes(pair: Network) -> None:
    register(
        pair,
        "u-split",
        ranges=[
            {"range": "add.0", "sensitive": True},
            {"range": "add.1:add.4", "not_nodes": ["home"]},
            {"range": "add.5", "nodes": ["home"]},
        ],
    )
    register(
        pair,
        "named",
        partition_points=["add.2"],
        slices=[{"name": "backbone_neck", "nodes": ["away"]}, {"name": "detect_head"}],
        ranges=[{"range": "add.5", "nodes": ["home"]}],
    )
    x = np.ones((3, small_models.WIDTH), np.float32)
    with pair.client() as client:
        split, named = client.infer("u-split", x), client.infer("named", x, precision="fp16")
    for each in (split, named):
        assert np.array_equal(each.outputs["y"], small_models.chain_answer(x, 6))
    assert [node for _, node in phases(split)] == ["home", "away", "home"]
    assert phases(named) == [("backbone_neck", "away"), ("detect_head", "home")]
    shown = pair.din("trace", "show", "last").stdout
    assert "backbone_neck" in shown
    assert "detect_head" in shown
    refused = pair.din("plan", "named", "-o", "wide").stdout
    assert "pinned to node away" in refused


def test_a_large_batch_is_answered_by_both_nodes_as_one(pair: Network) -> None:
    register(pair, "tiles", type="input_tiles", rows_max=3)
    register(pair, "blocks", type="operator")
    wait_for("both nodes hold it", lambda: holders(pair, "tiles") == {"home", "away"})
    x = np.arange(10 * small_models.WIDTH, dtype=np.float32).reshape(10, -1)
    with pair.client() as client:
        answer = client.infer("tiles", x)
        small = client.infer("tiles", x[:3])
        blocks = client.infer("blocks", x)
        trace = client.trace(answer.request_id)
        assert len(client.model("blocks").slices) == 6
    for each in (answer, blocks):
        assert np.array_equal(each.outputs["y"], small_models.chain_answer(x, 6))
    assert np.array_equal(small.outputs["y"], small_models.chain_answer(x[:3], 6))
    rows = ["[0:2]", "[2:5]", "[5:7]", "[7:10]"]
    assert [phase for phase, _ in phases(answer)] == [f"slice-0{each}" for each in rows]
    assert {node for _, node in phases(answer)} == {"home", "away"}
    assert (trace.path, len(trace.attempts)) == ("shards", 4)
    assert "[7:10]" in pair.din("trace", "show", answer.request_id).stdout


def test_checking_and_explaining_say_what_registering_would(pair: Network) -> None:
    wrong = config_of(
        pair, "m", partition_points=["add.2"], backend_map={"add.0:add.3": "tensorrt"}
    )
    for words in (("strategy", "check", wrong), ("model", "register", "--config", wrong)):
        done = pair.din(*words)
        assert done.returncode == 2
        assert "m.json:" in done.stdout + done.stderr
        assert "unmapped: 'add.4', 'add.5'" in done.stdout + done.stderr
    right = config_of(pair, "m", ranges=[{"range": "add.5", "nodes": ["away"]}])
    done = pair.din("strategy", "explain", right)
    assert done.returncode == 0, done.stderr
    assert "slice-0 -> slice-1: t4" in done.stdout
    assert "pinned to node away" in done.stdout
    with pair.client() as client:
        assert client.models().items == ()
    assert not list(Path(pair.folder / "gateway").rglob("*.onnx"))
