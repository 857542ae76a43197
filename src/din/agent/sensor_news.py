"""Tells the log of sensors that fail: at once, and then at most once in ten minutes each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from din.flow.seldom import Seldom
from din.system.polling import SensorTrouble

TELL_EVERY_MS: Final = 600_000.0


class SensorNews:
    """Looks at every beat; nothing is said of a sensor that fails no more."""

    def __init__(
        self, troubles: Callable[[], Mapping[str, SensorTrouble]], report: Callable[..., None]
    ) -> None:
        self._troubles = troubles
        self._report = report
        self._told: dict[str, Seldom] = {}
        self._failures: dict[str, int] = {}

    def look(self, now_ms: float) -> None:
        """Tell what is new and due."""
        for name, trouble in self._troubles().items():
            is_new = trouble.failures > self._failures.get(name, 0)
            is_new = is_new or trouble.hangs_ms > 0 or trouble.unchanged_ms > 0
            if is_new and self._told.setdefault(name, Seldom(TELL_EVERY_MS)).count(now_ms):
                self._report(
                    "sensor_failed",
                    sensor=name,
                    failures=trouble.failures,
                    hangs_ms=trouble.hangs_ms,
                    unchanged_ms=trouble.unchanged_ms,
                )
            self._failures[name] = trouble.failures
