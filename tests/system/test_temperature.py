"""Temperatures of chips on a bus and of a BMC, and where the hardware helps itself."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from din.system import tmp102
from din.system.temperature import ThrottlePoint, temperature_source, throttle_point
from tests.tool_answers import IPMI_TEMPERATURES


@pytest.mark.parametrize(
    ("register", "degrees"),
    [
        (b"\x00\x00", 0.0),
        (b"\x19\x00", 25.0),
        (b"\x4b\x00", 75.0),
        (b"\xe7\x00", -25.0),
        (b"\xff\xf0", -0.0625),
        (b"\x4b\x01", 150.0),
        (b"\xff\xff", None),
        (b"\xc0\x00", None),
        (b"\x19", None),
        (b"", None),
    ],
)
def test_the_register_of_a_tmp102(register: bytes, degrees: float | None) -> None:
    """12 bits with sign, 13 in extended mode; an empty bus reads as ones."""
    assert tmp102.tmp102_degrees(register) == degrees


@pytest.mark.parametrize(
    ("words", "place"),
    [("tmp102:1", (1, 0x48)), ("tmp102:10:0x4A", (10, 0x4A)), ("tmp102:0:73", (0, 73))],
)
def test_bus_and_address(words: str, place: tuple[int, int]) -> None:
    assert tmp102.tmp102_place(words) == place


@pytest.mark.parametrize(
    "words", ["tmp102:", "tmp102:x", "tmp102:1:0x02", "tmp102:1:0x78", "tmp102:1:0x48:2"]
)
def test_a_place_that_is_none_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match="tmp102:BUS"):
        tmp102.tmp102_place(words)


def test_a_chip_that_a_driver_has_is_left_to_it(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/i2c-1").write_text("")
    asked: list[tuple[int, int]] = []

    def busy(descriptor: int, request: int, address: int) -> int:
        asked.append((request, address))
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(fcntl, "ioctl", busy)
    with pytest.raises(OSError, match="name its hwmon file"):
        temperature_source(tmp_path, "tmp102:1:0x49")
    assert asked == [(0x0703, 0x49)]


def test_a_chip_is_read_over_and_over(tmp_path: Path, monkeypatch) -> None:
    """A file stands in for the bus: the same descriptor is written and read."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/i2c-1").write_text("")
    answers = [b"\x19\x00", b"\x32\x00", b"\xff\xff"]
    monkeypatch.setattr(fcntl, "ioctl", lambda *_: 0)
    monkeypatch.setattr(os, "read", lambda _descriptor, _nbytes: answers.pop(0))
    source = temperature_source(tmp_path, "tmp102:1")
    assert source is not None
    assert source.words.startswith("TMP102 at 0x48")
    assert [source.read(), source.read()] == [50.0, None]


def test_a_bmc_is_asked_for_one_sensor_or_for_the_hottest_processor(tmp_path: Path) -> None:
    assert temperature_source(tmp_path, "", lambda _: IPMI_TEMPERATURES) is None
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/ipmi0").write_text("")
    hottest = temperature_source(tmp_path, "", lambda _: IPMI_TEMPERATURES)
    inlet = temperature_source(tmp_path, "ipmi:Inlet Temp", lambda _: IPMI_TEMPERATURES)
    assert hottest is not None
    assert inlet is not None
    assert (hottest.read(), inlet.read()) == (58.0, 24.0)
    assert hottest.interval_ms_min >= 10_000
    assert temperature_source(tmp_path, "ipmi:Gone", lambda _: IPMI_TEMPERATURES) is None


def test_where_the_hardware_slows_down_is_told_before_where_it_stops(tmp_path: Path) -> None:
    zone = tmp_path / "thermal_zone0"
    zone.mkdir()
    (zone / "temp").write_text("41000")
    assert throttle_point(zone / "temp") is None
    for number, (kind, text) in enumerate(
        [("critical", "110000"), ("passive", "95000"), ("passive", "-32768000"), ("hot", "0")]
    ):
        (zone / f"trip_point_{number}_type").write_text(kind + "\n")
        (zone / f"trip_point_{number}_temp").write_text(text + "\n")
    assert throttle_point(zone / "temp") == ThrottlePoint(95.0, is_critical=False)
    (zone / "trip_point_1_temp").unlink()
    assert throttle_point(zone / "temp") == ThrottlePoint(110.0, is_critical=True)


def test_where_a_chip_of_hwmon_slows_down(tmp_path: Path) -> None:
    (tmp_path / "temp1_input").write_text("50000")
    (tmp_path / "temp1_crit").write_text("100000")
    assert throttle_point(tmp_path / "temp1_input") == ThrottlePoint(100.0, is_critical=True)
    (tmp_path / "temp1_max").write_text("84000")
    assert throttle_point(tmp_path / "temp1_input") == ThrottlePoint(84.0, is_critical=False)
