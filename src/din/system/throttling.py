"""Whether the hardware slows itself down, and why: its own flags, no guess from a temperature.

A Raspberry Pi tells by sixteen bits of its firmware, in sysfs and by `vcgencmd`; either may miss
what the other has, so both are asked and believed. x86 counts throttlings for each core, Jetson
counts its over-current events: a count that grew tells of now.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from din.domain.node import SPEED_LIMITS, SpeedLimit
from din.system.clock import monotonic_ms
from din.system.polling import Source
from din.system.readings import Run, read_number, read_text, run_tool
from din.system.tools import find_tool

PI_FILE: Final = "sys/devices/platform/soc/soc:firmware/get_throttled"
PI_TOOL: Final = ("vcgencmd", "get_throttled")
PI_TOOL_INTERVAL_MS: Final = 10_000
PI_BITS: Final[tuple[tuple[int, SpeedLimit], ...]] = (
    (0, "undervoltage"),
    (1, "frequency_capped"),
    (2, "throttled"),
    (3, "soft_temperature_limit"),
    (16, "undervoltage_before"),
    (17, "frequency_capped_before"),
    (18, "throttled_before"),
    (19, "soft_temperature_limit_before"),
)
EVENT_HOLD_MS: Final = 30_000
"""A counted event is told for so long: counters have no end of it."""

Limits = tuple[SpeedLimit, ...]


def throttling_source(
    root: Path, run: Run = run_tool, *, has_tool: Callable[[], bool] | None = None
) -> Source[Limits] | None:
    """What tells of throttling here; None where nothing does."""
    has_file = pi_flags(read_text(root / PI_FILE)) is not None
    asks_tool = has_tool() if has_tool is not None else find_tool(PI_TOOL[0]) is not None
    is_answered = asks_tool and pi_flags(run(PI_TOOL)) is not None
    if has_file or is_answered:
        words = "vcgencmd" if not has_file else "firmware flags"
        words += " and vcgencmd" if has_file and is_answered else ""
        interval_ms = PI_TOOL_INTERVAL_MS if is_answered else 0
        return Source(words, lambda: _pi_limits(root, run if is_answered else None), interval_ms)
    counters = _counters(root)
    if not counters:
        return None
    return Source(f"{len(counters)} throttle counters", ThrottleCounters(counters))


def pi_flags(text: str | None) -> int | None:
    """The number of `50005`, `0x50005` or `throttled=0x50005`; None for anything else."""
    word = (text or "").strip().removeprefix("throttled=")
    try:
        flags = int(word, 16)
    except ValueError:
        return None
    return flags if 0 <= flags < 1 << 32 else None


def pi_limits(flags: int) -> Limits:
    """The words of the bits."""
    return tuple(word for bit, word in PI_BITS if flags >> bit & 1)


def _pi_limits(root: Path, run: Run | None) -> Limits | None:
    found = [pi_flags(read_text(root / PI_FILE)), pi_flags(run(PI_TOOL)) if run else None]
    known = [each for each in found if each is not None]
    if not known:
        return None
    said = {word for flags in known for word in pi_limits(flags)}
    return tuple(word for word in SPEED_LIMITS if word in said)


class ThrottleCounters:
    """Counters that grow with each throttling."""

    def __init__(self, paths: tuple[Path, ...], clock_ms: Callable[[], int] = monotonic_ms) -> None:
        self._paths = paths
        self._clock_ms = clock_ms
        self._before = self._counts()
        self._grew_ms: int | None = None

    def __call__(self) -> Limits | None:
        """`throttled` while one grew of late; None when none can be read."""
        now = self._counts()
        if all(each is None for each in now):
            return None
        pairs = zip(self._before, now, strict=True)
        if any(was is not None and each is not None and each > was for was, each in pairs):
            self._grew_ms = self._clock_ms()
        self._before = now
        is_fresh = self._grew_ms is not None and self._clock_ms() - self._grew_ms <= EVENT_HOLD_MS
        return ("throttled",) if is_fresh else ()

    def _counts(self) -> tuple[float | None, ...]:
        return tuple(read_number(each) for each in self._paths)


def _counters(root: Path) -> tuple[Path, ...]:
    cores = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/*_throttle_count")
    events = (root / "sys/class/hwmon").glob("hwmon*/oc[0-9]_event_cnt")
    return tuple(each for each in sorted((*cores, *events)) if read_number(each) is not None)


def clock_share(root: Path) -> float | None:
    """How fast the slowest core's clock is now, of the fastest it can; None where not told."""
    shares: list[float] = []
    for folder in (root / "sys/devices/system/cpu/cpufreq").glob("policy[0-9]*"):
        now = read_number(folder / "scaling_cur_freq")
        most = read_number(folder / "cpuinfo_max_freq")
        if now is not None and most:
            shares.append(min(now / most, 1.0))
    return min(shares, default=None)
