"""The demo's gateway and nodes: real processes, free ports, an own cluster, stopped at the end.

With TLS the gateway has an authority, its plain port does nothing for programs, every node joins
by a token, and the Unix sockets by which programs of one user on one machine would reach each
other are taken away, so that all go by mutual TLS as between machines.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import din

BIN = Path(sys.executable).parent / "din"
TOLD = ("DIN_GATEWAY", "DIN_API_KEY_FILE", "DIN_CA_FILE")
"""What programs are told; nodes find the gateway by themselves, and have certificates."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Network:
    """One gateway with its nodes."""

    def __init__(self, state: Path, *, is_tls: bool) -> None:
        self.cluster = f"demo-{secrets.token_hex(3)}"
        self.is_tls = is_tls
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.state = state
        self.authority = state / "trust" / "ca.pem"
        self.key_file = state / "demo.key"
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.commands: dict[str, list[str]] = {}
        self.tokens: list[str] = []
        self.environment = {**os.environ, "DIN_GATEWAY": self.url}

    def din(self, *words: str, may_fail: bool = False, given: str = "") -> str:
        """What a command says; `given` on its standard input."""
        done = subprocess.run(
            [str(BIN), *words],
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0 and not may_fail:
            print(done.stdout + done.stderr, file=sys.stderr)
            message = f"din {' '.join(words)} ended with {done.returncode}"
            raise RuntimeError(message)
        return done.stdout + (done.stderr if may_fail else "")

    def up(self, *more: str) -> None:
        words = ["up", "--no-node", "--port", str(self.port), "--cluster", self.cluster,
                 "--state-dir", str(self.state)]  # fmt: skip
        if not self.is_tls:
            print(self.din(*words, *more).rstrip())
            return
        tls_port = free_port()
        self.din(*words, "--tls", "--tls-port", str(tls_port), "--require-key", *more)
        self.din("key", "create", "demo", "--scope", "admin", "--expires", "1h",
                 "--save", str(self.key_file))  # fmt: skip
        self.url = f"https://127.0.0.1:{tls_port}"
        print(self.url)
        for name, value in zip(TOLD, (self.url, self.key_file, self.authority), strict=True):
            self.environment[name] = str(value)
        remove_sockets(self.facts()["links"])

    def facts(self) -> dict[str, Any]:
        return json.loads((self.state / "gateway.json").read_text())

    def client(self, timeout_ms: int = 30_000) -> din.Client:
        if not self.is_tls:
            return din.Client(self.url, timeout_ms=timeout_ms)
        return din.Client(
            self.url, timeout_ms=timeout_ms, key_file=self.key_file, ca_file=self.authority
        )

    def ask(self, path: str, body: bytes | None = None) -> bytes:
        """The answer of plain HTTP, as curl would get it; a POST when there is a body."""
        request = urllib.request.Request(f"{self.url}{path}", body)
        request.add_header("Content-Type", "application/json")
        context = None
        if self.is_tls:
            request.add_header("Authorization", f"Bearer {self.key_file.read_text().strip()}")
            context = ssl.create_default_context(cafile=str(self.authority))
            context.check_hostname = False  # certificates name a role in a cluster, not an address
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.read()

    def start_node(self, name: str, *more: str) -> None:
        folder = self.state / "nodes" / name
        if self.is_tls:
            self.join(name, folder)
        self.commands[name] = [
            str(BIN), "node", "start", "--name", name, "--port", str(free_port()),
            "--cluster", self.cluster, "--state-dir", str(folder), *more,
        ]  # fmt: skip
        self.restart_node(name)

    def join(self, name: str, folder: Path) -> None:
        token = self.din("token", "create").strip()
        self.tokens.append(token)
        self.din("node", "join", "-", "--name", name, "--gateway", self.url,
                 "--state-dir", str(folder), given=token)  # fmt: skip

    def restart_node(self, name: str) -> None:
        environment = {k: v for k, v in self.environment.items() if k not in TOLD}
        with self.log_of(name).open("ab") as log:
            self.nodes[name] = subprocess.Popen(self.commands[name], env=environment, stderr=log)

    def log_of(self, name: str) -> Path:
        return self.state / f"{name}.log"

    def wait_ready(self, count: int, seconds: float = 30) -> list[dict[str, Any]]:
        end = time.monotonic() + seconds
        while True:
            items = json.loads(self.din("node", "list", "-o", "json"))["items"]
            ready = [item for item in items if item["status"] == "ready"]
            if len(ready) >= count:
                break
            if time.monotonic() > end:
                message = f"only {len(ready)} of {count} nodes are ready after {seconds} s: {items}"
                raise RuntimeError(message)
            time.sleep(0.2)
        if self.is_tls:
            self.hide_sockets()
        return ready

    def hide_sockets(self) -> None:
        with self.client() as client:
            for node in client.nodes().items:
                profile = client.node(node.node_id).profile
                if profile is not None:
                    remove_sockets(profile.addresses)

    def wait_measured(self, seconds: float = 10) -> list[dict[str, Any]]:
        """Heartbeats begin at a random moment of the first interval, so that fleets do not beat
        together: the first figures take up to three seconds."""
        end = time.monotonic() + seconds
        while True:
            items = json.loads(self.din("node", "list", "-o", "json"))["items"]
            if all(i["health"]["memory_mib_free"] for i in items) or time.monotonic() > end:
                return items
            time.sleep(0.2)

    def kill_node(self, name: str) -> None:
        self.nodes[name].send_signal(signal.SIGKILL)
        self.nodes[name].wait()

    def down(self) -> None:
        for process in self.nodes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.nodes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(12)
            if process.poll() is None:
                process.kill()
                process.wait()
        self.din("down", "--state-dir", str(self.state), may_fail=True)

    # What somebody in the network meets.

    def port_of_links(self) -> int:
        tcp = next(each for each in self.facts()["links"] if each.startswith("tcp:"))
        return int(tcp.rpartition(":")[2])

    def port_of_tls(self) -> int:
        return urlsplit(self.url).port or 0


def remove_sockets(addresses: list[str] | tuple[str, ...]) -> None:
    for each in addresses:
        if each.startswith("unix:"):
            Path(each.removeprefix("unix:")).unlink(missing_ok=True)


def heard_from(port: int, said: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """What a stranger hears who says something to a port, in plain text or by TLS."""
    try:
        with contextlib.closing(socket.create_connection(("127.0.0.1", port), 5)) as plain:
            wrapped = context.wrap_socket(plain) if context is not None else plain
            with contextlib.closing(wrapped) as sock:
                sock.sendall(said)
                return sock.recv(4096)
    except OSError:
        return b""


@contextlib.contextmanager
def network(state: Path, *, is_tls: bool) -> Iterator[Network]:
    made = Network(state, is_tls=is_tls)
    made.state.mkdir(parents=True, mode=0o700)
    try:
        yield made
    finally:
        made.down()
