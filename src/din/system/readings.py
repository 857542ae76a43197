"""Small files of the kernel and the text of vendors' tools, read without trust: None when there is
nothing usable in them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from din.system.tools import find_tool

TOOL_SECONDS_MAX: Final = 5.0
TEXT_BYTES_MAX: Final = 64 * 1024
"""Of one file or one tool's answer."""
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")

Run = Callable[[Sequence[str]], str | None]
"""Runs a command; its output, or None when it is missing, fails or takes too long."""


def in_range(value: float | None, low: float, high: float) -> float | None:
    """The value, or None when it is outside what can be true."""
    return value if value is not None and low <= value <= high else None


def number_of(text: str | None) -> float | None:
    """The number that the text begins with; None for "[N/A]" and its kin."""
    found = _NUMBER.match((text or "").strip())
    return float(found[0]) if found else None


def first_number(values: dict[str, str], *keys: str) -> float | None:
    """The first of these keys that holds a number."""
    numbers = (number_of(values.get(key)) for key in keys)
    return next((each for each in numbers if each is not None), None)


def key_values(text: str | None) -> dict[str, str]:
    """`Key : value` lines, keys in lower case, the first of equal keys wins."""
    found: dict[str, str] = {}
    for line in (text or "").splitlines():
        key, separator, value = line.partition(":")
        if separator and value.strip():
            found.setdefault(" ".join(key.lower().split()), value.strip())
    return found


def read_text(path: Path) -> str | None:
    """A small file of the kernel; None when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(TEXT_BYTES_MAX).decode(errors="replace").strip("\0")
    except OSError:
        return None


def read_number(path: Path) -> float | None:
    """The number in a small file; None when there is none."""
    return number_of(read_text(path))


def run_tool(command: Sequence[str]) -> str | None:
    """Run a vendor's tool with a time limit."""
    path = find_tool(command[0])
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TOOL_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout[:TEXT_BYTES_MAX].decode(errors="replace") if done.returncode == 0 else None
