"""Accelerators, found by asking: NVML, nvidia-smi, npu-smi, sysfs. Absence is an answer, no error.

A library may be a stub, a tool may hang, a value may be "[N/A]": what cannot be measured is None
and is never 0. NVML is first tried in a child with a time limit, because a broken driver library
may crash or block whoever loads it; only then does this process load it. A machine with several
accelerators is described by its first one.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct

PROBE_SECONDS_MAX: Final = 5.0
OUTPUT_BYTES_MAX: Final = 64 * 1024
FALLBACK_EVERY_SAMPLES: Final = 10
"""nvidia-smi costs a process: it is asked for every tenth sample only, when NVML cannot say."""
MIB: Final = 1024 * 1024
_NVML_NAMES: Final = ("libnvidia-ml.so.1", "libnvidia-ml.so")
_SMI_QUERY: Final = "name,memory.total,memory.free,utilization.gpu,temperature.gpu,power.draw"
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")

Run = Callable[[Sequence[str]], str | None]
"""Runs a command; its output, or None when it is missing, fails or takes too long."""
Load = Callable[[str], Any]


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


class AcceleratorReader(Protocol):
    """One accelerator. Calls may block; they belong into a reader thread."""

    def describe(self) -> Accelerator:
        """What it is."""
        ...

    def sample(self) -> AcceleratorSample:
        """How it is doing now."""
        ...


def run_tool(command: Sequence[str]) -> str | None:
    """Run a vendor's tool with a time limit."""
    path = shutil.which(command[0])
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout[:OUTPUT_BYTES_MAX].decode(errors="replace") if done.returncode == 0 else None


def find_accelerator(
    root: Path = Path("/"),
    run: Run = run_tool,
    load: Load = ctypes.CDLL,
    *,
    is_nvml_wanted: bool = True,
) -> AcceleratorReader | None:
    """The first accelerator that answers, or None. Without NVML, `nvidia-smi` is asked: slower,
    and what works with drivers older than 450.80.02."""
    smi = NvidiaSmi.probe(run)
    if smi is not None and not is_nvml_wanted:
        return smi
    is_hinted = smi is not None or (root / "dev/nvidiactl").exists()
    if is_hinted and run((sys.executable, "-P", "-m", "din.system.accelerators")) is not None:
        nvml = Nvml.probe(load, smi)
        if nvml is not None:
            return nvml
    return smi or NpuSmi.probe(run, root) or SysfsGpu.probe(root)


