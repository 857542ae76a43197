"""`din service`: units that systemd itself finds right, and what is done to a machine and what not.

systemd does not run the tests; a stand-in for `systemctl` writes down what it was asked.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from din.cli import service, service_place
from din.cli.service_units import Facts, Role, Scope, is_edited, is_ours, unit_name, unit_text
from din.errors import Denied
from tests.cli.conftest import Run

ROLES: tuple[Role, ...] = get_args(Role)
EXPOSED_MAX = {"gateway": 2.5, "node": 3.5}
SYSTEMCTL = """#!/bin/sh
echo "$@" >> {calls}
case "$*" in
    *--version*) echo "systemd 252 (252.38)";;
    *show*) printf 'UnitFileState=enabled\\nActiveState={active}\\n'
            printf 'NRestarts=2\\nStatusText=serves\\n';;
    *disable*) exit {refused};;
esac
"""

Calls = Callable[[], list[str]]


@pytest.fixture
def machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A machine that systemd runs, as far as can be seen."""
    monkeypatch.setattr(service_place, "BOOTED", home)
    monkeypatch.setattr(service_place, "SYSTEM_UNITS", home / "units")
    monkeypatch.setattr(service_place, "SYSUSERS_FILE", home / "sysusers" / "din.conf")
    monkeypatch.setattr(service, "check_readable", lambda _: None)
    tools(home, monkeypatch)
    calls = home / "calls"
    return lambda: calls.read_text().splitlines() if calls.exists() else []


def tools(home: Path, monkeypatch: pytest.MonkeyPatch, active: str = "inactive", refused: int = 0):
    folder = home / "bin"
    folder.mkdir(exist_ok=True)
    words = SYSTEMCTL.format(calls=home / "calls", active=active, refused=refused)
    (folder / "systemctl").write_text(words)
    (folder / "systemd-sysusers").write_text(f'#!/bin/sh\necho sysusers "$@" >> {home}/calls\n')
    for each in folder.iterdir():
        each.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_units_are_made_once_and_brought_up_to_date(run: Run, home: Path, machine: Calls) -> None:
    told = run("service", "install")
    assert told.exit_code == 0, told.stderr
    assert told.stdout.split() == ["din-gateway.service", "din-node.service"]
    assert "next: sudo systemctl enable --now din-gateway din-node" in told.stderr
    asked = machine()
    assert f"sysusers {home}/sysusers/din.conf" in asked
    assert asked.count("daemon-reload") == 1
    assert not any(each.startswith(("enable", "start", "restart")) for each in asked)
    unit = home / "units" / "din-gateway.service"
    first = unit.read_text()
    assert unit.stat().st_mode & 0o777 == 0o644

    told = run("service", "install")
    assert "was up to date" in told.stderr
    assert machine().count("daemon-reload") == 1
    unit.write_text(unit_text("gateway", Facts("/old/din", 200)))
    assert run("service", "install", "gateway").exit_code == 0
    assert unit.read_text() == first
    assert machine().count("daemon-reload") == 2


def test_one_program_alone_can_be_a_service(run: Run, home: Path, machine: Calls) -> None:
    assert run("service", "install", "node").exit_code == 0
    assert [each.name for each in (home / "units").iterdir()] == ["din-node.service"]
    assert machine()


def test_a_running_service_that_changed_is_to_be_restarted(
    run: Run, home: Path, machine: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    del machine
    tools(home, monkeypatch, active="active")
    assert "next: sudo systemctl restart din-node" in run("service", "install", "node").stderr


def test_units_that_people_changed_or_wrote_are_kept(run: Run, home: Path, machine: Calls) -> None:
    del machine
    assert run("service", "install").exit_code == 0
    edited = home / "units" / "din-node.service"
    drop_in = home / "units" / "din-node.service.d" / "override.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\nNice=5\n")
    mine = edited.read_text().replace("WatchdogSec=30", "WatchdogSec=99")
    edited.write_text(mine)
    told = run("service", "install")
    assert (told.exit_code, "was edited" in told.stderr) == (7, True)
    assert edited.read_text() == mine
    assert run("service", "install", "--replace").exit_code == 0
    assert not is_edited(edited.read_text())
    edited.write_text("[Service]\nExecStart=/bin/true\n")
    for words in (("install",), ("remove",)):
        told = run("service", *words)
        assert (told.exit_code, "was not made by" in told.stderr) == (7, True)
    assert (home / "units" / "din-gateway.service").exists()
    edited.unlink()
    assert run("service", "remove").exit_code == 0
    assert drop_in.exists()


def test_units_are_taken_away_after_the_services_were_stopped(
    run: Run, home: Path, machine: Calls
) -> None:
    run("service", "install")
    told = run("service", "remove", "--dry-run")
    assert "would stop din-gateway.service" in told.stderr
    assert not any("disable" in each for each in machine())
    told = run("service", "remove", "gateway")
    assert told.exit_code == 0
    assert "disable --now din-gateway.service" in machine()
    assert machine()[-1] == "daemon-reload"
    assert [each.name for each in (home / "units").iterdir()] == ["din-node.service"]
    run("service", "remove")
    told = run("service", "remove")
    assert (told.exit_code, "no unit of DIN" in told.stderr) == (0, True)


