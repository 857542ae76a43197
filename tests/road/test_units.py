"""The units of `din service` as they are made, with all that they forbid, on real programs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from din.cli.service_units import Facts, Role, unit_text
from din.client import Client
from din.domain.views import RegisterModel
from din.sandbox.asking import try_sandbox
from tests.road import small_models
from tests.road.manager import Manager
from tests.road.processes import get, wait_for
from tests.strategies import ordered

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
    pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs: make system"),
]
REPOSITORY = Path(__file__).parents[2]
USER = 61_987
"""A number that nobody has."""
X = np.arange(16, dtype=np.float32).reshape(2, 8)
WATCHDOG_S = 2.0
BPF = {"x86_64": 321, "aarch64": 280}
"""Number of a call that no unit allows."""


class Unit:
    """One unit under a manager that is this test."""

    def __init__(self, folder: Path, role: Role) -> None:
        program = str(Path(sys.executable).with_name("din"))
        self.state = folder / "state"
        self.state.mkdir(mode=0o700, exist_ok=True)
        os.chown(self.state, USER, USER)
        self.log_path = folder / f"{role}.log"
        self._unit = folder / f"din-{role}.service"
        self._unit.write_text(unit_text(role, Facts(program, 252)))
        self.manager = Manager()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> int:
        with Path(os.devnull).open("rb") as nothing:
            self.process = self._spawn(nothing)
        told = self._hear("READY")
        assert told == self.process.pid
        return told

    def run_instead(self, command: str, given: Path) -> None:
        """Another command under the same restrictions, to its end."""
        lines = self._unit.read_text().splitlines()
        start = next(each for each in lines if each.startswith("ExecStart="))
        self._unit.write_text("\n".join(lines).replace(start, f"ExecStart={command}"))
        with given.open("rb") as file:
            self.process = self._spawn(file)
        assert self.process.wait(60) == 0, self.log_path.read_text()

    def _spawn(self, given: BinaryIO) -> subprocess.Popen[bytes]:
        variables = json.dumps(self.manager.variables(watchdog_s=WATCHDOG_S))
        here = [str(self._unit), str(self.state), str(REPOSITORY), str(USER), variables]
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__).with_name("restricted.py")), *here],
                env={"PATH": os.environ["PATH"]},
                stdin=given,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _hear(self, key: str) -> int:
        assert self.process is not None
        for _ in range(40):
            try:
                return self.manager.hear(key, seconds=1).pid
            except AssertionError:
                if self.process.poll() is not None:
                    break
        raise AssertionError(f"no {key}\n{self.log_path.read_text()[-3000:]}")

    def lines(self, word: str) -> list[dict[str, Any]]:
        whole = self.log_path.read_text().rpartition("\n")[0]
        return [each for each in map(json.loads, whole.splitlines()) if word in each["event"]]

    def reload(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)
        assert self._hear("RELOADING") == self.process.pid
        self._hear("READY")

    def stand_still(self) -> None:
        """As systemd ends what gives no sign of life: WATCHDOG is missed, SIGABRT comes."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        self.manager.waiting()
        with pytest.raises(AssertionError, match="no WATCHDOG"):
            self.manager.hear("WATCHDOG", seconds=WATCHDOG_S)
        self.process.send_signal(signal.SIGABRT)
        self.process.send_signal(signal.SIGCONT)
        assert self.process.wait(30) == -signal.SIGABRT

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        self.manager.__exit__(None, None, None)


class Service:
    """Gateway and node of one machine, with the settings file and the state that they share."""

    def __init__(self, folder: Path) -> None:
        self.gateway, self.node = Unit(folder, "gateway"), Unit(folder, "node")
        self.url = ""
        self.file = self.gateway.state / ".config" / "din" / "config.yaml"
        self.file.parent.mkdir(parents=True)

    def settings(self, *, port: int = 0, body_bytes_max: int = 1_000_000, line: str = "4") -> None:
        node = f"name: edge-1, port: 0, gateway: '{self.url}', labels: {{line: '{line}'}}"
        node += ", discovery_mode: unicast"
        gateway = f"port: {port}, discovery_mode: unicast, body_bytes_max: {body_bytes_max}"
        self.file.write_text(f"cluster: hall\ngateway: {{{gateway}}}\nnode: {{{node}}}\n")
        for each in (self.file, self.file.parent, self.file.parent.parent):
            os.chown(each, USER, USER)

    def client(self) -> Client:
        return Client(self.url, timeout_ms=30_000)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made.node.close()
    made.gateway.close()


