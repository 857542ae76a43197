"""What bad input gets, through the real command line and real HTTP: status or exit code, the value
that was seen, a hint; and a normal request works afterwards."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from din.domain.tensor import TENSORS_MAX
from din.errors import BadTensor
from tests.road import small_models
from tests.road.processes import Network, fill, get, post_json, send, small_disk, wait_for
from tests.road.test_road import register

pytestmark = pytest.mark.system

GPU_TYPE = "x86_64-cuda11.8-trt8.6"
X = np.arange(16, dtype=np.float32).reshape(2, 8)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """A gateway, a plain node and a declared one, and the model `good`."""
    network = Network(tmp_path_factory.mktemp("bad"))
    try:
        network.start_gateway(body_bytes_max=1024 * 1024)
        network.start_node("plain")
        network.start_node("typed", device_type=GPU_TYPE)
        network.wait_ready("plain", "typed")
        path = small_models.chain(network.folder / "good.onnx")
        view = register(network, path, "good", partition_points=("add.1",))
        assert view.state == "ready", view.reason
        yield network
    finally:
        network.stop()


@pytest.fixture
def network(shared: Network) -> Iterator[Network]:
    """The shared network, which still answers after the test."""
    yield shared
    answers_normally(shared)


def answers_normally(network: Network, model: str = "good") -> None:
    with network.client() as client:
        given = client.infer(model, {"x": X}).outputs["y"]
    np.testing.assert_array_equal(given, small_models.chain_answer(X))


def refused(found: subprocess.CompletedProcess[str], code: int, *words: str) -> str:
    """Exit code, one error with these words, a hint, no traceback, no data."""
    text = found.stderr
    assert found.returncode == code, (found.returncode, text)
    lines = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, text
    assert any(line.startswith("hint: ") and len(line) > 12 for line in text.splitlines()), text
    assert "Traceback" not in text
    assert found.stdout == ""
    for word in words:
        assert word in text, (word, text)
    return text


def strategy(network: Network, content: dict[str, Any]) -> str:
    path = network.folder / "strategy.json"
    path.write_text(json.dumps({"onnx_path": "good.onnx", **content}))
    return str(path)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# Requests.


def test_an_unknown_model_is_named_with_the_nearest(network: Network) -> None:
    refused(network.din("infer", "goood", "--input", __file__), 6, "'goood'", "good")
    refused(network.din("model", "inspect", "nothing-like-it"), 6, "nothing-like-it")
    refused(network.din("model", "remove", "goood", "--yes"), 6, "goood")
    refused(network.din("plan", "goood"), 6, "goood")
    status, body = post_json(network.url, "/infer", {"model_id": "goood", "input_data": "aGk="})
    assert status == 404
    assert body["status"] == "failed"
    assert "goood" in body["error"]["message"]
    assert "good" in body["error"]["hint"]
    status, body = post_json(network.url, "/v2/models/goood/infer", {"inputs": []})
    assert status == 404
    assert "goood" in body["error"]
    status, _ = get(network.url, "/v2/models/goood")
    assert status == 404


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ({"datatype": "FP64", "shape": [1, 8], "data": [0.5] * 8}, ("FP64", "FP32")),
        ({"datatype": "FP32", "shape": [1, 7], "data": [0.5] * 7}, ("[1, 7]", "8")),
        ({"datatype": "FP32", "shape": [8], "data": [0.5] * 8}, ("[8]",)),
        ({"datatype": "FP32", "shape": [1, 8], "data": [0.5] * 5}, ("5", "8")),
        ({"datatype": "FP32", "shape": [-1, 8], "data": [0.5] * 8}, ("-1",)),
        ({"datatype": "FP99", "shape": [1, 8], "data": [0.5] * 8}, ("FP99",)),
        ({"datatype": "FP32", "shape": [1, 8], "data": ["a"] * 8}, ("x",)),
        ({"datatype": "FP32", "shape": [2**40, 2**40], "data": []}, (str(2**40),)),
    ],
)
def test_a_wrong_dtype_or_shape_is_named_with_the_right_one(
    network: Network, tensor: dict[str, Any], words: tuple[str, ...]
) -> None:
    status, body = post_json(
        network.url, "/v2/models/good/infer", {"inputs": [{"name": "x", **tensor}]}
    )
    assert status == 400, body
    for word in words:
        assert word in body["error"]


@pytest.mark.parametrize("points", [(), ("copy",)], ids=["direct", "relay"])
def test_values_that_a_model_cannot_compute_are_refused_by_the_first_node(
    network: Network, points: tuple[str, ...]
) -> None:
    """No other node is asked, since all would say the same, and none is blamed."""
    path = small_models.lookup(network.folder / "lookup.onnx")
    view = register(network, path, "lookup", partition_points=points)
    assert view.state == "ready", view.reason
    table = np.arange(4, dtype=np.float32)
    with network.client() as client:
        with pytest.raises(BadTensor, match="idx=9 must be within") as caught:
            client.infer("lookup", {"table": table, "at": np.array([9])})
        assert "change them" in caught.value.story()
        failed = client.traces().items[0]
        assert (failed.model_id, failed.status, len(failed.attempts)) == ("lookup", "failed", 1)
        found = client.infer("lookup", {"table": table, "at": np.array([2])}).outputs["y"]
        assert found.tolist() == [2.0]
        assert {node.health_score for node in client.nodes().items} == {1.0}
        client.remove("lookup")


def test_a_model_with_a_thousand_inputs_and_outputs_is_answered(network: Network) -> None:
    path = small_models.many(network.folder / "many.onnx", TENSORS_MAX)
    view = register(network, path, "many", partition_points=(f"neg.{TENSORS_MAX - 1}",))
    assert view.state == "ready", view.reason
    inputs = {f"x{n}": np.array([n], np.float32) for n in range(TENSORS_MAX)}
    with network.client() as client:
        outputs = client.infer("many", inputs).outputs
        assert [outputs[f"y{n}"].item() for n in range(TENSORS_MAX)] == [
            n + 1 for n in range(TENSORS_MAX)
        ]
        with pytest.raises(BadTensor, match="and 1007 more") as caught:
            client.infer("many", {"x0": inputs["x0"]})
        assert len(caught.value.story()) < 2000
        client.remove("many")


def test_wrong_tensors_from_the_command_line_exit_with_two(network: Network) -> None:
    path = network.folder / "wrong.npy"
    np.save(path, np.zeros((2, 8), np.float64))
    refused(network.din("infer", "good", "--input", str(path)), 2, "FP64", "FP32")
    np.save(path, np.zeros((2, 9), np.float32))
    refused(network.din("infer", "good", "--input", str(path)), 2, "[2, 9]")
    refused(network.din("infer", "good", "--input", str(network.folder / "no.npy")), 2, "no.npy")


def test_an_oversized_body_is_a_413_and_the_gateway_answers_on(network: Network) -> None:
    big = json.dumps({"model_id": "good", "input_data": "A" * (2 * 1024 * 1024)}).encode()
    status, raw = send(network.url, "POST", "/infer", big)
    body = json.loads(raw)["error"]
    assert status == 413
    assert str(1024 * 1024) in body["message"] + body["hint"]
    assert "din config explain body_bytes_max" in body["hint"]
    # The announced length is enough: nobody has to send it.
    host, port = network.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as sock:
        sock.sendall(
            b"POST /v2/models/good/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Content-Length: 9999999999\r\n\r\n"
        )
        assert sock.recv(4096).startswith(b"HTTP/1.1 413 ")
    # And one whose length nobody knows.
    with socket.create_connection((host, int(port)), 10) as sock:
        sock.sendall(
            b"POST /infer HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        answer = b""
        try:
            for _ in range(64):
                sock.sendall(b"10000\r\n" + b"A" * 0x10000 + b"\r\n")
            answer = sock.recv(4096)
        except OSError:
            answer = answer or b"HTTP/1.1 413 closed"
        assert answer.startswith(b"HTTP/1.1 413 ")
    big_tensor = network.folder / "big.npy"
    np.save(big_tensor, np.zeros((40_000, 8), np.float32))
    refused(network.din("infer", "good", "--input", str(big_tensor)), 2, str(1024 * 1024))


# Registration.


def test_a_broken_file_is_no_model(network: Network) -> None:
    whole = (network.folder / "good.onnx").read_bytes()
    cases = {
        "truncated.onnx": whole[: len(whole) // 2],
        "picture.onnx": b"\xff\xd8\xff\xe0" + bytes(range(256)) * 8,
        "empty.onnx": b"",
        "text.onnx": b"this is not a model, it only looks like a file of one\n" * 20,
    }
    for name, content in cases.items():
        path = network.folder / name
        path.write_bytes(content)
        stem = name.removesuffix(".onnx")
        text = refused(network.din("model", "register", str(path)), 2, "model")
        assert str(network.folder / "gateway") not in text, text
        assert stem not in network.din("model", "list", "-o", "name").stdout.split()
    refused(network.din("model", "register", str(network.folder / "absent.onnx")), 2, "absent.onnx")
    refused(network.din("model", "register", str(network.folder)), 2, str(network.folder))


def test_a_strategy_naming_a_node_that_is_not_in_the_graph_is_refused(network: Network) -> None:
    path = strategy(
        network, {"model_id": "cut", "slicing_strategy": {"partition_points": ["add.11"]}}
    )
    text = refused(network.din("model", "register", "--config", path), 2, "'add.11'")
    assert "add.1" in text.replace("add.11", "")


def test_a_backend_map_that_leaves_nodes_unmapped_lists_them(network: Network) -> None:
    path = strategy(
        network,
        {
            "model_id": "cut",
            "slicing_strategy": {
                "partition_points": ["add.0", "add.1"],
                "backend_map": {"add.0:add.1": "onnxruntime"},
            },
        },
    )
    refused(network.din("model", "register", "--config", path), 2, "add.2")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model_id": "cut", "slicing_strateg": {}}, ("slicing_strateg", "slicing_strategy")),
        ({"slicing_strategy": {}}, ("model_id",)),
        ({"model_id": "cut", "slicing_strategy": {"type": "by_magic"}}, ("by_magic",)),
        ({"model_id": "cut", "inputs": {"z": [1, 8]}}, ("'z'", "x")),
        ({"model_id": "cut", "inputs": {"x": [1, 9]}}, ("add.0",)),
        ({"model_id": "cut", "workers": 0}, ("workers", "0")),
        ({"model_id": "cut", "replicas": -1}, ("replicas", "-1")),
        ({"model_id": "cut", "backend_options": {"optimisation": "sideways"}}, ("sideways",)),
        ({"model_id": "cut", "backend_options": {"no_such": "1"}}, ("no_such",)),
        ({"model_id": "cut", "before": "no-such-adapter"}, ("no-such-adapter", "image")),
        ({"model_id": "a/b\ncut"}, ("a/b",)),
        ({"model_id": ""}, ("model",)),
    ],
)
def test_a_wrong_configuration_names_key_and_value(
    network: Network, content: dict[str, Any], words: tuple[str, ...]
) -> None:
    path = strategy(network, content)
    refused(network.din("model", "register", "--config", path), 2, *words)
    with network.client() as client:
        left = [view for view in client.models().items if view.model_id != "good"]
        # What only the engine can find out leaves a model that says so.
        assert all(view.state == "failed" and view.reason for view in left)
        for view in left:
            client.remove(view.model_id)
    assert len(left) == (content.get("inputs") == {"x": [1, 9]})


def test_no_node_for_a_backend_is_said_in_the_words_of_the_seeds(network: Network) -> None:
    path = strategy(
        network,
        {
            "model_id": "engine",
            "slicing_strategy": {
                "partition_points": ["add.1"],
                "backend_map": {"add.0:add.1": "tensorrt", "add.2:add.2": "onnxruntime"},
            },
        },
    )
    text = refused(network.din("model", "register", "--config", path), 3, "plain", "onnxruntime")
    assert text.splitlines()[0] == "error: no compatible device found for backend tensorrt"
    # It stays registered, and a request for it says the same instead of hanging.
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [0] * 8}]}
    status, answer = post_json(
        network.url, "/v2/models/engine/infer", {**body, "parameters": {"timeout_ms": 300}}
    )
    assert status == 503, answer
    assert "no compatible device found for backend tensorrt" in answer["error"]
    assert network.din("model", "remove", "engine", "--yes").returncode == 0


def test_a_device_type_that_differs_in_one_part_names_part_and_nearest_node(
    network: Network,
) -> None:
    wanted = GPU_TYPE.replace("11.8", "11.7")
    path = strategy(
        network,
        {"model_id": "gpu", "slicing_strategy": {"slices": [{"device_type": wanted}]}},
    )
    text = refused(network.din("model", "register", "--config", path), 3, wanted)
    hint = next(line for line in text.splitlines() if line.startswith("hint: "))
    assert "typed" in hint
    assert "cuda11.7" in hint
    assert "cuda11.8" in hint
    assert "trt8.6" not in hint.partition(": accelerator")[2]
    assert network.din("model", "remove", "gpu", "--yes").returncode == 0


# Starting programs.


def test_a_port_in_use_is_named(network: Network) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        state = ("--state-dir", str(network.folder / "other"))
        refused(network.din("gateway", "start", "--port", port, *state), 7, port)
        refused(network.din("up", "--no-node", "--port", port, *state), 7, port)
        refused(network.din("node", "start", "--name", "n", "--port", port, *state), 7, port)
        refused(
            network.din("node", "start", "--name", "n", "--port", port, "--detach", *state), 7, port
        )


def test_programs_refuse_a_port_that_was_taken_after_the_check(network: Network) -> None:
    """The starter's check is a courtesy: the programs themselves say the same."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        other = Network(network.folder / "raced")
        other.folder.mkdir()
        try:
            with pytest.raises(AssertionError):
                other.start_gateway(port=port, seconds=3)
            assert other.gateway is not None
            assert other.gateway.wait(10) == 7
            assert f"error: port {port}" in other.log_of("gateway")
            assert "hint: " in other.log_of("gateway")
            other.url = network.url
            other.start_node("late", port=port)
            assert other.nodes["late"].wait(10) == 7
            assert str(port) in other.log_of("late")
            assert "hint: " in other.log_of("late")
        finally:
            other.stop()


