"""A machine in the middle: passes TCP on, in pieces, remembers it, changes or cuts it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Literal

Way = Literal["there", "back"]
Edit = Callable[[Way, bytes], bytes | None]
"""What becomes of some bytes; None = cut both ends here."""


class Forwarder:
    """Listens for one target; `edit` may be changed at any time."""

    def __init__(self, target: str, piece_bytes: int) -> None:
        host, _, port = target.removeprefix("tcp:").rpartition(":")
        self._target = (host, int(port))
        self._piece_bytes = piece_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = f"tcp:127.0.0.1:{self._listener.getsockname()[1]}"
        self.edit: Edit = lambda _, data: data
        self.passed: dict[Way, bytearray] = {"there": bytearray(), "back": bytearray()}

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(self._listener)
            self._start(self._pass_both(client))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_both(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        server = socket.socket()
        for sock in (client, server):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with client, server:
            await loop.sock_connect(server, self._target)
            ways = (
                loop.create_task(self._pass("there", client, server)),
                loop.create_task(self._pass("back", server, client)),
            )
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(self, way: Way, source: socket.socket, sink: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(source, self._piece_bytes):
            self.passed[way] += data
            edited = self.edit(way, data)
            if edited is None:
                return
            await loop.sock_sendall(sink, edited)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listener.close()


@asynccontextmanager
async def forwarding(target: str, piece_bytes: int = 64 * 1024) -> AsyncIterator[Forwarder]:
    forwarder = Forwarder(target, piece_bytes)
    forwarder._start(forwarder.serve())
    try:
        yield forwarder
    finally:
        await forwarder.close()
