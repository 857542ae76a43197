"""Takes connections from one listening socket, a few at a turn, and pauses when there is no room.

asyncio's own servers try a whole backlog again when descriptors run out, and log each try.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

ACCEPTS_PER_TURN_MAX: Final = 16
PAUSE_S: Final = 0.5
"""Without free descriptors accepting only burns the processor."""
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Take = Callable[[socket.socket, str], None]
"""Takes over a connection that does not block; beside it the address of the other end."""


class Acceptor:
    """Accepts from `start` to `close`; the listening socket stays its owner's."""

    def __init__(self, sock: socket.socket, take: Take) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._take = take
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Accept from now on."""
        self._pause = None
        self._loop.add_reader(self._sock.fileno(), self._on_acceptable)

    def close(self) -> None:
        """Accept nothing more; repeating it is harmless."""
        if self._pause is not None:
            self._pause.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())

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
            accepted.setblocking(False)
            self._take(accepted, str(who[0]))
