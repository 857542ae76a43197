"""Profiles against what slices take where they run.

A profile is measured on an idle worker; throttling, neighbours and other threads are seen only
later, in what live slices take. Ratios are averaged on a logarithmic scale, so that twice as slow
and twice as fast weigh alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, isfinite, log
from typing import Final

from din.domain.cuts import CutTable
from din.domain.profile import Profile

FACTOR_MAX: Final = 8.0
"""Beyond that, and under its inverse, the profile is of something else, or the clock is wrong."""


def times_for(profile: Profile, table: CutTable) -> tuple[float, ...] | None:
    """Milliseconds by operator, in the order of the table; None where it knows other operators."""
    known = profile.ms_by_operator()
    names = [each.name for each in table.operators]
    if len(known) < len(profile.report.operators) or not known.keys() >= set(names):
        return None
    return tuple(known[name] for name in names)


def slice_ms(times: Sequence[float], assignment: Sequence[int]) -> dict[int, float]:
    """What each slice should take by the times of its operators."""
    found: dict[int, float] = {}
    for ms, number in zip(times, assignment, strict=True):
        found[number] = found.get(number, 0.0) + ms
    return found


def live_factor(pairs: Iterable[tuple[float, float]]) -> float | None:
    """By what to multiply a profile's times; of expected and measured milliseconds. None = nothing
    was measured; what is no time is left out."""
    logs = [
        log(min(max(measured / expected, 1 / FACTOR_MAX), FACTOR_MAX))
        for expected, measured in pairs
        if _is_time(expected) and _is_time(measured)
    ]
    return exp(sum(logs) / len(logs)) if logs else None


def _is_time(value: float) -> bool:
    return isfinite(value) and value > 0
