"""MLServer as a real server of the Open Inference Protocol: processes that tests start and kill."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.road.processes import ENVIRONMENT, get, wait_for

PYTHON = Path(__file__).resolve().parents[2] / ".cache" / "mlserver" / "bin" / "python"
RUNTIME = '''
import asyncio
import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.errors import MLServerError
from mlserver.types import InferenceResponse

class Adds(MLModel):
    """Adds to its input what its settings say; refuses inputs that begin with 13."""

    async def load(self):
        return True

    async def predict(self, payload):
        extra = self.settings.parameters.extra
        x = NumpyCodec.decode_input(payload.inputs[0])
        if x.size and x.flat[0] == 13:
            raise MLServerError("thirteen is not wanted here", 400)
        await asyncio.sleep(extra.get("seconds", 0))
        y = x + np.float32(extra["addend"])
        output = NumpyCodec.encode_output(self._settings.outputs[0].name, y)
        return InferenceResponse(model_name=self.name, outputs=[output])
'''


class MlServer:
    """One process with its folder of models."""

    def __init__(self, folder: Path, **models: dict[str, Any]) -> None:
        assert PYTHON.exists(), "run scripts/mlserver.sh first (make test does)"
        self.folder = folder
        ports = _free_ports(3)
        names = ("http_port", "grpc_port", "metrics_port")
        self.url = f"http://127.0.0.1:{ports[0]}"
        folder.mkdir(parents=True)
        settings = dict(zip(names, ports, strict=True))
        own = {"host": "127.0.0.1", "parallel_workers": 0, "debug": False, **settings}
        (folder / "settings.json").write_text(json.dumps(own))
        for name, model in models.items():
            _write(folder / name, name, **model)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(PYTHON), "-c", "from mlserver.cli import main; main()", "start", "."],
                cwd=self.folder,
                env={**ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        process = self.process

        def is_ready() -> bool:
            assert process.poll() is None, (self.folder / "log").read_text()
            try:
                return get(self.url, "/v2/health/ready")[0] == 200
            except OSError:
                return False

        wait_for("MLServer is ready", is_ready, 60)

    def kill(self) -> None:
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def _write(folder: Path, name: str, addend: int, takes: str, gives: str, **extra: Any) -> None:
    folder.mkdir()
    (folder / "adds.py").write_text(RUNTIME)
    settings = {
        "name": name,
        "implementation": "adds.Adds",
        "inputs": [{"name": takes, "datatype": "FP32", "shape": [-1, 8]}],
        "outputs": [{"name": gives, "datatype": "FP32", "shape": [-1, 8]}],
        "parameters": {"extra": {"addend": addend, **extra}},
    }
    (folder / "model-settings.json").write_text(json.dumps(settings))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def mlserver(folder: Path, **models: dict[str, Any]) -> Generator[MlServer]:
    server = MlServer(folder, **models)
    server.start()
    try:
        yield server
    finally:
        server.kill()
