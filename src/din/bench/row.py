"""One figure of a benchmark, with what it should be and how it was taken."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

CPU_INFO: Final = Path("/proc/cpuinfo")


class Row(Struct, frozen=True, kw_only=True):
    """What `din bench run` prints for one figure."""

    name: str
    value: float | None
    """None = it could not be measured; `how` says why."""
    unit: str
    goal: str | None = None
    """None = there is no goal: the figure is shown for comparison."""
    ok: bool | None = None
    """Whether the goal was reached; None without a goal."""
    how: str
    """Window, percentile, rounds, machine."""


class Effort(Struct, frozen=True, kw_only=True):
    """How much work a benchmark puts into its figures; tests make do with little."""

    rounds: int = 3
    """Interleaved rounds of what is compared; the median round counts."""
    window_s: float = 1.0
    """Length of one window of load."""
    repeats: int = 1000
    """Repeats of what takes microseconds."""


def figure(
    name: str,
    value: float,
    unit: str,
    how: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Row:
    """A measured row, held against its goal. The machine is added to `how`."""
    goal = f"<= {at_most:g}" if at_most is not None else None
    goal = f">= {at_least:g}" if at_least is not None else goal
    is_reached = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
    return Row(
        name=name,
        value=_rounded(value),
        unit=unit,
        goal=goal,
        ok=is_reached if goal is not None else None,
        how=f"{how}; {machine()}",
    )


def missing(name: str, reason: str) -> Row:
    """A row that could not be measured."""
    return Row(name=name, value=None, unit="", ok=False, how=f"could not run: {reason}")


def percentile(values: Sequence[float], part: float) -> float:
    """The value below which `part` (0..1) of the values lie."""
    assert values, "no values"
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return percentile(values, 0.5)


def machine() -> str:
    """Processor, cores that may be used, how busy they are, and Python, in a few words."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return f"{cores} cores of {_cpu_model()} at load {load:.1f}, Python {platform.python_version()}"


def _cpu_model() -> str:
    for line in CPU_INFO.read_text(errors="replace").splitlines() if CPU_INFO.exists() else ():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return " ".join(value.split())
    return platform.machine()


def _rounded(value: float) -> float:
    """Four significant digits: more would be noise."""
    return float(f"{value:.4g}")
