"""The TLS listener: accepts, bounds handshakes, hands finished connections to the front.

A connection counts here from its accept to the end of its handshake, so that clients that never
finish one hold a bounded number of descriptors, and are the first to go when those are taken.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable
from functools import partial
from typing import Final

from din.access.limits import WaitingRoom
from din.api.accepting import Acceptor

HANDSHAKE_S: Final = 5.0
HANDSHAKES_MAX: Final = 256
SHUTDOWN_S: Final = 2.0
READ_BYTES: Final = 64 * 1024
"""What each connection holds to read into, whoever it is; asyncio would take four times that, a
gibibyte for all. Large bodies cost an eighth more of the processor by it."""

MakeProtocol = Callable[[], asyncio.Protocol]


class SecureListener:
    """One bound socket that speaks TLS only. The context may be given a new certificate."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        make: MakeProtocol,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        sslproto.SSLProtocol.max_size = READ_BYTES
        self._loop = asyncio.get_running_loop()
        self._acceptor = Acceptor(sock, self._take)
        self._context = context
        self._make = make
        self._handshake_s = handshake_s
        self._shaking = WaitingRoom[asyncio.Task[None]](HANDSHAKES_MAX)

    @property
    def handshakes(self) -> int:
        """Connections whose handshake has not ended."""
        return len(self._shaking)

    def start(self) -> None:
        """Accept from now on."""
        self._acceptor.start()

    def close(self) -> None:
        """Accept nothing more and break handshakes off."""
        self._acceptor.close()
        for task in list(self._shaking):
            task.cancel()

    def _take(self, accepted: socket.socket, address: str) -> None:
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._shake(accepted))
        gone = self._shaking.enter(task, address)
        if gone is not None:
            gone.cancel()
        task.add_done_callback(partial(self._shaken, accepted))

    def _shaken(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._shaking.leave(task)
        if task.cancelled():
            accepted.close()  # if that was before it began, nobody has taken the socket over

    async def _shake(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except (OSError, EOFError):
            # No TLS, a certificate that is not ours, too slow, or gone: the transport has closed.
            return
