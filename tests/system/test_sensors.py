"""Sensors: a bad, slow or absent sensor costs its value and never the heartbeat."""

import os
import threading
from pathlib import Path

import pytest

from din.domain.node import NodeHealth
from din.errors import UsageError
from din.system.accelerator_facts import Accelerator, AcceleratorSample
from din.system.polling import PAUSE_MS_MAX, STUCK_MS, PolledSensor, SensorTrouble, Source
from din.system.power import find_power
from din.system.sensors import Sensors, SensorSettings
from din.system.temperature import find_temperature, read_temperature


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def zone(root: Path, number: int, kind: str, text: str) -> Path:
    folder = root / f"sys/class/thermal/thermal_zone{number}"
    folder.mkdir(parents=True)
    (folder / "type").write_text(kind + "\n")
    (folder / "temp").write_text(text)
    return folder / "temp"


@pytest.mark.parametrize(
    ("text", "degrees"),
    [
        ("45250\n", 45.25),
        ("45.5\n", 45.5),
        ("45\n", 45.0),
        ("-12000\n", -12.0),
        ("-650788984\n", None),
        ("-32768000\n", None),
        ("-50000\n", None),
        ("250000\n", None),
        ("", None),
        ("N/A\n", None),
    ],
)
def test_temperatures_out_of_range_are_not_measured(tmp_path: Path, text, degrees) -> None:
    """T20."""
    path = tmp_path / "temp"
    path.write_text(text)
    assert read_temperature(path) == degrees
    assert read_temperature(tmp_path / "absent") is None


def test_the_last_good_value_stands_in_and_the_bad_ones_are_counted(tmp_path: Path) -> None:
    """T20."""
    clock, path = Clock(), tmp_path / "temp"
    sensor: PolledSensor[float] = PolledSensor("temperature", lambda: None, 500, clock)

    def read() -> float | None:
        return read_temperature(path)

    path.write_text("45000")
    sensor.poll(read)
    path.write_text("-650788984")
    clock.now_ms = 1000
    sensor.poll(read)
    assert (sensor.value(), sensor.failures) == (45.0, 1)
    clock.now_ms = 6000
    sensor.poll(read)
    assert sensor.value() is None


def test_a_slow_sensor_is_asked_less_often_and_an_ordinary_one_at_its_pace() -> None:
    """T22."""
    clock = Clock()
    took_ms = 1500

    def read() -> float:
        clock.now_ms += took_ms
        return 40.0

    sensor = PolledSensor("temperature", lambda: Source("x", read), 500, clock)
    assert [sensor.poll(read) for _ in range(4)] == [1000, 2000, 4000, 8000]
    for _ in range(8):
        sensor.poll(read)
    assert sensor.poll(read) == PAUSE_MS_MAX
    took_ms = 1
    assert sensor.poll(read) == 500


def test_a_read_that_never_returns_does_not_hold_the_heartbeat() -> None:
    """T22: the kernel does not answer."""
    clock, gate, entered = Clock(), threading.Event(), threading.Event()

    def read() -> float:
        entered.set()
        gate.wait(30)
        return 40.0

    sensor = PolledSensor("temperature", lambda: Source("x", read), 500, clock)
    sensor.start()
    try:
        assert entered.wait(10)
        assert sensor.value() is None
        assert sensor.hangs_ms() == 0
        clock.now_ms = 6000
        assert sensor.hangs_ms() == 6000
    finally:
        gate.set()
        sensor.stop(wait_ms=5000)


def test_a_zone_that_never_answers_holds_up_neither_start_nor_beats(tmp_path: Path) -> None:
    """T22: the first look at a zone may hang as any other does."""
    temp = zone(tmp_path, 0, "cpu-thermal", "")
    temp.unlink()
    os.mkfifo(temp)  # opening it blocks until somebody writes
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable:    2048 kB\n")
    sensors = Sensors(SensorSettings(), root=tmp_path)
    sensors.start()
    try:
        assert sensors.health(0).temperature_c is None
        assert sensors.health(0).memory_mib_free is not None
    finally:
        with temp.open("w") as answer:  # waits until the reader has opened it
            answer.write("41000\n")
        sensors.stop()


@pytest.mark.parametrize("error", [OSError(5, "I/O error"), ValueError("x"), RuntimeError("x")])
def test_a_read_that_fails_is_counted(error: Exception) -> None:
    def read() -> float:
        raise error

    sensor = PolledSensor("power", lambda: Source("x", read), 500, Clock())
    sensor.poll(read)
    assert (sensor.value(), sensor.failures) == (None, 1)


def test_a_look_that_fails_is_counted_and_ends_the_search() -> None:
    def find() -> Source[float]:
        raise OSError(121, "Remote I/O error")

    sensor: PolledSensor[float] = PolledSensor("temperature", find, 500, Clock())
    assert sensor.look() is None
    assert sensor.trouble() == SensorTrouble(failures=1, hangs_ms=0)


