"""The thermal governor: takes cores from the workers before the hardware takes clock from all.

    temperature at the limit, or about to be      one step down, at most one each STEP_MS
    URGENT_C above the limit                      two steps
    HYSTERESIS_C below the limit for calm_ms      one step up
    down again soon after a step up               calm_ms doubles, so nothing swings
    no temperature for STALE_MS                   all cores again, it knows nothing

Knows no clock and no sensor: `take` gets the time and the temperature.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from msgspec import Struct

STEP_MS: Final = 5000
"""Heat follows work by seconds: a faster step would not see what the last one did."""
HYSTERESIS_C: Final = 5.0
URGENT_C: Final = 5.0
LOOK_AHEAD_MS: Final = 5000
RISE_C_MAX: Final = 5.0
"""More than this is not believed of what comes."""
TREND_MS: Final = 10_000
SAMPLES_MAX: Final = 64
CALM_MS: Final = 30_000
CALM_MS_MAX: Final = 600_000
STALE_MS: Final = 60_000
SHARES: Final = (1.0, 0.75, 0.5, 0.25)
LIMIT_C: Final = 75.0
"""Where nothing tells when the hardware slows down; gateways place nothing new from there on."""
LIMIT_C_RANGE: Final = (40.0, 110.0)
BELOW_SLOWING_C: Final = 5.0
BELOW_STOPPING_C: Final = 15.0
"""The limit lies so far below where the hardware slows down, or where it stops."""


class Change(Struct, frozen=True):
    """The governor decided something new."""

    share: float
    """Of the cores, for the workers from now on."""
    temperature_c: float | None
    reason: str


def limit_of(throttle_c: float | None, *, is_critical: bool = False) -> float:
    """The limit where the operator names none, from where the hardware helps itself."""
    if throttle_c is None:
        return LIMIT_C
    below = BELOW_STOPPING_C if is_critical else BELOW_SLOWING_C
    low, high = LIMIT_C_RANGE
    return min(max(throttle_c - below, low), high)


def steps_of(cores: int) -> tuple[float, ...]:
    """Shares that differ on a machine with so many cores, falling. One core cannot be divided: its
    second step is told to the gateway, and takes nothing away here."""
    if cores <= 1:
        return (1.0, 0.5)
    return tuple(dict.fromkeys(max(1, int(cores * share)) / cores for share in SHARES))


class Governor:
    """One machine's."""

    def __init__(self, limit_c: float, steps: tuple[float, ...]) -> None:
        """`steps` as of `steps_of`: the first is all of it."""
        self.limit_c = limit_c
        self._steps = steps
        self._level = 0
        self._samples: deque[tuple[int, float]] = deque(maxlen=SAMPLES_MAX)
        self._known_ms: int | None = None
        self._moved_ms: int | None = None
        self._rose_ms: int | None = None
        """When cores were given back last."""
        self._cool_since_ms: int | None = None
        self._calm_ms = CALM_MS

    @property
    def share(self) -> float:
        """Of the cores, what workers may use now."""
        return self._steps[self._level]

    @property
    def is_capping(self) -> bool:
        """Whether something is held back."""
        return self._level > 0

    def take(self, now_ms: int, temperature_c: float | None) -> Change | None:
        """One look at the temperature; what follows from it, if anything is new."""
        if temperature_c is None:
            return self._unknown(now_ms)
        self._known_ms = now_ms
        self._samples.append((now_ms, temperature_c))
        while now_ms - self._samples[0][0] > TREND_MS:
            self._samples.popleft()
        if temperature_c > self.limit_c - HYSTERESIS_C:
            self._cool_since_ms = None
            return self._hot(now_ms, temperature_c)
        if self._cool_since_ms is None:
            self._cool_since_ms = now_ms
        return self._cool(now_ms, temperature_c)

    def _unknown(self, now_ms: int) -> Change | None:
        is_stale = self._known_ms is None or now_ms - self._known_ms >= STALE_MS
        if not (is_stale and self.is_capping):
            return None
        self._samples.clear()
        self._cool_since_ms = None
        return self._move(now_ms, 0, None, "the temperature is not known any more")

    def _hot(self, now_ms: int, temperature_c: float) -> Change | None:
        is_urgent = temperature_c >= self.limit_c + URGENT_C
        expected_c = temperature_c + self._rise_c()
        if expected_c < self.limit_c or not self._may_move(now_ms):
            return None
        level = min(self._level + (2 if is_urgent else 1), len(self._steps) - 1)
        if level == self._level:
            return None
        if self._rose_ms is not None and now_ms - self._rose_ms <= 2 * self._calm_ms:
            self._calm_ms = min(2 * self._calm_ms, CALM_MS_MAX)
        reason = (
            f"{temperature_c:.1f} C at a limit of {self.limit_c:g} C"
            if temperature_c >= self.limit_c
            else f"{temperature_c:.1f} C and rising to the limit of {self.limit_c:g} C"
        )
        return self._move(now_ms, level, temperature_c, reason)

    def _cool(self, now_ms: int, temperature_c: float) -> Change | None:
        assert self._cool_since_ms is not None, "set by who calls"
        if now_ms - self._cool_since_ms < self._calm_ms:
            return None
        if not self.is_capping:
            self._calm_ms = max(CALM_MS, self._calm_ms // 2)
            self._cool_since_ms = now_ms
            return None
        self._cool_since_ms = now_ms
        self._rose_ms = now_ms
        reason = f"{temperature_c:.1f} C, cool for {self._calm_ms // 1000} s"
        return self._move(now_ms, self._level - 1, temperature_c, reason)

    def _may_move(self, now_ms: int) -> bool:
        return self._moved_ms is None or now_ms - self._moved_ms >= STEP_MS

    def _move(self, now_ms: int, level: int, temperature_c: float | None, reason: str) -> Change:
        self._level, self._moved_ms = level, now_ms
        return Change(self.share, temperature_c, reason)

    def _rise_c(self) -> float:
        """How much warmer it will be in LOOK_AHEAD_MS if it goes on like this; at least 0."""
        (first_ms, first_c), (last_ms, last_c) = self._samples[0], self._samples[-1]
        if last_ms - first_ms < STEP_MS // 2:
            return 0.0
        rise = (last_c - first_c) / (last_ms - first_ms) * LOOK_AHEAD_MS
        return min(max(rise, 0.0), RISE_C_MAX)
