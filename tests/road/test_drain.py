"""Emptying a node with real processes: nobody waits for it, it lasts, it says what holds it up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tests.road import small_models
from tests.road.asking import asking
from tests.road.processes import Network, get, wait_for
from tests.road.test_cases import (
    ONE,
    THREE,
    TWO,
    X,
    answers_normally,
    chain_is_right,
    holders,
    register_chain,
)
from tests.road.test_road import register

pytestmark = pytest.mark.system


def start_calmly(network: Network) -> None:
    """With the fleet's own heartbeats: a busy machine must not make a node look silent."""
    network.start_gateway()
    network.start_node(ONE)
    network.wait_ready(ONE)


@contextmanager
def always_ready(network: Network, model: str = "chain") -> Iterator[None]:
    """All the while every slice has a replica that may be used, so no request waits for one."""
    stop = threading.Event()
    found: list[int] = []

    def look() -> None:
        while not stop.is_set():
            found.append(get(network.url, f"/v2/models/{model}/ready")[0])
            stop.wait(0.01)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
    assert set(found) == {200}, found


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_only_holder_serves_until_another_node_can(network: Network, is_whole: bool) -> None:
    start_calmly(network)
    register_chain(network, partition_points=() if is_whole else ("add.0", "add.1"), replicas=1)
    network.start_node(TWO)
    network.wait_ready(TWO)
    with asking(network, "chain", {"x": X}, chain_is_right) as load, always_ready(network):
        load.wait_more(50)
        drained = network.din("node", "drain", ONE)
        assert drained.returncode == 0, drained.stderr
        wait_for(
            "the slices have moved",
            lambda: all(nodes == {TWO} for nodes in holders(network).values()),
        )
        load.wait_more(50)
        again = network.din("node", "drain", ONE)
        assert again.returncode == 0, again.stderr
        listed = network.din("node", "list")
        assert f"{ONE} is draining: holds no slice" in listed.stderr
        # Empty means empty: nobody misses its processes.
        network.kill_node(ONE)
        load.wait_more(50)


def test_a_drain_without_another_place_says_so_lasts_and_ends_where_it_can(
    network: Network,
) -> None:
    start_calmly(network)
    register_chain(network, replicas=1)
    network.start_node(TWO, memory_mib=1)
    network.wait_ready(TWO)
    port = int(network.url.rpartition(":")[2])
    with asking(network, "chain", {"x": X}, chain_is_right) as load:
        with always_ready(network):
            load.wait_more(20)
            drained = network.din("node", "drain", ONE)
            assert drained.returncode == 3
            assert "no other node can take chain/" in drained.stderr
            assert f"  {TWO}: memory is 1 MiB, needs " in drained.stderr
            assert f"error: {ONE} keeps and serves 3 slices: no other node" in drained.stderr
            load.wait_more(50)
        assert "; no other node can take chain/" in network.din("node", "list").stderr
    assert network.gateway is not None
    network.gateway.send_signal(signal.SIGKILL)
    network.gateway.wait()
    network.start_gateway(port=port)
    wait_for("it drains on", lambda: network.statuses().get(ONE) == "draining")
    answers_normally(network)
    assert all(nodes == {ONE} for nodes in holders(network).values())
    with asking(network, "chain", {"x": X}, chain_is_right) as load, always_ready(network):
        network.start_node(THREE)
        wait_for(
            "the slices have moved",
            lambda: all(nodes == {THREE} for nodes in holders(network).values()),
        )
        load.wait_more(50)


def test_an_undrained_node_takes_slices_again_and_a_forced_one_serves_nothing(
    network: Network,
) -> None:
    start_calmly(network)
    register_chain(network, replicas=1)
    forced = network.din("node", "drain", ONE, "--force")
    assert forced.returncode == 0, forced.stderr
    assert "  no other node is in the cluster" in forced.stderr
    assert get(network.url, "/v2/models/chain/ready")[0] != 200
    network.nodes[ONE].terminate()
    network.nodes[ONE].wait(20)
    network.restart_node(ONE)
    wait_for("a restart does not end it", lambda: network.statuses().get(ONE) == "draining")
    back = network.din("node", "undrain", ONE)
    assert back.returncode == 0, back.stderr
    network.wait_ready(ONE)
    answers_normally(network)


def test_a_run_that_takes_many_times_its_mean_is_no_second_attempt(network: Network) -> None:
    """Through the agent, on the only node that has it: the second would queue behind the first."""
    network.start_gateway(direct=False)
    network.start_node(ONE)
    network.wait_ready(ONE)
    path = small_models.slow(network.folder / "slow.onnx")
    register(network, path, "slow", backend_options={"threads": "1"})
    with network.client(timeout_ms=60_000) as client:
        for _ in range(3):
            short = client.infer("slow", {"rounds": np.array(1, np.int64)})
        assert short.outputs["y"] == pytest.approx(192)
        rounds = 64
        while True:
            answer = client.infer("slow", {"rounds": np.array(rounds, np.int64)})
            trace = client.trace(answer.request_id)
            assert len(trace.attempts) == 1, trace
            if trace.duration_ms > 3_000:
                break
            rounds *= 2
