"""What the machine draws, in watts: a meter on the board, or the processor's own count.

In this order, the first that answers: an INA chip on the supply's total rail, RAPL's `psys` (the
platform), any other power meter of hwmon, RAPL's packages added up, the rails of INA chips added
up, the BMC. Meters of GPUs, disks and batteries are not the machine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from din.system.clock import monotonic_ms
from din.system.polling import Source
from din.system.readings import Run, in_range, read_number, read_text, run_tool
from din.wire.heartbeat import POWER_W_MAX

FOREIGN_CHIPS: Final = ("amdgpu", "nouveau", "radeon", "i915", "xe", "nvme")
TOTAL_RAILS: Final = ("VDD_IN", "POM_5V_IN", "VDD_5V_IN", "VIN", "TOTAL")
"""What boards call the rail that feeds all others."""
NO_RAILS: Final = ("", "NC", "sum of shunt voltages")
CHANNELS_MAX: Final = 3
RAPL_GAP_MS_MIN: Final = 20
"""Two looks closer than this measure the counter's steps, not the power."""
_Read = Callable[[], float | None]


def power_source(root: Path, run: Run = run_tool) -> Source[float] | None:
    """What is read from now on; None where nothing is found."""
    rails = dict(_rails(root))
    total = next((name for name in TOTAL_RAILS if name in rails), None)
    if total is not None:
        return Source(f"rail {total}", rails[total])
    domains = _rapl_domains(root)
    if "psys" in domains:
        return Source("RAPL psys", Rapl((domains["psys"],)))
    meter = find_power(root)
    if meter is not None:
        return Source(str(meter), lambda: read_power(meter))
    packages = tuple(path for name, path in domains.items() if name.startswith("package"))
    if packages:
        return Source(f"RAPL, {len(packages)} packages", Rapl(packages))
    if rails:
        return Source(f"rails {', '.join(rails)}", lambda: _sum(tuple(rails.values())))
    if (root / "dev/ipmi0").exists():
        from din.system.ipmi import ipmi_power_source

        return ipmi_power_source(run)
    return None


def find_power(root: Path) -> Path | None:
    """The first power meter of hwmon that is the machine's."""
    for folder in _chips(root):
        name = _word(folder / "name")
        if name.startswith(("BAT", "ina")) or name in FOREIGN_CHIPS:
            continue
        for file in ("power1_input", "power1_average"):
            if read_power(folder / file) is not None:
                return folder / file
    return None


def read_power(path: Path) -> float | None:
    """Watts of a hwmon file, which counts microwatts."""
    value = read_number(path)
    return None if value is None else in_range(value / 1e6, 0.0, POWER_W_MAX)


class Rapl:
    """Mean power between two looks at energy counters, which wrap."""

    def __init__(
        self, domains: tuple[Path, ...], clock_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        self._domains = domains
        self._clock_ms = clock_ms
        self._before_ms, self._before = clock_ms(), self._energies()
        self._last: float | None = None

    def __call__(self) -> float | None:
        """Watts since the last look; None when a counter cannot be read."""
        now_ms, now = self._clock_ms(), self._energies()
        gap_ms = now_ms - self._before_ms
        if gap_ms < RAPL_GAP_MS_MIN and self._last is not None:
            return self._last
        before, self._before, self._before_ms = self._before, now, now_ms
        joules = 0.0
        for path, was, is_now in zip(self._domains, before, now, strict=True):
            if was is None or is_now is None:
                return None
            moved_uj = is_now - was
            if moved_uj < 0:
                moved_uj += read_number(path / "max_energy_range_uj") or 0.0
            joules += moved_uj / 1e6
        self._last = in_range(joules / max(gap_ms, 1) * 1000, 0.0, POWER_W_MAX)
        return self._last

    def _energies(self) -> tuple[float | None, ...]:
        return tuple(read_number(each / "energy_uj") for each in self._domains)


def _rapl_domains(root: Path) -> dict[str, Path]:
    """Top domains whose counter can be read (root's alone on most kernels), by name. The same
    package is there once more as `intel-rapl-mmio`: counted once."""
    found: dict[str, Path] = {}
    for folder in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
        if folder.name.count(":") == 1 and read_number(folder / "energy_uj") is not None:
            found.setdefault(_word(folder / "name"), folder)
    return found


def _rails(root: Path) -> Iterator[tuple[str, _Read]]:
    """Every rail that an INA chip measures: by hwmon, or by iio as on older boards."""
    for folder in _chips(root):
        chip = _word(folder / "name")
        if not chip.startswith("ina"):
            continue
        if read_power(folder / "power1_input") is not None:
            path = folder / "power1_input"
            yield (
                _word(folder / "label") or f"{chip} {folder.name}",
                lambda path=path: read_power(path),
            )
            continue
        for channel in range(1, CHANNELS_MAX + 1):
            label = _word(folder / f"in{channel}_label")
            if label not in NO_RAILS and _volts_amperes(folder, channel) is not None:
                yield label, lambda at=(folder, channel): _volts_amperes(*at)
    for folder in sorted((root / "sys/bus/iio/devices").glob("iio:device*")):
        yield from _iio_rails(folder)


def _iio_rails(folder: Path) -> Iterator[tuple[str, _Read]]:
    for channel in range(CHANNELS_MAX):
        label, path = _word(folder / f"rail_name_{channel}"), folder / f"in_power{channel}_input"
        if label not in NO_RAILS and _milliwatts(path) is not None:
            yield label, lambda path=path: _milliwatts(path)
    if _word(folder / "name").startswith("ina"):
        raw, scale = folder / "in_power2_raw", read_number(folder / "in_power2_scale")
        if scale is not None and _milliwatts(raw, scale) is not None:
            yield folder.name, lambda: _milliwatts(raw, scale)


def _milliwatts(path: Path, scale: float = 1.0) -> float | None:
    value = read_number(path)
    return None if value is None else in_range(value * scale / 1e3, 0.0, POWER_W_MAX)


def _volts_amperes(folder: Path, channel: int) -> float | None:
    """Millivolts times milliamperes."""
    volts, amperes = (read_number(folder / f"{each}{channel}_input") for each in ("in", "curr"))
    if volts is None or amperes is None:
        return None
    return in_range(volts * amperes / 1e6, 0.0, POWER_W_MAX)


def _sum(reads: tuple[_Read, ...]) -> float | None:
    found = [read() for read in reads]
    known = [each for each in found if each is not None]
    return sum(known) if len(known) == len(found) else None


def _chips(root: Path) -> list[Path]:
    return sorted((root / "sys/class/hwmon").glob("hwmon*"))


def _word(path: Path) -> str:
    return (read_text(path) or "").strip()
