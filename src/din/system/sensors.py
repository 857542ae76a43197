"""Live samples for the heartbeat. `health` answers at once, whatever the sensors do.

CPU and memory come from procfs, which does not block. Everything that may block in the kernel or in
a vendor's tool (temperature, power, accelerator) is looked for and read by a thread of its own; a
read that takes too long only makes its value "not measured" and is tried less often. A value out of
range is counted and replaced by the last good one, for a short while.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import psutil
from msgspec import Struct

from din.domain.node import NodeHealth
from din.errors import UsageError
from din.system.accelerators import (
    AcceleratorReader,
    AcceleratorSample,
    read_number,
)
from din.system.clock import monotonic_ms
from din.system.headroom import read_headroom
from din.wire.heartbeat import POWER_W_MAX, TEMPERATURE_C_RANGE

POLL_INTERVAL_MS: Final = 500
POLL_INTERVAL_MS_RANGE: Final = (50, 3_600_000)
SLOW_READ_MS: Final = 1000
"""A read that takes longer doubles the pause before the next."""
PAUSE_MS_MAX: Final = 60_000
VALID_READS: Final = 10
"""A value is shown for so many poll intervals after it was read."""
VALID_MS_MIN: Final = 5000
MILLIDEGREES_FROM: Final = 200
"""The kernel writes thousandths; a file that holds 45 or 45.5 means degrees."""
CPU_ZONES: Final = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc-thermal", "soc_thermal",
                    "cpu0-thermal", "bigcore0-thermal", "acpitz")  # fmt: skip
CPU_CHIPS: Final = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "scpi_sensors")

_Value = TypeVar("_Value")


class SensorSettings(Struct, frozen=True, kw_only=True):
    """What the operator says about sensors."""

    temperature_path: Path | None = None
    is_temperature_disabled: bool = False
    poll_interval_ms: int = POLL_INTERVAL_MS

    def __post_init__(self) -> None:
        """Raises UsageError."""
        low, high = POLL_INTERVAL_MS_RANGE
        if not low <= self.poll_interval_ms <= high:
            raise UsageError(
                f"temperature poll interval {self.poll_interval_ms} ms is outside {low}..{high} ms",
                hint="500 is the default, 5000 suits boards whose sensor is slow",
            )


class SensorTrouble(Struct, frozen=True):
    """What is wrong with one sensor."""

    failures: int
    """Reads since the start that brought nothing, or something impossible."""
    hangs_ms: int
    """How long a read does not return; 0 = none hangs."""


class PolledSensor(Generic[_Value]):
    """One source, read again and again by a thread; `value` never waits for it."""

    def __init__(
        self,
        name: str,
        find: Callable[[], Callable[[], _Value | None] | None],
        interval_ms: int,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        """`find` looks for the source, in the thread, since a look may block as well: it answers
        the function that reads, or None where there is nothing to read."""
        self.name = name
        self.failures = 0
        """Reads that brought nothing, or something impossible."""
        self._find = find
        self._interval_ms = interval_ms
        self._clock_ms = clock_ms
        self._last: tuple[int, _Value] | None = None
        self._begun_ms: int | None = None
        self._pause_ms = interval_ms
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def value(self) -> _Value | None:
        """The last good value unless it is too old."""
        last = self._last
        if last is None:
            return None
        valid_ms = max(VALID_MS_MIN, VALID_READS * self._interval_ms)
        return last[1] if self._clock_ms() - last[0] <= valid_ms else None

    def hangs_ms(self) -> int:
        """How long the look or read under way takes already; 0 = none, or not yet too long."""
        begun_ms = self._begun_ms
        if begun_ms is None:
            return 0
        took_ms = self._clock_ms() - begun_ms
        return took_ms if took_ms > VALID_MS_MIN else 0

    def poll(self, read: Callable[[], _Value | None]) -> int:
        """Read once; answers the pause before the next read in ms."""
        begun_ms = self._begun_ms = self._clock_ms()
        try:
            found = read()
        except (OSError, ValueError, RuntimeError):
            found = None
        self._begun_ms = None
        now_ms = self._clock_ms()
        if found is None:
            self.failures += 1
        else:
            self._last = (now_ms, found)
        if now_ms - begun_ms > SLOW_READ_MS:
            self._pause_ms = min(PAUSE_MS_MAX, self._pause_ms * 2)
        else:
            self._pause_ms = self._interval_ms
        return self._pause_ms

    def start(self) -> None:
        """Start the thread. It is a daemon: a read that never returns must not hold the exit."""
        self._thread = threading.Thread(target=self._run, name=f"sensor-{self.name}", daemon=True)
        self._thread.start()

    def stop(self, wait_ms: int = 200) -> None:
        """Ask the thread to end and wait a little for it."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(wait_ms / 1000)

    def _run(self) -> None:
        self._begun_ms = self._clock_ms()
        read = self._find()
        self._begun_ms = None
        while read is not None and not self._stopping.is_set():
            self._stopping.wait(self.poll(read) / 1000)