def test_a_service_that_does_not_stop_keeps_its_unit(
    run: Run, home: Path, machine: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    del machine
    run("service", "install")
    tools(home, monkeypatch, refused=1)
    told = run("service", "remove")
    assert (told.exit_code, "`systemctl disable" in told.stderr) == (4, True)
    assert (home / "units" / "din-gateway.service").exists()


def test_the_standing_of_both_is_shown_and_a_failed_one_is_an_exit_code(
    run: Run, home: Path, machine: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    del machine
    run("service", "install", "node")
    told = run("service", "status", "-o", "json")
    assert told.exit_code == 0
    gateway, node = json.loads(told.stdout)["items"]
    assert (gateway["installed"], node["installed"]) == ("no", "yes")
    assert (node["enabled"], node["active"], node["restarts"]) == ("enabled", "inactive", "2")
    assert node["status"] == "serves"
    tools(home, monkeypatch, active="failed")
    told = run("service", "status", "node")
    assert (told.exit_code, "journalctl -e -u din-node.service" in told.stderr) == (1, True)


def test_a_user_has_services_of_their_own(
    run: Run, home: Path, machine: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    told = run("service", "install", "--user")
    assert (told.exit_code, "no systemd runs for this user" in told.stderr) == (4, True)
    (home / "systemd").mkdir()
    told = run("service", "install", "--user")
    assert told.exit_code == 0, told.stderr
    assert "loginctl enable-linger" in told.stderr
    text = (home / ".config" / "systemd" / "user" / "din-node.service").read_text()
    assert "User=" not in text
    assert "WantedBy=default.target" in text
    assert "--user daemon-reload" in machine()
    assert not any(each.startswith("sysusers") for each in machine())


@pytest.mark.parametrize("words", [("install",), ("status",), ("remove",)])
def test_without_systemd_nothing_is_done_and_the_way_without_it_is_named(
    run: Run, home: Path, machine: Calls, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(service_place, "BOOTED", home / "nowhere")
    told = run("service", *words)
    assert (told.exit_code, "systemd does not run this machine" in told.stderr) == (4, True)
    assert "din node start --detach" in told.stderr
    assert not (home / "units").exists()
    assert machine() == []


def test_printing_needs_no_systemd_and_no_rights_and_changes_nothing(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(home))
    before = sorted(home.rglob("*"))
    told = run("service", "install", "--print")
    assert told.exit_code == 0
    assert "ExecStart=" in told.stdout
    assert "u din " in told.stdout
    assert sorted(home.rglob("*")) == before


@pytest.mark.parametrize("closed", ["file", "folder"])
def test_a_program_that_the_services_user_cannot_read_is_refused(home: Path, closed: str) -> None:
    program = home / "opt" / "din"
    program.parent.mkdir()
    program.write_text("")
    (program if closed == "file" else program.parent).chmod(0o700)
    with pytest.raises(Denied, match="is closed to it") as told:
        service_place.check_readable(str(program))
    assert "/opt/din" in told.value.hint


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("version", [252, 253, 257])
def test_a_unit_says_how_it_is_told_watched_stopped_and_tried_again(
    role: Role, version: int
) -> None:
    text = unit_text(role, Facts("/opt/din/bin/din", version))
    lines = text.splitlines()
    for line in ("NotifyAccess=main", "WatchdogSec=30", "KillMode=mixed", "Restart=on-failure"):
        assert line in lines
    assert ("Type=notify-reload" in lines) == (version >= 253)
    assert ("ExecReload=/bin/kill -HUP $MAINPID" in lines) == (version < 253)
    assert ("RestartMaxDelaySec=60" in lines) == (version >= 254)
    assert "RestrictNamespaces=user mnt net ipc uts" in lines
    assert (is_ours(text), is_edited(text)) == (True, False)
    assert is_edited(text.replace("WatchdogSec=30", "WatchdogSec=0"))
    closed_to_devices = {"PrivateDevices=yes", "ProtectClock=yes"} & set(lines)
    assert bool(closed_to_devices) == (role == "gateway")


@pytest.mark.parametrize(("scope", "command"), [("system", ""), ("user", "--user ")])
def test_a_unit_names_the_command_that_makes_a_drop_in_for_it(scope: Scope, command: str) -> None:
    text = unit_text("node", Facts("/opt/din/bin/din", 252, scope))
    assert text.splitlines()[0].endswith(f"drop-in: systemctl edit {command}din-node.service")
    assert is_ours(text)
    assert not is_edited(text)


def test_groups_of_this_machine_that_may_open_devices_are_the_nodes() -> None:
    facts = Facts("/opt/din/bin/din", 252, groups=("video", "render"))
    assert "SupplementaryGroups=video render" in unit_text("node", facts)
    assert "SupplementaryGroups" not in unit_text("gateway", facts)


def test_a_path_with_strange_characters_reaches_systemd_as_it_is() -> None:
    text = unit_text("node", Facts('/opt/my "din"/100%/$x/din', 252))
    assert 'ExecStart="/opt/my \\"din\\"/100%%/$$x/din" node start' in text


analyse = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="there is no systemd-analyze"
)


def files(folder: Path, scope: Scope) -> dict[Role, Path]:
    program = folder / "din"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    found: dict[Role, Path] = {}
    for role in ROLES:
        found[role] = folder / unit_name(role)
        found[role].write_text(unit_text(role, Facts(str(program), 252, scope)))
    return found


@analyse
@pytest.mark.parametrize("scope", ["system", "user"])
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path, scope: Scope) -> None:
    units = [str(each) for each in files(tmp_path, scope).values()]
    command = ["systemd-analyze", *(["--user"] if scope == "user" else []), "verify", *units]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}

    def verified() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    done = verified()
    told = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "din-" in line]
    assert (done.returncode, told) == (0, [])
    broken = Path(units[0])
    broken.write_text(broken.read_text().replace("KillMode=mixed", "KilMode=mixed"))
    assert "KilMode" in verified().stderr


@analyse
@pytest.mark.parametrize("role", ROLES)
def test_systemd_counts_little_exposure(tmp_path: Path, role: Role) -> None:
    path = files(tmp_path, "system")[role]
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) <= EXPOSED_MAX[role]
