"""Failures that happened to somebody, with real processes. The ids are those of the case list."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import psutil
import pytest

from din.domain.node import NodeHealth, NodeProfile
from din.errors import DeadlineExceeded, DinError, Unavailable
from din.wire import heartbeat, registration
from tests.road import small_models
from tests.road.asking import asking
from tests.road.conftest import photo
from tests.road.processes import Network, get, post_json, send, wait_for
from tests.road.test_road import register

pytestmark = pytest.mark.system

FAST = {"node_heartbeat_interval_ms": 300, "node_heartbeat_jitter_ms": 45}
X = np.arange(16, dtype=np.float32).reshape(2, 8)
POINTS = ("add.0", "add.1")
ONE, TWO, THREE = "edge-one", "edge-two", "edge-three"


def chain_is_right(outputs: dict[str, Any]) -> bool:
    return bool(np.array_equal(outputs["y"], small_models.chain_answer(X)))


def answers_normally(network: Network, model: str = "chain") -> None:
    with network.client() as client:
        assert chain_is_right(client.infer(model, {"x": X}).outputs)


def start(network: Network, *names: str, **settings: Any) -> None:
    network.start_gateway(**{**FAST, **settings})
    for name in names:
        network.start_node(name)
    network.wait_ready(*names)


def register_chain(network: Network, model_id: str = "chain", **order: Any) -> None:
    path = small_models.chain(network.folder / "chain.onnx")
    view = register(network, path, model_id, **{"partition_points": POINTS, **order})
    assert view.state == "ready", view.reason


def holders(network: Network, model_id: str = "chain") -> dict[str, set[str]]:
    """Slice name -> nodes that have it ready."""
    with network.client() as client:
        view = client.model(model_id)
    return {
        part.name: {each.node for each in part.replicas if each.state == "ready"}
        for part in view.slices
    }


def nodes_used(network: Network) -> set[str]:
    """By the latest requests."""
    with network.client() as client:
        newest = client.traces(40).items
    return {step.node for trace in newest for step in trace.execution_trace}


def processes_of(network: Network, name: str) -> list[psutil.Process]:
    """The agent, its zygote, its workers."""
    agent = psutil.Process(network.nodes[name].pid)
    return [agent, *agent.children(recursive=True)]


def signal_all(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def metric(network: Network, name: str, **labels: str) -> float:
    """Sum of the samples with these labels."""
    _, body = get(network.url, "/metrics")
    total = 0.0
    for line in body.decode().splitlines():
        head, _, value = line.rpartition(" ")
        is_named = head == name or head.startswith(f"{name}{{")
        if is_named and all(f'{key}="{text}"' in head for key, text in labels.items()):
            total += float(value)
    return total


# Discovery and membership.


def test_an_announced_gateway_that_refuses_tcp_is_passed_over(network: Network) -> None:
    """T05, seen from the node: the announcement is a hint, the connection decides."""
    import asyncio

    from din.system.network import AddressWatch
    from din.transport.announce import Announcer

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: TCP is refused
        port = closed.getsockname()[1]

        async def scenario() -> None:
            announcer = Announcer(
                cluster=network.cluster,
                gateway_id="9d8c7b6a5f4e3d2c",
                version="0.1.0",
                http_host="127.0.0.1",
                http_port=port,
                report=lambda event, **fields: None,
                watch=AddressWatch(source=dict),
            )
            if reason := await announcer.start():
                pytest.skip(f"no multicast here: {reason}")
            try:
                network.start_node(ONE, discovery_mode="auto", gateway=())
                await asyncio.to_thread(
                    wait_for, "it was tried", lambda: "not_joined" in network.log_of(ONE), 20
                )
                log = network.log_of(ONE)
                assert f"http://127.0.0.1:{port} did not answer" in log
                assert '"joined"' not in log
            finally:
                await announcer.stop()

        network.url = ""
        asyncio.run(scenario())
    network.start_gateway(**FAST)
    network.wait_ready(ONE)


def test_a_registered_node_that_cannot_be_reached_is_never_scheduled(network: Network) -> None:
    """T05, seen from the gateway: it beats over HTTP, but no link ever opens."""
    start(network, ONE)
    profile = NodeProfile(
        node_id="00000000000000aa",
        session=1,
        name="mirage",
        device_type="x86_64-cpu-ort1.32",
        cpu_model="none",
        cpu_isa=(),
        cpu_cores=64,
        memory_mib=1_000_000,
        backends=("onnxruntime",),
        addresses=("tcp:127.0.0.1:9",),
    )
    tlv = {"Content-Type": registration.CONTENT_TYPE}
    body = registration.encode_registration(profile, network.cluster)
    assert send(network.url, "POST", "/api/v1/nodes", body, tlv)[0] == 200
    stop = threading.Event()

    def beat() -> None:
        counter = 0
        while not stop.wait(0.2):
            counter += 1
            health = NodeHealth(cpu_percent=0.0, memory_mib_free=1_000_000)
            one = heartbeat.Heartbeat(
                node_id=profile.node_id, session=1, counter=counter, health=health
            )
            send(network.url, "POST", "/api/v1/heartbeat", heartbeat.encode_heartbeat(one), tlv)

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        register_chain(network, replicas=3)
        time.sleep(1.2)  # several beats and looks at the fleet
        assert network.statuses() == {ONE: "ready", "mirage": "joining"}
        assert all(nodes == {ONE} for nodes in holders(network).values())
        with network.client() as client:
            plan = client.plan("chain")
            assert "joining" in repr(plan.rejections)
        answers_normally(network)
    finally:
        stop.set()
        beating.join()
    wait_for("it is lost", lambda: network.statuses()["mirage"] == "lost")


def test_a_node_that_comes_back_on_another_port_is_used_there(network: Network) -> None:
    """T06 and T10: same id, new address, no ghost, and peers send to the new address."""
    start(network, ONE, TWO)
    register_chain(
        network,
        slices=({"device_type": None}, {}, {}),
        replicas=2,
    )
    before = {node.name: node for node in network.node_views()}
    with asking(network, "chain", {"x": X}, chain_is_right, clients=2) as load:
        load.wait_more(20)
        for name in (TWO, ONE):
            other = ONE if name == TWO else TWO
            network.kill_node(name)
            network.restart_node(name)
            network.wait_ready(name)
            wait_for(
                f"{name} holds its slices again",
                lambda n=name: all(n in nodes for nodes in holders(network).values()),
            )
            assert network.statuses() == {name: "ready", other: "ready"}
            load.wait_more(20)
        # A node whose first answers after its return were slow is left alone for a while.
        wait_for("both are used", lambda: nodes_used(network) == {ONE, TWO}, 40)
    after = {node.name: node for node in network.node_views()}
    assert {n: v.node_id for n, v in after.items()} == {n: v.node_id for n, v in before.items()}
    assert all(after[name].address != before[name].address for name in after)
    with network.client() as client:
        newest = client.traces(40).items
    assert all(len(trace.attempts) <= 1 for trace in newest), newest


def test_of_two_nodes_with_one_copied_directory_one_serves_and_one_is_told(
    network: Network,
) -> None:
    """T08 without serial numbers: both ids are the same, and so were both counts of starts."""
    start(network, ONE)
    register_chain(network)
    network.nodes[ONE].send_signal(signal.SIGTERM)
    network.nodes[ONE].wait(15)
    copies = ("copy-1", "copy-2")
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # a socket of its own in each
        for copy in copies:
            shutil.copytree(network.folder / ONE, Path(short) / copy)
            network.start_node(copy, name=ONE, state_dir=f"{short}/{copy}")
        told = wait_for(
            "one is told", lambda: [n for n in copies if "copies of one state" in network.log_of(n)]
        )
        answers_normally(network)
        assert len(told) == 1
        network.kill_node(next(name for name in copies if name not in told))
        wait_for(
            "the other takes over",
            lambda: (
                network.log_of(told[0]).rfind("joined") > network.log_of(told[0]).rfind("copies")
            ),
        )
        answers_normally(network)


def test_a_suspended_node_is_suspect_then_lost_then_itself_again(network: Network) -> None:
    """T11 at the fleet's own interval: whole node stopped for 12 s, a request waits meanwhile."""
    network.start_gateway()
    network.start_node(ONE)
    network.wait_ready(ONE)
    register_chain(network)
    node_id = network.node_views()[0].node_id
    stopped = processes_of(network, ONE)
    signal_all(stopped, signal.SIGSTOP)
    answers: list[Any] = []

    def ask() -> None:
        with network.client(timeout_ms=40_000) as client:
            answers.append(client.infer("chain", {"x": X}).outputs)

    waiting = threading.Thread(target=ask)
    waiting.start()
    seen: list[str] = []
    resume_s = time.monotonic() + 12
    try:
        while time.monotonic() < resume_s:
            status = network.statuses()[ONE]
            if not seen or seen[-1] != status:
                seen.append(status)
            time.sleep(0.1)
    finally:
        signal_all(stopped, signal.SIGCONT)
    network.wait_ready(ONE, seconds=15)
    waiting.join(45)
    assert seen[-2:] == ["suspect", "lost"], seen
    assert [node.node_id for node in network.node_views()] == [node_id]
    assert len(answers) == 1
    assert chain_is_right(answers[0])
    answers_normally(network)
    assert network.nodes[ONE].poll() is None


