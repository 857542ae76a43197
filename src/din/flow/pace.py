"""How fast bytes come, by the last measurements. Pure."""

from __future__ import annotations

from typing import Final

from din.domain.estimates import MIB
from din.flow.recent import RecentMedian

SAMPLES_MAX: Final = 9


class Pace:
    """MiB a second of one direction of one link."""

    __slots__ = ("_rates",)

    def __init__(self) -> None:
        self._rates = RecentMedian(SAMPLES_MAX)

    def note(self, nbytes: int, took_ms: float, now_ms: float) -> None:
        """So many bytes took so long; what took no time that a clock can tell says nothing."""
        if nbytes > 0 and took_ms > 0:
            self._rates.note(nbytes / MIB / took_ms * 1000, now_ms)

    def mib_per_second(self, now_ms: float) -> float | None:
        """None = not measured of late."""
        return self._rates.middle(now_ms)
