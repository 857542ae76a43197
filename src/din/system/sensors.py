"""Live samples for the heartbeat. `health` answers at once, whatever the sensors do.

CPU, memory and swap come from procfs, which does not block. Everything that may block in the kernel
or in a vendor's tool (temperature, power, throttling, accelerator) is looked for and read by a
thread of its own, see `din.system.polling`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import psutil
from msgspec import Struct

from din.domain.heat import SensorView
from din.domain.node import NodeHealth, SpeedLimit
from din.errors import UsageError
from din.system.accelerator_facts import AcceleratorSample
from din.system.accelerators import AcceleratorReader
from din.system.headroom import read_headroom
from din.system.polling import PolledSensor, SensorTrouble, Source
from din.system.power import power_source
from din.system.readings import Run, in_range, read_text, run_tool
from din.system.temperature import (
    TMP102_PREFIX,
    ThrottlePoint,
    temperature_source,
    throttle_point,
)
from din.system.throttling import Limits, clock_share, throttling_source
from din.wire.heartbeat import POWER_W_MAX, TEMPERATURE_C_RANGE

POLL_INTERVAL_MS: Final = 500
POLL_INTERVAL_MS_RANGE: Final = (50, 3_600_000)
THROTTLED_SHARE: Final = 0.5
"""Assumed of hardware that throttles and does not tell its clock."""
_SWAP: Final = re.compile(r"^Swap(Total|Free):\s*(\d+) kB", re.MULTILINE)


class SensorSettings(Struct, frozen=True, kw_only=True):
    """What the operator says about sensors."""

    temperature: str = ""
    """See `din.system.temperature`; empty = looked for."""
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
        if self.temperature.startswith(TMP102_PREFIX):
            from din.system.tmp102 import tmp102_place  # loads what few nodes need

            try:
                tmp102_place(self.temperature)
            except ValueError as error:
                raise UsageError(
                    f"temperature sensor {error}", hint="tmp102:1:0x48 is bus 1, address 0x48"
                ) from None


class Sensors:
    """All sensors of one node."""

    def __init__(
        self,
        settings: SensorSettings,
        accelerator: AcceleratorReader | None = None,
        root: Path = Path("/"),
        run: Run = run_tool,
    ) -> None:
        self._root = root
        self._settings = settings
        self._has_cpu_base = False
        self._throttle_point: ThrottlePoint | None = None
        interval_ms = settings.poll_interval_ms
        self._temperature = (
            None
            if settings.is_temperature_disabled
            else PolledSensor("temperature", lambda: self._find_temperature(run), interval_ms)
        )
        self._power = PolledSensor("power", lambda: power_source(root, run), interval_ms)
        self._throttling = PolledSensor(
            "throttling", lambda: throttling_source(root, run), interval_ms
        )
        self._accelerator = (
            None
            if accelerator is None
            else PolledSensor(
                "accelerator", lambda: Source("accelerator", accelerator.sample), interval_ms
            )
        )

    def start(self) -> None:
        """Begin to poll."""
        psutil.cpu_percent(None)
        self._has_cpu_base = True
        for sensor in self._polled():
            sensor.start()

    def poll_every(self, interval_ms: int) -> None:
        """Another interval from the next reading on."""
        for sensor in self._polled():
            sensor.poll_every(interval_ms)

    def stop(self) -> None:
        """End polling."""
        for sensor in self._polled():
            sensor.stop()

    def troubles(self) -> dict[str, SensorTrouble]:
        """Sensors that failed, whose read does not return, or whose value never moves, by name."""
        found = {each.name: each.trouble() for each in self._polled()}
        return {name: each for name, each in found.items() if each != SensorTrouble(0, 0)}

    def views(self) -> tuple[SensorView, ...]:
        """Every sensor that was found or that failed, for people."""
        return tuple(
            _view(each)
            for each in self._polled()
            if each.source_words or each.failures or each.hangs_ms()
        )

    def accelerator(self) -> AcceleratorSample | None:
        """The newest sample; None without an accelerator."""
        return None if self._accelerator is None else self._sample()

    def temperature_c(self) -> float | None:
        """The processor's, else the accelerator's, else None."""
        found = self._temperature.value() if self._temperature else None
        if found is not None or self._settings.is_temperature_disabled:
            return found
        return in_range(self._sample().temperature_c, *TEMPERATURE_C_RANGE)

    @property
    def throttle_point(self) -> ThrottlePoint | None:
        """Where the hardware helps itself, once the processor's sensor was found and tells."""
        return self._throttle_point

    def limits(self) -> tuple[Limits, float]:
        """Why the hardware is slower than it could be, and what share of its speed is left."""
        limits = self._throttling.value() or ()
        if not _slows(limits):
            return limits, 1.0
        share = clock_share(self._root)
        return limits, THROTTLED_SHARE if share is None else share

    def knows_limits(self) -> bool:
        """Whether anything here tells of throttling, or of a temperature."""
        return self._throttling.value() is not None or self.temperature_c() is not None

    def health(
        self, queue_length: int, governed_share: float = 1.0, *, is_governed: bool = False
    ) -> NodeHealth:
        """The newest sample; what is not measured is None. `governed_share`: of the cores, what a
        governor leaves to workers; `is_governed`: it holds some back now."""
        sample = self._sample()
        power = self._power.value()
        limits, share = self.limits()
        word: tuple[SpeedLimit, ...] = ("governor",) if is_governed else ()
        capacity = max(1, round(100 * share * governed_share))
        return NodeHealth(
            cpu_percent=self._cpu_percent(),
            memory_mib_free=self._memory_mib_free(),
            accelerator_percent=in_range(sample.percent, 0.0, 100.0),
            accelerator_memory_mib_free=sample.memory_mib_free,
            utilization_source=sample.source,
            temperature_c=self.temperature_c(),
            power_w=power if power is not None else in_range(sample.power_w, 0.0, POWER_W_MAX),
            queue_length=queue_length,
            capacity_percent=capacity if self.knows_limits() else None,
            limits=(*limits, *word),
            swap_mib_used=self._swap_mib_used(),
        )

    def _find_temperature(self, run: Run) -> Source[float] | None:
        source = temperature_source(self._root, self._settings.temperature, run)
        if source is not None and source.words.startswith(str(self._root)):
            self._throttle_point = throttle_point(Path(source.words))
        return source

    def _sample(self) -> AcceleratorSample:
        return (self._accelerator.value() if self._accelerator else None) or AcceleratorSample()

    def _polled(
        self,
    ) -> tuple[PolledSensor[float] | PolledSensor[Limits] | PolledSensor[AcceleratorSample], ...]:
        found = (self._temperature, self._power, self._throttling, self._accelerator)
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

    def _swap_mib_used(self) -> int | None:
        """Of the machine; None where it has no swap."""
        text = read_text(self._root / "proc/meminfo") or ""
        kib = {found[1]: int(found[2]) for found in _SWAP.finditer(text)}
        total, free = kib.get("Total", 0), kib.get("Free", 0)
        return max(0, total - free) // 1024 if total else None


def _slows(limits: Limits) -> bool:
    """Whether one of them holds now, not only before."""
    return any(not each.endswith("_before") for each in limits)


def _view(
    sensor: PolledSensor[float] | PolledSensor[Limits] | PolledSensor[AcceleratorSample],
) -> SensorView:
    last, trouble = sensor.last(), sensor.trouble()
    return SensorView(
        name=sensor.name,
        source=sensor.source_words,
        value=last if isinstance(last, float) else None,
        age_ms=sensor.age_ms(),
        failures=trouble.failures,
        hangs_ms=trouble.hangs_ms,
        unchanged_ms=trouble.unchanged_ms,
    )
