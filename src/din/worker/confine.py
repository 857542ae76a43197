"""How a worker starts its life: whom it dies with, what it is called, what it holds open."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final, NamedTuple

from din.sandbox.enter import Surroundings
from din.system.privacy import hide_memory, prctl

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_NO_NEW_PRIVS: Final = 38
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Place(NamedTuple):
    """What a zygote holds open of the machine's files, which it and its workers see no more."""

    processes: int
    """The folder /proc."""
    tasks: int
    """The folder of our own threads."""
    empty: int
    """/dev/null."""
    surroundings: Surroundings = Surroundings(False)
    is_insecure: bool = False
    """Workers may run where nothing confines them."""
    makes_code: bool = False
    """Their engine translates models to machine code."""


def open_place(*, is_insecure: bool = False, makes_code: bool = False) -> Place:
    """To be called while there are files. Raises OSError."""
    folder = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    return Place(
        processes=os.open("/proc", folder),
        tasks=os.open("/proc/self/task", folder),
        empty=os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC),
        is_insecure=is_insecure,
        makes_code=makes_code,
    )


def keep_private() -> None:
    """No core files, no new privileges, no reading of our memory by others of the same user."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    hide_memory()


def die_with_parent(parent_pid: int) -> None:
    """Be killed when the parent ends; exit at once when it has ended already."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def name_process(name: str, title: str, processes: int | None = None) -> None:
    """Set what `ps` shows: the command name (15 bytes) and, as far as it has room, the title.
    `processes`: a descriptor of /proc."""
    _LIBC.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)
    source = os.open("/proc/self/stat" if processes is None else "self/stat", os.O_RDONLY,
                     dir_fd=processes)  # fmt: skip
    try:
        fields = os.pread(source, 4096, 0).rpartition(b")")[2].split()
    finally:
        os.close(source)
    start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end: fields 48 and 49 of proc(5)
    if 0 < start < end:
        room = end - start
        text = title.encode()[: room - 1]
        ctypes.memmove(start, text.ljust(room, b"\0"), room)


def close_others(keep: set[int], empty: int) -> None:
    """Close every descriptor but these; 0, 1 and 2 become `empty`, which is of /dev/null."""
    for standard in (0, 1, 2):
        os.dup2(empty, standard)
    kept = sorted(keep | {0, 1, 2})
    for low, high in zip(kept, [*kept[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(low + 1, high)
