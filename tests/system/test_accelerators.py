"""Accelerators: what is absent, a stub or "[N/A]" is None and never 0."""

import ctypes
from pathlib import Path

import pytest

from din.system.accelerator_facts import MIB
from din.system.accelerators import (
    FALLBACK_EVERY_SAMPLES,
    NpuSmi,
    NvidiaSmi,
    Nvml,
    find_accelerator,
)
from din.system.readings import number_of, run_tool
from din.system.sysfs_gpu import SysfsGpu
from tests.tool_answers import NPU_USAGES, RKNPU_LOAD

NOT_SUPPORTED = 3
INSTANCE = 0x51CE


def tools(**outputs: str):
    """Runs commands whose answers are given; `_` in a name stands for `-`."""
    known = {name.replace("_", "-"): text for name, text in outputs.items()}

    def run(command):
        return known.get(command[0])

    return run


class FakeNvml:
    """Answers like the library; each function may be told to fail."""

    def __init__(self, **codes: int) -> None:
        self.codes = codes

    def __getattr__(self, name: str):
        if name == "codes" or self.codes.get(name) == -1:
            raise AttributeError(name)

        def call(*arguments):
            code = self.codes.get(name, 0)
            if code == 0:
                self.fill(name, arguments)
            return code

        return call

    @staticmethod
    def fill(name: str, arguments) -> None:
        if name == "nvmlDeviceGetName":
            arguments[1].value = b"NVIDIA T4"
        elif name == "nvmlSystemGetCudaDriverVersion_v2":
            arguments[0]._obj.value = 12040
        elif name == "nvmlDeviceGetMemoryInfo":
            arguments[1]._obj[0], arguments[1]._obj[1] = 15360 * MIB, 1000 * MIB
            if arguments[0].value == INSTANCE:
                arguments[1]._obj[0], arguments[1]._obj[1] = 4864 * MIB, 4000 * MIB
        elif name == "nvmlDeviceGetUtilizationRates":
            arguments[1]._obj[0], arguments[1]._obj[1] = 37, 81
        elif name == "nvmlDeviceGetMigDeviceHandleByIndex":
            arguments[2]._obj.value = INSTANCE
        elif name == "nvmlDeviceGetTemperature":
            arguments[2]._obj.value = 61
        elif name == "nvmlDeviceGetPowerUsage":
            arguments[1]._obj.value = 70_500


def nvml(fallback=None, **codes: int) -> Nvml:
    found = Nvml.probe(lambda _: FakeNvml(**codes), fallback)
    assert found is not None
    return found


def test_a_machine_without_accelerator_has_none(tmp_path: Path) -> None:
    """T23."""
    assert find_accelerator(tmp_path, tools()) is None


def test_nvml_describes_and_samples() -> None:
    found = nvml()
    assert found.describe().device_part == "cuda12.4"
    assert found.describe().memory_mib == 15360
    sample = found.sample()
    assert (sample.percent, sample.memory_mib_free, sample.temperature_c) == (37.0, 1000, 61.0)
    assert (sample.power_w, sample.source) == (70.5, "nvml")
    assert sample.bandwidth_percent == 81.0


def test_a_divided_card_is_its_first_instance_and_its_utilisation_is_nobodys() -> None:
    """T26: the card's load and power would count once for each instance."""
    calls = []

    class Divided(FakeNvml):
        def fill(self, name, arguments) -> None:  # type: ignore[override]
            if name == "nvmlDeviceGetMigMode":
                arguments[1]._obj.value = 1
            FakeNvml.fill(name, arguments)

    def run(command):
        calls.append(command)
        return "A100, 40960, 40000, 12, 40, 30.5\n"

    found = Nvml.probe(lambda _: Divided(), NvidiaSmi.probe(run))
    assert found is not None
    calls.clear()
    sample = found.sample()
    assert (sample.percent, sample.source, sample.power_w) == (None, None, None)
    assert (sample.memory_mib_free, found.describe().memory_mib) == (4000, 4864)
    assert calls == [], "nvidia-smi would tell the whole card's"


@pytest.mark.parametrize(
    "codes", [{"nvmlInit_v2": 9}, {"nvmlInit_v2": -1}, {"nvmlDeviceGetHandleByIndex_v2": 6}]
)
def test_a_stub_library_or_a_dead_driver_is_no_accelerator(codes: dict[str, int]) -> None:
    """T23: the library is on the path, but nothing is behind it."""
    assert Nvml.probe(lambda _: FakeNvml(**codes)) is None


def test_a_file_that_is_no_library_is_no_accelerator(tmp_path: Path) -> None:
    """T23."""
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"\x7fELF not really")
    assert Nvml.probe(lambda name: ctypes.CDLL(str(tmp_path / name))) is None


def test_what_nvml_does_not_support_is_null() -> None:
    """T24, T26."""
    sample = nvml(
        nvmlDeviceGetUtilizationRates=NOT_SUPPORTED,
        nvmlDeviceGetPowerUsage=NOT_SUPPORTED,
        nvmlDeviceGetMemoryInfo=NOT_SUPPORTED,
        nvmlDeviceGetTemperature=-1,
    ).sample()
    assert sample.percent is None
    assert sample.source is None
    assert sample.power_w is None
    assert sample.memory_mib_free is None
    assert sample.temperature_c is None


