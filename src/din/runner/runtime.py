"""runc and crun: where they are, what this machine lets them do, and their four orders."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import signal
import stat
import subprocess
from pathlib import Path
from typing import Final

from din.errors import Unavailable, UsageError
from din.runner.bundle import FILES_MAX, Device, Host
from din.sandbox.kernel import LIBC, checked
from din.wire.runner import Runner

ANSWER_S_MAX: Final = 10.0
PLACES: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CGROUPS: Final = Path("/sys/fs/cgroup")
_NEWNS: Final = 0x00020000
_MS_REC, _MS_SLAVE = 0x4000, 0x80000
_MNT_DETACH: Final = 2


class Runtime:
    """One installed runtime with its folder of notes."""

    def __init__(self, runner: Runner, notes: Path) -> None:
        """Raises Unavailable when it is not there or does not answer."""
        self.runner = runner
        self.program = program_of(runner)
        self.version = _version_of(self.program)
        self._notes = notes
        self._has_cgroups = has_cgroups()

    def command(self, *words: str) -> list[str]:
        """A whole command line."""
        manager: tuple[str, ...] = ()
        if self.runner == "crun":
            manager = ("--cgroup-manager", "cgroupfs" if self._has_cgroups else "disabled")
        return [self.program, *manager, "--root", str(self._notes), *words]

    def environment(self) -> dict[str, str]:
        """Nothing of ours, but where an ordinary user's runtime may write."""
        return {"PATH": PLACES, "XDG_RUNTIME_DIR": str(self._notes)}

    def start(
        self, bundle: Path, container_id: str, pid_file: Path, output: int
    ) -> subprocess.Popen[bytes]:
        """Run the container; the process ends with it, by its exit code. Raises Unavailable."""
        words = ("run", "--bundle", str(bundle), "--pid-file", str(pid_file), container_id)
        try:
            return subprocess.Popen(
                self.command(*words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"{self.program} cannot be started: {error.strerror}") from error

    def kill(self, container_id: str, number: signal.Signals) -> None:
        """Send a signal to the server; one that is gone is left alone."""
        self._ask("kill", container_id, str(int(number)))

    def remove(self, container_id: str) -> str:
        """Kill and forget a container; what the runtime says when it cannot, empty when none is
        left."""
        return self._ask("delete", "--force", container_id)

    def _ask(self, *words: str) -> str:
        try:
            done = subprocess.run(
                self.command(*words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=self.environment(),
                timeout=ANSWER_S_MAX,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{self.program} {words[0]}: {error!s:.200}"
        text = done.stderr.decode(errors="replace").strip()
        return "" if done.returncode == 0 or "does not exist" in text else text[-500:]


def program_of(runner: Runner) -> str:
    """Raises Unavailable when it is not installed."""
    found = shutil.which(runner, path=f"{os.environ.get('PATH', '')}:{PLACES}")
    if found is None:
        raise Unavailable(
            f"{runner} is not installed", hint=f"sudo apt-get install {runner}, or another runner"
        )
    return found


def _version_of(program: str) -> str:
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, timeout=ANSWER_S_MAX, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"{program} does not tell its version: {error!s:.200}") from error
    words = done.stdout.decode(errors="replace").split()
    return words[2] if len(words) > 2 else "?"


def has_cgroups() -> bool:
    """Whether memory can be limited by cgroups here: root, and a hierarchy that can be written."""
    if os.geteuid() != 0:
        return False
    try:
        controllers = (CGROUPS / "cgroup.controllers").read_text().split()
    except OSError:
        return os.access(CGROUPS / "memory", os.W_OK)
    return "memory" in controllers and os.access(CGROUPS, os.W_OK)


def this_host() -> Host:
    """What a bundle depends on."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files_max = FILES_MAX if hard == resource.RLIM_INFINITY else hard
    return Host(platform.machine(), os.geteuid(), os.getegid(), has_cgroups(), files_max)


def part_mounts(runner: Runner) -> None:
    """Mounts of our own, in which crun finds one kind of cgroups: it refuses machines with both.

    Raises Unavailable where that would be needed and this user must not.
    """
    unified = CGROUPS / "unified"
    is_mixed = runner == "crun" and unified.is_dir() and unified.is_mount()
    if os.geteuid() != 0:
        if is_mixed:
            raise Unavailable(
                "crun refuses this machine for ordinary users: it has cgroups v1 and v2 at once",
                hint="use --runner runc, or boot with systemd.unified_cgroup_hierarchy=1",
            )
        return
    try:
        checked(LIBC.unshare(_NEWNS), "unshare")
        flags = ctypes.c_ulong(_MS_REC | _MS_SLAVE)
        checked(LIBC.mount(None, b"/", None, flags, None), "mount")
        if is_mixed:
            checked(LIBC.umount2(str(unified).encode(), _MNT_DETACH), "umount")
    except OSError as error:
        raise Unavailable(f"no mounts of our own: {error}", hint="start the node as root") from None


def device_of(path: str) -> Device:
    """A device of this machine. Raises UsageError."""
    try:
        found = Path(path).stat()
    except OSError as error:
        raise UsageError(
            f"device {path}: {error.strerror}", hint="ls -l /dev; see --runner-device"
        ) from error
    kind = "c" if stat.S_ISCHR(found.st_mode) else "b" if stat.S_ISBLK(found.st_mode) else ""
    if not kind:
        raise UsageError(f"{path} is no device", hint="see --runner-device")
    number, mode = found.st_rdev, stat.S_IMODE(found.st_mode)
    return Device(path, kind, os.major(number), os.minor(number), mode, found.st_uid, found.st_gid)
