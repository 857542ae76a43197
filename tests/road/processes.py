"""A whole network of real processes for tests: own cluster, free ports, all stopped at the end."""

from __future__ import annotations

import errno
import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from din.client import Client
from din.config import HANDOVER_VARIABLE, GatewayConfig, NodeConfig, encode_config

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("DIN_")},
    "ORT_DISABLE_TELEMETRY": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}


def wait_for(what: str, ready: Callable[[], Any], seconds: float = 20) -> Any:
    end = time.monotonic() + seconds
    while True:
        found = ready()
        if found:
            return found
        if time.monotonic() > end:
            message = f"not within {seconds} s: {what}"
            raise AssertionError(message)
        time.sleep(0.05)


class Network:
    """One gateway and its nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = f"test-{secrets.token_hex(4)}"
        self.url = ""
        self.gateway: subprocess.Popen[bytes] | None = None
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.configs: dict[str, NodeConfig] = {}
        self.wrappers: dict[str, list[str]] = {}
        """Words before the command of a program, by its key."""
        self.gateway_config = GatewayConfig()

    def start_gateway(self, seconds: float = 20, **settings: Any) -> None:
        state = self.folder / "gateway"
        self.gateway_config = GatewayConfig(
            **{"port": 0, "cluster": self.cluster, "state_dir": str(state), **settings}
        )
        self.gateway = self._spawn("din.bootstrap.gateway", self.gateway_config, "gateway")
        facts = state / "gateway.json"
        pid = self.gateway.pid

        def answers() -> str:
            if not facts.exists():
                return ""
            read = json.loads(facts.read_text())
            return read["url"] if read["pid"] == pid else ""

        self.url = wait_for("the gateway answers", answers, seconds)

    def start_node(self, key: str, **settings: Any) -> None:
        """Start a node under a key of the test; its name is the same unless `name` is given."""
        self.configs[key] = NodeConfig(
            **{
                "name": key,
                "port": 0,
                "cluster": self.cluster,
                "discovery_mode": "unicast",
                "gateway": (self.url,),
                "state_dir": str(self.folder / key),
                **settings,
            }
        )
        self.restart_node(key)

    def restart_node(self, name: str) -> None:
        self.nodes[name] = self._spawn("din.agent", self.configs[name], name)

    def kill_node(self, name: str) -> None:
        self.nodes[name].send_signal(signal.SIGKILL)
        self.nodes[name].wait()

    def din(
        self, *words: str, seconds: float = 60, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """The real command line, in a home of its own, asking this gateway."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        own = {
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "DIN_GATEWAY": self.url,
            "COLUMNS": "200",
        }
        return subprocess.run(
            [str(Path(sys.executable).with_name("din")), *words],
            env={**ENVIRONMENT, **own, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def log_of(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def client(self, timeout_ms: int = 30_000) -> Client:
        return Client(self.url, timeout_ms=timeout_ms)

    def node_views(self) -> list[Any]:
        with self.client() as client:
            return list(client.nodes().items)

    def statuses(self) -> dict[str, str]:
        return {node.name: node.status for node in self.node_views()}

    def wait_ready(self, *names: str, seconds: float = 30) -> None:
        def all_ready() -> bool:
            statuses = self.statuses()
            return all(statuses.get(name) == "ready" for name in names)

        try:
            wait_for(f"nodes {names} are ready", all_ready, seconds)
        except AssertionError as fault:
            raise AssertionError(f"{fault}; seen {self.statuses()}\n{self.logs()}") from None

    def logs(self, lines: int = 15) -> str:
        found = []
        for path in sorted(self.folder.glob("*.log")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            found.append(f"-- {path.name}\n" + "\n".join(tail))
        return "\n".join(found)

    def stop(self) -> None:
        processes = [*self.nodes.values(), *([self.gateway] if self.gateway else [])]
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _spawn(self, module: str, config: Any, name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*self.wrappers.get(name, ()), sys.executable, "-m", module],
                env={**ENVIRONMENT, HANDOVER_VARIABLE: encode_config(config)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


def get(url: str, path: str, seconds: float = 30) -> tuple[int, bytes]:
    """Status and body of a GET, errors included."""
    return send(url, "GET", path, b"", {}, seconds)


def send(
    url: str,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str] | None = None,
    seconds: float = 30,
) -> tuple[int, bytes]:
    """Status and body of any request, errors included."""
    host = url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=seconds)
    try:
        connection.request(method, path, body, headers or {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def post_json(url: str, path: str, body: object, seconds: float = 30) -> tuple[int, Any]:
    """Status and decoded body of a JSON post."""
    status, raw = send(url, "POST", path, json.dumps(body).encode(), None, seconds)
    return status, json.loads(raw)


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """A file system of so many MiB mounted there; skips where mounting is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "din-test", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Write zeros until the disk is full; remove the returned file to make room."""
    path = folder / "ballast"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        while os.write(descriptor, bytes(65536)):
            pass
    except OSError as fault:
        if fault.errno != errno.ENOSPC:
            raise
    finally:
        os.close(descriptor)
    return path
