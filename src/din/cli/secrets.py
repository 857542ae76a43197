"""Secrets that come by the command line: read from where others cannot look, or wiped from it."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from din.errors import UsageError

BYTES_MAX: Final = 4096
_ARGUMENTS_BEGIN: Final = 45
"""Field 48 of /proc/PID/stat, counted behind the name: where the arguments lie in memory."""


def read_secret_text(given: str | None, file: str | None) -> str:
    """The one line of `-` (standard input), of a file, or of an argument, which is wiped from what
    `ps` shows. Raises UsageError."""
    if (given is None) == (file is None):
        raise UsageError(
            "no token was given, or two", hint="give it, or - for standard input, or --token-file"
        )
    if file is not None:
        try:
            with Path(file).expanduser().open("rb") as source:
                return source.read(BYTES_MAX).decode("ascii", "replace").strip()
        except OSError as error:
            raise UsageError(
                f"{file} cannot be read: {error.strerror}",
                hint="check the path and its permissions",
            ) from None
    assert given is not None, "one of both was given"
    if given != "-":
        wipe_argument(given)
        return given
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass("token: ")
    return sys.stdin.readline(BYTES_MAX).strip()


def wipe_argument(secret: str) -> bool:
    """Overwrite an argument of this process where the kernel shows it to others; False where that
    is not possible."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin = int(fields[_ARGUMENTS_BEGIN])
        shown = Path("/proc/self/cmdline").read_bytes()
        wanted = secret.encode()
        at = shown.find(b"\0" + wanted + b"\0")
        if begin and at >= 0:
            ctypes.memset(begin + at + 1, ord("x"), len(wanted))
            return True
    return False