class Nvml:
    """An NVIDIA device through its management library."""

    _OK = 0

    def __init__(self, library: Any, device: ctypes.c_void_p, fallback: NvidiaSmi | None) -> None:
        self._library = library
        self._device = device
        self._fallback = fallback
        self._samples = 0
        self._last_fallback: float | None = None

    @classmethod
    def probe(cls, load: Load = ctypes.CDLL, fallback: NvidiaSmi | None = None) -> Nvml | None:
        """The first device, or None when library, symbol, driver or device is missing."""
        for name in _NVML_NAMES:
            try:
                library = load(name)
                device = ctypes.c_void_p()
                if library.nvmlInit_v2() != cls._OK:
                    continue
                if library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == cls._OK:
                    return cls(library, device, fallback)
            except (OSError, AttributeError):
                continue
        return None

    def describe(self) -> Accelerator:
        """Name, memory and the driver's CUDA version."""
        name = ctypes.create_string_buffer(96)
        self._ask("nvmlDeviceGetName", name, 96)
        version = ctypes.c_int()
        self._ask_system("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(version))
        memory = self._memory()
        major, minor = version.value // 1000, version.value % 1000 // 10
        return Accelerator(
            name=name.value.decode(errors="replace") or "NVIDIA device",
            memory_mib=None if memory is None else memory[0] // MIB,
            device_part=f"cuda{major}.{minor}" if version.value else "cuda",
            source="nvml",
        )

    def sample(self) -> AcceleratorSample:
        """Utilisation falls back to nvidia-smi where NVML answers "not supported"."""
        rates = (ctypes.c_uint * 2)()
        has_rates = self._ask("nvmlDeviceGetUtilizationRates", ctypes.byref(rates))
        percent, source = (float(rates[0]), "nvml") if has_rates else self._from_fallback()
        temperature, power = ctypes.c_uint(), ctypes.c_uint()
        has_temperature = self._ask("nvmlDeviceGetTemperature", 0, ctypes.byref(temperature))
        has_power = self._ask("nvmlDeviceGetPowerUsage", ctypes.byref(power))
        memory = self._memory()
        return AcceleratorSample(
            percent=percent,
            memory_mib_free=None if memory is None else memory[1] // MIB,
            temperature_c=float(temperature.value) if has_temperature else None,
            power_w=power.value / 1000 if has_power else None,
            source=source,
        )

    def _from_fallback(self) -> tuple[float | None, str | None]:
        if self._fallback is None:
            return None, None
        if self._samples % FALLBACK_EVERY_SAMPLES == 0:
            self._last_fallback = self._fallback.sample().percent
        self._samples += 1
        found = self._last_fallback
        return found, None if found is None else "nvidia-smi"

    def _memory(self) -> tuple[int, int] | None:
        memory = (ctypes.c_ulonglong * 3)()  # total, free, used
        if not self._ask("nvmlDeviceGetMemoryInfo", ctypes.byref(memory)):
            return None
        return memory[0], memory[1]

    def _ask(self, function: str, *arguments: Any) -> bool:
        return self._ask_system(function, self._device, *arguments)

    def _ask_system(self, function: str, *arguments: Any) -> bool:
        try:
            return getattr(self._library, function)(*arguments) == self._OK
        except AttributeError:  # an old library lacks the symbol
            return False


class NvidiaSmi:
    """An NVIDIA device through `nvidia-smi`."""

    def __init__(self, run: Run, first: list[str]) -> None:
        self._run = run
        self._first = first

    @classmethod
    def probe(cls, run: Run = run_tool) -> NvidiaSmi | None:
        """The first device that nvidia-smi lists, or None."""
        fields = cls._fields(run)
        return None if fields is None else cls(run, fields)

    @staticmethod
    def _fields(run: Run) -> list[str] | None:
        command = ("nvidia-smi", f"--query-gpu={_SMI_QUERY}", "--format=csv,noheader,nounits")
        lines = (run(command) or "").strip().splitlines()
        fields = [each.strip() for each in lines[0].split(",")] if lines else []
        return fields if len(fields) == _SMI_QUERY.count(",") + 1 else None

    def describe(self) -> Accelerator:
        """Name and memory; the CUDA version comes from the tool's banner."""
        banner = re.search(r"CUDA Version:\s*(\d+\.\d+)", self._run(("nvidia-smi",)) or "")
        memory = number_of(self._first[1])
        return Accelerator(
            name=self._first[0],
            memory_mib=None if memory is None else int(memory),
            device_part=f"cuda{banner[1]}" if banner else "cuda",
            source="nvidia-smi",
        )

    def sample(self) -> AcceleratorSample:
        """Text such as "[N/A]" or "[Not Supported]" is None."""
        fields = self._fields(self._run)
        if fields is None:
            return AcceleratorSample()
        free, percent = number_of(fields[2]), number_of(fields[3])
        return AcceleratorSample(
            percent=percent,
            memory_mib_free=None if free is None else int(free),
            temperature_c=number_of(fields[4]),
            power_w=number_of(fields[5]),
            source=None if percent is None else "nvidia-smi",
        )


class NpuSmi:
    """A Huawei Ascend device through `npu-smi`. Reads its `key : value` lines."""

    def __init__(self, run: Run, root: Path, product: str) -> None:
        self._run = run
        self._root = root
        self._product = product

    @classmethod
    def probe(cls, run: Run = run_tool, root: Path = Path("/")) -> NpuSmi | None:
        """The device at index 0, or None."""
        board = key_values(run(("npu-smi", "info", "-t", "board", "-i", "0")))
        product = board.get("product name") or board.get("model")
        return None if product is None else cls(run, root, product)

    def describe(self) -> Accelerator:
        """Product name, memory, and the CANN version where the toolkit is installed."""
        usages = self._usages()
        memory = first_number(usages, "hbm capacity(mb)", "ddr capacity(mb)")
        chip = re.search(r"(310|910)\w*", self._product)
        parts = [f"ascend{chip[0].lower()}" if chip else "ascend", self._cann_version()]
        return Accelerator(
            name=self._product,
            memory_mib=None if memory is None else int(memory),
            device_part="-".join(each for each in parts if each),
            source="npu-smi",
        )

    def sample(self) -> AcceleratorSample:
        """What the tool reports; None for the rest."""
        usages = self._usages()
        percent = first_number(usages, "aicore usage rate(%)", "npu utilization(%)")
        total = first_number(usages, "hbm capacity(mb)", "ddr capacity(mb)")
        used = first_number(usages, "hbm usage rate(%)", "ddr usage rate(%)")
        temperatures = key_values(self._run(("npu-smi", "info", "-t", "temp", "-i", "0")))
        powers = key_values(self._run(("npu-smi", "info", "-t", "power", "-i", "0")))
        free = None if total is None or used is None else int(total * (1 - used / 100))
        return AcceleratorSample(
            percent=percent,
            memory_mib_free=free,
            temperature_c=first_number(temperatures, "temperature (c)", "npu temperature (c)"),
            power_w=first_number(powers, "power dissipation(w)", "npu real-time power(w)"),
            source=None if percent is None else "npu-smi",
        )

    def _usages(self) -> dict[str, str]:
        return key_values(self._run(("npu-smi", "info", "-t", "usages", "-i", "0")))

    def _cann_version(self) -> str:
        folder = self._root / "usr/local/Ascend/ascend-toolkit/latest"
        for path in sorted(folder.glob("*/ascend_toolkit_install.info")):
            found = re.search(r"^version=(\d+\.\d+)", read_text(path) or "", re.MULTILINE)
            if found:
                return f"cann{found[1]}"
        return ""


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
        for name in ("sys/devices/gpu.0", "sys/devices/platform/gpu.0"):
            if read_number(root / name / "load") is not None:
                return cls(root / name, "tegra", "load", 10)
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


def number_of(text: str | None) -> float | None:
    """The number that the text begins with; None for "[N/A]" and its kin."""
    found = _NUMBER.match((text or "").strip())
    return float(found[0]) if found else None


def first_number(values: dict[str, str], *keys: str) -> float | None:
    """The first of these keys that holds a number."""
    numbers = (number_of(values.get(key)) for key in keys)
    return next((each for each in numbers if each is not None), None)


def key_values(text: str | None) -> dict[str, str]:
    """`Key : value` lines, keys in lower case, the first of equal keys wins."""
    found: dict[str, str] = {}
    for line in (text or "").splitlines():
        key, separator, value = line.partition(":")
        if separator and value.strip():
            found.setdefault(" ".join(key.lower().split()), value.strip())
    return found


def read_text(path: Path) -> str | None:
    """A small file of the kernel; None when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(OUTPUT_BYTES_MAX).decode(errors="replace").strip("\0")
    except OSError:
        return None


def read_number(path: Path) -> float | None:
    """The number in a small file; None when there is none."""
    return number_of(read_text(path))


if __name__ == "__main__":
    sys.exit(0 if Nvml.probe() is not None else 1)
