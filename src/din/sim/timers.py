"""Virtual time: a heap of what happens next. Events of the same moment keep their order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from din.errors import Internal

TIMERS_MAX: Final = 5_000_000


class Timers:
    """Calls functions in the order of their virtual time. `now_ms` only moves here."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._sequence = 0
        self._heap: list[tuple[int, int, Callable[[], object]]] = []

    def after(self, delay_ms: int, call: Callable[[], object]) -> None:
        """Call it that much later."""
        if len(self._heap) >= TIMERS_MAX:
            raise Internal(f"{TIMERS_MAX} timers wait, the limit of the simulation")
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_ms + max(delay_ms, 0), self._sequence, call))

    def next_ms(self) -> int | None:
        """When the next one is due, or None."""
        return self._heap[0][0] if self._heap else None

    def advance(self, now_ms: int) -> None:
        """Let time pass without an event."""
        self.now_ms = max(self.now_ms, now_ms)

    def run_next(self) -> None:
        """Move time to the next one and call it. There must be one."""
        at_ms, _, call = heapq.heappop(self._heap)
        self.now_ms = max(self.now_ms, at_ms)
        call()
