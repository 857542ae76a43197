"""`python -m din.bench.yardstick MODEL PORT WORKERS`: what one would write by hand: FastAPI and
uvicorn around ONNX Runtime, raw float32 bytes in and out. Not isolated, not distributed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from din.bench.network import free_port
from din.errors import Unavailable

MODEL_VARIABLE: Final = "DIN_BENCH_MODEL"
STOP_S_MAX: Final = 10.0


def request_of(example: Any) -> bytes:
    """One whole HTTP request."""
    head = f"POST /infer HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {example.nbytes}\r\n\r\n"
    return head.encode() + example.tobytes()


@contextmanager
def running(model: Path, workers: int) -> Generator[tuple[subprocess.Popen[bytes], str]]:
    """The server as a process, and its URL. Raises Unavailable where FastAPI is missing."""
    if find_spec("fastapi") is None:
        raise Unavailable("FastAPI is not installed", hint="pip install 'din-network[test]'")
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "din.bench.yardstick", str(model), str(port), str(workers)],
        env={**os.environ, "ORT_DISABLE_TELEMETRY": "1", "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def make_app() -> Any:
    """The application; one in each of uvicorn's workers."""
    import numpy as np

    from din.bench.models import session_of

    fastapi = import_module("fastapi")
    run_in_threadpool = import_module("fastapi.concurrency").run_in_threadpool
    app = fastapi.FastAPI()
    session = session_of(Path(os.environ[MODEL_VARIABLE]))
    name, shape = session.get_inputs()[0].name, session.get_inputs()[0].shape

    def compute(body: bytes) -> bytes:
        array = np.frombuffer(body, np.float32).reshape(shape)
        return b"".join(each.tobytes() for each in session.run(None, {name: array}))

    async def infer(request: Any) -> Any:
        answer = await run_in_threadpool(compute, await request.body())
        return fastapi.Response(answer, media_type="application/octet-stream")

    infer.__annotations__ = {"request": fastapi.Request}
    app.post("/infer", response_model=None)(infer)
    return app


def main(model: str, port: str, workers: str) -> None:
    """Serve until a signal."""
    import uvicorn
    from uvicorn.supervisors import Multiprocess

    os.environ[MODEL_VARIABLE] = model
    config = uvicorn.Config(
        "din.bench.yardstick:make_app",
        factory=True,
        workers=int(workers),
        log_level="error",
        access_log=False,
    )
    # asyncio turns Nagle's algorithm off only where the socket names its protocol.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", int(port)))
        Multiprocess(config, [sock]).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
