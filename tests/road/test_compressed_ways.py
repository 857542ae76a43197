"""Compressed tensors where more than two nodes and one request come together."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from din.domain.views import RegisterModel
from tests.road.asking import asking
from tests.road.conftest import photo, pixels
from tests.road.islands import Islands, islands
from tests.road.processes import Network, post_json, wait_for
from tests.road.test_compression import APART, CUT, SIDE, start
from tests.road.test_relay import (
    LEFT,
    RIGHT,
    gateway_takes_tcp_only,
    nodes_take_tcp_only,
    start_on,
)
from tests.road.test_road import register
from tests.strategies import ordered

pytestmark = pytest.mark.system

CLIENTS = 8
ADAPTED: dict[str, Any] = {
    "partition_points": ("404",),
    "inputs": {"input.1": (1, 3, "H", "W")},
    "slices": APART,
    "before": {"name": "image", "max_side": 320},
    "after": {"name": "centerface"},
}


@pytest.fixture
def sea() -> Iterator[Islands]:
    with islands() as made:
        yield made


def compressed_by(network: Network) -> set[str]:
    with network.client() as client:
        spans = client.trace("last").spans
    return {span.node for span in spans if span.kind == "encode" and span.uncompressed_bytes}


def same(expected: dict[str, Any], found: dict[str, Any]) -> bool:
    return all(array.tobytes() == found[name].tobytes() for name, array in expected.items())


def test_half_precision_adapters_and_sealed_models_cross_compressed_as_well(
    network: Network, centerface: Path
) -> None:
    start(network)
    x = pixels(SIDE)
    answers = {}
    for name, compression in (("half", "none"), ("half-zstd", "zstd")):
        more = {**CUT, "slices": APART, "precision": "fp16", "compression": compression}
        view = register(network, centerface, name, **more)
        assert view.state == "ready", view.reason
        with network.client() as client:
            answers[name] = client.infer(name, {"input.1": x}).outputs
    assert compressed_by(network) == {LEFT}
    assert same(answers["half"], answers["half-zstd"])

    boxes = []
    for name, compression in (("faces", "none"), ("faces-zstd", "zstd")):
        view = register(network, centerface, name, **ADAPTED, compression=compression)
        assert view.state == "ready", view.reason
        encoded = base64.b64encode(photo("astronaut")).decode()
        body = {"model_id": name, "input_data": encoded}
        status, answer = post_json(network.url, "/infer", body)
        assert status == 200, answer
        boxes.append(answer["result"])
    assert LEFT in compressed_by(network)
    assert boxes[0] == boxes[1]

    with network.client() as client:
        sha256 = client.upload(centerface, encrypt=True)
        order = ordered(slices=APART, compression="zstd", **CUT)
        client.register(RegisterModel(model_id="sealed", source_sha256=sha256, **order))
        wait_for("it is ready", lambda: client.model("sealed").state == "ready", 60)
        client.infer("sealed", {"input.1": x})
    assert compressed_by(network) == {LEFT}


def test_compressed_tensors_pass_through_the_gateway_as_they_are(
    network: Network, sea: Islands, centerface: Path
) -> None:
    network.start_gateway(host="0.0.0.0", insecure_network=True)
    gateway_takes_tcp_only(network)
    for name in (LEFT, RIGHT):
        island, address = sea.add(name)
        network.url = f"http://{address.rpartition('.')[0]}.1:{network.url.rpartition(':')[2]}"
        start_on(network, sea, name, island, address)
    network.wait_ready(LEFT, RIGHT)
    nodes_take_tcp_only(network, LEFT, RIGHT)
    x = pixels(SIDE)
    answers = []
    for name, compression in (("plain", "none"), ("packed", "zstd")):
        register(network, centerface, name, slices=APART, compression=compression, **CUT)
        with network.client() as client:
            assert client.plan(name).relays
            answers.append(client.infer(name, {"input.1": x}).outputs)
    assert compressed_by(network) == {LEFT}
    assert same(*answers)


@pytest.mark.parametrize("side", [LEFT, RIGHT])
def test_no_request_is_lost_or_wrong_where_either_end_is_killed_while_it_runs(
    network: Network, centerface: Path, side: str
) -> None:
    start(network)
    network.start_node("spare", labels={"side": side})
    network.wait_ready("spare")
    nodes_take_tcp_only(network, "spare")
    order = {**CUT, "slices": APART, "compression": "zstd", "replicas": 2}
    view = register(network, centerface, "kept", **order)
    assert view.state == "ready", view.reason
    x = pixels(SIDE)
    with network.client() as client:
        expected = client.infer("kept", {"input.1": x}).outputs

    def is_right(found: dict[str, Any]) -> bool:
        return same(expected, found)

    with asking(
        network, "kept", {"input.1": x}, is_right, clients=CLIENTS, timeout_ms=60_000
    ) as load:
        load.wait_more(40)
        network.kill_node(side)
        load.wait_more(80)
    assert load.bad == []