def test_a_gateway_is_not_plain_and_encrypted_at_once(tmp_path: Path) -> None:
    both = Network(tmp_path)
    try:
        with pytest.raises(AssertionError):
            both.start_gateway(seconds=3, tls=True, tls_port=0, insecure_network=True)
        assert both.gateway is not None
        assert both.gateway.wait(20) == 2
        assert "tls and insecure_network are both on" in both.log_of("gateway")
    finally:
        both.stop()


def test_a_second_gateway_on_the_same_state_directory_is_refused(network: Network) -> None:
    state = network.folder / "gateway"
    before = (state / "gateway.json").read_text()
    words = ("--port", str(free_port()), "--state-dir", str(state))
    assert network.gateway is not None
    pid = str(network.gateway.pid)
    refused(network.din("gateway", "start", *words), 7, str(state), pid)
    refused(network.din("up", "--no-node", *words), 7, str(state), pid)
    assert (state / "gateway.json").read_text() == before


def test_a_second_agent_on_the_same_state_directory_is_refused(network: Network) -> None:
    state = network.folder / "plain"
    words = ("--name", "plain", "--port", "0", "--state-dir", str(state))
    pid = str(network.nodes["plain"].pid)
    refused(network.din("node", "start", *words), 7, str(state), pid)
    refused(network.din("node", "start", "--detach", *words), 7, str(state), pid)
    assert network.statuses()["plain"] == "ready"


