"""How fast bytes come: the middle of the last measurements, while they are young. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

from din.domain.estimates import MIB

SAMPLES_MAX: Final = 9
AGE_MS_MAX: Final = 900_000.0
"""What was measured longer ago says nothing of now."""


class Pace:
    """MiB a second of one direction of one link."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)
        """When it was measured, and what."""

    def note(self, nbytes: int, took_ms: float, now_ms: float) -> None:
        """So many bytes took so long; what took no time that a clock can tell says nothing."""
        if nbytes > 0 and took_ms > 0:
            self._samples.append((now_ms, nbytes / MIB / took_ms * 1000))

    def mib_per_second(self, now_ms: float) -> float | None:
        """The median, so that neither a stall nor a burst decides; None = not measured of late."""
        rates = sorted(rate for at_ms, rate in self._samples if now_ms - at_ms <= AGE_MS_MAX)
        return rates[(len(rates) - 1) // 2] if rates else None
