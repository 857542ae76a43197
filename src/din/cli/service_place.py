"""Where units lie on this machine, and the systemd that reads them."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from din.cli.service_units import USER, Role, Scope, unit_name
from din.errors import Denied, Unavailable, UsageError
from din.system.identity import disk_error, write_atomically

CALL_S: Final = 120.0
"""Stopping a node waits for what it has accepted."""
BOOTED: Path = Path("/run/systemd/system")
"""There while systemd runs the machine, see sd_booted(3)."""
SYSTEM_UNITS: Path = Path("/etc/systemd/system")
SYSUSERS_FILE: Path = Path("/etc/sysusers.d/din.conf")
ELSEWHERE: Final = (
    "`din service install --print` shows what it would be told; without systemd: din up, "
    "din node start --detach, or `din gateway start` under a supervisor of yours"
)


class Place(NamedTuple):
    """The folder of units of the machine or of one user."""

    scope: Scope
    units: Path
    sysusers: Path

    @property
    def command(self) -> str:
        """How people call systemd here."""
        return "sudo systemctl" if self.scope == "system" else "systemctl --user"

    def unit(self, role: Role) -> Path:
        """The file of one unit."""
        return self.units / unit_name(role)

    def check_writable(self) -> None:
        """Raises Denied."""
        there = next(each for each in (self.units, *self.units.parents) if each.exists())
        if not os.access(there, os.W_OK):
            raise Denied(
                f"{self.units} may not be written by this user",
                hint="run it with sudo, or with --user for a service of your own",
            )

    def write(self, path: Path, text: str) -> bool:
        """Replace a file unless it is so already, and say which. Raises Denied, Unavailable."""
        try:
            if path.exists() and path.read_text(errors="replace") == text:
                return False
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
            path.chmod(0o644)
        except OSError as error:
            raise disk_error(path, error) from error
        return True


def place_of(*, is_user: bool) -> Place:
    """The machine's folder, or the user's own."""
    if not is_user:
        return Place("system", SYSTEM_UNITS, SYSUSERS_FILE)
    home = os.environ.get("XDG_CONFIG_HOME") or f"{os.environ.get('HOME', '~')}/.config"
    return Place("user", Path(home).expanduser() / "systemd" / "user", SYSUSERS_FILE)


def found_program() -> str:
    """Whole path of the `din` that runs. Raises UsageError."""
    path = Path(sys.executable).absolute().with_name("din")
    if not path.is_file():
        raise UsageError(
            f"there is no {path}, so a service could not start it",
            hint="install DIN into an environment of its own: python3 -m venv /opt/din",
        )
    return str(path)


def check_readable(program: str) -> None:
    """Raises Denied when the service's user could not run the program."""
    code = Path(__file__)
    for path in (Path(program), Path(sys.executable), Path(sys.executable).resolve(), code):
        for each in (path, *path.parents):
            if not _is_open(each):
                raise Denied(
                    f"user {USER} could not run {program}: {each} is closed to it",
                    hint="install DIN where everybody may read it, such as /opt/din, or use --user",
                )
            if each in (Path("/home"), Path("/root"), Path("/run/user")):
                raise Denied(
                    f"{program} needs {path}, and services see nothing of {each}",
                    hint="install DIN where everybody may read it, such as /opt/din, or use --user",
                )


def _is_open(path: Path) -> bool:
    mode = path.stat().st_mode
    wanted = 0o001 if stat.S_ISDIR(mode) else 0o004
    return bool(mode & wanted)


class Shown(NamedTuple):
    """What systemd says of one unit."""

    enabled: str = ""
    active: str = ""
    restarts: str = ""
    status: str = ""


class Systemd:
    """The manager of the machine or of this user, by `systemctl`."""

    def __init__(self, *, is_user: bool) -> None:
        self._is_user = is_user
        self._words = ("--user",) if is_user else ()

    def check_here(self) -> None:
        """Raises Unavailable where systemd runs nothing."""
        if not shutil.which("systemctl") or not BOOTED.is_dir():
            raise Unavailable(
                f"systemd does not run this machine (there is no {BOOTED})", hint=ELSEWHERE
            )
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        if self._is_user and not (runtime and Path(runtime, "systemd").is_dir()):
            raise Unavailable(
                "no systemd runs for this user (there is no systemd in XDG_RUNTIME_DIR)",
                hint="log in as this user instead of by su or sudo, or: "
                "machinectl shell USER@; loginctl enable-linger USER",
            )

    def version(self) -> int | None:
        """Of systemd; None where there is none."""
        if not shutil.which("systemctl"):
            return None
        found = re.match(r"systemd (\d+)", self._run("--version").stdout)
        return int(found[1]) if found else None

    def checked_version(self) -> int:
        """Of systemd. Raises Unavailable."""
        version = self.version()
        if version is None:
            raise Unavailable("`systemctl --version` says no version", hint=ELSEWHERE)
        return version

    def make_user(self, file: Path) -> None:
        """The user that services run as, unless it is there. Raises Unavailable."""
        if not shutil.which("systemd-sysusers"):
            raise Unavailable(
                f"user {USER} cannot be made: there is no systemd-sysusers",
                hint=f"useradd --system --home-dir /var/lib/din --shell /usr/sbin/nologin {USER}",
            )
        self._checked(["systemd-sysusers", str(file)])

    def call(self, *words: str) -> None:
        """Raises Unavailable with systemd's own words."""
        self._checked(["systemctl", *self._words, *words])

    def show(self, role: Role) -> Shown:
        """How a unit stands; empty where systemd does not say."""
        names = ("UnitFileState", "ActiveState", "NRestarts", "StatusText")
        done = self._run(*self._words, "show", unit_name(role), f"--property={','.join(names)}")
        pairs = (line.partition("=") for line in done.stdout.splitlines())
        found = {name: text for name, _, text in pairs}
        return Shown(*(found.get(name, "") for name in names))

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return _called(["systemctl", *words])

    def _checked(self, command: list[str]) -> None:
        done = _called(command)
        if done.returncode:
            said = " ".join(done.stderr.split())[-300:]
            raise Unavailable(f"`{' '.join(command)}` failed: {said}", hint="journalctl -xe")


def _called(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Raises Unavailable when it cannot be called or does not end."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CALL_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(
            f"`{' '.join(command)}` cannot be run: {error}", hint="systemctl is-system-running"
        ) from None