def test_a_gateway_that_stood_still_does_not_lose_its_fleet(network: Network) -> None:
    """T11 and T12 the other way round: the silence was ours."""
    start(network, ONE, TWO)
    register_chain(network)
    ids = {node.node_id for node in network.node_views()}
    assert network.gateway is not None
    network.gateway.send_signal(signal.SIGSTOP)
    time.sleep(3)  # ten intervals
    network.gateway.send_signal(signal.SIGCONT)
    answers_normally(network)
    network.wait_ready(ONE, TWO)
    time.sleep(1)
    log = network.log_of("gateway")
    assert "node lost" not in log
    assert network.statuses() == {ONE: "ready", TWO: "ready"}
    assert {node.node_id for node in network.node_views()} == ids


def test_a_node_that_hardly_gets_a_processor_does_not_flap(network: Network) -> None:
    """T14: the agent runs one tenth of the time; it may be suspected, requests do not notice."""
    start(network, ONE, TWO)
    register_chain(network)
    agent = psutil.Process(network.nodes[ONE].pid)
    log_before = network.log_of("gateway").count('"node status"')
    end_s = time.monotonic() + 6
    with asking(network, "chain", {"x": X}, chain_is_right, clients=2) as load:
        while time.monotonic() < end_s:
            agent.suspend()
            time.sleep(0.45)
            agent.resume()
            time.sleep(0.05)
        load.wait_more(20)
        network.wait_ready(ONE, TWO)
    changes = network.log_of("gateway").count('"node status"') - log_before
    assert changes <= 8, network.log_of("gateway")[-4000:]
    answers_normally(network)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_node_that_falls_silent_under_load_costs_no_request(
    network: Network, is_whole: bool
) -> None:
    """T15 and T19: a half-open link at the fleet's own interval; requests whose deadline is
    shorter than any suspicion by heartbeats are answered by the others inside it."""
    network.start_gateway()
    for name in (ONE, TWO, THREE):
        network.start_node(name)
    network.wait_ready(ONE, TWO, THREE)
    register_chain(network, partition_points=() if is_whole else POINTS, replicas=3)
    wait_for(
        "every node has every slice",
        lambda: all(len(nodes) == 3 for nodes in holders(network).values()),
    )
    with asking(network, "chain", {"x": X}, chain_is_right, timeout_ms=5_000) as load:
        load.wait_more(50)
        stopped = processes_of(network, TWO)
        signal_all(stopped, signal.SIGSTOP)
        try:
            wait_for("it is suspected", lambda: network.statuses()[TWO] != "ready" or load.bad)
            assert load.bad == []
            load.wait_more(200)
        finally:
            signal_all(stopped, signal.SIGCONT)
        network.wait_ready(TWO)
        wait_for(
            "it holds its slices again",
            lambda: all(TWO in nodes for nodes in holders(network).values()),
        )
        load.wait_more(50)