def test_two_nodes_of_one_name_both_register_with_a_warning(network: Network) -> None:
    """T08."""
    network.start_node("clone", name="plain", state_dir=str(network.folder / "clone"))
    try:
        clone = wait_for(
            "the clone is ready",
            lambda: next(
                (
                    node
                    for node in network.node_views()
                    if node.name.startswith("plain-") and node.status == "ready"
                ),
                None,
            ),
        )
        assert network.statuses()["plain"] == "ready"
        assert len({node.node_id for node in network.node_views()}) == 3
        with network.client() as client:
            assert any("plain" in text for text in client.node(clone.name).warnings)
        assert "registration_warning" in network.log_of("clone")
        shown = network.din("node", "inspect", clone.name)
        assert shown.returncode == 0
        assert "plain" in shown.stdout
    finally:
        network.kill_node("clone")


@pytest.mark.parametrize("jitter_ms", [60, 700])
def test_a_jitter_outside_the_rule_is_warned_of(network: Network, jitter_ms: int) -> None:
    state = network.folder / f"jitter-{jitter_ms}"
    words = ("--state-dir", str(state), "--discovery-mode", "unicast")
    port = str(free_port())
    up = network.din(
        "up", "--no-node", "--port", port, *words,
        "--node-heartbeat-interval", "3000", "--node-heartbeat-jitter", str(jitter_ms),
    )  # fmt: skip
    try:
        assert up.returncode == 0, up.stderr
        assert "warning" in up.stderr
        assert f"{jitter_ms} ms" in up.stderr
        log = (state / "log" / "gateway.log").read_text()
        assert f"jitter {jitter_ms} ms" in log
        other = Network(network.folder / f"told-{jitter_ms}")
        other.folder.mkdir()
        other.cluster = "default"
        other.url = f"http://127.0.0.1:{port}"
        try:
            other.start_node("told")
            other.wait_ready("told")
            assert f"jitter {jitter_ms} ms" in other.log_of("told")
        finally:
            other.stop()
    finally:
        down = network.din("down", "--state-dir", str(state))
    assert down.returncode == 0


