"""Power: the machine's own draw once, whichever way the kernel tells it."""

from pathlib import Path

import pytest

from din.system.power import Rapl, power_source
from tests.tool_answers import IPMI_POWER


def chip(root: Path, number: int, name: str, **files: str) -> Path:
    folder = root / f"sys/class/hwmon/hwmon{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(name + "\n")
    for file, text in files.items():
        (folder / file).write_text(text + "\n")
    return folder


def domain(root: Path, folder: str, name: str, energy_uj: int, most_uj: int = 10_000_000) -> Path:
    path = root / "sys/class/powercap" / folder
    path.mkdir(parents=True)
    (path / "name").write_text(name + "\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    (path / "max_energy_range_uj").write_text(f"{most_uj}\n")
    return path


def watts(root: Path, text: str | None = None) -> tuple[str, float | None]:
    source = power_source(root, lambda _: text)
    return ("", None) if source is None else (source.words, source.read())


def test_a_machine_without_a_meter_has_none(tmp_path: Path) -> None:
    assert watts(tmp_path) == ("", None)


def test_a_meter_of_the_board_is_microwatts_and_one_of_a_gpu_is_not_the_machines(
    tmp_path: Path,
) -> None:
    chip(tmp_path, 0, "amdgpu", power1_average="99000000")
    chip(tmp_path, 1, "BAT0", power1_input="5000000")
    meter = chip(tmp_path, 2, "power_meter", power1_average="41200000")
    assert watts(tmp_path) == (str(meter / "power1_average"), 41.2)


def test_the_rail_that_feeds_all_others_is_not_added_to_them(tmp_path: Path) -> None:
    """An INA3221 as on Jetson boards: millivolts and milliamperes."""
    chip(tmp_path, 0, "ina3221", in1_label="VDD_IN", in1_input="5000", curr1_input="2000",
         in2_label="VDD_CPU_GPU_CV", in2_input="5000", curr2_input="800",
         in7_label="sum of shunt voltages", in7_input="1", curr7_input="1")  # fmt: skip
    assert watts(tmp_path) == ("rail VDD_IN", 10.0)


def test_rails_without_a_total_are_added(tmp_path: Path) -> None:
    chip(tmp_path, 0, "ina3221", in1_label="VDD_GPU_SOC", in1_input="5000", curr1_input="2000",
         in2_label="VDD_CPU_CV", in2_input="5000", curr2_input="1000",
         in3_label="NC", in3_input="5000", curr3_input="9000")  # fmt: skip
    assert watts(tmp_path) == ("rails VDD_GPU_SOC, VDD_CPU_CV", 15.0)
    (tmp_path / "sys/class/hwmon/hwmon0/curr2_input").unlink()
    source = power_source(tmp_path, lambda _: None)
    assert source is not None
    assert source.words == "rails VDD_GPU_SOC"


def test_ina_chips_by_hwmon_power_and_by_iio(tmp_path: Path) -> None:
    chip(tmp_path / "ina226", 0, "ina226", power1_input="7500000")
    assert watts(tmp_path / "ina226") == ("rails ina226 hwmon0", 7.5)
    old = tmp_path / "old/sys/bus/iio/devices/iio:device0"
    old.mkdir(parents=True)
    (old / "rail_name_0").write_text("POM_5V_IN\n")
    (old / "in_power0_input").write_text("4210\n")
    assert watts(tmp_path / "old") == ("rail POM_5V_IN", 4.21)
    generic = tmp_path / "iio/sys/bus/iio/devices/iio:device0"
    generic.mkdir(parents=True)
    (generic / "name").write_text("ina219\n")
    (generic / "in_power2_raw").write_text("120\n")
    (generic / "in_power2_scale").write_text("20\n")
    assert watts(tmp_path / "iio") == ("rails iio:device0", 2.4)


def test_packages_of_rapl_are_counted_once_and_wrap(tmp_path: Path) -> None:
    first = domain(tmp_path, "intel-rapl:0", "package-0", 9_000_000)
    domain(tmp_path, "intel-rapl:0:0", "core", 1)
    second = domain(tmp_path, "intel-rapl:1", "package-1", 0)
    domain(tmp_path, "intel-rapl-mmio:0", "package-0", 9_000_000)
    source = power_source(tmp_path, lambda _: None)
    assert source is not None
    assert source.words == "RAPL, 2 packages"
    clock = [0]
    rapl = Rapl((first, second), lambda: clock[0])
    clock[0] = 1000
    (first / "energy_uj").write_text("4000000\n")  # 1 J to its end, 4 J after it
    (second / "energy_uj").write_text("2000000\n")
    assert rapl() == pytest.approx(7.0)
    clock[0] = 1005
    assert rapl() == pytest.approx(7.0), "two looks this close measure the counter's steps"
    clock[0] = 2000
    (second / "energy_uj").unlink()
    assert rapl() is None
    assert source.read() is None


def test_the_platforms_count_stands_for_all_packages(tmp_path: Path) -> None:
    domain(tmp_path, "intel-rapl:0", "package-0", 0)
    domain(tmp_path, "intel-rapl:1", "psys", 0)
    assert watts(tmp_path)[0] == "RAPL psys"


def test_the_bmc_is_asked_last_and_only_where_there_is_one(tmp_path: Path) -> None:
    assert watts(tmp_path, IPMI_POWER) == ("", None)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/ipmi0").write_text("")
    assert watts(tmp_path, IPMI_POWER) == ("ipmitool dcmi", 212.0)
    assert watts(tmp_path, IPMI_POWER.replace("212", "0")) == ("", None), "no meter says 0"
