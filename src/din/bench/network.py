"""A gateway and nodes as real processes: own cluster, free ports, all stopped at the end."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec
import psutil

from din.client.client import Client
from din.config import HANDOVER_VARIABLE, GatewayConfig, NodeConfig, encode_config
from din.domain.views import RegisterModel
from din.errors import Unavailable

START_S_MAX: Final = 30.0
STOP_S_MAX: Final = 15.0
POLL_S: Final = 0.01
TIMEOUT_MS: Final = 20_000
MEMBER_PROGRAM, GATEWAY_PROGRAM = "din.agent", "din.bootstrap.gateway"

Found = TypeVar("Found")


def wait_for(what: str, look: Callable[[], Found | None], seconds: float = START_S_MAX) -> Found:
    """What `look` finds, asked again and again. Raises Unavailable after the time."""
    end = time.monotonic() + seconds
    while (found := look()) is None:
        if time.monotonic() > end:
            raise Unavailable(f"{what} did not happen within {seconds:g} s")
        time.sleep(POLL_S)
    return found


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Network:
    """One gateway and its nodes in a folder of their own; a context manager."""

    def __init__(self, **gateway_settings: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="din-bench-"))
        self.url = ""
        self.gateway: subprocess.Popen[bytes] | None = None
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.cluster = f"bench-{secrets.token_hex(4)}"
        settings: dict[str, Any] = {
            "port": 0,
            "cluster": self.cluster,
            "discovery_mode": "unicast",
            "state_dir": str(self.folder / "gateway"),
            **gateway_settings,
        }
        self._gateway_config = GatewayConfig(**settings)
        self._node_configs: dict[str, NodeConfig] = {}

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_gateway(self) -> None:
        """Start it and wait until it answers. Raises Unavailable with the end of its log."""
        self.launch_gateway()
        facts = Path(self._gateway_config.state_dir) / "gateway.json"
        gateway = self.gateway
        assert gateway is not None

        def told() -> str | None:
            self._check_alive()
            if not facts.exists():
                return None
            said = msgspec.json.decode(facts.read_bytes())
            return said["url"] if said["pid"] == gateway.pid else None

        self.url = wait_for("the gateway's start", told)

    def launch_gateway(self) -> None:
        """Start the process without waiting."""
        self.gateway = self._spawn(GATEWAY_PROGRAM, encode_config(self._gateway_config), "gateway")

    def start_node(self, name: str, **settings: Any) -> None:
        """Start a node that knows where its gateway is; without waiting."""
        known: dict[str, Any] = {
            "name": name,
            "port": 0,
            "cluster": self.cluster,
            "discovery_mode": "unicast",
            "gateway": (self.url,),
            "state_dir": str(self.folder / name),
            **settings,
        }
        self._node_configs[name] = NodeConfig(**known)
        self.launch_node(name)

    def launch_node(self, name: str) -> None:
        """Start the process of a known node again."""
        config = encode_config(self._node_configs[name])
        self.nodes[name] = self._spawn(MEMBER_PROGRAM, config, name)

    def wait_nodes(self) -> None:
        """Until every node is ready. Raises Unavailable."""

        def ready() -> bool | None:
            self._check_alive()
            with self.client() as client:
                items = client.nodes().items
            names = {item.name for item in items if item.status == "ready"}
            return True if names >= set(self.nodes) else None

        wait_for(f"that {', '.join(self.nodes)} are ready", ready)

    def register(self, path: Path, model_id: str, **order: Any) -> None:
        """Register a model and wait until it is ready. Raises DinError."""
        with self.client() as client:
            sha256 = client.upload(path)
            client.register(RegisterModel(model_id=model_id, source_sha256=sha256, **order))

            def ready() -> bool | None:
                self._check_alive()
                view = client.model(model_id)
                if view.state == "failed":
                    raise Unavailable(f"model {model_id} failed: {view.reason}")
                return True if view.state == "ready" else None

            wait_for(f"that model {model_id} is ready", ready)

    def client(self) -> Client:
        """A client of this gateway."""
        return Client(self.url, timeout_ms=TIMEOUT_MS)

    def processes(self) -> dict[str, psutil.Process]:
        """Everything that runs: gateway, nodes by name, zygotes and workers below them."""
        found: dict[str, psutil.Process] = {}
        for name, process in self._started().items():
            if process.poll() is not None:
                continue
            top = found[name] = psutil.Process(process.pid)
            for number, child in enumerate(top.children(recursive=True)):
                found[f"{name}/{number}"] = child
        return found

    def cpu_s(self) -> float:
        """CPU seconds of all processes so far."""
        return sum(cpu_s(process) for process in self.processes().values())

    def stop(self) -> None:
        """Stop everything, however it is; repeating it is harmless."""
        processes = list(self._started().values())
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log_end(self) -> str:
        """The last line of each log."""
        ends = {
            path.stem: (path.read_text(errors="replace").splitlines() or ["-"])[-1][:300]
            for path in sorted(self.folder.glob("*.log"))
        }
        return "; ".join(f"{name}: {line}" for name, line in ends.items())

    def _started(self) -> Mapping[str, subprocess.Popen[bytes]]:
        gateway = {"gateway": self.gateway} if self.gateway is not None else {}
        return {**self.nodes, **gateway}

    def _check_alive(self) -> None:
        for name, process in self._started().items():
            if process.poll() is not None:
                raise Unavailable(
                    f"{name} ended with exit code {process.returncode}", hint=self.log_end()
                )

    def _spawn(self, module: str, config: str, name: str) -> subprocess.Popen[bytes]:
        kept = {key: value for key, value in installed().items() if not key.startswith("DIN_")}
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", module],
                env={
                    **kept,
                    "ORT_DISABLE_TELEMETRY": "1",
                    "OPENBLAS_NUM_THREADS": "1",
                    "MALLOC_ARENA_MAX": "1",
                    HANDOVER_VARIABLE: config,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


def installed() -> dict[str, str]:
    """The environment for programs that run as installed ones do, with their bytecode on disk: a
    start that compiles all of DIN anew measures the compiler."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of one process; 0 when it has just ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def oip_request(model_id: str, name: str, example: Any) -> bytes:
    """One whole HTTP request with a binary tensor that asks for binary outputs."""
    size = example.nbytes
    head = msgspec.json.encode(
        {
            "inputs": [
                {
                    "name": name,
                    "datatype": "FP32",
                    "shape": list(example.shape),
                    "parameters": {"binary_data_size": size},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    )
    fields = (
        f"POST /v2/models/{model_id}/infer HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        f"inference-header-content-length: {len(head)}\r\n"
        f"content-length: {len(head) + size}\r\n\r\n"
    )
    return fields.encode() + head + example.tobytes()


def answers_now(url: str, request: bytes) -> bool:
    """Whether one request gets a good answer now."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5) as sock:
            sock.sendall(request)
            return sock.recv(12)[9:12] == b"200"
    except OSError:
        return False
