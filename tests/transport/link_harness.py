"""A handler that remembers, a server with a dialled link, and a peer that speaks raw bytes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tls_machines import CLUSTER, GATEWAY, NODE, Machines

from din.domain.deployment import Epoch, Route
from din.domain.node import NodeId
from din.domain.tensor import TensorMeta
from din.transport.dial import dial
from din.transport.limits import DEFAULT_LIMITS, LinkLimits
from din.transport.link import Link
from din.transport.server import LinkServer
from din.transport.tls_identity import TlsIdentity
from din.wire.frame import FIXED_BYTES, decode_fixed, decode_message, encode_head
from din.wire.messages import AnyMessage, Hello, Message, Run

WAIT_S = 30


class Recorder:
    """Keeps all that a link tells; `takes` decides about bodies."""

    def __init__(self) -> None:
        self.opened: list[Link] = []
        self.closed: list[tuple[Link, str, bool]] = []
        self.messages: list[AnyMessage] = []
        self.bodies: list[bytes | None] = []
        self.fds: list[int] = []
        self.placed: list[int] = []
        self.abandoned: list[memoryview] = []
        self.takes: Callable[[int], memoryview | None] = lambda n: memoryview(bytearray(n))
        self.fails = False
        self._changed = asyncio.Event()

    def on_open(self, link: Link) -> None:
        self.opened.append(link)
        self._changed.set()

    def on_closed(self, link: Link, reason: str, is_orderly: bool) -> None:
        self.closed.append((link, reason, is_orderly))
        self._changed.set()

    def place_body(self, link: Link, message: AnyMessage, nbytes: int) -> memoryview | None:
        self.placed.append(nbytes)
        self._changed.set()
        return self.takes(nbytes)

    def on_message(
        self, link: Link, message: AnyMessage, body: memoryview | None, fds: tuple[int, ...]
    ) -> None:
        self.messages.append(message)
        self.bodies.append(None if body is None else bytes(body))
        self.fds.extend(fds)
        self._changed.set()
        if self.fails:
            raise ValueError("the handler is broken")

    def on_body_abandoned(self, link: Link, message: AnyMessage, view: memoryview) -> None:
        self.abandoned.append(view)
        self._changed.set()

    async def until(self, condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def drop_fds(self) -> None:
        while self.fds:
            os.close(self.fds.pop())


class Reports(list[tuple[str, dict[str, object]]]):
    def __call__(self, text: str, **facts: object) -> None:
        self.append((text, facts))

    def reasons(self) -> str:
        return "; ".join(str(facts.get("reason", text)) for text, facts in self)


class Pair:
    """A server and one link dialled to it, over `tcp`, `unix` or `tls`."""

    def __init__(self) -> None:
        self.server_id = "gateway-1"
        self.own_id = "node-a"
        self.tls: TlsIdentity | None = None
        self.there = Recorder()
        self.here = Recorder()
        self.reports = Reports()
        self.address = ""
        self.server: LinkServer
        self.link: Link

    @property
    def far(self) -> Link:
        return self.there.opened[-1]


def run(nbytes: int = 0, request_id: int = 1) -> Run:
    tensors = (TensorMeta("x", "UINT8", (nbytes,), nbytes),) if nbytes else ()
    route = Route(Epoch(1, 1), False, (NodeId("node-a"),))
    return Run(request_id, 0, 0, route, 1000, tensors, "gateway-1")


async def settle(turns: int = 20) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(
    kind: str, folder: Path, limits: LinkLimits = DEFAULT_LIMITS
) -> AsyncIterator[Pair]:
    pair = Pair()
    server_tls = None
    if kind == "tls":
        machines = Machines(folder)
        pair.server_id, pair.own_id = GATEWAY.id, NODE.id
        server_tls = TlsIdentity(machines.gateway, CLUSTER, pair.reports)
        pair.tls = TlsIdentity(machines.node, CLUSTER, pair.reports)
    pair.server = LinkServer(
        pair.server_id, 7, pair.there, limits=limits, report=pair.reports, tls=server_tls
    )
    if kind == "unix":
        path = folder / "link.sock"
        pair.server.listen_unix(str(path))
        pair.address = f"unix:{path}"
    else:
        pair.address = f"tcp:127.0.0.1:{pair.server.listen_tcp('127.0.0.1', 0)}"
    try:
        yield pair
    finally:
        pair.server.close()
        await pair.server.wait_closed()


@asynccontextmanager
async def linked(
    kind: str, folder: Path, limits: LinkLimits = DEFAULT_LIMITS
) -> AsyncIterator[Pair]:
    async with serving(kind, folder, limits) as pair:
        pair.link = await call(pair, limits=limits)
        try:
            await pair.there.until(lambda: pair.there.opened)
            yield pair
        finally:
            pair.link.close("test ends")
            await pair.link.wait_ended()
            await settle()


async def call(
    pair: Pair,
    *,
    own_id: str | None = None,
    session: int = 3,
    target_id: str | None = None,
    timeout_ms: int = 5000,
    limits: LinkLimits = DEFAULT_LIMITS,
) -> Link:
    return await dial(
        [pair.address],
        own_id=pair.own_id if own_id is None else own_id,
        session=session,
        target_id=pair.server_id if target_id is None else target_id,
        tls=pair.tls,
        handler=pair.here,
        timeout_ms=timeout_ms,
        limits=limits,
        report=pair.reports,
    )


class RawPeer:
    """Two sockets that say what a test wants, byte by byte."""

    def __init__(self, address: str) -> None:
        self.sockets = [self._connect(address), self._connect(address)]
        self.urgent, self.bulk = self.sockets

    @staticmethod
    def _connect(address: str) -> socket.socket:
        kind, _, rest = address.partition(":")
        if kind == "unix":
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(rest)
        else:
            host, _, port = rest.rpartition(":")
            sock = socket.create_connection((host, int(port)))
        sock.setblocking(False)
        return sock

    async def hello(self, node_id: str = "node-raw", session: int = 1) -> None:
        loop = asyncio.get_running_loop()
        for lane, sock in (("urgent", self.urgent), ("bulk", self.bulk)):
            await loop.sock_sendall(sock, encode_head(Hello(node_id, session, lane, 99)))
        for sock in self.sockets:
            await self.read(sock)

    async def send(self, sock: socket.socket, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(sock, data)

    async def read(self, sock: socket.socket) -> Message:
        fixed = decode_fixed(await self._exactly(sock, FIXED_BYTES))
        message = decode_message(await self._exactly(sock, fixed.header_len))
        await self._exactly(sock, fixed.body_len)
        return message

    async def at_end(self, sock: socket.socket) -> bool:
        """Reads until the other side ends this socket."""
        try:
            async with asyncio.timeout(WAIT_S):
                while await asyncio.get_running_loop().sock_recv(sock, 65536):
                    pass
        except ConnectionError:
            pass
        return True

    async def _exactly(self, sock: socket.socket, nbytes: int) -> bytes:
        data = b""
        async with asyncio.timeout(WAIT_S):
            while len(data) < nbytes:
                piece = await asyncio.get_running_loop().sock_recv(sock, nbytes - len(data))
                assert piece, f"the end came after {len(data)} of {nbytes} bytes"
                data += piece
        return data

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()
