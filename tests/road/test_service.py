"""Gateway and node as services: what the manager that started them hears."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.road.manager import Manager
from tests.road.processes import Network, get

pytestmark = [pytest.mark.system]


def test_a_manager_hears_that_both_programs_serve_live_and_end(tmp_path: Path) -> None:
    network = Network(tmp_path)
    with Manager() as of_gateway, Manager(tmp_path / "n") as of_node:
        try:
            network.wrappers["gateway"] = of_gateway.words(watchdog_s=1.0)
            network.wrappers["edge-1"] = of_node.words(watchdog_s=1.0)
            network.start_gateway(discovery_mode="unicast")
            gateway = network.gateway
            assert gateway is not None
            told = of_gateway.hear("READY")
            assert told.pid == gateway.pid
            assert told.facts["STATUS"] == f"serves {network.url}, nodes: 0"
            assert get(network.url, "/v2/health/ready")[0] == 200
            network.start_node("edge-1")
            told = of_node.hear("READY")
            assert told.pid == network.nodes["edge-1"].pid
            assert told.facts["STATUS"] == f"joined {network.url}"
            assert network.statuses() == {"edge-1": "ready"}
            of_gateway.hear("STATUS", "nodes: 1")
            for manager in (of_gateway, of_node):
                manager.hear("WATCHDOG")
            for process in (network.nodes["edge-1"], gateway):
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0
            assert "STOPPING" in of_node.hear("STOPPING").facts
            assert "STOPPING" in of_gateway.hear("STOPPING").facts
        finally:
            network.stop()


def test_a_gateway_that_cannot_start_never_says_that_it_serves(tmp_path: Path) -> None:
    network = Network(tmp_path)
    with Manager() as manager:
        network.wrappers["gateway"] = manager.words()
        try:
            network.start_gateway(discovery_mode="unicast")
            manager.hear("READY")
            first = network.gateway
            assert first is not None
            with pytest.raises(AssertionError):
                network.start_gateway(seconds=1, discovery_mode="unicast")
            second = network.gateway
            assert second is not None
            assert second.wait(20) == 7
            assert not [each for each in manager.waiting() if each.pid == second.pid]
        finally:
            first.send_signal(signal.SIGTERM)
            first.wait(20)
            network.stop()
