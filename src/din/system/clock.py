"""The two clocks. Cores get `now_ms` as an argument; only effect rooms and programs call these."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun",
                 "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")  # fmt: skip


def monotonic_ms() -> int:
    """Milliseconds that never run backwards; says nothing about the time of day."""
    return time.monotonic_ns() // 1_000_000


def wall_clock_iso() -> str:
    """The time of day in UTC, ISO 8601 with milliseconds. For people, never for decisions."""
    seconds, milliseconds = divmod(time.time_ns() // 1_000_000, 1000)
    return f"{_iso_of(seconds)}.{milliseconds:03}+00:00"


@lru_cache(maxsize=1)
def _iso_of(seconds: int) -> str:
    """Written once a second: each request of a gateway asks for it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def fine_monotonic_ms() -> float:
    """The same clock as `monotonic_ms`, with fractions: for durations that people see."""
    return time.monotonic_ns() / 1_000_000


def wall_clock_ms() -> int:
    """Milliseconds since 1970. Only for what must outlast a restart: times to live, leases."""
    return time.time_ns() // 1_000_000


def http_date(wall_ms: int) -> str:
    """A time of day as in HTTP's Date, to the second."""
    at = time.gmtime(wall_ms // 1000)
    return f"{DAYS[at.tm_wday]}, {at.tm_mday:02} {MONTHS[at.tm_mon - 1]} {at.tm_year:04} " + (
        f"{at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT"
    )


def boot_ms() -> int:
    """Like `monotonic_ms`, but it goes on while the machine sleeps: for what must not outlast
    that."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
