"""Servers of others that a node starts itself, by real runtimes: asked, killed, left over."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from din.config_forms import ContainerSetting, ForeignSetting
from tests.road.asking import asking
from tests.road.processes import Network, wait_for
from tests.road.test_cases import X, chain_is_right
from tests.road.test_foreign import QUICK, register
from tests.runner.images import SERVER, Layout, layer, machine_entries, python_inside

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="containers with a memory limit need root"),
]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        port: int = made.getsockname()[1]
    return port


def layout(folder: Path) -> tuple[Layout, dict[str, str]]:
    entries, mounts = machine_entries()
    server = layer(("srv/server.py", SERVER, "file"))
    words = [python_inside(), "/srv/server.py"]
    made = Layout(folder, [layer(*entries), server], Entrypoint=words, Cmd=["8000"])
    return made, mounts


def setting(tmp_path: Path, port: int, **container: Any) -> ForeignSetting:
    image = tmp_path / "image"
    mounts = layout(image)[1] if not image.exists() else machine_entries()[1]
    models = tmp_path / "models"
    models.mkdir(exist_ok=True)
    models.chmod(0o755)
    (models / "weights").write_text("heavy")
    given: dict[str, Any] = {
        "image": str(image), "mounts": {**mounts, str(models): "/models"},
        "memory_mib": 256, "port": 8000, **container,
    }  # fmt: skip
    return ForeignSetting(url=f"http://127.0.0.1:{port}", container=ContainerSetting(**given))


def servers_with(folder: Path) -> list[int]:
    """Processes of this machine that run our server for this test."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            words = (each / "cmdline").read_bytes().split(b"\0")
            mounts = (each / "mountinfo").read_text() if b"/srv/server.py" in words else ""
        except OSError:
            continue
        if str(folder) in mounts:
            found.append(int(each.name))
    return found


def log_line(network: Network, words: str) -> str:
    lines = [each for each in network.log_of("one").splitlines() if '"container_log"' in each]
    return next((each for each in lines if words in each), "")


def is_found(network: Network) -> bool:
    """The node has told of the server, and of a model that it runs."""
    views = network.node_views()
    return any(each.models for view in views for each in view.foreign if each.is_up)


@pytest.mark.parametrize("runner", ["runc", "crun"])
def test_a_server_in_a_container_answers_dies_and_comes_back(
    network: Network, tmp_path: Path, runner: str
) -> None:
    port = free_port()
    network.start_gateway(**QUICK)
    network.start_node("one", foreign=(setting(tmp_path, port),), runner=runner)
    network.wait_ready("one")
    wait_for("the server was found", lambda: is_found(network), 60)
    register(network, "six", "six")
    with network.client() as client:
        assert chain_is_right(client.infer("six", {"x": X}).outputs)
    shown = network.din("node", "inspect", "one").stdout
    assert f"container: {runner} " in shown, shown
    line = wait_for("its log came", lambda: log_line(network, "seen {"))
    seen = json.loads(json.loads(line)["line"].removeprefix("seen "))
    assert seen == {
        "caps": "0" * 32, "no_new_privs": "1", "seccomp": "2", "uid": "65534",
        "writes": ["/tmp/x", "/run/x"], "networks": ["lo"], "processes": ["1"], "model": "heavy",
        "device": False,
    }  # fmt: skip
    (pid,) = servers_with(tmp_path)
    assert memory_limit(pid) == 256 * 1024 * 1024
    # Requests wait for the next server; one that takes very long to start loses some of them.
    with asking(
        network,
        "six",
        {"x": X},
        chain_is_right,
        clients=1,
        may_fail="died|answer|not ready|deadline",
    ) as clients:
        clients.wait_more(5)
        assert not clients.bad
        os.kill(pid, signal.SIGKILL)
        goal = clients.good + 5
        wait_for("it answers again", lambda: clients.good >= goal, 90)
    wait_for("another one runs", lambda: servers_with(tmp_path) not in ([], [pid]))
    wait_for("its end was told", lambda: "it ended with SIGKILL" in network.log_of("one"))
    network.kill_node("one")
    wait_for("no server is left", lambda: not servers_with(tmp_path))


def memory_limit(pid: int) -> int:
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if names == "memory":
            return int(Path(f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes").read_text())
        if not names and (found := Path(f"/sys/fs/cgroup{path}/memory.max")).exists():
            return int(found.read_text())
    return 0


def test_what_a_killed_keeper_left_is_removed_by_the_next(network: Network, tmp_path: Path) -> None:
    network.start_gateway(**QUICK)
    network.start_node("one", foreign=(setting(tmp_path, free_port()),), runner="runc")
    network.wait_ready("one")
    wait_for("the server was found", lambda: is_found(network), 60)
    (before,) = servers_with(tmp_path)
    keeper = parent_of(parent_of(before))
    assert b"din.runner" in Path(f"/proc/{keeper}/cmdline").read_bytes()
    network.nodes["one"].send_signal(signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)
    network.nodes["one"].wait()
    assert servers_with(tmp_path) == [before], "nobody is left to end it"
    network.restart_node("one")
    wait_for("another one runs", lambda: servers_with(tmp_path) not in ([], [before]), 60)
    wait_for("one alone", lambda: before not in servers_with(tmp_path))
    wait_for("the server is found", lambda: is_found(network), 60)
    network.nodes["one"].send_signal(signal.SIGTERM)
    network.nodes["one"].wait(30)
    assert servers_with(tmp_path) == []


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_what_is_wrong_with_a_container_is_told_and_mended_without_a_restart(
    network: Network, tmp_path: Path
) -> None:
    port = free_port()
    good = setting(tmp_path, port)
    taken = socket.create_server(("127.0.0.1", port))
    network.start_gateway(**QUICK)
    network.start_node("one", foreign=(good,), runner="crun")
    network.wait_ready("one")

    def told(words: str) -> Any:
        return lambda: any(
            words in each.reason for view in network.node_views() for each in view.foreign
        )

    wait_for("the port is told", told(f"port {port} of 127.0.0.1 cannot be listened on"), 60)
    index = tmp_path / "image" / "index.json"
    whole = index.read_text()
    index.unlink()
    wait_for("the index is missed", told(f"{index} cannot be read: No such file"), 60)
    index.write_text(whole)
    taken.close()
    wait_for("the server was found", lambda: is_found(network), 60)
