"""Gateway and node as services: what the manager that started them hears."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from din.system.signals import SAME_BREATH_S
from tests.road.manager import Manager
from tests.road.processes import ENVIRONMENT, Network, get, send, wait_for

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


class Service:
    """`din gateway start` or `din node start` under a manager, with a settings file of its own."""

    def __init__(self, folder: Path, program: str, *flags: str) -> None:
        folder.mkdir()
        self.file = folder / "config" / "din" / "config.yaml"
        self.file.parent.mkdir(parents=True)
        self.log_path = folder / "log"
        self.manager = Manager()
        self._words = [str(Path(sys.executable).with_name("din")), program, "start", *flags]
        self._environment = {
            **ENVIRONMENT,
            **self.manager.variables(),
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "s"),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, settings: str) -> None:
        self.file.write_text(settings)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self._words,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # no terminal: SIGHUP asks for a reload
            )
        self.manager.hear("READY")

    def reload(self, settings: str) -> dict[str, Any]:
        """What the log says of it."""
        before = len(self.lines("reload"))
        self.file.write_text(settings)
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGHUP)
        told = self.manager.hear("RELOADING")
        assert told.pid == self.process.pid
        assert int(told.facts["MONOTONIC_USEC"]) > 0
        self.manager.hear("READY")
        return wait_for("the log tells", lambda: self.lines("reload")[before:])[0]

    def lines(self, word: str) -> list[dict[str, Any]]:
        """Lines of the log about it: every one is a JSON object."""
        whole = self.log_path.read_text().rpartition("\n")[0]  # the last line may be half written
        return [line for line in map(json.loads, whole.splitlines()) if word in line["event"]]

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(30) == 0
        self.manager.__exit__(None, None, None)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Service]:
    # A flag stands above files, also when they are read again.
    made = Service(tmp_path / "g", "gateway", "--port", "0", "--discovery-mode", "unicast")
    yield made
    made.stop()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path / "n", "node", "--name", "edge-1", "--port", "0")
    yield made
    made.stop()


def url_of(gateway: Service) -> str:
    """The log is written by a thread of its own: a line may follow what the manager is told."""
    return str(wait_for("the log tells the address", lambda: gateway.lines("ready"))[-1]["url"])


def posted(url: str, nbytes: int) -> int:
    return send(url, "POST", "/v2/models/none/infer", b"x" * nbytes, {})[0]


def test_a_gateway_takes_up_settings_while_it_serves_and_keeps_the_old_ones_when_they_are_broken(
    gateway: Service,
) -> None:
    gateway.start("cluster: hall\nbody_bytes_max: 1024\n")
    url = url_of(gateway)
    assert posted(url, 2048) == 413
    told = gateway.reload("cluster: hall\nbody_bytes_max: 4096\n")
    assert (told["event"], told["changed"]) == ("reloaded", "body_bytes_max")
    assert posted(url, 2048) != 413

    told = gateway.reload("cluster: hall\nbody_bytes_max: [\n")
    assert (told["event"], told["level"]) == ("reload failed", "warning")
    assert "is not YAML" in told["error"]
    told = gateway.reload("cluster: hall\nbody_bytes_max: small\n")
    assert "body_bytes_max is 'small'" in told["error"]
    assert posted(url, 2048) != 413
    assert get(url, "/v2/health/ready")[0] == 200

    # The port was given by a flag, the cluster cannot change while others know it.
    told = gateway.reload("cluster: hall-2\nport: 1\nbody_bytes_max: 1024\nlog_level: warning\n")
    assert posted(url, 2048) == 413
    warned = wait_for("what waits is named", lambda: gateway.lines("reload warning"))[-1]
    assert warned["unchanged"] == "cluster"
    assert json.loads(get(url, "/api/v1/gateway")[1])["cluster"] == "hall"
    assert gateway.lines("ready")[-1]["url"] == url


def test_a_node_takes_up_labels_while_it_serves(gateway: Service, node: Service) -> None:
    gateway.start("cluster: hall\n")
    url = url_of(gateway)
    settings = f"cluster: hall\nnode: {{gateway: '{url}', labels: {{line: '4'}}}}\n"
    node.start(settings)

    def labels() -> Any:
        return json.loads(get(url, "/api/v1/nodes/edge-1")[1])["profile"]["labels"]

    assert labels() == {"line": "4"}
    told = node.reload(settings.replace("'4'", "'5'"))
    assert (told["event"], told["changed"]) == ("reloaded", "labels")
    wait_for("the gateway knows them", lambda: labels() == {"line": "5"})
    told = node.reload("cluster: hall\nnode: {labels: 5}\n")
    assert (told["event"], told["level"]) == ("reload_failed", "warning")
    assert labels() == {"line": "5"}
    # Nothing was loaded anew, no session begun.
    assert len(node.lines("started")) == 1


def test_one_more_signal_in_the_same_breath_changes_no_exit_code(tmp_path: Path) -> None:
    network = Network(tmp_path)
    try:
        network.start_gateway(discovery_mode="unicast")
        network.start_node("edge-1")
        network.wait_ready("edge-1")
        gateway, node = network.gateway, network.nodes["edge-1"]
        assert gateway is not None
        for process in (node, gateway):
            end_s = monotonic() + SAME_BREATH_S * 0.8
            while process.poll() is None and monotonic() < end_s:
                process.send_signal(signal.SIGTERM)
                sleep(0.01)
            assert process.wait(30) == 0
    finally:
        network.stop()
