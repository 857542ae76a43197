"""Runs a command as a unit of systemd would be run, where no systemd runs the machine.

`python -P restricted.py UNIT STATE REPOSITORY UID VARIABLES`, as root. The unit's own lines decide:
what they name is carried out in a mount namespace of this process and by libseccomp, as systemd
does it, and a line that is not understood ends the program, so that nothing is passed over. Only
the clone and the Python that runs it are put back where the unit hides folders: an installation
lies elsewhere. Nothing is mounted unless the namespace is ours alone.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

LIBC: Final = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS: Final = 0x00020000
READ_ONLY, NO_SUID, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
DROP_BOUND, NO_NEW_PRIVILEGES, SET_SECURE_BITS, READ_BOUND = 24, 38, 28, 23
ALLOW: Final = 0x7FFF0000
MASKED: Final = 7
EQUAL, NOT_EQUAL = 4, 1
NAMESPACES: Final = {
    "cgroup": 0x02000000, "ipc": 0x08000000, "mnt": 0x00020000, "net": 0x40000000,
    "pid": 0x20000000, "user": 0x10000000, "uts": 0x04000000,
}  # fmt: skip
FAMILIES: Final = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
FAMILIES_MAX: Final = 46
ELSEWHERE: Final = frozenset(
    [
        "Type",
        "NotifyAccess",
        "ExecStart",
        "ExecReload",
        "Restart",
        "RestartPreventExitStatus",
        "RestartSec",
        "RestartSteps",
        "RestartMaxDelaySec",
        "TimeoutStartSec",
        "TimeoutStopSec",
        "WatchdogSec",
        "KillMode",
        "OOMPolicy",
        "Group",
        "SupplementaryGroups",
        "StateDirectoryMode",
        "RuntimeDirectoryMode",
        "ConfigurationDirectory",
        "SystemCallArchitectures",
        "SystemCallErrorNumber",
        "AmbientCapabilities",
        "ProtectHostname",
        "ProtectKernelModules",
        "ProtectClock",
        "KeyringMode",
        "RemoveIPC",
        "User",
    ]
)
"""Carried out by the test, which is the manager, by no capability or by the filter of calls."""
Lines = dict[str, str]


def lines_of(unit: str) -> Lines:
    """What the section [Service] says; lines of Environment= are joined."""
    found: Lines = {}
    section = ""
    for line in unit.splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line:
            name, _, text = line.partition("=")
            joins = name == "Environment" and name in found
            found[name] = f"{found[name]} {text}" if joins else text
    return found


def checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno() or -result
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    words = [each.encode() if each else None for each in (source, target, kind)]
    result = LIBC.mount(*words, ctypes.c_ulong(flags), data.encode() or None)
    checked(result, f"mount {source} on {target}")


class Files:
    """The machine's files as the unit shows them."""

    def __init__(self, lines: Lines, state: str, shown: Iterable[str], uid: int) -> None:
        self._lines = lines
        self._state = state
        self._uid = uid
        self._shown = dict.fromkeys(shown, -1)

    def show(self) -> None:
        checked(LIBC.unshare(NEW_MOUNTS), "unshare")
        mount("", "/", flags=RECURSIVE | PRIVATE)
        # Opened before anything is hidden, and in the namespace whose mounts they become.
        self._shown = {each: os.open(each, os.O_PATH) for each in self._shown}
        kept = os.open(self._state, os.O_PATH)
        for folder, option in (("/home", "ProtectHome"), ("/root", "ProtectHome"),
                               ("/tmp", "PrivateTmp"), ("/var/tmp", "PrivateTmp")):  # fmt: skip
            if self._lines.get(option) == "yes":
                mode = "1777" if option == "PrivateTmp" else "0755"
                mount("none", folder, "tmpfs", NO_SUID, f"mode={mode},size=256m")
        for path, descriptor in self._shown.items():
            Path(path).mkdir(parents=True, exist_ok=True)
            mount(f"/proc/self/fd/{descriptor}", path, flags=BIND | RECURSIVE)
        self._own_folders(kept)
        if self._lines.get("PrivateDevices") == "yes":
            self._own_devices()
        if self._lines.get("ProtectProc") == "invisible":
            mount("proc", "/proc", "proc", 0, "hidepid=invisible")
        self._close()

    def _own_folders(self, kept: int) -> None:
        state, runtime = self._lines["StateDirectory"], self._lines["RuntimeDirectory"]
        for parent, name in (("/var/lib", state), ("/run", runtime)):
            mount("none", parent, "tmpfs", NO_SUID, "mode=0755,size=64m")
            made = Path(parent, name)
            made.mkdir(mode=0o700)
            os.chown(made, self._uid, self._uid)
        mount(f"/proc/self/fd/{kept}", f"/var/lib/{state}", flags=BIND)

    @staticmethod
    def _own_devices() -> None:
        names = ("null", "zero", "full", "random", "urandom", "tty")
        numbers = {each: Path("/dev", each).stat().st_rdev for each in names}
        mount("none", "/dev", "tmpfs", NO_SUID, "mode=0755,size=16m")
        before = os.umask(0)
        for name, number in numbers.items():
            os.mknod(f"/dev/{name}", 0o666 | stat.S_IFCHR, number)
        os.umask(before)
        Path("/dev/shm").mkdir(mode=0o1777)
        mount("none", "/dev/shm", "tmpfs", NO_SUID, "mode=1777,size=256m")

    def _close(self) -> None:
        """What may not be written. Each mount is changed by itself."""
        writable = ("/tmp", "/var/tmp", "/dev", "/run/" + self._lines["RuntimeDirectory"],
                    "/var/lib/" + self._lines["StateDirectory"], "/proc")  # fmt: skip
        assert self._lines["ProtectSystem"] == "strict"
        mount(writable[3], writable[3], flags=BIND)
        closed = ["/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/sysrq-trigger"]
        for each in closed if self._lines.get("ProtectKernelTunables") == "yes" else []:
            if Path(each).exists():
                mount(each, each, flags=BIND)
        for each in ("/proc/kmsg", "/dev/kmsg", "/proc/kallsyms"):
            if self._lines.get("ProtectKernelLogs") == "yes" and Path(each).exists():
                mount("/dev/null", each, flags=BIND)
        rows = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for row in rows:
            point = row[4].encode().decode("unicode_escape")
            is_shown = any(point == each for each in self._shown)
            below = any(point == each or point.startswith(f"{each}/") for each in writable)
            if is_shown or not below or point in closed:
                kept = sum(
                    flag
                    for word, flag in (("nosuid", 2), ("nodev", 4), ("noexec", 8))
                    if word in row[5].split(",")
                )
                try:
                    mount("", point, flags=REMOUNT | BIND | READ_ONLY | kept)
                except OSError as error:
                    if error.errno not in (errno.EINVAL, errno.ENOENT, errno.EACCES):
                        raise


