"""Tensors that cross between two nodes compressed, with real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from din.errors import SpoiledTensor
from tests.road.conftest import pixels, whole_model
from tests.road.processes import Network, wait_for
from tests.road.test_cuts import node_traffic_bytes
from tests.road.test_relay import LEFT, RIGHT, gateway_takes_tcp_only, nodes_take_tcp_only
from tests.road.test_road import register

pytestmark = pytest.mark.system

REQUESTS = 3
SIDE = 192
CUT: dict[str, Any] = {
    "partition_points": ("404",),
    "inputs": {"input.1": (1, 3, SIDE, SIDE)},
    "backend_options": {"threads": "1", "optimisation": "off"},
}
APART = ({"labels": {"side": LEFT}}, {"labels": {"side": RIGHT}})


def start(network: Network) -> None:
    """Two nodes that nothing joins but TCP, as two machines."""
    network.start_gateway()
    gateway_takes_tcp_only(network)
    for name in (LEFT, RIGHT):
        network.start_node(name, labels={"side": name})
    network.wait_ready(LEFT, RIGHT)
    nodes_take_tcp_only(network, LEFT, RIGHT)


def test_compressed_tensors_take_fewer_bytes_and_leave_the_answer_bit_for_bit(
    network: Network, centerface: Path
) -> None:
    start(network)
    x = pixels(SIDE)
    answers, spent = {}, {}
    for name, more in {
        "plain": {},
        "zstd": {"compression": "zstd"},
        "uint8": {"precision": "uint8"},
        "both": {"precision": "uint8", "compression": "zstd"},
    }.items():
        view = register(network, centerface, name, slices=APART, **CUT, **more)
        assert view.state == "ready", view.reason
        with network.client() as client:
            answers[name] = client.infer(name, {"input.1": x}).outputs
            before = node_traffic_bytes(network)
            for _ in range(REQUESTS):
                client.infer(name, {"input.1": x})
            spent[name] = (node_traffic_bytes(network) - before) / REQUESTS
    for plain, compressed in (("plain", "zstd"), ("uint8", "both")):
        for output, array in answers[plain].items():
            assert array.tobytes() == answers[compressed][output].tobytes(), output
    assert spent["zstd"] < 0.97 * spent["plain"]
    assert spent["both"] < 0.97 * spent["uint8"]
    assert spent["both"] < 0.3 * spent["plain"]

    with network.client() as client:
        (sent,) = [
            span
            for span in client.trace("last").spans
            if span.kind == "encode" and span.uncompressed_bytes
        ]
    assert sent.node == LEFT
    assert 0 < sent.compressed_bytes < sent.uncompressed_bytes
    assert sent.duration_ms > 0
    shown = network.din("trace", "show", "last").stdout
    assert f"@{LEFT} compressed" in shown
    assert "zstd" in network.din("model", "inspect", "both").stdout


def test_nothing_is_compressed_inside_one_machine_and_answers_never_are(
    network: Network, centerface: Path
) -> None:
    network.start_gateway()
    for name in (LEFT, RIGHT):
        network.start_node(name, labels={"side": name})
    network.wait_ready(LEFT, RIGHT)
    view = register(network, centerface, "near", slices=APART, compression="zstd", **CUT)
    assert view.state == "ready", view.reason
    with network.client() as client:
        client.infer("near", {"input.1": np.zeros((1, 3, SIDE, SIDE), np.float32)})
        spans = client.trace("last").spans
    assert {span.node for span in spans if span.kind == "compute"} == {LEFT, RIGHT}
    assert not [span for span in spans if span.kind == "encode"]


def test_a_producer_that_is_killed_midway_is_left_for_another(
    network: Network, centerface: Path
) -> None:
    start(network)
    network.start_node("spare", labels={"side": LEFT})
    network.wait_ready("spare")
    nodes_take_tcp_only(network, "spare")
    order = {**CUT, "slices": APART, "compression": "zstd", "replicas": 2}
    view = register(network, centerface, "kept", **order)
    assert view.state == "ready", view.reason
    x = pixels(SIDE)
    with network.client(timeout_ms=60_000) as client:
        expected = client.infer("kept", {"input.1": x}).outputs
        for number in range(12):
            if number == 4:
                network.kill_node(LEFT)
            found = client.infer("kept", {"input.1": x}).outputs
            for output, array in expected.items():
                assert array.tobytes() == found[output].tobytes(), output


def test_a_producer_whose_frames_are_spoiled_is_left_for_another_and_told(
    network: Network, centerface: Path
) -> None:
    start(network)
    network.wrappers["liar"] = ["env", f"PYTHONPATH={lying(network.folder)}"]
    network.start_node("liar", labels={"side": LEFT})
    network.wait_ready("liar")
    nodes_take_tcp_only(network, "liar")
    order = {**CUT, "slices": APART, "compression": "zstd", "replicas": 2}
    view = register(network, centerface, "spoiled", **order)
    assert view.state == "ready", view.reason
    x = pixels(SIDE)
    expected = whole_model(centerface, x, is_optimised=False)
    failed: list[str] = []
    with network.client(timeout_ms=60_000) as client:
        for _ in range(12):
            found = client.infer("spoiled", {"input.1": x}).outputs
            for output, array in expected.items():
                np.testing.assert_allclose(found[output], array, rtol=1e-4, atol=1e-6)
            attempts = client.trace("last").attempts
            failed += [each.outcome for each in attempts if each.outcome != "completed"]
        assert failed, "the liar was never asked"
        for words in failed:
            assert "on node liar: input '" in words
            assert "cannot be read" in words
        network.kill_node(LEFT)
        wait_for("the honest one is gone", lambda: network.statuses().get(LEFT) != "ready")
        with pytest.raises(SpoiledTensor, match="on node liar: input '"):
            client.infer("spoiled", {"input.1": x})


def lying(folder: Path) -> Path:
    """A folder whose modules make workers that spoil what they compress."""
    made = folder / "lying"
    made.mkdir()
    (made / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'din.worker' in sys.orig_argv:\n"
        "    from din.worker import compression\n"
        "    honest = compression.Compressor.compress\n"
        "    def compress(self, *words):\n"
        "        frame = honest(self, *words)\n"
        "        return frame and frame[:-9] + bytes([frame[-9] ^ 1]) + frame[-8:]\n"
        "    compression.Compressor.compress = compress\n"
    )
    return made
