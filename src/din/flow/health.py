"""The health of a replica, one slice on one node: 1 = normal, falls with errors, heals by success
and by time. The score of the node as a whole, beats included, is discovery's.

Every failure takes 30 % of what is left, so three in a row bring it from 1 to 0.34 and the fourth
under 0.3, where policies stop choosing it. A replica that gets no work cannot prove itself, hence
the healing by time: what is missing to 1 halves every ten seconds.
"""

from __future__ import annotations

from typing import Final

FAILURE_FACTOR: Final = 0.7
SUCCESS_SHARE: Final = 0.1
"""How much of what is missing to 1 one success gives back."""
HALF_LIFE_MS: Final = 10_000.0


class ReplicaHealth:
    """The score of one replica. All times are the receiver's monotonic clock."""

    __slots__ = ("_at_ms", "_value")

    def __init__(self, now_ms: float, value: float = 1.0) -> None:
        self._value = min(max(value, 0.0), 1.0)
        self._at_ms = now_ms

    def value(self, now_ms: float) -> float:
        """The score now, 0..1."""
        age_ms = max(now_ms - self._at_ms, 0.0)
        return 1.0 - (1.0 - self._value) * 0.5 ** (age_ms / HALF_LIFE_MS)

    def succeed(self, now_ms: float) -> None:
        """A slice answered."""
        value = self.value(now_ms)
        self._set(value + (1.0 - value) * SUCCESS_SHARE, now_ms)

    def fail(self, now_ms: float) -> None:
        """A slice failed, timed out or was not reached. BUSY is no failure."""
        self._set(self.value(now_ms) * FAILURE_FACTOR, now_ms)

    def _set(self, value: float, now_ms: float) -> None:
        self._value = value
        self._at_ms = max(now_ms, self._at_ms)
