"""What is known of an accelerator, whoever found it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

MIB: Final = 1024 * 1024


class Accelerator(Struct, frozen=True, kw_only=True):
    """What the accelerator is."""

    name: str
    memory_mib: int | None
    device_part: str
    """Middle and end of the device type, for example `cuda12.4` or `ascend310p-cann6.3`."""
    source: str


class AcceleratorSample(Struct, frozen=True, kw_only=True):
    """How it is doing. None = not measured."""

    percent: float | None = None
    memory_mib_free: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    source: str | None = None
    """Who measured `percent`."""
    bandwidth_percent: float | None = None
    """Of its memory's bandwidth, what is used."""
    core_percents: tuple[float, ...] = ()
    """Of each core, where the driver tells them apart."""