def status_of(pid: int) -> dict[str, str]:
    rows = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: text.strip() for name, _, text in rows}


def check_closed(pid: int) -> None:
    """The kernel says that it holds: user, capabilities, filter."""
    told = status_of(pid)
    assert told["Uid"].split() == [str(USER)] * 4
    assert {int(told[each], 16) for each in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {0}
    assert (told["NoNewPrivs"], told["Seccomp"]) == ("1", "2")


def test_programs_do_all_their_work_inside_what_their_units_forbid(
    service: Service, tmp_path: Path
) -> None:
    service.settings()
    check_closed(service.gateway.start())
    service.url = wait_for("an address", lambda: service.gateway.lines("ready"))[-1]["url"]
    service.settings()
    check_closed(service.node.start())
    told = wait_for("the node tells its sandbox", lambda: service.node.lines("sandbox"))[-1]
    assert told["level"] == try_sandbox().level, told
    path = small_models.chain(tmp_path / "chain.onnx")
    with service.client() as client:
        for name, points in (("whole", ()), ("cut", ("add.0", "add.1"))):
            sha256 = client.upload(path)
            order = ordered(partition_points=points) if points else {}
            client.register(RegisterModel(model_id=name, source_sha256=sha256, **order))
            wait_for(f"{name} is ready", partial(_is_ready, client, name), 60)
            answered = client.infer(name, {"x": X}).outputs["y"]
            np.testing.assert_array_equal(answered, small_models.chain_answer(X))

        service.settings(line="5", body_bytes_max=4096)
        service.gateway.reload()
        service.node.reload()
        wait_for("the node's new label", lambda: _labels(service.url) == {"line": "5"})
        wait_for("it is in the log", lambda: service.gateway.lines("reloaded"))
        assert service.gateway.lines("reloaded")[-1]["changed"] == "body_bytes_max"

        service.node.stand_still()
        service.node.start()
        answered = client.infer("cut", {"x": X}).outputs["y"]
        np.testing.assert_array_equal(answered, small_models.chain_answer(X))
    assert service.node.stop() == 0
    assert service.gateway.stop() == 0


def _is_ready(client: Client, name: str) -> bool:
    view = client.model(name)
    assert view.state != "failed", view.reason
    return view.state == "ready"


def _labels(url: str) -> Any:
    return json.loads(get(url, "/api/v1/nodes/edge-1")[1])["profile"]["labels"]


PROBE = """
import ctypes, errno, json, mmap, os, socket
def tried(act):
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
libc = ctypes.CDLL(None, use_errno=True)
def called(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
print(json.dumps({
    "etc": tried(lambda: open("/etc/din-probe", "w")),
    "program": tried(lambda: open(%(program)r + ".probe", "w")),
    "state": tried(lambda: open("/var/lib/din/probe", "w")),
    "sysctl": tried(lambda: open("/proc/sys/kernel/panic", "w")),
    "temporary": tried(lambda: open("/tmp/probe", "w")),
    "hidden": tried(lambda: os.stat(%(hidden)r)),
    "raw packets": tried(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    "process namespace": tried(lambda: called(libc.unshare(0x20000000))),
    "user namespace": tried(lambda: called(libc.unshare(0x10000000))),
    "bpf": tried(lambda: called(libc.syscall(%(bpf)d, 0, 0, 0))),
    "code": tried(lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC)),
    "set-user-id": tried(lambda: os.chmod("/tmp/probe", 0o4755)),
}))
"""


@pytest.mark.parametrize("role", ["gateway", "node"])
def test_what_units_forbid_is_refused_here_as_well(role: Role, tmp_path: Path) -> None:
    """Otherwise the test above would show nothing."""
    unit = Unit(tmp_path, role)
    hidden = tmp_path / "hidden"
    hidden.touch()
    words = {"program": sys.executable, "hidden": str(hidden), "bpf": BPF[os.uname().machine]}
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE % words)
    unit.run_instead(f"{sys.executable} -I -c 'exec(open(0).read())'", probe)
    allowed = {"state", "temporary", "user namespace"} | ({"code"} if role == "node" else set())
    told = json.loads(unit.log_path.read_text())
    assert {name for name, word in told.items() if word == "done"} == allowed
    assert {told["etc"], told["program"]} == {"EROFS"}
    assert (told["hidden"], told["raw packets"]) == ("ENOENT", "EAFNOSUPPORT")
    unit.close()
