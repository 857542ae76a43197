"""When nodes beat, and how long silence may last. Pure numbers; chance comes in as a Random.

A fleet that is powered up together would beat together. Two measures spread it: the first beat
comes after a uniform share of the interval, and each later one within +- jitter. The first measure
does most of the work (1,000 nodes, 3 s: 41-50 beats in the busiest 0.1 s instead of 1,000); jitter
alone needs many rounds to get there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from din.errors import UsageError

if TYPE_CHECKING:
    from random import Random

INTERVAL_MS_MIN: Final = 50
INTERVAL_MS_MAX: Final = 3_600_000
JITTER_RATIO_RANGE: Final = (0.1, 0.2)
"""Below, the fleet is not spread; above, an ordinary late beat looks like silence."""
MISSED_BEATS_SUSPECT: Final = 2
MISSED_BEATS_LOST: Final = 3
FORGOTTEN_AFTER_MS: Final = 600_000
"""A lost node stays listed so long, with its reason."""


class BeatSchedule(Struct, frozen=True):
    """Interval and jitter, and the silences that follow from them."""

    interval_ms: int
    jitter_ms: int

    def __post_init__(self) -> None:
        """Raises UsageError when silence could not be told from an ordinary beat."""
        if not INTERVAL_MS_MIN <= self.interval_ms <= INTERVAL_MS_MAX:
            raise UsageError(
                f"heartbeat interval {self.interval_ms} ms is outside "
                f"{INTERVAL_MS_MIN}..{INTERVAL_MS_MAX} ms",
                hint="3000 suits a fleet, 1000 a pipeline",
            )
        if not 0 <= self.jitter_ms < self.interval_ms / 2:
            raise UsageError(
                f"heartbeat jitter {self.jitter_ms} ms is outside 0..{self.interval_ms / 2:g} ms, "
                "half of the interval",
                hint=f"use {round(self.interval_ms * 0.15)} (interval x 0.15)",
            )

    @property
    def suspect_after_ms(self) -> int:
        """Silence after which two beats are surely missed: 6,900 ms at 3 s and 15 %."""
        return MISSED_BEATS_SUSPECT * (self.interval_ms + self.jitter_ms)

    @property
    def lost_after_ms(self) -> int:
        """Silence after which the node leaves the membership: 9,000 ms at 3 s."""
        return MISSED_BEATS_LOST * self.interval_ms

    def first_delay_ms(self, random: Random) -> int:
        """Delay of the first beat, uniform in [0, interval)."""
        return random.randrange(self.interval_ms)

    def next_delay_ms(self, random: Random) -> int:
        """Delay of a later beat, uniform in interval +- jitter."""
        return self.interval_ms + random.randint(-self.jitter_ms, self.jitter_ms)

    def missed_in(self, gap_ms: int) -> int:
        """Beats that are missing in a gap between two receipts, with a tenth of slack."""
        longest_ms = self.interval_ms + self.jitter_ms + self.interval_ms // 10
        return max(0, (gap_ms - 1) // longest_ms)

    def warning(self) -> str | None:
        """What to tell the operator about the jitter, or None."""
        ratio = self.jitter_ms / self.interval_ms
        low, high = JITTER_RATIO_RANGE
        if low <= ratio <= high:
            return None
        effect = (
            "beats of nodes that start together stay together"
            if ratio < low
            else "silence is noticed later, and ordinary late beats look like silence"
        )
        return (
            f"heartbeat jitter {self.jitter_ms} ms is {ratio:.2f} of the interval "
            f"{self.interval_ms} ms, outside {low}-{high}: {effect}; "
            f"{round(self.interval_ms * 0.15)} ms is 0.15"
        )


FLEET: Final = BeatSchedule(3000, 450)
PIPELINE: Final = BeatSchedule(1000, 150)
