"""How rows of `din doctor` are made, and the rows about versions, clock, disk and settings."""

import errno
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from din.cli import doctor_disk, doctor_versions
from din.cli.check import Check, Place
from din.cli.doctor_disk import check_disks, check_places
from din.cli.doctor_machine import service_row
from din.cli.doctor_rows import Row, looked_at
from din.cli.doctor_versions import (
    check_own_clock,
    check_python,
    check_versions,
    node_versions_row,
    unmet,
)
from din.cli.service_place import Shown
from din.errors import UsageError
from din.version import __version__
from tests.cli.conftest import Run


def test_rows_come_in_their_order_however_long_each_takes() -> None:
    slow = threading.Event()

    def waits() -> Check:
        slow.wait(20)
        return Check("first", "ok", "late")

    def frees() -> Check:
        slow.set()
        return Check("second", "ok", "early")

    found = looked_at((Row("first", waits, 30.0), Row("second", frees, 30.0)))
    assert [each.name for each in found] == ["first", "second"]


def test_a_row_that_stands_still_says_so_and_keeps_what_it_saw_before() -> None:
    never = threading.Event()

    def stands() -> Iterator[Check]:
        yield Check("clock", "ok", "as the gateway's")
        never.wait(20)
        yield Check("gateway", "ok", "never")

    found = looked_at((Row("gateway", stands, 0.2, "fail", "din up"), Row("b", lambda: OK)))
    never.set()
    assert [(each.name, each.state) for each in found] == [
        ("clock", "ok"),
        ("gateway", "fail"),
        ("b", "ok"),
    ]
    assert found[1].fix == "din up"
    assert "within 0.2 s" in found[1].seen


OK = Check("b", "ok", "fine")


def test_a_look_that_dies_is_a_row_that_says_of_what_and_never_ok() -> None:
    def dies() -> Check:
        raise ValueError("no such thing")

    def refuses() -> Check:
        raise UsageError("port is 'x'")

    found = looked_at((Row("a", dies), Row("c", refuses), Row("b", lambda: OK)))
    assert [each.state for each in found] == ["warn", "warn", "ok"]
    assert found[0].seen == "could not be looked at: ValueError: no such thing"
    assert found[1].seen == "not looked at: port is 'x'"


def test_with_broken_settings_every_row_that_needs_none_is_still_made(run: Run, home: Path) -> None:
    folder = home / ".config" / "din"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_bytes(b"gateway: {port: \xff")
    told = run("doctor", "-o", "json")
    found = {each["name"]: each for each in json.loads(told.stdout)["items"]}
    assert told.exit_code == 1
    assert found["settings"]["state"] == "fail"
    assert found["python"]["state"] == "ok"
    for name in ("disk", "ports", "trust", "unicast", "announcements"):
        assert found[name]["state"] == "warn"
        assert "is not YAML" in found[name]["seen"]


def test_a_variable_that_means_nothing_is_a_warning_of_the_settings(run: Run) -> None:
    told = run("doctor", "-o", "json", env={"DIN_GATWAY": "http://10.0.0.1"})
    found = {each["name"]: each for each in json.loads(told.stdout)["items"]}
    assert found["settings"]["state"] == "warn"
    assert "did you mean DIN_GATEWAY?" in found["settings"]["seen"]


def test_what_is_installed_is_as_needed_here() -> None:
    assert check_python().state == "ok"
    assert check_versions().state == "ok"


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        ("numpy>=2,<99", []),
        ("numpy [extra] >= 2 , < 99", []),
        ("numpy>=99", ["needed >=99"]),
        ("numpy>=1,<2", ["needed >=1,<2"]),
        ("numpy==0.1", ["needed ==0.1"]),
        ("not-there-at-all>=1", ["not-there-at-all is not installed"]),
        ('not-there-at-all>=1; extra == "test"', []),
    ],
)
def test_a_requirement_that_is_not_met_is_named(requirement: str, words: list[str]) -> None:
    found = list(unmet([requirement]))
    assert len(found) == len(words)
    assert all(word in each for word, each in zip(words, found, strict=True))


def test_wrong_versions_fail_with_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_versions, "needed", lambda: ["numpy>=99"])
    row = check_versions()
    assert (row.state, "numpy is" in row.seen) == ("fail", True)
    assert row.fix == f"pip install --upgrade din-network=={__version__}"
    monkeypatch.setattr(doctor_versions, "needed", lambda: None)
    assert check_versions().state == "warn"
    monkeypatch.setattr("platform.release", lambda: "5.3.0-arm")
    assert "Linux 5.4 is needed" in check_versions().seen


