"""Answers that wait for their readers. All together have a limit: over it, whoever has waited
longest is cut off, so that readers who hardly read cannot take the room from those who do."""

from __future__ import annotations

import asyncio


class Unsent:
    """Bytes that lie in transports, by transport, the oldest first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: dict[asyncio.Transport, int] = {}
        self.nbytes = 0

    def begin(self, transport: asyncio.Transport, nbytes: int) -> None:
        """So much waits there; it may be this one that is cut off."""
        self._waiting[transport] = nbytes
        self.nbytes += nbytes
        while self.nbytes > self._bytes_max:
            oldest = next(iter(self._waiting))
            self.end(oldest)
            oldest.abort()

    def end(self, transport: asyncio.Transport) -> None:
        """Nothing waits there any more; repeating it is harmless."""
        self.nbytes -= self._waiting.pop(transport, 0)
