"""Counts what may come too often to be told each time. Pure."""

from __future__ import annotations


class Seldom:
    """Says when to tell, at most once per interval, and how many there were since."""

    def __init__(self, interval_ms: float = 10_000.0) -> None:
        self._interval_ms = interval_ms
        self._due_ms = float("-inf")
        self._untold = 0
        self.total = 0

    def count(self, now_ms: float) -> int:
        """One more; how many to tell of now, 0 = none yet."""
        self.total += 1
        self._untold += 1
        if now_ms < self._due_ms:
            return 0
        self._due_ms = now_ms + self._interval_ms
        untold, self._untold = self._untold, 0
        return untold
