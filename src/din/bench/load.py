"""`python -m din.bench.load`: HTTP clients on keep-alive connections, in a process of their own so
that what they cost is not counted with what they measure.

Reads one Load as JSON from standard input, writes one Loaded as JSON to standard output. Plain
sockets and epoll: a client that costs little takes little from the server on the same cores.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from time import monotonic_ns, perf_counter_ns, sleep
from typing import Final

import msgspec
from msgspec import Struct

from din.bench.row import percentile
from din.errors import Unavailable

SOCKET_BYTES: Final = 2 * 1024 * 1024
HEAD_BYTES_MAX: Final = 16 * 1024
PAUSE_AFTER_ERROR_S: Final = 0.02
ANSWER_S_MAX: Final = 30.0
BUCKET_MS: Final = 50


class Load(Struct, frozen=True, kw_only=True):
    """What to do."""

    host: str
    port: int
    clients: int
    seconds: float
    payload_path: str
    """Whole HTTP requests, one after the other."""
    sizes: tuple[int, ...]
    """Bytes of each; the clients take them in turn."""


class Loaded(Struct, frozen=True, kw_only=True):
    """What came of it."""

    answered: int
    seconds: float
    p50_ms: float
    p99_ms: float
    failed: dict[str, int]
    """Cause -> requests without a good answer."""
    began_ns: int
    """By the monotonic clock of this machine."""
    by_bucket: tuple[int, ...]
    """Good answers in each BUCKET_MS since then."""

    @property
    def rate(self) -> float:
        """Good answers a second."""
        return self.answered / self.seconds


class Shot(Struct, frozen=True, kw_only=True):
    """Whom to ask what."""

    host: str
    port: int
    payload_path: str
    sizes: tuple[int, ...]


def shot_at(url: str, folder: Path, name: str, requests: list[bytes]) -> Shot:
    """Write requests down for load clients."""
    path = folder / f"{name}.http"
    path.write_bytes(b"".join(requests))
    host, _, port = url.removeprefix("http://").rpartition(":")
    return Shot(host=host, port=int(port), payload_path=str(path), sizes=tuple(map(len, requests)))


def start_load(shot: Shot, clients: int, seconds: float) -> subprocess.Popen[bytes]:
    """Start the clients; `finish_load` waits for what came of it."""
    order = Load(
        host=shot.host,
        port=shot.port,
        clients=clients,
        seconds=seconds,
        payload_path=shot.payload_path,
        sizes=shot.sizes,
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "din.bench.load"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(order))
    process.stdin.close()
    process.stdin = None
    return process


def finish_load(process: subprocess.Popen[bytes]) -> Loaded:
    """Raises Unavailable when the clients died or nothing was answered."""
    output, _ = process.communicate()
    if process.returncode != 0:
        raise Unavailable(f"the load clients ended with exit code {process.returncode}")
    loaded = msgspec.json.decode(output, type=Loaded)
    if not loaded.answered:
        raise Unavailable(f"no request was answered: {loaded.failed}")
    return loaded


def load(shot: Shot, clients: int, seconds: float) -> Loaded:
    """Run clients for some seconds. Raises Unavailable."""
    return finish_load(start_load(shot, clients, seconds))


class _Client:
    """One connection with one request under way."""

    def __init__(self, order: Load) -> None:
        self._address = (order.host, order.port)
        self._buffer = bytearray(SOCKET_BYTES)
        self._out = memoryview(b"")
        self.sock = socket.socket()
        self.started_ns = 0
        self._got = 0
        self._need = 0

    def connect(self) -> None:
        """A new connection. Raises OSError."""
        self.sock.close()
        self.sock = socket.create_connection(self._address, timeout=ANSWER_S_MAX)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        self.sock.setblocking(False)

    def ask(self, request: memoryview) -> bool:
        """Begin a request; True when all of it went out."""
        self._out = request
        self._got = self._need = 0
        self.started_ns = perf_counter_ns()
        return self.go_on()

    def go_on(self) -> bool:
        """Send what is left; True when nothing is."""
        while self._out:
            try:
                self._out = self._out[self.sock.send(self._out) :]
            except BlockingIOError:
                return False
        return True

    def receive(self) -> str | None:
        """The cause of a failure, "" for a good answer, None when more must come."""
        size = self.sock.recv_into(memoryview(self._buffer)[self._got :])
        if size == 0:
            return "closed"
        self._got += size
        if not self._need:
            end = self._buffer.find(b"\r\n\r\n", 0, self._got)
            if end < 0:
                return None if self._got < HEAD_BYTES_MAX else "head too large"
            head = bytes(self._buffer[:end]).lower()
            self._need = end + 4 + _content_length(head)
            if self._need > len(self._buffer):
                self._buffer.extend(bytes(self._need - len(self._buffer)))
            self._status = head[9:12].decode("ascii", "replace")
        if self._got < self._need:
            return None
        return "" if self._status == "200" else self._status


def _content_length(head: bytes) -> int:
    begin = head.find(b"content-length:")
    return int(head[begin + 15 :].partition(b"\r\n")[0]) if begin >= 0 else 0


class _Run:
    """All clients of one order."""

    def __init__(self, order: Load) -> None:
        self.order = order
        data = memoryview(Path(order.payload_path).read_bytes())
        ends = [sum(order.sizes[: n + 1]) for n in range(len(order.sizes))] if order.sizes else []
        self._requests = [
            data[end - size : end] for end, size in zip(ends, order.sizes, strict=True)
        ]
        self._next = 0
        self._poll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._times_ns: list[int] = []
        self._buckets: Counter[int] = Counter()
        self._failed: Counter[str] = Counter()
        self._began_ns = 0
        self._end_ns = 0

    def run(self) -> Loaded:
        """Until the time is over and every request under way has ended."""
        self._began_ns = monotonic_ns()
        began_ns = perf_counter_ns()
        self._end_ns = began_ns + int(self.order.seconds * 1e9)
        for _ in range(self.order.clients):
            self._connect(_Client(self.order))
        while self._clients:
            events = self._poll.poll(ANSWER_S_MAX)
            if not events:
                self._failed["no answer"] += len(self._clients)
                break
            for descriptor, event in events:
                self._handle(self._clients[descriptor], event)
        return self._summary((perf_counter_ns() - began_ns) / 1e9)

    def _handle(self, client: _Client, event: int) -> None:
        try:
            if event & select.EPOLLOUT and client.go_on():
                self._poll.modify(client.sock, select.EPOLLIN)
            if event & ~select.EPOLLOUT:
                cause = client.receive()
                if cause is None:
                    return
                self._ended(client, cause)
        except BlockingIOError:
            return
        except OSError as error:
            self._ended(client, type(error).__name__)

    def _ended(self, client: _Client, cause: str) -> None:
        now_ns = perf_counter_ns()
        if cause:
            self._failed[cause] += 1
            self._drop(client)
            sleep(PAUSE_AFTER_ERROR_S)
            self._connect(client)
            return
        self._times_ns.append(now_ns - client.started_ns)
        self._buckets[(monotonic_ns() - self._began_ns) // (BUCKET_MS * 1_000_000)] += 1
        if now_ns < self._end_ns:
            self._ask(client)
        else:
            self._drop(client)

    def _connect(self, client: _Client) -> None:
        while perf_counter_ns() < self._end_ns:
            try:
                client.connect()
            except OSError as error:
                self._failed[type(error).__name__] += 1
                sleep(PAUSE_AFTER_ERROR_S)
                continue
            self._clients[client.sock.fileno()] = client
            self._poll.register(client.sock, select.EPOLLIN)
            self._ask(client)
            return

    def _ask(self, client: _Client) -> None:
        self._next = (self._next + 1) % len(self._requests)
        if not client.ask(self._requests[self._next]):
            self._poll.modify(client.sock, select.EPOLLIN | select.EPOLLOUT)

    def _drop(self, client: _Client) -> None:
        del self._clients[client.sock.fileno()]
        self._poll.unregister(client.sock)
        client.sock.close()

    def _summary(self, seconds: float) -> Loaded:
        times_ms = [each / 1e6 for each in self._times_ns] or [0.0]
        last = max(self._buckets, default=-1)
        return Loaded(
            answered=len(self._times_ns),
            seconds=seconds,
            p50_ms=percentile(times_ms, 0.5),
            p99_ms=percentile(times_ms, 0.99),
            failed=dict(self._failed),
            began_ns=self._began_ns,
            by_bucket=tuple(self._buckets[n] for n in range(last + 1)),
        )


def main() -> None:
    """One order in, one answer out."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Load)
    sys.stdout.buffer.write(msgspec.json.encode(_Run(order).run()))


if __name__ == "__main__":
    main()
