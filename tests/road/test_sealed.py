"""A model that must not lie about: sealed on every disk, its ends on trusted nodes only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from din.client import Client
from din.gateway.trust.vault import Vault
from din.transport.membership import EnrolOrder
from din.trust.grants import data_key_of
from din.trust.sealing import open_sealed, parse_header
from din.trust.signing import check_signature
from din.unseal.opening import trusted_in
from tests.road.processes import Network, post_json, wait_for
from tests.road.small_models import FLOAT, helper, save
from tests.vault_files import Home

pytestmark = pytest.mark.system
MARKER = b"a-weight-that-nobody-may-read"
POINTS = ("add.0", "add.1")


def marked_chain(path: Path) -> Path:
    """x [1, n] plus three rows of weights; each row is the marker's bytes as numbers."""
    row = np.frombuffer(MARKER.ljust(32, b"."), np.float32)
    names = ["x", "t0", "t1", "y"]
    nodes, weights = [], []
    for number in range(3):
        weights.append(
            helper.make_tensor(f"w{number}", FLOAT, [1, len(row)], row.tobytes(), raw=True)
        )
        inputs = [names[number], f"w{number}"]
        nodes.append(helper.make_node("Add", inputs, [names[number + 1]], name=f"add.{number}"))
    shape = [1, len(row)]
    return save(
        path,
        nodes,
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, shape)],
        weights,
    )


def config_of(folder: Path, **more: object) -> str:
    marked_chain(folder / "model.onnx")
    strategy = {"partition_points": POINTS, "private": "first-last"}
    config = {"model_id": "secret", "onnx_path": "model.onnx", "slicing_strategy": strategy, **more}
    path = folder / "secret.json"
    path.write_text(json.dumps(config))
    return str(path)


def files_with_marker(folder: Path) -> list[Path]:
    files = [each for each in folder.rglob("*") if each.is_file()]
    return [each for each in files if MARKER in each.read_bytes()]


def test_a_sealed_model_answers_and_no_disk_holds_a_weight_of_it(network: Network) -> None:
    network.start_gateway(slice_lease_ms=3_600_000)
    network.start_node("home", labels={"trust": "high"})
    network.start_node("away")
    network.wait_ready("home", "away")
    uploads = network.folder / "uploads"
    uploads.mkdir()
    done = network.din("model", "register", "--config", config_of(uploads, encrypt=True))
    assert done.returncode == 0, done.stderr + network.logs()
    with network.client() as client:
        view = client.model("secret")
        for part in view.slices:
            assert part.is_sealed
            nodes = {each.node for each in part.replicas}
            assert nodes <= {"home"} if part.is_sensitive else nodes
        assert [part.is_sensitive for part in view.slices] == [True, False, True]
        x = np.zeros((1, 8), np.float32)
        answer = client.infer("secret", {"x": x}).outputs["y"]
    row = np.frombuffer(MARKER.ljust(32, b"."), np.float32)
    assert np.array_equal(answer, x + row + row + row)
    for name in ("gateway", "home", "away"):
        assert files_with_marker(network.folder / name) == [], name
    key = network.folder / "gateway" / "trust" / "sealing.key"
    assert key.stat().st_mode & 0o777 == 0o600
    planned = network.din("plan", "secret")
    assert "trust" in planned.stdout
    assert "sensitive slices" in planned.stderr


def test_an_upload_alone_is_sealed_when_it_says_so_or_machines_may_join(network: Network) -> None:
    uploads = network.folder / "uploads"
    uploads.mkdir()
    model = marked_chain(uploads / "model.onnx")
    network.start_gateway()
    with network.client() as client:
        sha256 = client.upload(model, encrypt=True)
    assert files_with_marker(network.folder / "gateway") == []
    network.stop()
    network.start_gateway(tls=True, tls_port=0)
    artifacts = network.folder / "gateway" / "artifacts"
    wait_for("what no model uses is gone", lambda: not list(artifacts.iterdir()))
    with network.client() as client:
        assert client.upload(model) == sha256
        assert [each.name for each in artifacts.iterdir()] == [f"{sha256}.sealed"]
        assert files_with_marker(network.folder / "gateway") == []


def test_without_a_trusted_node_the_model_waits_and_says_what_is_missing(network: Network) -> None:
    network.start_gateway()
    network.start_node("away", labels={"trust": "low"})
    network.wait_ready("away")
    uploads = network.folder / "uploads"
    uploads.mkdir()
    done = network.din("model", "register", "--config", config_of(uploads), seconds=120)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "trust: high" in done.stderr
    assert "din node label" in done.stderr
    network.start_node("home")
    network.wait_ready("home")
    labelled = network.din("node", "label", "home", "trust=high")
    assert (labelled.returncode, "trust=high" in labelled.stderr) == (0, True), labelled.stderr
    with network.client() as client:
        wait_for("it is placed", lambda: client.model("secret").state == "ready", 60)
        the_middle_is_elsewhere(network, client)
        network.din("node", "label", "home", "trust-")
        wait_for("it left", lambda: not client.node("home").slices, 60)
        assert client.model("secret").state == "degraded"


def the_middle_is_elsewhere(network: Network, client: Client) -> None:
    """What others may hold leaves the node at home, the ends never do, and the plan says so."""
    drained = network.din("node", "drain", "home")
    assert drained.returncode == 3, drained.stdout + drained.stderr
    away = [set(), {"away"}, set()]
    wait_for("the middle has moved", lambda: [
        {each.node for each in part.replicas} - {"home"} for part in client.model("secret").slices
    ] == away, 60)  # fmt: skip
    plan = network.din("plan", "secret")
    for words in ("trust: low", "trust: high", "the sensitive slices"):
        assert words in plan.stdout + plan.stderr
    x = np.zeros((1, 8), np.float32)
    answer = wait_for("it answers so", lambda: client.infer("secret", {"x": x}), 30)
    assert [each.node for each in answer.execution_trace] == ["home", "away", "home"]
    row = np.frombuffer(MARKER.ljust(32, b"."), np.float32)
    np.testing.assert_array_equal(answer.outputs["y"][0], x[0] + row + row + row)
    undrained = network.din("node", "undrain", "home")
    assert undrained.returncode == 0, undrained.stderr


def test_a_machine_that_joins_believes_this_gateways_signature_and_takes_its_grants(
    network: Network, tmp_path: Path
) -> None:
    network.start_gateway(tls=True, tls_port=0)
    status, token = post_json(network.url, "/api/v1/trust/tokens", {"labels": {"trust": "high"}})
    assert status == 201
    trust = tmp_path / "node" / "trust"
    trust.mkdir(mode=0o700, parents=True)
    order = EnrolOrder(
        folder=str(trust),
        gateways=tuple(token["gateways"]),
        token=token["token"],
        node_id="a1" * 8,
        name="far",
    )
    done = subprocess.run(
        [sys.executable, "-m", "din.enrol", "join"],
        input=msgspec.json.encode(order),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    trusted = trusted_in(trust)
    assert trusted.signing_key is not None
    assert trusted.node_key is not None
    vault = Vault(network.folder / "gateway" / "trust", is_signing=True)
    check_signature(trusted.signing_key, b"{}", vault.sign(b"{}"))
    home = Home(network.folder / "gateway" / "trust")
    data, _ = home.seal(MARKER)
    grant = home.grant(data, trusted.node_key.public_key())
    assert open_sealed(data, data_key_of(grant, parse_header(data), trusted.node_key)) == MARKER
