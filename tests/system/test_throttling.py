"""Throttling is what the hardware says of itself."""

from pathlib import Path

import pytest

from din.system.throttling import (
    EVENT_HOLD_MS,
    PI_FILE,
    PI_TOOL_INTERVAL_MS,
    ThrottleCounters,
    clock_share,
    pi_flags,
    pi_limits,
    throttling_source,
)
from tests.tool_answers import PI_FINE, PI_SOFT_LIMIT, PI_UNDER_VOLTAGE


def board(root: Path, text: str) -> None:
    (root / PI_FILE).parent.mkdir(parents=True, exist_ok=True)
    (root / PI_FILE).write_text(text)


@pytest.mark.parametrize(
    ("text", "flags"),
    [("50005\n", 0x50005), (PI_UNDER_VOLTAGE, 0x50005), ("0\n", 0), ("", None), (None, None),
     ("error=1", None), ("-1", None)],
)  # fmt: skip
def test_flags_of_the_firmware(text: str | None, flags: int | None) -> None:
    assert pi_flags(text) == flags


def test_under_voltage_is_told_as_such(tmp_path: Path) -> None:
    """T25: 0x50005 at 38 C is no heat."""
    board(tmp_path, "50005\n")
    source = throttling_source(tmp_path, lambda _: None, has_tool=lambda: False)
    assert source is not None
    assert source.read() == ("undervoltage", "throttled", "undervoltage_before", "throttled_before")
    (tmp_path / PI_FILE).unlink()
    assert source.read() is None


def test_what_sysfs_hides_the_tool_tells(tmp_path: Path) -> None:
    """T25: sysfs says 0 while vcgencmd says 0x80008."""
    board(tmp_path, "0\n")
    source = throttling_source(tmp_path, lambda _: PI_SOFT_LIMIT, has_tool=lambda: True)
    assert source is not None
    assert source.read() == ("soft_temperature_limit", "soft_temperature_limit_before")
    assert source.interval_ms_min == PI_TOOL_INTERVAL_MS


def test_a_board_that_is_fine_says_so_and_a_tool_that_fails_says_nothing(tmp_path: Path) -> None:
    fine = throttling_source(tmp_path, lambda _: PI_FINE, has_tool=lambda: True)
    assert fine is not None
    assert fine.read() == ()
    assert throttling_source(tmp_path, lambda _: None, has_tool=lambda: True) is None
    assert throttling_source(tmp_path, lambda _: None, has_tool=lambda: False) is None


def test_every_bit_has_its_word() -> None:
    assert len(pi_limits(0xF000F)) == 8
    assert pi_limits(0) == ()


def test_a_counter_that_grows_means_now_and_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"
    path.parent.mkdir(parents=True)
    path.write_text("7\n")
    assert throttling_source(tmp_path, lambda _: None, has_tool=lambda: False) is not None
    clock = [0]
    counters = ThrottleCounters((path,), lambda: clock[0])
    assert counters() == ()
    path.write_text("8\n")
    assert counters() == ("throttled",)
    clock[0] = EVENT_HOLD_MS
    assert counters() == ("throttled",)
    clock[0] += 1
    assert counters() == ()
    path.unlink()
    assert counters() is None


def test_the_slowest_clock_counts(tmp_path: Path) -> None:
    assert clock_share(tmp_path) is None
    for number, now in ((0, "1500000"), (4, "600000")):
        policy = tmp_path / f"sys/devices/system/cpu/cpufreq/policy{number}"
        policy.mkdir(parents=True)
        (policy / "scaling_cur_freq").write_text(now)
        (policy / "cpuinfo_max_freq").write_text("1500000")
    assert clock_share(tmp_path) == 0.4
