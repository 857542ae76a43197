"""Futures that are awaited for a bounded time, with one timer for all of them.

A timer of its own for each request costs more than what it guards: nearly all are cancelled.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

Found = TypeVar("Found")


class Patience:
    """One per event loop and room; whoever waits here bounds how many."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until_s: dict[asyncio.Future[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._until_s)

    async def wait(self, future: asyncio.Future[Found], until_s: float) -> Found:
        """What comes of the future; TimeoutError after its time on the loop's clock."""
        self._until_s[future] = until_s
        if self._timer is None or self._timer.when() > until_s:
            self._arm(until_s)
        try:
            return await future
        finally:
            del self._until_s[future]

    def _arm(self, when_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when_s, self._ring)

    def _ring(self) -> None:
        """Give up what is due; the next time is that of whoever is due next."""
        self._timer = None
        now_s = self._loop.time()
        waiting = [(until_s, each) for each, until_s in self._until_s.items() if not each.done()]
        for until_s, future in waiting:
            if until_s <= now_s:
                future.set_exception(TimeoutError())
        left = [until_s for until_s, _ in waiting if until_s > now_s]
        if left:
            self._arm(min(left))
