"""How hot the cores of a node run: utilisation, latency and memory over a short window.

Two patterns have names. `bandwidth-bound`: a core is busy and its memory's bandwidth is nearly
used up, so more cores or a faster clock do not help, smaller or fewer tensors do. `compute-idle`:
a core has little to do while runs take long, so they wait for something else. What was not
measured has no pattern.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from din.errors import UsageError

CoreKind = Literal["cpu", "gpu", "npu"]
HeatPattern = Literal["", "bandwidth-bound", "compute-idle"]

WINDOW_MS: Final = 100
WINDOW_MS_RANGE: Final = (10, 5000)
CORES_MAX: Final = 1024
"""Cores of one node in one answer."""
CORE_MASK_MAX: Final = (1 << CORES_MAX) - 1
CORE_MASK_DIGITS_MAX: Final = CORES_MAX // 4
"""Hexadecimal."""
HIGH_PERCENT: Final = 70.0
LOW_PERCENT: Final = 30.0
SLOW_RATIO: Final = 2.0
"""A run that takes so many times its slice's mean there is slow."""


class SensorView(Struct, frozen=True, kw_only=True):
    """One sensor of a node."""

    name: str
    source: str = ""
    """Where its values come from; empty = nothing was found."""
    value: float | None = None
    """The last good one, where it is a number; C or W."""
    age_ms: int | None = None
    """Since the last good value."""
    failures: int = 0
    """Reads since the start that brought nothing, or something impossible."""
    hangs_ms: int = 0
    """How long a read does not return; 0 = none hangs."""
    unchanged_ms: int = 0
    """For how long the value has not moved, from an hour on: the sensor may be stuck."""


class CoreHeat(Struct, frozen=True, kw_only=True):
    """One core over the window. null = not measured, never 0."""

    core: int
    kind: CoreKind = "cpu"
    percent: float | None = None
    """Mean utilisation."""
    latency_us_peak: float | None = None
    """Longest run of a slice that ended in the window. Runs spread over the processor's cores, so
    all of them have the same one."""
    bandwidth_percent: float | None = None
    """Memory traffic of the window, of the most there can be."""
    pattern: HeatPattern = ""


class HeatView(Struct, frozen=True, kw_only=True):
    """GET /api/v1/nodes/{node}/heat."""

    schema: str = "din.heat/1"
    node: str
    window_ms: int
    """As measured."""
    core_mask: str
    """Which cores were asked for, hexadecimal with bit 0 = core 0, or `all`."""
    runs: int = 0
    """Runs of slices that ended in the window."""
    latency_ratio_peak: float | None = None
    """The longest run compared with the mean of its slice there."""
    cores: tuple[CoreHeat, ...] = ()
    unknown: dict[str, str] = {}
    """What was not measured, and why."""
    sensors: tuple[SensorView, ...] = ()


def core_mask_of(text: str | None) -> int:
    """A mask as people write it, `0xFF`; 0 = every core. Raises UsageError."""
    if text is None:
        return 0
    digits = text.lower().removeprefix("0x")
    is_mask = 0 < len(digits) <= CORE_MASK_DIGITS_MAX and not set(digits) - set("0123456789abcdef")
    mask = int(digits, 16) if is_mask else 0
    if not mask:
        raise UsageError(
            f"core_mask is {text!r:.40}",
            hint="hexadecimal with at least one bit, 0x3 = cores 0 and 1; leave it out for all",
        )
    return mask


def pattern_of(
    percent: float | None, bandwidth_percent: float | None, latency_ratio: float | None
) -> HeatPattern:
    """The named bottleneck of one core, or none."""
    if percent is None:
        return ""
    is_wide = bandwidth_percent is not None and bandwidth_percent >= HIGH_PERCENT
    if percent >= HIGH_PERCENT and is_wide:
        return "bandwidth-bound"
    is_slow = latency_ratio is not None and latency_ratio >= SLOW_RATIO
    return "compute-idle" if percent <= LOW_PERCENT and is_slow else ""


def with_runs(
    view: HeatView, runs: int, latency_us_peak: float | None, latency_ratio: float | None
) -> HeatView:
    """The view with what was seen of runs meanwhile, and each core's pattern."""
    cores = tuple(
        replace(
            each,
            latency_us_peak=latency_us_peak,
            pattern=pattern_of(each.percent, each.bandwidth_percent, latency_ratio),
        )
        for each in view.cores
    )
    unknown = dict(view.unknown)
    if latency_us_peak is None:
        unknown["latency_us_peak"] = "no run of a slice ended in the window"
    return replace(
        view,
        cores=cores,
        runs=runs,
        latency_ratio_peak=None if latency_ratio is None else round(latency_ratio, 2),
        unknown=unknown,
    )