# Programs that end and come back.


def test_a_killed_gateway_comes_back_with_its_models_and_nodes(network: Network) -> None:
    start(network, ONE, TWO)
    register_chain(network)
    register_chain(network, "whole", partition_points=())
    ids = {node.name: node.node_id for node in network.node_views()}
    with network.client() as client:
        gateway_id = client.gateway().gateway_id
    assert network.gateway is not None
    port = int(network.url.rpartition(":")[2])
    network.gateway.kill()
    network.gateway.wait()
    with network.client() as client, pytest.raises(Unavailable) as refused:
        client.infer("chain", {"x": X})
    assert network.url in refused.value.message
    found = network.din("node", "list")
    assert found.returncode == 4
    assert network.url in found.stderr
    network.start_gateway(**FAST, port=port)
    network.wait_ready(ONE, TWO)
    answers_normally(network)
    answers_normally(network, "whole")
    with network.client() as client:
        assert client.gateway().gateway_id == gateway_id
        wait_for("all is ready", lambda: {m.state for m in client.models().items} == {"ready"})
        assert {m.model_id: m.version for m in client.models().items} == {
            "chain": "1",
            "whole": "1",
        }
    assert {node.name: node.node_id for node in network.node_views()} == ids
    with asking(network, "chain", {"x": X}, chain_is_right) as load:
        load.wait_more(100)


