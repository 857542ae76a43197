"""System calls by number, for which Python and the C library have no function."""

from __future__ import annotations

import ctypes
import os
from typing import Final

LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_NO_NEW_PRIVS: Final = 38
_CAPABILITY_VERSION_3: Final = 0x20080522
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
"""The same on every machine."""
_LANDLOCK_VERSION, _LANDLOCK_PATH_BENEATH, _LANDLOCK_NET_PORT = 1, 1, 2
_O_PATH: Final = 0o10000000
_ACCESS_FS: Final = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 5: 0xFFFF}
"""Every right over files, by the first version that has it."""
_ACCESS_NET, _ACCESS_CONNECT, _ACCESS_NET_FROM = 0x3, 0x2, 4
_SCOPES, _SCOPES_FROM = 0x3, 6
"""Abstract Unix sockets and signals."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("access_fs", ctypes.c_uint64),
        ("access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _NetPort(ctypes.Structure):
    _fields_ = (("access", ctypes.c_uint64), ("port", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))


def promise_no_privileges() -> None:
    """Nothing that is executed gains a privilege. Raises OSError."""
    checked(LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def filter_calls(program: bytes) -> None:
    """Put a filter over the calling thread and all that it starts. For good. Raises OSError."""
    asked = _Program(len(program) // 8, program)
    done = LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(asked), 0, 0)
    checked(done, "prctl(PR_SET_SECCOMP)")


def landlock_version() -> int:
    """Of the kernel's Landlock; 0 where there is none."""
    found: int = LIBC.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)
    return max(found, 0)


def give_up_files(folder: str = "", port: int = 0) -> None:
    """No file can be opened, made or removed any more, no port bound or connected to, no abstract
    socket reached, no signal sent outside, as far as this kernel's Landlock goes. A folder may be
    excepted, and a port of TCP to connect to, of whichever host. Needs
    `promise_no_privileges`. Raises OSError."""
    version = landlock_version()
    if not version:
        raise OSError(f"this kernel has no Landlock: {os.uname().release}")
    access = max(right for since, right in _ACCESS_FS.items() if since <= version)
    asked = _Ruleset(
        access,
        _ACCESS_NET if version >= _ACCESS_NET_FROM else 0,
        _SCOPES if version >= _SCOPES_FROM else 0,
    )
    size = 8 * (1 + (version >= _ACCESS_NET_FROM) + (version >= _SCOPES_FROM))
    ruleset: int = LIBC.syscall(_LANDLOCK_CREATE_RULESET, ctypes.byref(asked), size, 0)
    checked(ruleset, "landlock_create_ruleset")
    try:
        if folder:
            _except_folder(ruleset, access, folder)
        if port and version >= _ACCESS_NET_FROM:
            rule = _NetPort(_ACCESS_CONNECT, port)
            done = LIBC.syscall(
                _LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_NET_PORT, ctypes.byref(rule), 0
            )
            checked(done, "landlock_add_rule")
        checked(LIBC.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _except_folder(ruleset: int, access: int, folder: str) -> None:
    parent = os.open(folder, _O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathBeneath(access, parent)
        done = LIBC.syscall(
            _LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_PATH_BENEATH, ctypes.byref(rule), 0
        )
        checked(done, "landlock_add_rule")
    finally:
        os.close(parent)


def drop_capabilities() -> None:
    """Give up every power of root, effective, permitted and inheritable. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    checked(LIBC.capset(ctypes.byref(header), ctypes.byref(data)), "capset")


def checked(result: int, what: str) -> None:
    """Raises OSError for a system call that failed."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what} failed: {os.strerror(code)}")
