"""The processor's temperature: files of the kernel, a chip on an I2C bus, or the board's BMC.

What the operator names comes first: a file, `tmp102:BUS[:ADDRESS]` or `ipmi:SENSOR`. Otherwise the
thermal zones and chips that are known to be the processor's, then any zone, then IPMI.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import Struct

from din.system.polling import Source
from din.system.readings import Run, in_range, read_number, read_text, run_tool
from din.wire.heartbeat import TEMPERATURE_C_RANGE

MILLIDEGREES_FROM: Final = 200
"""The kernel writes thousandths; a file that holds 45 or 45.5 means degrees."""
CPU_ZONES: Final = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc-thermal", "soc_thermal",
                    "cpu0-thermal", "bigcore0-thermal", "CPU-therm", "acpitz")  # fmt: skip
CPU_CHIPS: Final = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "scpi_sensors")
TMP102_PREFIX: Final = "tmp102:"
IPMI_PREFIX: Final = "ipmi:"
THROTTLE_C_RANGE: Final = (50.0, 125.0)
"""Trip points outside are placeholders."""


class ThrottlePoint(Struct, frozen=True):
    """Where the hardware begins to help itself, as the kernel names it."""

    temperature_c: float
    is_critical: bool
    """It is where the machine stops, not where it slows down."""


def temperature_source(root: Path, named: str = "", run: Run = run_tool) -> Source[float] | None:
    """What is read from now on; None where nothing is found. Raises OSError, ValueError."""
    if named.startswith(TMP102_PREFIX):
        from din.system.tmp102 import tmp102_source  # loads what few nodes need

        return tmp102_source(named, root)
    if named.startswith(IPMI_PREFIX):
        from din.system.ipmi import ipmi_temperature_source

        return ipmi_temperature_source(root, named.removeprefix(IPMI_PREFIX), run)
    path = Path(named) if named else find_temperature(root)
    if path is not None:
        return Source(str(path), lambda: read_temperature(path))
    if (root / "dev/ipmi0").exists():
        from din.system.ipmi import ipmi_temperature_source

        return ipmi_temperature_source(root, "", run)
    return None


def is_path(named: str) -> bool:
    """Whether the operator's words name a file."""
    return not named.startswith((TMP102_PREFIX, IPMI_PREFIX))


def find_temperature(root: Path) -> Path | None:
    """The processor's sensor: a thermal zone by its type, then hwmon by its chip, then any zone."""
    zones = sorted((root / "sys/class/thermal").glob("thermal_zone*"))
    by_type = {_word(each / "type"): each / "temp" for each in reversed(zones)}
    chips = sorted((root / "sys/class/hwmon").glob("hwmon*"))
    by_chip = {_word(each / "name"): each / "temp1_input" for each in reversed(chips)}
    candidates = [
        *(by_type[each] for each in CPU_ZONES if each in by_type),
        *(by_chip[each] for each in CPU_CHIPS if each in by_chip),
        *(each / "temp" for each in zones),
    ]
    return next((each for each in candidates if read_temperature(each) is not None), None)


def read_temperature(path: Path) -> float | None:
    """Degrees Celsius, or None when the file says nothing possible."""
    value = read_number(path)
    if value is None:
        return None
    return in_range(
        value / 1000 if abs(value) >= MILLIDEGREES_FROM else value, *TEMPERATURE_C_RANGE
    )


def throttle_point(path: Path) -> ThrottlePoint | None:
    """Where the hardware behind a temperature file slows down, else where it stops, if told."""
    slow: list[float | None] = []
    stop: list[float | None] = []
    for kind in sorted(path.parent.glob("trip_point_*_type")):
        trip = read_temperature(kind.with_name(kind.name.replace("_type", "_temp")))
        (slow if _word(kind) in ("passive", "active") else stop).append(trip)
    if path.name.endswith("_input"):
        slow.append(read_temperature(path.with_name(path.name.replace("_input", "_max"))))
        stop.append(read_temperature(path.with_name(path.name.replace("_input", "_crit"))))
    for points, is_critical in ((slow, False), (stop, True)):
        usable = [each for each in points if in_range(each, *THROTTLE_C_RANGE) is not None]
        lowest = min((each for each in usable if each is not None), default=None)
        if lowest is not None:
            return ThrottlePoint(lowest, is_critical)
    return None


def _word(path: Path) -> str:
    return (read_text(path) or "").strip()
