"""Runs of slices that end while somebody looks: how many, and the longest. Costs nothing while
nobody does."""

from __future__ import annotations

from typing import Final, NamedTuple

WINDOWS_MAX: Final = 64


class Runs(NamedTuple):
    """Of one node in one window."""

    number: int = 0
    peak_us: float | None = None
    """None = none ended."""
    ratio_peak: float | None = None
    """The longest by its slice's mean before; None = no slice had run there before."""


class RunWatch:
    """Windows by number."""

    def __init__(self) -> None:
        self._windows: dict[int, tuple[str, Runs]] = {}
        self._number = 0

    @property
    def is_open(self) -> bool:
        """Whether anybody looks."""
        return bool(self._windows)

    def begin(self, node: str) -> int:
        """Look at one node from now on; the oldest window goes when there are too many."""
        if len(self._windows) >= WINDOWS_MAX:
            self._windows.pop(next(iter(self._windows)))
        self._number += 1
        self._windows[self._number] = (node, Runs())
        return self._number

    def end(self, number: int) -> Runs:
        """What was seen; nothing of a window that went."""
        return self._windows.pop(number, ("", Runs()))[1]

    def saw(self, node: str, duration_s: float, mean_s: float | None) -> None:
        """A run ended; `mean_s` of those of the same slice there before it."""
        ratio = duration_s / mean_s if mean_s else None
        for number, (watched, runs) in self._windows.items():
            if watched == node:
                peak = max(duration_s * 1e6, runs.peak_us or 0.0)
                ratios = [each for each in (ratio, runs.ratio_peak) if each is not None]
                seen = Runs(runs.number + 1, peak, max(ratios, default=None))
                self._windows[number] = (watched, seen)
