"""Accelerators, found by asking: NVML, nvidia-smi, npu-smi, sysfs. Absence is an answer, no error.

A library may be a stub, a tool may hang, a value may be "[N/A]": what cannot be measured is None
and is never 0. NVML is first tried in a child with a time limit, because a broken driver library
may crash or block whoever loads it; only then does this process load it. A machine with several
accelerators is described by its first one.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from din.system.accelerator_facts import MIB, Accelerator, AcceleratorSample
from din.system.readings import Run, first_number, key_values, number_of, read_text, run_tool
from din.system.sysfs_gpu import RockchipNpu, SysfsGpu

FALLBACK_EVERY_SAMPLES: Final = 10
"""nvidia-smi costs a process: it is asked for every tenth sample only, when NVML cannot say."""
_NVML_NAMES: Final = ("libnvidia-ml.so.1", "libnvidia-ml.so")
_SMI_QUERY: Final = "name,memory.total,memory.free,utilization.gpu,temperature.gpu,power.draw"

Load = Callable[[str], Any]


class AcceleratorReader(Protocol):
    """One accelerator. Calls may block; they belong into a reader thread."""

    def describe(self) -> Accelerator:
        """What it is."""
        ...

    def sample(self) -> AcceleratorSample:
        """How it is doing now."""
        ...


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
    return smi or NpuSmi.probe(run, root) or SysfsGpu.probe(root) or RockchipNpu.probe(root)


class Nvml:
    """An NVIDIA device through its management library."""

    _OK = 0

    def __init__(self, library: Any, device: ctypes.c_void_p, fallback: NvidiaSmi | None) -> None:
        self._library = library
        self._device = device
        self._fallback = fallback
        self._samples = 0
        self._last_fallback: float | None = None
        self._instance = self._first_instance()
        self._is_divided = self._instance is not None

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
        # A divided card's utilisation is that of all its instances: it would count for each.
        has_rates = not self._is_divided and self._ask(
            "nvmlDeviceGetUtilizationRates", ctypes.byref(rates)
        )
        percent, source = (float(rates[0]), "nvml") if has_rates else self._from_fallback()
        temperature, power = ctypes.c_uint(), ctypes.c_uint()
        has_temperature = self._ask("nvmlDeviceGetTemperature", 0, ctypes.byref(temperature))
        has_power = self._ask("nvmlDeviceGetPowerUsage", ctypes.byref(power))
        memory = self._memory()
        return AcceleratorSample(
            percent=percent,
            memory_mib_free=None if memory is None else memory[1] // MIB,
            temperature_c=float(temperature.value) if has_temperature else None,
            power_w=power.value / 1000 if has_power and not self._is_divided else None,
            source=source,
            bandwidth_percent=float(rates[1]) if has_rates else None,
        )

    def _from_fallback(self) -> tuple[float | None, str | None]:
        if self._fallback is None or self._is_divided:
            return None, None
        if self._samples % FALLBACK_EVERY_SAMPLES == 0:
            self._last_fallback = self._fallback.sample().percent
        self._samples += 1
        found = self._last_fallback
        return found, None if found is None else "nvidia-smi"

    def _memory(self) -> tuple[int, int] | None:
        memory = (ctypes.c_ulonglong * 3)()  # total, free, used
        device = self._instance or self._device
        if not self._ask_system("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory)):
            return None
        return memory[0], memory[1]

    def _first_instance(self) -> ctypes.c_void_p | None:
        """Of a card that is divided (MIG); None for a whole one."""
        now, later, instance = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_void_p()
        has_mode = self._ask("nvmlDeviceGetMigMode", ctypes.byref(now), ctypes.byref(later))
        if not (has_mode and now.value == 1):
            return None
        found = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", 0, ctypes.byref(instance))
        return instance if found else None

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
            bandwidth_percent=first_number(
                usages, "hbm bandwidth usage rate(%)", "ddr bandwidth usage rate(%)"
            ),
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


if __name__ == "__main__":
    sys.exit(0 if Nvml.probe() is not None else 1)
