"""Logs that nobody reads, and the settings of ports, with real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from din.config import HANDOVER_VARIABLE, GatewayConfig, encode_config
from tests.road.processes import ENVIRONMENT, Network, get, wait_for

pytestmark = pytest.mark.system


def fill(pipe: int) -> None:
    os.set_blocking(pipe, False)
    try:
        while os.write(pipe, bytes(4096)):
            pass
    except BlockingIOError:
        os.set_blocking(pipe, True)


def test_a_gateway_whose_log_nobody_reads_goes_on_answering(network: Network) -> None:
    """Its standard error is a pipe that is full from the start, as behind a stopped pager."""
    state = network.folder / "gateway"
    config = GatewayConfig(
        port=0, cluster=network.cluster, state_dir=str(state), discovery_mode="unicast"
    )
    reader, writer = os.pipe()
    fill(writer)
    process = subprocess.Popen(
        [sys.executable, "-m", "din.bootstrap.gateway"],
        env={**ENVIRONMENT, HANDOVER_VARIABLE: encode_config(config)},
        stdin=subprocess.DEVNULL,
        stderr=writer,
    )
    os.close(writer)
    try:
        facts = state / "gateway.json"
        wait_for("the gateway answers", facts.exists)
        network.url = json.loads(facts.read_text())["url"]
        for _ in range(20):
            assert get(network.url, "/api/v1/gateway")[0] == 200
        network.start_node("edge")
        network.wait_ready("edge")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(reader)


def test_links_come_to_the_port_that_was_named_and_refusals_fill_no_log(network: Network) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        link_port = int(probe.getsockname()[1])
    network.start_gateway(link_port=link_port)
    facts = json.loads((network.folder / "gateway" / "gateway.json").read_text())
    assert f"tcp:127.0.0.1:{link_port}" in facts["links"]
    for _ in range(200):
        with socket.create_connection(("127.0.0.1", link_port), 5) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            stranger.recv(64)
    network.start_node("edge")
    network.wait_ready("edge")
    lines = [each for each in network.log_of("gateway").splitlines() if "refused" in each]
    assert 1 <= len(lines) < 20, lines
    assert network.gateway is not None
    network.gateway.terminate()
    assert network.gateway.wait(20) == 0
    told = [json.loads(each) for each in network.log_of("gateway").splitlines()]
    refused = [each for each in told if each["event"] in ("link refused", "links refused")]
    assert sum(each.get("more", 1) for each in refused) == 200
    assert told[-1]["event"] == "stopped", "the last line is written"


@pytest.mark.parametrize(
    ("program", "name"),
    [("gateway", "artifacts"), ("gateway", "carving"), ("node", "slices")],
)
def test_a_state_directory_that_is_damaged_is_named_at_the_start(
    network: Network, program: str, name: str
) -> None:
    state = network.folder / "state"
    state.mkdir(mode=0o700)
    (state / name).write_bytes(b"a file where a folder belongs")
    if program == "gateway":
        config = GatewayConfig(port=0, cluster=network.cluster, state_dir=str(state))
        started = network._spawn("din.bootstrap.gateway", config, "it")
    else:
        network.start_node("it", state_dir=str(state), gateway=("http://127.0.0.1:9",))
        started = network.nodes["it"]
    assert started.wait(30) == 4
    said = network.log_of("it")
    assert "Traceback" not in said
    assert f"error: cannot write {state / name}: " in said
    assert "hint: " in said


def test_a_start_error_is_said_once(network: Network) -> None:
    network.start_gateway()
    network.start_node("edge")
    network.wait_ready("edge")
    words = ("node", "start", "--name", "edge", "--port", "0")
    told = network.din(*words, "--state-dir", str(network.folder / "edge"))
    assert told.returncode == 7
    assert told.stderr.count("in use by din node edge") == 1, told.stderr
    assert told.stderr.startswith("error: ")


def test_a_dead_gateway_that_was_named_is_the_only_one_asked(network: Network) -> None:
    network.start_gateway()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{probe.getsockname()[1]}"
        network.start_node("edge", gateway=(dead,), discovery_mode="auto")
        wait_for("it tried twice", lambda: network.log_of("edge").count('"not_joined"') >= 2)
    assert f"{dead} did not answer" in network.log_of("edge")
    assert "edge" not in network.statuses()
    assert "multicast" not in network.log_of("edge")
