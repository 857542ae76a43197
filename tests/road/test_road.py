"""The whole road with real processes: photo in, boxes out, over three nodes."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from din.domain.views import ModelView, RegisterModel
from tests.road.conftest import photo, pixels, whole_model
from tests.road.processes import Network, wait_for
from tests.strategies import ordered

pytestmark = pytest.mark.system

ONE, TWO, THREE = "edge-one", "edge-two", "edge-three"
TYPES = {
    ONE: "aarch64-ascend310p-cann6.3",
    TWO: "x86_64-cpu-ort1.32",
    THREE: "x86_64-cuda11.8-trt8.6",
}
FACE = (182, 58, 270, 178)
EXACT = {"optimisation": "off", "threads": "1"}


def register(network: Network, path: Path, model_id: str, **order: Any) -> ModelView:
    with network.client() as client:
        sha256 = client.upload(path)
        client.register(RegisterModel(model_id=model_id, source_sha256=sha256, **ordered(**order)))

        def settled() -> ModelView | None:
            view = client.model(model_id)
            return view if view.state in ("ready", "failed") else None

        try:
            return wait_for(f"{model_id} is ready", settled, 60)
        except AssertionError as fault:
            view = client.model(model_id)
            raise AssertionError(f"{fault}: {view.state} {view.reason}\n{network.logs()}") from None


def pinned_slices() -> tuple[dict[str, object], ...]:
    names = ("backbone", "neck", "heads")
    return tuple({"name": n, "device_type": t} for n, t in zip(names, TYPES.values(), strict=True))


CENTERFACE: dict[str, Any] = {
    "partition_points": ("404", "474"),
    "inputs": {"input.1": (1, 3, "H", "W")},
    "slices": pinned_slices(),
    "before": {"name": "image", "max_side": 640},
    "after": {"name": "centerface"},
}


@pytest.fixture
def three_nodes(network: Network) -> Network:
    network.start_gateway()
    for name, device_type in TYPES.items():
        network.start_node(name, device_type=device_type)
    network.wait_ready(*TYPES)
    return network


def post(url: str, body: object) -> dict[str, Any]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_a_photo_is_answered_by_three_nodes_in_three_ways(
    three_nodes: Network, centerface: Path
) -> None:
    network = three_nodes
    view = register(network, centerface, "centerface", **CENTERFACE)
    assert view.state == "ready", view.reason
    by_name = {part.name: [r.node for r in part.replicas] for part in view.slices}
    assert by_name["backbone"] == [ONE]
    assert by_name["neck"] == [TWO]
    assert by_name["heads"] == [THREE]

    encoded = base64.b64encode(photo("astronaut")).decode()
    answer = post(f"{network.url}/infer", {"model_id": "centerface", "input_data": encoded})
    assert answer["status"] == "completed"
    (box,) = answer["result"]["boxes"]
    assert np.allclose(box, FACE, atol=15)
    assert answer["result"]["labels"] == ["face"]
    assert {entry["node"] for entry in answer["execution_trace"]} == set(TYPES)
    assert all(entry["gpu_util"] is None for entry in answer["execution_trace"])

    with network.client() as client:
        assert len(client.infer("centerface", photo("astronaut")).result["boxes"]) == 1
        assert client.infer("centerface", photo("chelsea")).result["boxes"] == []
        heads = client.infer("centerface", {"input.1": pixels(160)})
        wanted = whole_model(centerface, pixels(160), is_optimised=True)
        for name, array in wanted.items():
            np.testing.assert_allclose(heads.outputs[name], array, rtol=1e-4, atol=1e-6)
        trace = client.trace("last")
        assert {step.phase for step in trace.execution_trace} == {"backbone", "neck", "heads"}
        assert trace.path == "relay"
        assert len(trace.spans) > 3


def test_sliced_equals_whole_bit_by_bit_without_optimisations(
    three_nodes: Network, centerface: Path
) -> None:
    register(three_nodes, centerface, "exact", **CENTERFACE, backend_options=EXACT)
    tensor = pixels(160)
    with three_nodes.client() as client:
        given = client.infer("exact", {"input.1": tensor}).outputs
    wanted = whole_model(centerface, tensor, is_optimised=False)
    assert {name: a.tobytes() for name, a in given.items()} == {
        name: a.tobytes() for name, a in wanted.items()
    }


def test_a_dry_run_explains_and_touches_no_node(three_nodes: Network, centerface: Path) -> None:
    network = three_nodes
    register(network, centerface, "centerface", **CENTERFACE)
    before = network.node_views()
    answer = post(
        f"{network.url}/infer?dry-run=true", {"model_id": "centerface", "input_data": "fake"}
    )
    plan = answer["execution_plan"]
    assert {entry["node"] for entry in plan} == set(TYPES)
    assert all(entry["reason"] for entry in plan)
    with network.client() as client:
        assert client.traces().items == ()
        rejected = client.plan("centerface").rejections
    assert {each.constraint for each in rejected} >= {"device_type"}
    assert len(network.node_views()) == len(before)


def test_a_model_that_no_node_can_hold_is_cut_to_fit(network: Network, centerface: Path) -> None:
    network.start_gateway()
    for name in TYPES:
        network.start_node(name, memory_mib=80)
    network.wait_ready(*TYPES)
    view = register(
        network,
        centerface,
        "auto",
        inputs={"input.1": (1, 3, 320, 320)},
        replicas=1,
        backend_options=EXACT,
    )
    assert view.state == "ready", view.reason
    assert len(view.slices) > 1
    assert any("DIN cut it" in note for note in view.notes)
    tensor = pixels(320)
    with network.client() as client:
        answer = client.infer("auto", {"input.1": tensor})
        assert len({step.node for step in answer.execution_trace}) > 1
    wanted = whole_model(centerface, tensor, is_optimised=False)
    for name, array in wanted.items():
        assert answer.outputs[name].tobytes() == array.tobytes()


def test_one_slice_on_this_host_is_answered_without_a_hop_through_the_agent(
    network: Network, centerface: Path
) -> None:
    network.start_gateway()
    network.start_node(ONE)
    network.wait_ready(ONE)
    register(network, centerface, "whole", inputs={"input.1": (1, 3, "H", "W")}, workers=2)
    tensor = pixels(160)
    wanted = whole_model(centerface, tensor, is_optimised=True)
    with network.client() as client:
        for _ in range(5):
            given = client.infer("whole", {"input.1": tensor}).outputs
            for name, array in wanted.items():
                np.testing.assert_allclose(given[name], array, rtol=1e-4, atol=1e-6)
        assert client.trace("last").path == "direct"


def test_bad_requests_are_named_and_the_gateway_lives(
    three_nodes: Network, centerface: Path
) -> None:
    network = three_nodes
    register(network, centerface, "centerface", **CENTERFACE)
    cases: list[tuple[str, object, int, str]] = [
        ("/infer", {"model_id": "centreface", "input_data": "aGk="}, 404, "centerface"),
        ("/infer", {"model_id": "centerface", "input_data": "aGk="}, 400, "image"),
        (
            "/v2/models/centerface/infer",
            {
                "inputs": [
                    {
                        "name": "input.1",
                        "datatype": "FP64",
                        "shape": [1, 3, 2, 2],
                        "data": [0.5] * 12,
                    }
                ]
            },
            400,
            "FP64",
        ),
    ]
    for path, body, status, word in cases:
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(network.url + path, body)
        text = caught.value.read().decode()
        caught.value.close()
        assert caught.value.code == status, text
        assert word in text
    with network.client() as client:
        assert len(client.infer("centerface", photo("astronaut")).result["boxes"]) == 1