def test_a_node_of_another_version_is_named() -> None:
    assert node_versions_row({}, 0).state == "ok"
    row = node_versions_row({"a": __version__}, 1)
    assert (row.state, row.seen) == ("ok", f"all 1 as here: DIN {__version__}")
    assert "1 of 40 as here" in node_versions_row({"a": __version__}, 40).seen
    row = node_versions_row({"a": __version__, "b": "0.0.9"}, 2)
    assert (row.state, "b has 0.0.9" in row.seen) == ("warn", True)


@pytest.mark.parametrize(
    ("kernel", "now_ms", "state", "words"),
    [
        ((0, 4200), 4_000_000_000_000, "ok", "to 4 ms"),
        ((5, 16_000_000), 4_000_000_000_000, "warn", "no time service"),
        ((0, 4200), 60_000, "fail", "it stands at 1970-01-01"),
    ],
)
def test_the_own_clock_is_held_against_the_kernel_and_the_installation(
    monkeypatch: pytest.MonkeyPatch, kernel: tuple[int, int], now_ms: int, state: str, words: str
) -> None:
    monkeypatch.setattr(doctor_versions, "kernel_clock", lambda: kernel)
    monkeypatch.setattr(doctor_versions, "wall_clock_ms", lambda: now_ms)
    row = check_own_clock()
    assert row.state == state
    assert words in row.seen
    assert bool(row.fix) == (state != "ok")


def test_the_kernel_tells_of_its_clock_without_being_told() -> None:
    state, error_us = doctor_versions.kernel_clock()
    assert 0 <= state <= 5
    assert error_us >= 0


@pytest.mark.parametrize(
    ("shown", "state", "words"),
    [
        (Shown("enabled", "active", "0", "serves"), "ok", "is active (serves)"),
        (Shown("disabled", "active"), "warn", "does not start with the machine"),
        (Shown("enabled", "failed"), "fail", "is failed"),
        (Shown("enabled", "inactive"), "warn", "is inactive"),
        (Shown(), "warn", "unknown to systemd"),
    ],
)
def test_a_service_that_does_not_run_is_named(shown: Shown, state: str, words: str) -> None:
    row = service_row("node", shown)
    assert (row.state, words in row.seen) == (state, True)
    assert bool(row.fix) == (state != "ok")


def disk_rows(state: Path) -> dict[str, Check]:
    return {each.name: each for each in check_disks([], state)}


def test_a_state_directory_that_is_to_be_made_is_looked_at_where_it_would_be(
    tmp_path: Path,
) -> None:
    wanted = tmp_path / "none" / "yet"
    row = disk_rows(wanted)["state"]
    assert (row.state, row.seen.startswith(str(wanted))) == ("ok", True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "words"), [(errno.ENOSPC, "is full"), (errno.EDQUOT, "is full"), (errno.EROFS, "not")]
)
def test_a_disk_that_takes_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, words: str
) -> None:
    def refuses(**_: object) -> object:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("tempfile.TemporaryFile", refuses)
    row = disk_rows(tmp_path)["state"]
    assert (row.state, words in row.seen) == ("fail", True)
    assert row.fix


def test_little_room_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor_disk, "FREE_MIB_MIN", 2**40)
    assert disk_rows(tmp_path)["state"].state == "warn"
    monkeypatch.setattr(doctor_disk, "FREE_MIB_MIN", 0)
    monkeypatch.setattr(doctor_disk, "FREE_FILES_MIN", 2**60)
    rows = disk_rows(Path("/dev/shm"))
    assert (rows["state"].state, "more files only" in rows["state"].seen) == ("warn", True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_of_another_user_in_a_state_directory_fail_it(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    place = Place("gateway", "gateway", folder)
    (folder / "identity.json").write_text("{}")
    rows = {each.name: each for each in check_places([place])}
    assert rows["gateway owner"].state == "ok"
    os.chown(folder, 12345, 12345)
    rows = {each.name: each for each in check_places([place])}
    assert rows["gateway owner"].state == "fail"
    assert rows["gateway owner"].fix == f"sudo chown -R 12345 {folder}"