class Compared(ctypes.Structure):
    """`struct scmp_arg_cmp`."""

    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


class Filter:
    """One filter of system calls, as libseccomp makes it for systemd."""

    def __init__(self, default: int) -> None:
        self._library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._made = ctypes.c_void_p(self._library.seccomp_init(ctypes.c_uint32(default)))

    def add(self, action: int, name: str, *compared: tuple[int, int, int, int]) -> None:
        number = self._library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:  # not a call of this machine
            return
        array = (Compared * max(1, len(compared)))(*(Compared(*each) for each in compared))
        checked(
            self._library.seccomp_rule_add_array(
                self._made, ctypes.c_uint32(action), number, len(compared), array
            ),
            f"a rule for {name}",
        )

    def load(self) -> None:
        checked(self._library.seccomp_load(self._made), "loading a filter")


def refuse(code: int) -> int:
    return 0x00050000 | code


def filters_of(lines: Lines) -> list[Filter]:
    """Those of the unit; the one that lets only listed calls through comes last."""
    made = Filter(ALLOW)
    allowed = lines["RestrictNamespaces"].split()
    assert set(allowed) < set(NAMESPACES)
    for name, flag in NAMESPACES.items():
        if name not in allowed:
            for call, place in (("unshare", 0), ("clone", 0), ("setns", 1)):
                made.add(refuse(errno.EPERM), call, (place, MASKED, flag, flag))
    made.add(refuse(errno.EPERM), "setns", (1, EQUAL, 0, 0))
    made.add(refuse(errno.ENOSYS), "clone3")
    families = {FAMILIES[each] for each in lines["RestrictAddressFamilies"].split()}
    for family in range(FAMILIES_MAX):
        if family not in families:
            made.add(refuse(errno.EAFNOSUPPORT), "socket", (0, EQUAL, family, 0))
    if lines.get("LockPersonality") == "yes":
        made.add(refuse(errno.EPERM), "personality", (0, NOT_EQUAL, 0, 0))
    if lines.get("RestrictRealtime") == "yes":
        for policy in (1, 2, 6):
            made.add(refuse(errno.EPERM), "sched_setscheduler", (1, EQUAL, policy, 0))
    if lines.get("RestrictSUIDSGID") == "yes":
        for bit in (stat.S_ISUID, stat.S_ISGID):
            for call, place in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("mkdir", 1),
                                ("mkdirat", 2), ("mknod", 1), ("mknodat", 2)):  # fmt: skip
                made.add(refuse(errno.EPERM), call, (place, MASKED, bit, bit))
    if lines.get("MemoryDenyWriteExecute") == "yes":
        made.add(refuse(errno.EPERM), "mmap", (2, MASKED, 6, 6))
        for call in ("mprotect", "pkey_mprotect"):
            made.add(refuse(errno.EPERM), call, (2, MASKED, 4, 4))
        made.add(refuse(errno.EPERM), "shmat", (2, MASKED, 0o100000, 0o100000))
    return [made, _listed(lines["SystemCallFilter"])]