def test_a_gateway_whose_store_was_put_back_is_answered_as_any_other(network: Network) -> None:
    """A restored copy: id and count of starts are those of its past, which the node remembers."""
    start(network, ONE)
    settings = {**FAST, "port": int(network.url.rpartition(":")[2])}
    state, kept = network.folder / "gateway", network.folder / "kept"
    assert network.gateway is not None
    network.gateway.send_signal(signal.SIGTERM)
    network.gateway.wait(15)
    shutil.copytree(state, kept)
    network.start_gateway(**settings)
    network.wait_ready(ONE)
    register_chain(network)
    answers_normally(network)
    network.gateway.kill()
    network.gateway.wait()
    shutil.rmtree(state)
    kept.rename(state)
    network.start_gateway(**settings)
    network.wait_ready(ONE)
    register_chain(network)
    answers_normally(network)


def test_nodes_of_a_gateway_with_a_new_store_answer_with_its_models_only(network: Network) -> None:
    """Its store counts from one again, and the node still holds what the former one had loaded."""
    start(network, ONE)
    other = small_models.chain(network.folder / "other.onnx", steps=4)
    assert register(network, other, "other", partition_points=POINTS).state == "ready"
    assert network.gateway is not None
    network.gateway.kill()
    network.gateway.wait()
    shutil.rmtree(network.folder / "gateway")
    network.start_gateway(**FAST, port=int(network.url.rpartition(":")[2]))
    network.wait_ready(ONE)
    register_chain(network)
    answers_normally(network)
    wait_for(
        "what nobody wants any more is gone",
        lambda: sum("din worker" in "".join(p.cmdline()) for p in processes_of(network, ONE)) == 3,
    )
    answers_normally(network)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_node_that_is_stopped_or_drained_under_load_loses_no_request(
    network: Network, is_whole: bool
) -> None:
    start(network, ONE, TWO)
    register_chain(network, partition_points=() if is_whole else POINTS, replicas=1)
    with asking(network, "chain", {"x": X}, chain_is_right) as load:
        load.wait_more(50)
        victim = next(iter(next(iter(holders(network).values()))))
        other = TWO if victim == ONE else ONE
        drained = network.din("node", "drain", victim)
        assert drained.returncode == 0, drained.stderr
        wait_for(
            "the slices have moved",
            lambda: all(nodes == {other} for nodes in holders(network).values()),
        )
        load.wait_more(50)
        assert network.statuses()[victim] == "draining"
        wait_for("it holds nothing", lambda: _slices_on(network, victim) == ())
        network.nodes[victim].send_signal(signal.SIGTERM)
        assert network.nodes[victim].wait(15) == 0
        load.wait_more(20)
        network.restart_node(victim)
        wait_for("it is back", lambda: network.statuses()[victim] == "draining")
        assert network.din("node", "undrain", victim).returncode == 0
        network.wait_ready(victim)
        network.nodes[other].send_signal(signal.SIGTERM)
        assert network.nodes[other].wait(15) == 0
        wait_for(
            "the slices have moved back",
            lambda: all(nodes == {victim} for nodes in holders(network).values()),
        )
        load.wait_more(50)


