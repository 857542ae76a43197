"""A whole network of real processes for tests: own cluster, free ports, all stopped at the end."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
        self.gateway_config = GatewayConfig()

    def start_gateway(self, **settings: Any) -> None:
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

        self.url = wait_for("the gateway answers", answers)

    def start_node(self, name: str, **settings: Any) -> None:
        self.configs[name] = NodeConfig(
            **{
                "name": name,
                "port": 0,
                "cluster": self.cluster,
                "discovery_mode": "unicast",
                "gateway": (self.url,),
                "state_dir": str(self.folder / name),
                **settings,
            }
        )
        self.restart_node(name)

    def restart_node(self, name: str) -> None:
        self.nodes[name] = self._spawn("din.agent", self.configs[name], name)

    def kill_node(self, name: str) -> None:
        self.nodes[name].send_signal(signal.SIGKILL)
        self.nodes[name].wait()

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
                [sys.executable, "-m", module],
                env={**ENVIRONMENT, HANDOVER_VARIABLE: encode_config(config)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
