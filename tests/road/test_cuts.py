"""What crosses between slices and what does not, with real processes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from din.bench.composed import Composed
from din.slicing.points import slices_by_points
from din.slicing.slicer import analyse
from tests.road import small_models
from tests.road.conftest import pixels, whole_model
from tests.road.processes import Network
from tests.road.test_relay import LEFT, RIGHT, ZIGZAG, gateway_takes_tcp_only, nodes_take_tcp_only
from tests.road.test_road import register

pytestmark = pytest.mark.system

X = np.arange(16, dtype=np.float32).reshape(2, 8)
REQUESTS = 10
POINTS = ("404", "474")
EDGE_BYTES_MAX = 1024


def handing_through(path: Path) -> Path:
    """The chain of three additions; its input and a text, which no operator reads, are outputs."""
    model = onnx.load(str(small_models.chain(path)))
    graph = model.graph
    tag = helper.make_tensor_value_info("tag", onnx.TensorProto.STRING, ["N"])
    graph.input.append(tag)
    outputs = [tag, graph.output[0], graph.input[0]]
    del graph.output[:]
    graph.output.extend(outputs)
    onnx.save(model, str(path))
    return path


def test_outputs_that_are_inputs_come_back_whole_cut_and_by_name(network: Network) -> None:
    network.start_gateway()
    for name in (LEFT, RIGHT):
        network.start_node(name, labels={"side": name})
    network.wait_ready(LEFT, RIGHT)
    path = handing_through(network.folder / "handing.onnx")
    words = np.array(["", "模型 🚀"], dtype=object)
    given = {"x": X, "tag": words}
    for model, order in (
        ("whole", {}),
        ("cut", {"partition_points": ("add.0", "add.1"), "slices": ZIGZAG}),
    ):
        view = register(network, path, model, **order)
        assert view.state == "ready", view.reason
        with network.client() as client:
            outputs = client.infer(model, given).outputs
            assert list(outputs) == ["tag", "y", "x"], "the order of the signature"
            np.testing.assert_array_equal(outputs["x"], X)
            np.testing.assert_array_equal(outputs["y"], small_models.chain_answer(X))
            assert [each.decode() for each in outputs["tag"].tolist()] == words.tolist()
            for wanted in (["x"], ["y", "x"], ["x", "tag"], ["y"]):
                outputs = client.infer(model, given, outputs=wanted).outputs
                assert list(outputs) == wanted
            alone = client.infer(model, given, outputs=["x"]).outputs["x"]
            np.testing.assert_array_equal(alone, X)
            assert client.trace("last").path == ("direct" if model == "whole" else "relay")


def node_traffic_bytes(network: Network) -> int:
    """Payload of all connections between nodes so far, both ways. Only nodes are dialled there."""
    with network.client() as client:
        profiles = [client.node(name).profile for name in (LEFT, RIGHT)]
    ports = [
        each.rpartition(":")[2]
        for profile in profiles
        if profile is not None
        for each in profile.addresses
        if each.startswith("tcp:")
    ]
    where = " or ".join(f"sport = :{port}" for port in ports)
    said = subprocess.run(
        ["ss", "-tinH", "state", "established", f"( {where} )"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return sum(map(int, re.findall(r"bytes_(?:sent|received):(\d+)", said)))


def test_between_nodes_goes_what_crosses_and_little_more(
    network: Network, centerface: Path
) -> None:
    network.start_gateway()
    gateway_takes_tcp_only(network)
    for name in (LEFT, RIGHT):
        network.start_node(name, labels={"side": name})
    network.wait_ready(LEFT, RIGHT)
    nodes_take_tcp_only(network, LEFT, RIGHT)
    tensor = pixels(160)
    order: dict[str, Any] = {
        "partition_points": POINTS,
        "inputs": {"input.1": tensor.shape},
        "slices": ZIGZAG,
    }
    assert register(network, centerface, "faces", **order).state == "ready"
    with network.client() as client:
        heads = client.infer("faces", {"input.1": tensor}).outputs
        before = node_traffic_bytes(network)
        for _ in range(REQUESTS):
            client.infer("faces", {"input.1": tensor})
        spent = node_traffic_bytes(network) - before
    for name, array in whole_model(centerface, tensor, is_optimised=True).items():
        np.testing.assert_allclose(heads[name], array, rtol=1e-4, atol=1e-6)
    crossing = bytes_of_edges(centerface, tensor)
    nbytes = sum(crossing)
    assert REQUESTS * nbytes <= spent
    assert spent <= REQUESTS * (1.02 * nbytes + EDGE_BYTES_MAX * len(crossing))


def bytes_of_edges(path: Path, tensor: Any) -> list[int]:
    """Of what enters and leaves the middle slice; the outer ones are on one node, so what skips
    over it never travels."""
    found = analyse(path.read_bytes(), {"input.1": tensor.shape})
    composed = Composed(found, slices_by_points(found.graph, POINTS))
    composed.run({"input.1": tensor})
    return [value.nbytes for (_, *ends), value in composed.crossed.items() if 1 in ends]
