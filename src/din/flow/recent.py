"""The middle of the last measurements, while they are young. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

AGE_MS_MAX: Final = 900_000.0
"""What was measured longer ago says nothing of now."""


class RecentMedian:
    """The last values and when they were measured; neither a stall nor a burst decides."""

    __slots__ = ("_samples",)

    def __init__(self, samples_max: int) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=samples_max)

    def note(self, value: float, now_ms: float) -> None:
        """One more value."""
        self._samples.append((now_ms, value))

    def middle(self, now_ms: float, samples_min: int = 1) -> float | None:
        """The median, the lower of two; None while there are fewer young samples."""
        values = sorted(value for at_ms, value in self._samples if now_ms - at_ms <= AGE_MS_MAX)
        return values[(len(values) - 1) // 2] if len(values) >= max(samples_min, 1) else None
