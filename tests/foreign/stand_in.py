"""A stand-in for a server of the Open Inference Protocol, for what real ones do not do on demand:
errors, silence, odd answers, the binary extension. Real servers are in tests/road/test_foreign.py.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str], bytes]
Infer = Callable[[dict[str, str], bytes], Answer]


def as_json(content: Any, status: int = 200) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps(content).encode()


def tensor(name: str, datatype: str = "FP32", *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape) or [-1, 3]}


class StandIn:
    """What it answers; tests change it while it runs."""

    def __init__(self) -> None:
        self.server: Any = {"name": "stand-in", "version": "1", "extensions": []}
        self.models: dict[str, Any] = {"m": {"inputs": [tensor("x")], "outputs": [tensor("y")]}}
        self.is_ready = True
        self.live: Answer = (200, {}, b"")
        self.infer: Infer = lambda headers, body: as_json({"error": "no"}, 500)
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.url = ""

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        self.asked.append((path, headers, body))
        if path == "/v2":
            return as_json(self.server)
        if path == "/v2/health/live":
            return self.live
        if path == "/v2/repository/index":
            return as_json([{"name": name, "state": "READY"} for name in self.models])
        name, _, end = path.removeprefix("/v2/models/").partition("/")
        if name not in self.models:
            return as_json({"error": f"no model {name}"}, 404)
        if end == "ready":
            return as_json({"ready": self.is_ready}, 200 if self.is_ready else 503)
        return self.infer(headers, body) if end == "infer" else as_json(self.models[name])


@contextmanager
def stand_in(port: int = 0) -> Generator[StandIn]:
    told = StandIn()
    sockets: list[socket.socket] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            told.connections += 1
            sockets.append(self.request)
            super().setup()

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, content = told.answer(self.path, dict(self.headers), body)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _answer  # noqa: N815 - the library's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Clients that go in mid-answer are what some tests are about."""

    server = Server(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    told.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        for each in sockets:  # a server that ends ends its connections
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        thread.join()