def _slices_on(network: Network, name: str) -> tuple[str, ...]:
    return next(node.slices for node in network.node_views() if node.name == name)


# Sensors.


def test_a_sensor_that_blocks_or_lies_never_stops_the_beats(network: Network) -> None:
    """T20, T22, T23, T24: null is null, the last good value is kept, heartbeats go on."""
    network.start_gateway(**FAST)
    fifo, file = network.folder / "fifo", network.folder / "temp1_input"
    os.mkfifo(fifo)
    file.write_text("42500\n")
    network.start_node("blocked", temp_sensor=str(fifo), temp_poll_interval_ms=100)
    network.start_node("lying", temp_sensor=str(file), temp_poll_interval_ms=100)
    network.start_node(
        "mute", temp_sensor=str(file), disable_temp_monitoring=True, gpu_monitoring="nvidia_smi"
    )
    network.wait_ready("blocked", "lying", "mute")

    def health(name: str) -> NodeHealth:
        return next(node.health for node in network.node_views() if node.name == name)

    wait_for("it is measured", lambda: health("lying").temperature_c == 42.5)
    file.write_text("-650788984\n")
    beats = metric(network, "din_heartbeats_total")
    wait_for("many beats", lambda: metric(network, "din_heartbeats_total") > beats + 15)
    assert health("lying").temperature_c in (42.5, None)
    assert health("blocked").temperature_c is None
    assert health("mute").temperature_c is None
    assert network.statuses() == dict.fromkeys(("blocked", "lying", "mute"), "ready")
    shown = json.loads(network.din("node", "inspect", "blocked", "-o", "json").stdout)
    assert shown["health"]["temperature_c"] is None
    if not Path("/dev/nvidiactl").exists():
        assert shown["health"]["accelerator_percent"] is None
    _, text = get(network.url, "/metrics")
    assert b'din_node_temperature_celsius{node="blocked"}' not in text
    assert b'din_node_temperature_celsius{node="mute"}' not in text
    # A reader that hangs in the kernel must not hold the exit either.
    network.nodes["blocked"].send_signal(signal.SIGTERM)
    assert network.nodes["blocked"].wait(10) == 0


# Tensors and models over the whole road: one small network for all of them.


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    made = Network(tmp_path_factory.mktemp("road"))
    try:
        start(made, ONE, TWO)
        register_chain(made, replicas=1)
        yield made
    finally:
        made.stop()


def oip(network: Network, model: str, body: object) -> tuple[int, Any]:
    return post_json(network.url, f"/v2/models/{quote(model, safe='')}/infer", body)


def chain_input(rows: list[list[float]], **parameters: Any) -> dict[str, Any]:
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(rows), 8], "data": rows}
    return {"inputs": [tensor], "parameters": parameters}


