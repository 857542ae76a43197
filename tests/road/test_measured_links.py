"""What links were measured to carry decides where a model is cut, and is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from din.cli.cuts import cuts_answer, sliced_again
from din.domain.strategy import Strategy
from tests.road.islands import Islands, islands
from tests.road.processes import Network, wait_for
from tests.road.small_models import convolutions
from tests.road.test_relay import gateway_takes_tcp_only, nodes_take_tcp_only
from tests.road.test_road import register

pytestmark = pytest.mark.system
NEAR, FAR = "near", "far"
SLOW_BITS_PER_S = 16e6
SLOW_MIB_PER_S = SLOW_BITS_PER_S / 8 / 2**20
X = np.random.default_rng(5).random((1, 64, 64, 64), dtype=np.float32)


@pytest.fixture
def sea() -> Iterator[Islands]:
    with islands() as made:
        yield made


def test_a_link_measured_to_be_slow_makes_din_leave_a_cut_that_the_assumption_took(
    network: Network, sea: Islands, tmp_path: Path
) -> None:
    island, far, _ = sea.add_weak(FAR, delay_ms=0.2, bits_per_s=SLOW_BITS_PER_S)
    home = f"{far.rpartition('.')[0]}.1"
    network.start_gateway(host="0.0.0.0", insecure_network=True)
    gateway_takes_tcp_only(network)
    network.start_node(NEAR, host=home, insecure_network=True)
    network.url = f"http://{home}:{network.url.rpartition(':')[2]}"
    network.wrappers[FAR] = sea.enter(island)
    network.start_node(FAR, host=far, insecure_network=True)
    network.wait_ready(NEAR, FAR)
    nodes_take_tcp_only(network, NEAR, FAR)

    model = convolutions(tmp_path / "convolutions.onnx")
    strategy = Strategy(type="auto", objective="throughput")
    view = register(network, model, "wide", slicing_strategy=strategy, replicas=1)
    assert view.state == "ready", view.reason
    assert view.choice is not None
    assert {each.node for each in view.choice.slices} == {NEAR, FAR}, view.choice.reason
    crossing = [each for each in view.choice.ways if {each.source, each.target} == {NEAR, FAR}]
    assert [each.rate_from for each in crossing] == ["assumed"]

    with network.client() as client:
        before = client.infer("wide", {"x": X}).outputs["y"]

        def is_told() -> bool:
            ways = json.loads(cuts_answer(client, "wide").body)["ways"]
            return all(way["rate_from"] == "measured" for way in ways if FAR in way.values())

        wait_for("the nodes have told what they measured", is_told, 30)
        assert " MiB/s (measured)" in network.din("model", "inspect", "wide", "--cuts").stderr
        again = json.loads(sliced_again(client, "wide").body)
        assert again["is_changed"], again["reason"]
        choice = again["choice"]
        assert [each["node"] for each in choice["slices"]] == [NEAR]
        assert choice["is_split_refused"]
        (slow,) = (way for way in choice["ways"] if {way["source"], way["target"]} == {NEAR, FAR})
        assert slow["rate_from"] == slow["latency_from"] == "measured"
        assert slow["mib_per_second"] <= 1.5 * SLOW_MIB_PER_S

        def is_whole() -> bool:
            return {s.node for s in client.infer("wide", {"x": X}).execution_trace} == {NEAR}

        wait_for("the near node answers alone", is_whole, 30)
        told = network.din("plan", "wide").stderr
        assert "the best split would go over" in told
        assert " MiB/s (measured)" in told
        after = client.infer("wide", {"x": X}).outputs["y"]
    np.testing.assert_allclose(after, before, rtol=1e-3, atol=1e-5)
