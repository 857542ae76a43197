"""Profiles against what slices take where they run: one factor per class of devices.

    factor <- factor * (measured / expected / factor) ^ WEIGHT

A profile is measured on an idle worker; throttling, neighbours and other threads are seen only
later. Steps are taken on a logarithmic scale, so that twice as slow and twice as fast weigh alike.
"""

from __future__ import annotations

from collections import OrderedDict
from math import exp, isfinite, log
from typing import Final

WEIGHT: Final = 1 / 8
"""Of a new measurement, as in flow.timeout."""
FACTOR_MAX: Final = 8.0
"""Beyond that, and under its inverse, the profile is of something else, or the clock is wrong."""
CLASSES_MAX: Final = 256


class Corrections:
    """Factors by class."""

    def __init__(self, classes_max: int = CLASSES_MAX) -> None:
        self._logs: OrderedDict[str, float] = OrderedDict()
        self._classes_max = classes_max

    def observe(self, device_class: str, expected_ms: float, measured_ms: float) -> None:
        """A slice took this long where its profile says that; what is no time is left out."""
        if not (_is_time(expected_ms) and _is_time(measured_ms)):
            return
        ratio = min(max(measured_ms / expected_ms, 1 / FACTOR_MAX), FACTOR_MAX)
        before = self._logs.get(device_class)
        step = log(ratio) if before is None else before + (log(ratio) - before) * WEIGHT
        self._logs[device_class] = step
        self._logs.move_to_end(device_class)
        if len(self._logs) > self._classes_max:
            self._logs.popitem(last=False)

    def factor(self, device_class: str) -> float | None:
        """By what to multiply a profile's times; None = nothing was measured there."""
        found = self._logs.get(device_class)
        return None if found is None else exp(found)


def _is_time(value: float) -> bool:
    return isfinite(value) and value > 0
