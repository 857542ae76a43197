"""The machine's watchdog: armed when asked, fed while the loop turns, disarmed at the end."""

import fcntl
import struct
from pathlib import Path

import pytest

from din.errors import Denied, Unavailable
from din.system import watchdog_device
from din.system.watchdog_device import TIMEOUT_S_MIN, WatchdogDevice, ioctl_number


class Told(list):
    def __call__(self, event: str, **facts: object) -> None:
        self.append(event)


def device(path: Path, told: Told, clock: list[int]) -> WatchdogDevice:
    return WatchdogDevice(str(path), told, lambda: clock[0])


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "armv7l", "riscv64"])
def test_numbers_of_the_calls(machine: str) -> None:
    """As linux/watchdog.h has them: _IOWR('W', 6, int) and _IOR('W', 7, int)."""
    assert ioctl_number(("read", "write"), "W", 6, 4, machine) == 0xC0045706
    assert ioctl_number(("read",), "W", 7, 4, machine) == 0x80045707


def test_machines_with_another_encoding() -> None:
    assert ioctl_number(("read",), "W", 7, 4, "mips64") == 0x40045707
    assert ioctl_number(("read", "write"), "W", 6, 4, "ppc64le") == 0xC0045706


def test_it_is_fed_only_while_the_loop_turns(tmp_path: Path, monkeypatch) -> None:
    path, clock, told = tmp_path / "watchdog", [0], Told()
    path.write_text("")

    def gives_twenty(_descriptor: int, _call: int, said: bytearray, _mutate: bool) -> int:
        said[:] = struct.pack("i", 20)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", gives_twenty)
    found = device(path, told, clock)
    assert found.timeout_s == 20
    assert found.feed()
    clock[0] = 10_001
    assert not found.feed()
    assert not found.feed()
    assert told == ["watchdog_starved"]
    found.alive()
    assert found.feed()
    found.close()
    assert path.read_bytes() == b"\0\0V"


def test_a_driver_that_tells_no_time_is_fed_as_if_it_had_the_shortest(tmp_path: Path) -> None:
    path = tmp_path / "watchdog"
    path.write_text("")
    found = device(path, Told(), [0])
    assert found.timeout_s == TIMEOUT_S_MIN
    found.close()


def test_its_thread_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "watchdog"
    path.write_text("")
    found = device(path, Told(), [0])
    found.start()
    found.close()
    assert not found._thread.is_alive()
    assert path.read_bytes().endswith(b"V")


def test_a_device_that_cannot_be_had_says_why(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(Unavailable, match="No such file"):
        device(tmp_path / "none", Told(), [0])

    def deny(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(watchdog_device.os, "open", deny)
    with pytest.raises(Denied, match="may not be opened"):
        device(tmp_path / "none", Told(), [0])
