"""`isolate: tenant` with a real gateway, a real node and keys of three tenants."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from din.client import Client
from tests.road.processes import Network, wait_for
from tests.road.small_models import chain
from tests.road.test_keys import made, wait_until_ready

pytestmark = pytest.mark.system


def workers(network: Network) -> set[int]:
    """Processes that hold a slice on the node: children of its agent's child."""
    agent = network.nodes["edge-1"].pid
    return {pid for child in children(agent) for pid in children(child)}


def children(pid: int) -> list[int]:
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:  # it has just ended
        return []
    return [int(each) for each in found.split()]


def ask(network: Network, key: Path) -> str:
    """The tenant whose own workers answered, by the trace."""
    with Client(network.url, key_file=key, timeout_ms=60_000) as asking:
        names = {each.name: each for each in asking.model("small").inputs}
        inputs = {
            name: np.zeros([size if isinstance(size, int) else 1 for size in each.shape or ()],
                           np.float32)
            for name, each in names.items()
        }  # fmt: skip
        answer = asking.infer("small", inputs)
        return asking.trace(answer.request_id).isolated_for


def test_tenants_of_a_shared_model_never_meet_in_a_worker(network: Network, tmp_path: Path) -> None:
    network.start_gateway(require_key=True, isolate="tenant")
    network.start_node("edge-1")
    root = made(network, "root", "--scope", "admin")
    wait_until_ready(network, root)
    keys = {
        name: made(network, name, "--scope", "infer", "--tenant", name, DIN_API_KEY_FILE=str(root))
        for name in ("line-4", "line-5")
    }
    done = network.din(
        "model", "register", str(chain(tmp_path / "small.onnx")), "--model-id", "small",
        "--key-file", str(root),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ask(network, root) == ""
    shared = workers(network)
    assert len(shared) == 1

    assert ask(network, keys["line-4"]) == "line-4"
    first = workers(network) - shared
    assert ask(network, keys["line-5"]) == "line-5"
    second = workers(network) - shared - first
    assert (len(first), len(second)) == (1, 1)
    for key in keys.values():  # they stay warm
        ask(network, key)
    assert workers(network) == shared | first | second

    os.kill(min(second), signal.SIGKILL)
    wait_for(
        "the killed worker is replaced",
        lambda: len(now := workers(network)) == 3 and second.isdisjoint(now),
    )
    assert shared | first < workers(network)
    assert ask(network, keys["line-4"]) == "line-4"
    assert ask(network, keys["line-5"]) == "line-5"

    # They go with their model.
    done = network.din("model", "remove", "small", "--yes", "--key-file", str(root))
    assert done.returncode == 0, done.stderr
    wait_for("all workers end", lambda: not workers(network), 30)
    told = network.din("trace", "list", "-o", "json", "--key-file", str(keys["line-4"]))
    assert {each["isolated_for"] for each in json.loads(told.stdout)["items"]} == {"line-4"}