def test_a_tensor_of_many_mebibytes_passes_from_node_to_node(road: Network) -> None:
    """T16: 12 MiB, over the usual 4 MiB of others."""
    big = np.random.default_rng(3).random((12 * 1024 * 32, 8), dtype=np.float32)
    with road.client() as client:
        given = client.infer("chain", {"x": big}).outputs["y"]
    np.testing.assert_array_equal(given, small_models.chain_answer(big))


def test_no_rows_give_no_rows(road: Network) -> None:
    """T38."""
    register_chain(road, "chain-whole", partition_points=())
    empty = np.zeros((0, 8), np.float32)
    for model in ("chain", "chain-whole"):
        with road.client() as client:
            given = client.infer(model, {"x": empty}).outputs["y"]
        assert given.shape == (0, 8)
        assert given.dtype == np.float32
        status, body = oip(road, model, chain_input([]))
        assert status == 200, body
        assert body["outputs"][0]["shape"] == [0, 8]
        assert body["outputs"][0]["data"] == []


def test_texts_pass_exactly(road: Network) -> None:
    """T39: empty strings, zero bytes, non-ASCII, no strings at all, over two slices and one."""
    path = small_models.texts(road.folder / "texts.onnx")
    for model, points in (("texts", ("column",)), ("texts-whole", ())):
        view = register(road, path, model, partition_points=points)
        assert view.state == "ready", view.reason
        for words in (["", "a", "", "模型 🚀 100%", "x" * 100_000], [""], []):
            given = np.array(words, dtype=object)
            with road.client() as client:
                pairs = client.infer(model, {"s": given}).outputs["pairs"]
            assert pairs.shape == (len(words), 2)
            wanted = [[word.encode()] * 2 for word in words]
            assert [list(map(as_bytes, row)) for row in pairs.tolist()] == wanted
            tensor = {"name": "s", "datatype": "BYTES", "shape": [len(words)], "data": words}
            status, body = oip(road, model, {"inputs": [tensor]})
            assert status == 200, body
            assert body["outputs"][0]["data"] == [word for word in words for _ in range(2)]
        short = {"name": "s", "datatype": "BYTES", "shape": [3], "data": ["a", "b"]}
        status, body = oip(road, model, {"inputs": [short]})
        assert status == 400
        assert "3" in body["error"]


def as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def test_an_input_that_nothing_reads_is_accepted_and_reported(road: Network) -> None:
    """T28: exporters leave inputs that no operator uses."""
    import onnx
    from onnx import helper

    path = small_models.chain(road.folder / "spare.onnx")
    model = onnx.load(str(path))
    spare = helper.make_tensor_value_info("spare", onnx.TensorProto.FLOAT, ["N", 3])
    model.graph.input.append(spare)
    onnx.save(model, str(path))
    for model_id, points in (("spare", POINTS), ("spare-whole", ())):
        view = register(road, path, model_id, partition_points=points)
        assert view.state == "ready", view.reason
        assert any("spare" in text for text in (*view.warnings, *view.notes)), view
        inputs = {"x": X, "spare": np.zeros((2, 3), np.float32)}
        with road.client() as client:
            assert chain_is_right(client.infer(model_id, inputs).outputs)


def test_nameless_operators_are_cut_by_tensor_names(road: Network, centerface: Path) -> None:
    """T29 with a real model none of whose operators has a name."""
    order = {
        "partition_points": ("404", "474"),
        "inputs": {"input.1": (1, 3, "H", "W")},
        "before": {"name": "image", "max_side": 320},
        "after": {"name": "centerface"},
    }
    first = register(road, centerface, "faces", **order)
    assert first.state == "ready", first.reason
    again = register(road, centerface, "faces-again", **order)
    assert [p.slice_id for p in first.slices] == [p.slice_id for p in again.slices]
    with road.client() as client:
        assert len(client.infer("faces", photo("astronaut")).result["boxes"]) == 1
        client.remove("faces-again")
        client.remove("faces")