def test_nvidia_smi_stands_in_for_the_utilisation_at_a_slower_pace() -> None:
    """T24."""
    calls = []

    def run(command):
        calls.append(command)
        return "NVIDIA T4, 15360, 15000, 12, 40, 30.5\n"

    smi = NvidiaSmi.probe(run)
    found = nvml(smi, nvmlDeviceGetUtilizationRates=NOT_SUPPORTED)
    calls.clear()
    samples = [found.sample() for _ in range(FALLBACK_EVERY_SAMPLES)]
    assert {(each.percent, each.source) for each in samples} == {(12.0, "nvidia-smi")}
    assert len(calls) == 1


def test_text_for_not_available_is_null() -> None:
    """T24."""
    found = NvidiaSmi.probe(tools(nvidia_smi="Orin, [N/A], [N/A], [Not Supported], 45, [N/A]\n"))
    assert found is not None
    sample = found.sample()
    assert (sample.percent, sample.source, sample.memory_mib_free) == (None, None, None)
    assert sample.temperature_c == 45.0
    assert found.describe().memory_mib is None


@pytest.mark.parametrize("output", ["", "No devices were found\n", "a, b\n"])
def test_a_tool_that_says_something_else_is_no_accelerator(output: str) -> None:
    assert NvidiaSmi.probe(tools(nvidia_smi=output)) is None


def test_the_library_is_loaded_only_after_a_child_survived_it(tmp_path: Path) -> None:
    """T23: the probe runs in a process of its own first."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").write_text("")

    def load(_: str):
        raise AssertionError("loaded although the child failed")

    assert find_accelerator(tmp_path, tools(), load) is None


def test_an_ascend_board(tmp_path: Path) -> None:
    board = "\tNPU ID : 0\n\tProduct Name   : Atlas 310P3\n\tModel : NA\n"
    info = tmp_path / "usr/local/Ascend/ascend-toolkit/latest/x86_64-linux"
    info.mkdir(parents=True)
    (info / "ascend_toolkit_install.info").write_text("package_name=x\nversion=6.3.RC1\n")

    def run(command):
        return {
            "board": board,
            "usages": NPU_USAGES,
            "temp": "NPU Temperature (C) : 48\n",
            "power": "Power Dissipation(W) : NA\n",
        }.get(command[3])

    found = NpuSmi.probe(run, tmp_path)
    assert found is not None
    assert found.describe().device_part == "ascend310p3-cann6.3"
    sample = found.sample()
    assert (sample.percent, sample.memory_mib_free) == (93.0, 10763)
    assert sample.bandwidth_percent == 81.0
    assert (sample.temperature_c, sample.power_w) == (48.0, None)


def test_gpus_that_tell_their_load_by_files(tmp_path: Path) -> None:
    amd = tmp_path / "amd/sys/class/drm/card0/device"
    amd.mkdir(parents=True)
    (amd / "gpu_busy_percent").write_text("9\n")
    (amd / "mem_info_vram_total").write_text(f"{8 * 1024 * MIB}\n")
    (amd / "mem_info_vram_used").write_text(f"{1024 * MIB}\n")
    found = SysfsGpu.probe(tmp_path / "amd")
    assert found is not None
    assert found.describe().memory_mib == 8192
    assert (found.sample().percent, found.sample().memory_mib_free) == (9.0, 7168)
    tegra = tmp_path / "tegra/sys/devices/gpu.0"
    tegra.mkdir(parents=True)
    (tegra / "load").write_text("455\n")
    found = SysfsGpu.probe(tmp_path / "tegra")
    assert found is not None
    assert found.sample().percent == 45.5
    (tegra / "load").unlink()
    assert found.sample().percent is None


def test_a_tool_that_is_missing_or_fails_says_nothing() -> None:
    assert run_tool(("din-no-such-tool",)) is None
    assert run_tool(("false",)) is None
    assert run_tool(("echo", "7")) == "7\n"


@pytest.mark.parametrize(
    ("text", "number"), [("[N/A]", None), ("", None), (None, None), ("85 %", 85.0), ("-3.5", -3.5)]
)
def test_numbers_in_text(text, number) -> None:
    assert number_of(text) == number


@pytest.mark.parametrize(
    "place",
    ["sys/devices/17000000.gv11b", "sys/devices/platform/17000000.ga10b",
     "sys/devices/platform/bus@0/17000000.gpu"],
)  # fmt: skip
def test_jetson_boards_of_every_release(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "load").write_text("301\n")
    found = find_accelerator(tmp_path, tools())
    assert found is not None
    assert (found.describe().device_part, found.sample().percent) == ("tegra", 30.1)


def test_an_npu_that_tells_each_core(tmp_path: Path) -> None:
    path = tmp_path / "sys/kernel/debug/rknpu/load"
    path.parent.mkdir(parents=True)
    path.write_text(RKNPU_LOAD)
    found = find_accelerator(tmp_path, tools())
    assert found is not None
    assert found.describe().name == "Rockchip NPU, 3 cores"
    sample = found.sample()
    assert (sample.core_percents, sample.source) == ((74.0, 12.0, 0.0), "sysfs")
    assert sample.percent == pytest.approx(28.67, abs=0.01)
    path.write_text("NPU load:  41%\n")
    assert found.sample().percent == 41.0
    path.write_text("busy\n")
    assert found.sample().percent is None
