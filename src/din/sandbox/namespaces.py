"""A view of the machine with nothing in it: no files, no network, no other users' queues."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

from din.sandbox.kernel import LIBC, checked

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x40000000,
)  # fmt: skip
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = (
    0x1, 0x2, 0x4, 0x8, 0x20, 0x1000, 0x4000, 0x40000,
)  # fmt: skip
_PLAIN: Final = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
_MNT_DETACH: Final = 2
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_PLACE: Final = "/proc"
"""What the empty root covers until it is the root: the one folder that is on every machine."""
_ROOT_BYTES: Final = 65_536
FOLDER: Final = "/work"
"""Where `own_folder` puts a folder, in an empty root."""


def part_from_others(*, keeps_network: bool = False) -> None:
    """Enter namespaces of our own for users, files, network, queues and the host's name. Files are
    still all there, to import from. `keeps_network`: the host's stays ours.

    To be called before this process hides its memory, while it has one thread. Raises OSError where
    the kernel or its settings do not let this user do so.
    """
    user, group = os.geteuid(), os.getegid()
    network = 0 if keeps_network else _NEWNET
    checked(LIBC.unshare(_NEWUSER | _NEWNS | _NEWUTS | _NEWIPC | network), "unshare")
    # Until its ids are mapped a process is nobody, and may mount nothing.
    Path("/proc/self/setgroups").write_bytes(b"deny")
    Path("/proc/self/uid_map").write_bytes(b"%d %d 1" % (user, user))
    Path("/proc/self/gid_map").write_bytes(b"%d %d 1" % (group, group))
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)


def empty_the_root(machine: str) -> None:
    """From here on there are no files. What is open stays open. After `part_from_others`.

    Raises OSError.
    """
    _mount("none", _PLACE, "tmpfs", _PLAIN, f"size={_ROOT_BYTES},mode=755")
    os.chdir(_PLACE)
    Path(_PLACE + FOLDER).mkdir()
    checked(LIBC.syscall(_PIVOT_ROOT[machine], b".", b"."), "pivot_root")
    checked(LIBC.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")
    _mount(None, "/", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _PLAIN)


def own_folder(nbytes: int) -> None:
    """A folder in memory at FOLDER for this process alone; it ends with it. In an empty root.

    Raises OSError.
    """
    checked(LIBC.unshare(_NEWNS), "unshare")
    _mount("none", FOLDER, "tmpfs", _PLAIN, f"size={nbytes},mode=700")


def count_alone() -> None:
    """Be counted apart from the user's other processes, so that RLIMIT_NPROC is our own. We are
    nobody then. Raises OSError."""
    checked(LIBC.unshare(_NEWUSER), "unshare")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    words = [each.encode() if each is not None else None for each in (source, target, kind)]
    done = LIBC.mount(*words, ctypes.c_ulong(flags), data.encode() or None)
    checked(done, f"mount of {target}")