def _listed(words: str) -> Filter:
    listed = Filter(refuse(errno.EPERM))
    for name in sorted(calls_of(["@default", *words.split()])):
        listed.add(ALLOW, name)
    return listed


def calls_of(words: Iterable[str]) -> set[str]:
    """Groups taken apart, by what systemd itself says of them."""
    said = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    groups: dict[str, list[str]] = {}
    group = ""
    for line in said.splitlines():
        word = line.strip()
        if line.startswith("@"):
            group = word
        elif word and not word.startswith("#") and group:
            groups.setdefault(group, []).append(word)
    found: set[str] = set()
    waiting = list(words)
    while waiting:
        word = waiting.pop()
        if word.startswith("@"):
            waiting += groups.pop(word, [])
        else:
            found.add(word)
    return found


def limits(lines: Lines) -> None:
    wanted = {
        resource.RLIMIT_NOFILE: "LimitNOFILE",
        resource.RLIMIT_CORE: "LimitCORE",
        # A control group's in a unit; the user has no process but these.
        resource.RLIMIT_NPROC: "TasksMax",
    }
    for kind, name in wanted.items():
        most = resource.getrlimit(kind)[1]  # root in a container may raise nothing
        value = int(lines[name])
        resource.setrlimit(kind, (value if most < 0 else min(value, most),) * 2)
    os.umask(int(lines["UMask"], 8))


def become(lines: Lines, uid: int) -> None:
    """The user, without a capability for it or anything that it starts."""
    assert lines["CapabilityBoundingSet"] == ""
    assert lines["NoNewPrivileges"] == "yes"
    number = 0
    while LIBC.prctl(READ_BOUND, number, 0, 0, 0) >= 0:
        checked(LIBC.prctl(DROP_BOUND, number, 0, 0, 0), f"dropping capability {number}")
        number += 1
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    checked(LIBC.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no new privileges")


def check_known(lines: Lines) -> None:
    carried_out = {
        "StateDirectory", "RuntimeDirectory", "Environment", "LimitNOFILE", "LimitCORE", "TasksMax",
        "UMask", "NoNewPrivileges", "LockPersonality", "RestrictRealtime", "RestrictSUIDSGID",
        "RestrictNamespaces", "RestrictAddressFamilies", "SystemCallFilter", "ProtectSystem",
        "CapabilityBoundingSet", "ProtectHome", "PrivateTmp", "ProtectKernelTunables",
        "ProtectKernelLogs", "ProtectControlGroups", "PrivateDevices", "ProtectProc",
        "MemoryDenyWriteExecute",
    }  # fmt: skip
    unknown = set(lines) - carried_out - ELSEWHERE
    if unknown:
        sys.exit(f"not understood: {', '.join(sorted(unknown))}")


def main() -> None:
    unit, state, repository, uid, variables = sys.argv[1:]
    lines = lines_of(Path(unit).read_text())
    check_known(lines)
    filters = filters_of(lines)
    shown = sorted({repository, sys.base_prefix} if sys.base_prefix != "/usr" else {repository})
    files = Files(lines, state, shown, int(uid))
    files.show()
    limits(lines)
    given = dict(each.split("=", 1) for each in shlex.split(lines["Environment"]))
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG": "C.UTF-8",
        "HOME": f"/var/lib/{lines['StateDirectory']}", "USER": lines["User"],
        "LOGNAME": lines["User"], "SHELL": "/usr/sbin/nologin", **given, **json.loads(variables),
    }  # fmt: skip
    os.chdir("/")
    become(lines, int(uid))
    for each in filters:
        each.load()
    words = shlex.split(lines["ExecStart"])
    os.execve(words[0], words, environment)


if __name__ == "__main__":
    main()