class Sensors:
    """All sensors of one node."""

    def __init__(
        self,
        settings: SensorSettings,
        accelerator: AcceleratorReader | None = None,
        root: Path = Path("/"),
    ) -> None:
        self._root = root
        self._has_cpu_base = False
        interval_ms = settings.poll_interval_ms
        path = settings.temperature_path
        self._temperature = (
            None
            if settings.is_temperature_disabled
            else PolledSensor("temperature", lambda: _temperature_reader(root, path), interval_ms)
        )
        self._power = PolledSensor("power", lambda: _power_reader(root), interval_ms)
        self._accelerator = (
            None
            if accelerator is None
            else PolledSensor("accelerator", lambda: accelerator.sample, interval_ms)
        )

    def start(self) -> None:
        """Begin to poll."""
        psutil.cpu_percent(None)
        self._has_cpu_base = True
        for sensor in self._polled():
            sensor.start()

    def stop(self) -> None:
        """End polling."""
        for sensor in self._polled():
            sensor.stop()

    def troubles(self) -> dict[str, SensorTrouble]:
        """Sensors that failed, or whose read does not return, by name."""
        found = {
            each.name: SensorTrouble(each.failures, each.hangs_ms()) for each in self._polled()
        }
        return {name: each for name, each in found.items() if each.failures or each.hangs_ms}

    def health(self, queue_length: int) -> NodeHealth:
        """The newest sample; what is not measured is None."""
        sample = self._accelerator.value() if self._accelerator else None
        sample = sample or AcceleratorSample()
        temperature = self._temperature.value() if self._temperature else None
        power = self._power.value() if self._power else None
        return NodeHealth(
            cpu_percent=self._cpu_percent(),
            memory_mib_free=self._memory_mib_free(),
            accelerator_percent=in_range(sample.percent, 0.0, 100.0),
            accelerator_memory_mib_free=sample.memory_mib_free,
            utilization_source=sample.source,
            temperature_c=temperature
            if temperature is not None
            else in_range(sample.temperature_c, *TEMPERATURE_C_RANGE),
            power_w=power if power is not None else in_range(sample.power_w, 0.0, POWER_W_MAX),
            queue_length=queue_length,
        )

    def _polled(self) -> tuple[PolledSensor[float] | PolledSensor[AcceleratorSample], ...]:
        found = (self._temperature, self._power, self._accelerator)
        return tuple(each for each in found if each is not None)

    def _cpu_percent(self) -> float | None:
        """Busy share since the last call; the first call has nothing to compare with."""
        percent = psutil.cpu_percent(None)
        if not self._has_cpu_base:
            self._has_cpu_base = True
            return None
        return in_range(percent, 0.0, 100.0)

    def _memory_mib_free(self) -> int | None:
        """What a new process could take; see `headroom`."""
        found = read_headroom(self._root)
        return None if found is None else found.free_mib


def _temperature_reader(root: Path, named: Path | None) -> Callable[[], float | None] | None:
    path = named or find_temperature(root)
    return None if path is None else lambda: read_temperature(path)


def _power_reader(root: Path) -> Callable[[], float | None] | None:
    path = find_power(root)
    return None if path is None else lambda: read_power(path)


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


def find_power(root: Path) -> Path | None:
    """The first hwmon power reading."""
    for folder in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        for name in ("power1_input", "power1_average"):
            if read_power(folder / name) is not None:
                return folder / name
    return None


def read_temperature(path: Path) -> float | None:
    """Degrees Celsius, or None when the file says nothing possible."""
    value = read_number(path)
    if value is None:
        return None
    return in_range(
        value / 1000 if abs(value) >= MILLIDEGREES_FROM else value, *TEMPERATURE_C_RANGE
    )


def read_power(path: Path) -> float | None:
    """Watts of a hwmon file, which counts microwatts."""
    value = read_number(path)
    return None if value is None else in_range(value / 1e6, 0.0, POWER_W_MAX)


def in_range(value: float | None, low: float, high: float) -> float | None:
    """The value, or None when it is outside what can be true."""
    return value if value is not None and low <= value <= high else None


def _word(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