def test_names_in_any_script_work_everywhere(road: Network, centerface: Path) -> None:
    """T42: model id and path with Chinese, an emoji, a percent sign and a composed letter."""
    name = "模型🚀100%é"
    decomposed = unicodedata.normalize("NFD", name)
    assert decomposed != name
    folder = road.folder / "目录 100% 🚀"
    folder.mkdir()
    path = small_models.chain(folder / f"{decomposed}.onnx")
    done = road.din("model", "register", str(path))
    assert done.returncode == 0, done.stderr
    assert name in road.din("model", "list", "-o", "name").stdout.split()
    tensor = folder / "输入.npy"
    np.save(tensor, X)
    for each in (name, decomposed):
        found = road.din("infer", each, "--input", str(tensor), "--raw")
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout)["y"] == small_models.chain_answer(X).tolist()
        assert road.din("model", "inspect", each).returncode == 0
        status, body = oip(road, each, chain_input(X.tolist()))
        assert status == 200, body
        assert body["model_name"] == name
        status, raw = get(road.url, f"/v2/models/{quote(each, safe='')}")
        assert status == 200, raw
        assert json.loads(raw)["name"] == name
        with road.client() as client:
            assert chain_is_right(client.infer(each, {"x": X}).outputs)
            assert client.plan(each).model_id == name
    assert metric(road, "din_requests_total", model=name, code="ok") >= 6
    # And through /infer with an adapter, on a real model.
    view = register(
        road,
        centerface,
        f"{name}-脸",
        inputs={"input.1": (1, 3, "H", "W")},
        before={"name": "image", "max_side": 320},
        after={"name": "centerface"},
    )
    assert view.state == "ready", view.reason
    encoded = base64.b64encode(photo("astronaut")).decode()
    body = {"model_id": f"{decomposed}-脸", "input_data": encoded}
    status, answer = post_json(road.url, "/infer", body)
    assert status == 200, answer
    assert len(answer["result"]["boxes"]) == 1
    assert road.din("model", "remove", name, "--yes").returncode == 0
    assert road.din("model", "remove", f"{name}-脸", "--yes").returncode == 0


def test_broken_requests_are_400_counted_and_harmless(road: Network) -> None:
    """T44, T45, T46, T47."""
    cases: list[tuple[str, bytes, dict[str, str], tuple[str, ...]]] = [
        ("/infer", b'{"model_id": "chain", ', {}, ("JSON",)),
        ("/infer", b"\xff\xfe\x00", {}, ()),
        ("/infer", b"[]", {}, ()),
        ("/v2/models/chain/infer", b'{"inputs": [', {}, ("JSON",)),
        ("/v2/models/chain/infer", b"", {}, ()),
        ("/v2/models/chain/infer", b"{}", {}, ("inputs",)),
        ("/v2/models/chain/infer", b"{}", {"Inference-Header-Content-Length": "99"}, ("99",)),
        ("/v2/models/chain/infer", b"{}", {"Inference-Header-Content-Length": "-1"}, ()),
        (
            "/v2/models/chain/infer",
            json.dumps({**chain_input(X.tolist()), "outputs": [{"name": "z"}]}).encode(),
            {},
            ("'z'", "y"),
        ),
        (
            "/v2/models/chain/infer",
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2,8],'
            b'"parameters":{"binary_data_size":128}}]}' + bytes(128),
            {"Inference-Header-Content-Length": "95"},
            ("128", "64"),
        ),
    ]
    before = metric(road, "din_requests_total") - metric(road, "din_requests_total", code="ok")
    for path, body, headers, words in cases:
        status, raw = send(road.url, "POST", path, body, headers or None)
        assert status == 400, (path, body, raw)
        json.loads(raw)
        for word in words:
            assert word in raw.decode(), (word, raw)
        answers_normally(road)
    after = metric(road, "din_requests_total") - metric(road, "din_requests_total", code="ok")
    assert after - before == len(cases)
    host, port = road.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 5) as sock:
        sock.sendall(b"\x00\x01\x02 nonsense\r\n\r\n")
        assert sock.recv(64).startswith(b"HTTP/1.1 400")
    answers_normally(road)


