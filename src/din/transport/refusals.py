"""What is said of refused links: the first of a reason at once, the others of a while as a count.

A peer that keeps trying, or a scanner, must not fill a log: per reason one line and one count in
REFUSALS_S, and past KINDS_MAX reasons at a time all others share one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

REFUSALS_S: Final = 10.0
KINDS_MAX: Final = 16
OTHERS: Final = "other reasons"


class Refusals:
    """Bounds the lines of one server. All calls in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Callable[..., None]) -> None:
        self._loop = loop
        self._report = report
        self._held: dict[str, int] = {}
        """Reason -> how many more there were since it was told."""
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def refused(self, reason: str, **facts: object) -> None:
        """One more link was refused."""
        is_kind = reason in self._held or len(self._held) < KINDS_MAX
        kind = reason if is_kind else OTHERS
        if kind in self._held:
            self._held[kind] += 1
            return
        self._report("link refused", reason=reason, **facts)
        self._hold(kind)

    def close(self) -> None:
        """Tell what is left to tell; no more timers."""
        for kind, timer in self._timers.items():
            timer.cancel()
            self._tell(kind)
        self._timers.clear()
        self._held.clear()

    def _hold(self, kind: str) -> None:
        self._held[kind] = 0
        self._timers[kind] = self._loop.call_later(REFUSALS_S, self._ring, kind)

    def _ring(self, kind: str) -> None:
        is_going_on = self._tell(kind)
        del self._held[kind], self._timers[kind]
        if is_going_on:
            self._hold(kind)

    def _tell(self, kind: str) -> bool:
        if self._held[kind]:
            self._report("links refused", reason=kind, more=self._held[kind], seconds=REFUSALS_S)
        return bool(self._held[kind])
