"""The board's management controller, asked by `ipmitool`. Only where /dev/ipmi0 is.

A BMC answers in tenths of seconds to seconds, so it is asked seldom.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from din.system.polling import Source
from din.system.readings import Run, in_range, run_tool
from din.wire.heartbeat import POWER_W_MAX, TEMPERATURE_C_RANGE

INTERVAL_MS_MIN: Final = 10_000
LIST_TEMPERATURES: Final = ("ipmitool", "sdr", "type", "temperature")
LIST_POWER: Final = ("ipmitool", "dcmi", "power", "reading")
_DEGREES: Final = re.compile(r"(-?\d+(?:\.\d+)?)\s*degrees C")
_WATTS: Final = re.compile(r"Instantaneous power reading:\s*(\d+(?:\.\d+)?)\s*Watts")


def ipmi_temperature_source(
    root: Path, name: str = "", run: Run = run_tool
) -> Source[float] | None:
    """The sensor with this name, or the hottest whose name tells of a processor."""
    if not (root / "dev/ipmi0").exists():
        return None
    if ipmi_temperature(run(LIST_TEMPERATURES), name) is None:
        return None
    return Source(
        f"ipmitool, {name or 'CPU'}",
        lambda: ipmi_temperature(run(LIST_TEMPERATURES), name),
        INTERVAL_MS_MIN,
    )


def ipmi_power_source(run: Run = run_tool) -> Source[float] | None:
    """What the whole machine draws, where the BMC measures it."""
    if ipmi_power(run(LIST_POWER)) is None:
        return None
    return Source("ipmitool dcmi", lambda: ipmi_power(run(LIST_POWER)), INTERVAL_MS_MIN)


def ipmi_temperature(text: str | None, name: str = "") -> float | None:
    """Of lines `NAME | id | ok | entity | 41 degrees C`; disabled ones say "no reading"."""
    hottest: float | None = None
    for line in (text or "").splitlines():
        title = line.partition("|")[0].strip()
        found = _DEGREES.search(line)
        is_meant = title == name if name else "cpu" in title.lower()
        degrees = in_range(float(found[1]), *TEMPERATURE_C_RANGE) if found and is_meant else None
        if degrees is not None and (hottest is None or degrees > hottest):
            hottest = degrees
    return hottest


def ipmi_power(text: str | None) -> float | None:
    """Of `ipmitool dcmi power reading`; a BMC without a meter says 0, which is not measured."""
    found = _WATTS.search(text or "")
    return (in_range(float(found[1]), 0.0, POWER_W_MAX) or None) if found else None
