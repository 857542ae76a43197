"""Accelerators whose driver tells their load by files: amdgpu, Tegra, and Rockchip's NPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from din.system.accelerator_facts import MIB, Accelerator, AcceleratorSample
from din.system.readings import read_number, read_text

TEGRA_PLACES: Final = (
    "sys/devices/gpu.0",
    "sys/devices/platform/gpu.0",
    "sys/devices/*.gv11b",
    "sys/devices/*.gp10b",
    "sys/devices/platform/*.ga10b",
    "sys/devices/platform/bus@0/*.gpu",
)
"""Of Jetson boards from TX2 to Orin, by the releases of their kernels."""
RKNPU_FILES: Final = ("sys/kernel/debug/rknpu/load", "proc/rknpu/load")
_RKNPU_CORE: Final = re.compile(r"Core\d+:\s*(\d+(?:\.\d+)?)%")
_RKNPU_WHOLE: Final = re.compile(r"NPU load:\s*(\d+(?:\.\d+)?)%")


class SysfsGpu:
    """A GPU whose driver tells its load by files: amdgpu, and Tegra's integrated GPU."""

    def __init__(self, folder: Path, kind: str, load_file: str, load_divisor: int) -> None:
        self._folder = folder
        self._kind = kind
        self._load_file = load_file
        self._load_divisor = load_divisor

    @classmethod
    def probe(cls, root: Path = Path("/")) -> SysfsGpu | None:
        """The first GPU with a readable load, or None."""
        for folder in sorted((root / "sys/class/drm").glob("card[0-9]*/device")):
            if read_number(folder / "gpu_busy_percent") is not None:
                return cls(folder, "amdgpu", "gpu_busy_percent", 1)
        for place in TEGRA_PLACES:
            for folder in sorted(root.glob(place)):
                if read_number(folder / "load") is not None:
                    return cls(folder, "tegra", "load", 10)
        return None

    def describe(self) -> Accelerator:
        """Driver name; memory where the driver tells it."""
        total = read_number(self._folder / "mem_info_vram_total")
        name = (read_text(self._folder / "product_name") or "").strip()
        return Accelerator(
            name=name or f"{self._kind} GPU",
            memory_mib=None if total is None else int(total) // MIB,
            device_part=self._kind,
            source="sysfs",
        )

    def sample(self) -> AcceleratorSample:
        """Load and free memory; temperature belongs to the thermal sensors."""
        load = read_number(self._folder / self._load_file)
        total = read_number(self._folder / "mem_info_vram_total")
        used = read_number(self._folder / "mem_info_vram_used")
        free = None if total is None or used is None else int(total - used) // MIB
        return AcceleratorSample(
            percent=None if load is None else load / self._load_divisor,
            memory_mib_free=free,
            source=None if load is None else "sysfs",
        )


class RockchipNpu:
    """An NPU of Rockchip, whose driver tells the load of each core in one line; root reads it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def probe(cls, root: Path = Path("/")) -> RockchipNpu | None:
        """The first file that tells a load, or None."""
        paths = (root / each for each in RKNPU_FILES)
        return next((cls(each) for each in paths if rknpu_percents(read_text(each))), None)

    def describe(self) -> Accelerator:
        """It has no memory of its own, and tells no name."""
        cores = len(rknpu_percents(read_text(self._path)))
        return Accelerator(
            name=f"Rockchip NPU, {cores} cores" if cores > 1 else "Rockchip NPU",
            memory_mib=None,
            device_part="rknpu",
            source="sysfs",
        )

    def sample(self) -> AcceleratorSample:
        """The mean of its cores, and each."""
        found = rknpu_percents(read_text(self._path))
        if not found:
            return AcceleratorSample()
        mean = sum(found) / len(found)
        return AcceleratorSample(percent=mean, core_percents=found, source="sysfs")


def rknpu_percents(text: str | None) -> tuple[float, ...]:
    """Of `NPU load:  Core0: 12%, Core1:  0%,` or `NPU load:  12%`; empty for anything else."""
    found = _RKNPU_CORE.findall(text or "") or _RKNPU_WHOLE.findall(text or "")
    return tuple(float(each) for each in found)
