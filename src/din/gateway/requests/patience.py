"""Whoever waits for a bounded time, with one timer for all of them.

A timer of its own for each request costs more than what it guards: nearly all are cancelled.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Waiting(Protocol):
    """Something that can become too late."""

    def give_up(self) -> None:
        """Its time is over; it is not waited for any more."""
        ...


class Patience:
    """One per event loop and room; whoever waits here bounds how many."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until_s: dict[Waiting, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._until_s)

    def begin(self, waiting: Waiting, until_s: float) -> None:
        """Give it up at that time on the loop's clock, unless it ends before."""
        self._until_s[waiting] = until_s
        if self._timer is None or self._timer.when() > until_s:
            self._arm(until_s)

    def end(self, waiting: Waiting) -> None:
        """It came in time, or nobody wants it any more; repeating it is harmless."""
        self._until_s.pop(waiting, None)

    def _arm(self, when_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when_s, self._ring)

    def _ring(self) -> None:
        """Give up what is due; the next time is that of whoever is due next."""
        self._timer = None
        now_s = self._loop.time()
        for waiting in [each for each, until_s in self._until_s.items() if until_s <= now_s]:
            if self._until_s.pop(waiting, None) is not None:  # giving up one may end another
                waiting.give_up()
        if self._until_s:
            self._arm(min(self._until_s.values()))
