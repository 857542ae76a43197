"""What a worker gives up before it sees a byte of a model. Here the sandbox will grow."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

from din.system.privacy import hide_memory, prctl

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_NO_NEW_PRIVS: Final = 38
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def confine() -> None:
    """No core files, no new privileges, no reading of our memory by others of the same user."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    hide_memory()


def die_with_parent(parent_pid: int) -> None:
    """Be killed when the parent ends; exit at once when it has ended already."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def name_process(name: str, title: str) -> None:
    """Set what `ps` shows: the command name (15 bytes) and, as far as it has room, the title."""
    _LIBC.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)
    with open("/proc/self/stat", "rb") as source:
        fields = source.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end: fields 48 and 49 of proc(5)
    if 0 < start < end:
        room = end - start
        text = title.encode()[: room - 1]
        ctypes.memmove(start, text.ljust(room, b"\0"), room)


def close_others(keep: set[int]) -> None:
    """Close every descriptor but these; 0, 1 and 2 become /dev/null."""
    empty = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(empty, standard)
    kept = sorted(keep | {0, 1, 2})
    for low, high in zip(kept, [*kept[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(low + 1, high)