# Deadlines and clients that go away.


@pytest.fixture(scope="module")
def slow(road: Network) -> tuple[Network, int]:
    """The model `slow` in one slice and `slow-cut` in two, and how many rounds take over 2 s."""
    path = small_models.slow(road.folder / "slow.onnx")
    options = {"threads": "1"}
    for model_id, points in (("slow", ()), ("slow-cut", ("loop",))):
        view = register(
            road, path, model_id, partition_points=points, replicas=1, backend_options=options
        )
        assert view.state == "ready", view.reason
    rounds = 200
    # The quickest of several: a pause of the machine would make the model look slow.
    while (took_s := min(seconds_of(road, rounds) for _ in range(5))) < 0.05:
        rounds *= 2
    return road, int(rounds * 2.5 / took_s)


def seconds_of(road: Network, rounds: int) -> float:
    """How long the model takes for so many rounds."""
    with road.client() as client:
        begin = time.perf_counter()
        client.infer("slow", rounds_of(rounds))
        return time.perf_counter() - begin


def rounds_of(count: int) -> dict[str, np.ndarray]:
    return {"rounds": np.array(count, np.int64)}


@pytest.mark.parametrize("model", ["slow", "slow-cut"])
def test_a_waiting_request_ends_at_its_own_deadline(slow: tuple[Network, int], model: str) -> None:
    """T48: not only when the one before it is done."""
    network, rounds = slow
    first_done = threading.Event()

    def long() -> None:
        with network.client(timeout_ms=60_000) as client:
            client.infer(model, rounds_of(rounds))
        first_done.set()

    first = threading.Thread(target=long)
    first.start()
    wait_for("the first one runs", lambda: metric(network, "din_inflight_requests") >= 1, 10)
    time.sleep(0.1)  # from the gateway to its worker
    with network.client() as client, pytest.raises(DinError) as late:
        client.infer(model, rounds_of(1), timeout_ms=300)
    assert not first_done.is_set(), "it was answered only after the one before it"
    assert isinstance(late.value, DeadlineExceeded), late.value.story()
    first.join()
    assert first_done.is_set()
    with network.client() as client:
        client.infer(model, rounds_of(1))


@pytest.mark.parametrize("model", ["slow", "slow-cut"])
def test_what_nobody_waits_for_is_not_done(slow: tuple[Network, int], model: str) -> None:
    """T49: clients that disconnect take their waiting requests with them, and later slices."""
    network, rounds = slow
    name = {"slow": "slice-0", "slow-cut": "slice-1"}[model]
    done = metric(network, "din_slice_duration_seconds_count", model=model, slice=name)
    sum_done = metric(network, "din_requests_total", model=model, code="cancelled")
    body = {
        "inputs": [{"name": "rounds", "datatype": "INT64", "shape": [], "data": [rounds]}],
        "parameters": {"timeout_ms": 60_000},
    }
    raw = json.dumps(body).encode()
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    host, port = network.url.removeprefix("http://").split(":")
    clients = [socket.create_connection((host, int(port)), 5) for _ in range(6)]
    for client in clients:
        client.sendall(head.encode() + raw)
    wait_for("six are under way", lambda: metric(network, "din_inflight_requests") == 6)
    time.sleep(0.3)  # one of them computes by now
    for client in clients:
        client.close()
    # Six of them would take six times as long as one, which takes longer than all this.
    wait_for(
        "all six are cancelled",
        lambda: (
            metric(network, "din_requests_total", model=model, code="cancelled") == sum_done + 6
        ),
        5,
    )
    with network.client(timeout_ms=20_000) as client:
        begin = time.perf_counter()
        client.infer(model, rounds_of(1))
        assert time.perf_counter() - begin < 10, "cancelled work was done all the same"
    wait_for(
        "nothing is queued",
        lambda: all(node.health.queue_length == 0 for node in network.node_views()),
    )
    after = metric(network, "din_slice_duration_seconds_count", model=model, slice=name)
    assert after == done + 1