def test_a_value_that_never_moves_is_told_of_and_still_counts() -> None:
    """T20: stuck at 85000."""
    clock = Clock()
    sensor = PolledSensor("temperature", lambda: None, 500, clock)
    for clock.now_ms in range(0, STUCK_MS + 1, STUCK_MS // 100):
        assert sensor.unchanged_ms() == 0
        sensor.poll(lambda: 85.0)
    assert (sensor.unchanged_ms(), sensor.value(), sensor.age_ms()) == (STUCK_MS, 85.0, 0)
    clock.now_ms += 500
    sensor.poll(lambda: 84.9)
    assert sensor.unchanged_ms() == 0


def test_a_tool_is_not_asked_more_often_than_it_may() -> None:
    sensor = PolledSensor("power", lambda: Source("x", lambda: 1.0, 10_000), 500, Clock())
    source = sensor.look()
    assert source is not None
    assert sensor.poll(source.read) == 10_000


def test_the_processors_zone_is_preferred(tmp_path: Path) -> None:
    zone(tmp_path, 0, "iwlwifi_1", "50000")
    wanted = zone(tmp_path, 1, "x86_pkg_temp", "61000")
    assert find_temperature(tmp_path) == wanted


def test_a_zone_that_says_nonsense_is_not_chosen(tmp_path: Path) -> None:
    zone(tmp_path, 0, "cpu-thermal", "-650788984")
    chip = tmp_path / "sys/class/hwmon/hwmon0"
    chip.mkdir(parents=True)
    (chip / "name").write_text("coretemp\n")
    (chip / "temp1_input").write_text("52000\n")
    (chip / "power1_input").write_text("12500000\n")
    assert find_temperature(tmp_path) == chip / "temp1_input"
    assert find_power(tmp_path) == chip / "power1_input"


def test_a_machine_without_sensors_says_so_by_null(tmp_path: Path) -> None:
    sensors = Sensors(SensorSettings(), root=tmp_path)
    health = sensors.health(3)
    assert health.cpu_percent is None
    assert health.memory_mib_free is None
    rest = NodeHealth(memory_mib_free=health.memory_mib_free, queue_length=3)
    assert health == rest
    assert sensors.views() == ()


def test_the_operator_may_name_or_disable_the_temperature(tmp_path: Path) -> None:
    path = tmp_path / "probe"
    path.write_text("33000")
    named = Sensors(SensorSettings(temperature=str(path), poll_interval_ms=50), root=tmp_path)
    named.start()
    try:
        for _ in range(200):
            if named.health(0).temperature_c is not None:
                break
            threading.Event().wait(0.02)
        assert named.health(0).temperature_c == 33.0
        assert named.health(0).cpu_percent is not None
        assert named.health(0).capacity_percent == 100
        assert [(each.name, each.source, each.value) for each in named.views()] == [
            ("temperature", str(path), 33.0)
        ]
    finally:
        named.stop()
    settings = SensorSettings(temperature=str(path), is_temperature_disabled=True)
    assert Sensors(settings, root=tmp_path)._temperature is None


class Device:
    """An accelerator of the tests."""

    def __init__(self, sample: AcceleratorSample) -> None:
        self._sample = sample

    def describe(self) -> Accelerator:
        return Accelerator(name="x", memory_mib=1, device_part="x", source="sysfs")

    def sample(self) -> AcceleratorSample:
        return self._sample


def test_unknown_utilisation_is_null_with_no_source(tmp_path: Path) -> None:
    """T24; seeds: gpu_util 0.0 when NVML fails is a lie."""
    device = Device(AcceleratorSample(temperature_c=500.0))
    sensors = Sensors(SensorSettings(), device, tmp_path)
    assert sensors._accelerator is not None
    sensors._accelerator.poll(device.sample)
    health = sensors.health(0)
    assert health.accelerator_percent is None
    assert health.utilization_source is None
    assert health.temperature_c is None


@pytest.mark.parametrize("interval_ms", [0, 49, 4_000_000])
def test_a_poll_interval_out_of_range_is_refused(interval_ms: int) -> None:
    with pytest.raises(UsageError, match="poll interval"):
        SensorSettings(poll_interval_ms=interval_ms)


def test_a_containers_free_memory_counts(tmp_path: Path) -> None:
    folder = tmp_path / "sys/fs/cgroup/box"
    folder.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/box\n")
    (folder / "memory.max").write_text(str(64 * 1024 * 1024))
    (folder / "memory.current").write_text(str(60 * 1024 * 1024))
    assert Sensors(SensorSettings(), root=tmp_path).health(0).memory_mib_free == 4


def test_swap_in_use_is_told_and_no_swap_is_null(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    meminfo = tmp_path / "proc/meminfo"
    meminfo.write_text("MemTotal: 1000000 kB\nSwapTotal:  2097152 kB\nSwapFree:  1048576 kB\n")
    assert Sensors(SensorSettings(), root=tmp_path).health(0).swap_mib_used == 1024
    meminfo.write_text("MemTotal: 1000000 kB\nSwapTotal:  0 kB\nSwapFree:  0 kB\n")
    assert Sensors(SensorSettings(), root=tmp_path).health(0).swap_mib_used is None


@pytest.mark.parametrize(("clocks", "capacity"), [(("600000", "1500000"), 40), (None, 50)])
def test_a_board_that_throttles_has_less_capacity_and_says_why(
    tmp_path: Path, clocks, capacity: int
) -> None:
    """T25: under-voltage at 38 C."""
    flags = tmp_path / "sys/devices/platform/soc/soc:firmware/get_throttled"
    flags.parent.mkdir(parents=True)
    flags.write_text("50005\n")
    if clocks is not None:
        policy = tmp_path / "sys/devices/system/cpu/cpufreq/policy0"
        policy.mkdir(parents=True)
        (policy / "scaling_cur_freq").write_text(clocks[0])
        (policy / "cpuinfo_max_freq").write_text(clocks[1])
    sensors = Sensors(SensorSettings(), root=tmp_path, run=lambda _: None)
    source = sensors._throttling.look()
    assert source is not None
    sensors._throttling.poll(source.read)
    health = sensors.health(0)
    assert health.limits[:2] == ("undervoltage", "throttled")
    assert health.capacity_percent == capacity
    flags.write_text("50000\n")
    sensors._throttling.poll(source.read)
    health = sensors.health(0, 0.5, is_governed=True)
    assert health.limits == ("undervoltage_before", "throttled_before", "governor")
    assert health.capacity_percent == 50
