"""One sensor, read again and again by a thread of its own; whoever wants the value never waits.

A read may block in the kernel, or in a vendor's tool, for ever. Then its value grows old and is
"not measured", its thread stays where it is, and nothing else happens. A slow read is tried less
often, an impossible value is counted and replaced by the last good one for a short while.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from msgspec import Struct

from din.system.clock import monotonic_ms

SLOW_READ_MS: Final = 1000
"""A read that takes longer doubles the pause before the next."""
PAUSE_MS_MAX: Final = 60_000
VALID_READS: Final = 10
"""A value is shown for so many poll intervals after it was read."""
VALID_MS_MIN: Final = 5000
STUCK_MS: Final = 3_600_000
"""A value that is the same for so long is told of: some sensors repeat one value for ever."""

_Value = TypeVar("_Value")


class Source(Struct, Generic[_Value], frozen=True):
    """Where a sensor's values come from, once it was found."""

    words: str
    """For people: a path or a tool."""
    read: Callable[[], _Value | None]
    """May block, and may raise OSError, ValueError or RuntimeError; None = nothing possible."""
    interval_ms_min: int = 0
    """It is not asked more often: a tool is a process each time."""


class SensorTrouble(Struct, frozen=True):
    """What is wrong with one sensor."""

    failures: int
    """Reads since the start that brought nothing, or something impossible."""
    hangs_ms: int
    """How long a read does not return; 0 = none hangs."""
    unchanged_ms: int = 0
    """For how long every read brought the same value; 0 = not suspiciously long."""


class PolledSensor(Generic[_Value]):
    """One source and its thread."""

    def __init__(
        self,
        name: str,
        find: Callable[[], Source[_Value] | None],
        interval_ms: int,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        """`find` looks for the source, in the thread, since a look may block as well: it answers
        None where there is nothing to read, and may raise what a read may raise."""
        self.name = name
        self.failures = 0
        """Reads that brought nothing, or something impossible."""
        self.source_words = ""
        """Of the source, once it is found."""
        self._find = find
        self._interval_ms = interval_ms
        self._clock_ms = clock_ms
        self._last: tuple[int, _Value] | None = None
        self._changed_ms: int | None = None
        self._begun_ms: int | None = None
        self._pause_ms = interval_ms
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def poll_every(self, interval_ms: int) -> None:
        """Another interval from the next reading on."""
        self._interval_ms = interval_ms

    def value(self) -> _Value | None:
        """The last good value unless it is too old."""
        last = self._last
        if last is None:
            return None
        valid_ms = max(VALID_MS_MIN, VALID_READS * self._interval_ms)
        return last[1] if self._clock_ms() - last[0] <= valid_ms else None

    def last(self) -> _Value | None:
        """The last good value, however old."""
        last = self._last
        return None if last is None else last[1]

    def age_ms(self) -> int | None:
        """Since the last good value; None before the first."""
        last = self._last
        return None if last is None else self._clock_ms() - last[0]

    def trouble(self) -> SensorTrouble:
        """What is wrong with it; all zero = nothing."""
        return SensorTrouble(self.failures, self.hangs_ms(), self.unchanged_ms())

    def hangs_ms(self) -> int:
        """How long the look or read under way takes already; 0 = none, or not yet too long."""
        begun_ms = self._begun_ms
        if begun_ms is None:
            return 0
        took_ms = self._clock_ms() - begun_ms
        return took_ms if took_ms > VALID_MS_MIN else 0

    def unchanged_ms(self) -> int:
        """How long its value has not moved at all; 0 = not for long enough to wonder."""
        if self._changed_ms is None or not isinstance(self.value(), float):
            return 0
        same_ms = self._clock_ms() - self._changed_ms
        return same_ms if same_ms >= STUCK_MS else 0

    def poll(self, read: Callable[[], _Value | None]) -> int:
        """Read once; answers the pause before the next read in ms."""
        begun_ms = self._begun_ms = self._clock_ms()
        try:
            found = read()
        except (OSError, ValueError, RuntimeError):
            found = None
        self._begun_ms = None
        now_ms = self._clock_ms()
        if found is None:
            self.failures += 1
        else:
            if self._last is None or self._last[1] != found:
                self._changed_ms = now_ms
            self._last = (now_ms, found)
        if now_ms - begun_ms > SLOW_READ_MS:
            self._pause_ms = min(PAUSE_MS_MAX, self._pause_ms * 2)
        else:
            self._pause_ms = self._interval_ms
        return self._pause_ms

    def look(self) -> Source[_Value] | None:
        """Find the source; a look that fails is a failure of the sensor."""
        self._begun_ms = self._clock_ms()
        try:
            source = self._find()
        except (OSError, ValueError, RuntimeError):
            self.failures += 1
            source = None
        self._begun_ms = None
        if source is not None:
            self.source_words = source.words
            self._interval_ms = max(self._interval_ms, source.interval_ms_min)
        return source

    def start(self) -> None:
        """Start the thread. It is a daemon: a read that never returns must not hold the exit."""
        self._thread = threading.Thread(target=self._run, name=f"sensor-{self.name}", daemon=True)
        self._thread.start()

    def stop(self, wait_ms: int = 200) -> None:
        """Ask the thread to end and wait a little for it."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(wait_ms / 1000)

    def _run(self) -> None:
        source = self.look()
        while source is not None and not self._stopping.is_set():
            self._stopping.wait(self.poll(source.read) / 1000)