def test_a_cluster_without_nodes_says_so(tmp_path: Path) -> None:
    network = Network(tmp_path)
    try:
        network.start_gateway()
        path = small_models.chain(tmp_path / "good.onnx")
        text = refused(network.din("model", "register", str(path)), 3, "no node has joined")
        assert "din node start" in text
        network.start_node("late")
        with network.client() as client:
            wait_for("it is placed by itself", lambda: client.model("good").state == "ready")
        answers_normally(network)
    finally:
        network.stop()


def test_a_jitter_of_half_the_interval_is_refused(network: Network) -> None:
    found = network.din(
        "up", "--no-node", "--port", "0", "--state-dir", str(network.folder / "never"),
        "--node-heartbeat-interval", "3000", "--node-heartbeat-jitter", "1500",
    )  # fmt: skip
    refused(found, 2, "1500", "3000", "450")


# A full disk.


def test_a_full_disk_of_the_gateway_refuses_and_loses_nothing(tmp_path: Path) -> None:
    network = Network(tmp_path)
    path = small_models.chain(tmp_path / "good.onnx")
    other = small_models.chain(tmp_path / "other.onnx", steps=4)
    large = small_models.filler(tmp_path / "large.onnx", 40)
    with small_disk(tmp_path / "gateway", 100) as disk:
        try:
            network.start_gateway()
            network.start_node("plain")
            network.wait_ready("plain")
            assert register(network, path, "good").state == "ready"
            refused(
                network.din("model", "register", str(large)),
                4,
                str(disk),
                str(large.stat().st_size),
            )
            ballast = fill(disk)
            refused(network.din("model", "register", str(other)), 4, str(disk))
            answers_normally(network)
            removal = network.din("model", "remove", "good", "--yes")
            if removal.returncode:
                refused(removal, 4, "disk")
                answers_normally(network)
            assert network.gateway is not None
            assert network.gateway.poll() is None
            assert network.statuses() == {"plain": "ready"}
            ballast.unlink()
            done = network.din("model", "register", str(other))
            assert done.returncode == 0, done.stderr
            if removal.returncode:
                answers_normally(network)
            assert not list((disk / "artifacts").glob("*.part*"))
        finally:
            network.stop()
        # What was registered before is there after a start as well; a start without room says so.
        ballast = fill(disk)
        try:
            found = network.din(
                "gateway", "start", "--port", "0", "--state-dir", str(disk), seconds=20
            )
            refused(found, 4, str(disk), "space")
            ballast.unlink()
            network.start_gateway()
            network.start_node("plain")
            network.wait_ready("plain")
            with network.client() as client:
                wait_for("other is ready", lambda: client.model("other").state == "ready")
        finally:
            network.stop()


def test_a_full_disk_of_a_node_refuses_and_recovers(tmp_path: Path) -> None:
    network = Network(tmp_path)
    path = small_models.chain(tmp_path / "good.onnx")
    other = small_models.chain(tmp_path / "other.onnx", steps=4)
    with small_disk(tmp_path / "plain", 80) as disk:
        try:
            ballast = fill(disk)
            found = network.din(
                "node", "start", "--name", "plain", "--port", "0", "--state-dir", str(disk)
            )
            refused(found, 4, str(disk), "space")
            ballast.unlink()
            network.start_gateway()
            network.start_node("plain")
            network.wait_ready("plain")
            assert register(network, path, "good").state == "ready"
            ballast = fill(disk)
            text = refused(network.din("model", "register", str(other)), 4, "plain", str(disk))
            assert "free some space on the node" in text
            answers_normally(network)
            assert network.nodes["plain"].poll() is None
            ballast.unlink()
            with network.client() as client:
                wait_for("other is ready", lambda: client.model("other").state == "ready", 40)
                given = client.infer("other", {"x": X}).outputs["y"]
            np.testing.assert_array_equal(given, small_models.chain_answer(X, 4))
        finally:
            network.stop()
