"""Keys, refusals and the audit log with a real gateway, a real node and the real command line."""

from __future__ import annotations

import http.client
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from din.client import Client
from din.errors import Denied, NotFound, Unauthenticated
from tests.road.processes import Network
from tests.road.small_models import chain

pytestmark = pytest.mark.system


def made(network: Network, name: str, *words: str, **env: str) -> Path:
    """A new key in a file."""
    path = network.folder / f"{name}.key"
    done = network.din("key", "create", name, *words, "--save", str(path), env=env)
    assert done.returncode == 0, done.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    return path


def status_of(network: Network, path: str, headers: dict[str, str] | None = None) -> int:
    connection = http.client.HTTPConnection(urlsplit(network.url).netloc, timeout=20)
    try:
        connection.request("GET", path, headers=headers or {})
        return connection.getresponse().status
    finally:
        connection.close()


def audit(network: Network, key: Path, *words: str) -> list[dict[str, Any]]:
    done = network.din("audit", "list", *words, "-o", "json", "--key-file", str(key))
    assert done.returncode == 0, done.stderr
    return [each["entry"] for each in json.loads(done.stdout)["items"]]


def test_a_gateway_that_asks_for_keys_lets_in_whom_they_name(
    network: Network, tmp_path: Path
) -> None:
    network.start_gateway(require_key=True)
    network.start_node("edge-1")
    refused = network.din("model", "list")
    assert (refused.returncode, "DIN_API_KEY" in refused.stderr) == (8, True)

    root = made(network, "root", "--scope", "admin")
    again = network.din("key", "create", "second", "--scope", "admin")
    assert again.returncode == 8
    wait_until_ready(network, root)
    # Nodes show no key, so other users of the machine must not be able to link theirs.
    facts = json.loads((network.folder / "gateway" / "gateway.json").read_text())
    assert [each.partition(":")[0] for each in facts["links"]] == ["unix"]

    model = chain(tmp_path / "small.onnx")
    writer = made(
        network, "writer", "--scope", "models:write", "--scope", "infer", "--tenant", "line-4",
        DIN_API_KEY_FILE=str(root),
    )  # fmt: skip
    done = network.din(
        "model", "register", str(model), "--model-id", "small", "--key-file", str(writer)
    )
    assert done.returncode == 0, done.stderr

    with client(network, writer) as mine:
        assert mine.model("small").tenant == "line-4"
        assert [each.model_id for each in mine.models().items] == ["small"]
        with pytest.raises(Denied, match="nodes:write"):
            mine.drain("edge-1")
    other = made(network, "other", "--scope", "infer", DIN_API_KEY_FILE=str(root))
    with client(network, other) as theirs:
        assert theirs.models().items == ()
        with pytest.raises(NotFound, match="'small'"):
            theirs.model("small")

    with client(network, other) as open_one:
        assert open_one.models().items == ()
        done = network.din("key", "revoke", "other", "--key-file", str(root))
        assert done.returncode == 0, done.stderr
        with pytest.raises(Unauthenticated, match="revoked"):
            open_one.models()

    check_the_log(network, root)


def client(network: Network, key: Path) -> Client:
    return Client(network.url, key_file=key)


def wait_until_ready(network: Network, key: Path) -> None:
    from tests.road.processes import wait_for

    def is_ready() -> bool:
        with client(network, key) as asking:
            return [each.status for each in asking.nodes().items] == ["ready"]

    wait_for("the node is ready", is_ready, 30)


