"""The TLS listener: accepts, bounds handshakes, hands finished connections to the front.

A connection counts here from its accept to the end of its handshake, so that clients that never
finish one hold a bounded number of descriptors, and one address cannot take them all.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final

HANDSHAKE_S: Final = 5.0
HANDSHAKES_MAX: Final = 256
HANDSHAKES_PER_ADDRESS_MAX: Final = 64
ACCEPTS_PER_TURN_MAX: Final = 16
PAUSE_S: Final = 0.5
"""Without free descriptors accepting only burns the processor."""
SHUTDOWN_S: Final = 2.0
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

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
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._context = context
        self._make = make
        self._handshake_s = handshake_s
        self._shaking: set[asyncio.Task[None]] = set()
        self._by_address: Counter[str] = Counter()
        self._pause: asyncio.TimerHandle | None = None

    @property
    def handshakes(self) -> int:
        """Connections whose handshake has not ended."""
        return len(self._shaking)

    def start(self) -> None:
        """Accept from now on."""
        self._pause = None
        self._loop.add_reader(self._sock.fileno(), self._on_acceptable)

    def close(self) -> None:
        """Accept nothing more and break handshakes off."""
        if self._pause is not None:
            self._pause.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
        for task in self._shaking:
            task.cancel()

    def _on_acceptable(self) -> None:
        for _ in range(ACCEPTS_PER_TURN_MAX):
            try:
                accepted, who = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._loop.remove_reader(self._sock.fileno())
                    self._pause = self._loop.call_later(PAUSE_S, self.start)
                return
            self._take(accepted, str(who[0]))

    def _take(self, accepted: socket.socket, address: str) -> None:
        is_full = len(self._shaking) >= HANDSHAKES_MAX
        if is_full or self._by_address[address] >= HANDSHAKES_PER_ADDRESS_MAX:
            accepted.close()
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._by_address[address] += 1
        task = self._loop.create_task(self._shake(accepted, address))
        self._shaking.add(task)
        task.add_done_callback(self._shaking.discard)

    async def _shake(self, accepted: socket.socket, address: str) -> None:
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
        finally:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]