def check_the_log(network: Network, root: Path) -> None:
    """After the story above: everything is there, nothing secret is, and harm is found."""
    told = [each["what"] for each in audit(network, root)]
    for what in ("gateway.start", "key.create", "key.revoke", "model.register", "node.join"):
        assert what in told
    (registered,) = audit(network, root, "--what", "model.register")
    assert (registered["kind"], registered["tenant"]) == ("key", "line-4")
    assert registered["address"] == "127.0.0.1"
    refused = audit(network, root, "--what", "access.refuse", "--since", "10m")
    assert {"missing", "scope", "revoked"} <= {each["outcome"] for each in refused}
    assert network.din("audit", "verify", "--key-file", str(root)).returncode == 0
    check_no_secret(network)

    folder = network.folder / "gateway" / "audit"
    (path,) = folder.glob("*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[2:]))
    done = network.din("audit", "verify", "--key-file", str(root))
    assert (done.returncode, "not whole" in done.stderr) == (7, True)


def check_no_secret(network: Network) -> None:
    """No secret of any key in anything that the gateway wrote, its log included."""
    secrets = [each.read_text().strip().partition(".")[2] for each in network.folder.glob("*.key")]
    assert len(secrets) == 3
    written = [*(network.folder / "gateway").rglob("*"), *network.folder.glob("*.log")]
    for path in written:
        if path.is_file():
            data = path.read_bytes()
            assert not [each for each in secrets if each.encode() in data], path


def test_keys_outlive_a_restart_and_guesses_are_slowed(network: Network) -> None:
    network.start_gateway()
    key = made(network, "watch", "--scope", "metrics:read").read_text().strip()
    shown = {"Authorization": f"Bearer {key}"}
    wrong = {"Authorization": f"Bearer {key[:-1]}{'A' if key[-1] != 'A' else 'B'}"}
    assert status_of(network, "/api/v1/nodes", shown) == 200
    statuses = [status_of(network, "/api/v1/nodes", wrong) for _ in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert status_of(network, "/api/v1/nodes", shown) == 200

    restart(network)
    assert status_of(network, "/api/v1/nodes", shown) == 200
    assert status_of(network, "/api/v1/keys", shown) == 403
    connection = http.client.HTTPConnection(urlsplit(network.url).netloc, timeout=20)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    assert 'din_auth_failures_total{reason="scope"} 1.0' in text


def restart(network: Network) -> None:
    assert network.gateway is not None
    network.gateway.terminate()
    network.gateway.wait(20)
    network.start_gateway()


def test_a_gateway_whose_audit_log_cannot_be_written_serves_and_changes_nothing(
    network: Network,
) -> None:
    network.start_gateway()
    folder = network.folder / "gateway" / "audit"
    assert network.gateway is not None
    network.gateway.terminate()
    network.gateway.wait(20)
    folder.rename(folder.with_name("audit.away"))
    folder.write_text("a file is in the way")
    network.start_gateway()
    done = network.din("key", "create", "ci", "--scope", "infer")
    assert (done.returncode, "audit log" in done.stderr) == (4, True)
    assert network.din("key", "list", "-o", "name").stdout == ""
    assert status_of(network, "/v2/health/ready") == 200
    assert network.din("model", "list").returncode == 0


def test_a_key_is_in_no_command_line(network: Network) -> None:
    """What other users of the machine can read."""
    network.start_gateway()
    key = made(network, "ci", "--scope", "admin").read_text().strip()
    assert network.gateway is not None
    for pid in (network.gateway.pid, os.getpid()):
        assert key.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    words = network.din("key", "list", "--help").stdout
    assert "--key-file" in words
    assert "--key " not in words


def test_a_key_works_over_tls_with_the_authority_of_the_cluster(network: Network) -> None:
    network.start_gateway(tls=True, tls_port=0, host="127.0.0.1")
    state = network.folder / "gateway"
    (url, *_) = json.loads((state / "gateway.json").read_text())["tls_urls"]
    key = made(network, "watch", "--scope", "metrics:read")
    ca_file = str(state / "trust" / "ca.pem")
    there = ("--gateway", url, "--ca", ca_file)
    assert network.din("node", "list", *there, "--key-file", str(key)).returncode == 0
    refused = network.din("node", "list", *there)
    assert (refused.returncode, "API key" in refused.stderr) == (8, True)
    unknown = network.din("node", "list", "--gateway", url, "--key-file", str(key))
    assert (unknown.returncode, "--ca" in unknown.stderr) == (8, True)
    wrong = network.din("key", "create", "x", "--scope", "admin", *there)
    assert wrong.returncode == 8
