"""What confines workers on this machine, tried by a program of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final, NamedTuple

import msgspec

from din.domain.malformed import MALFORMED
from din.system.privacy import plain_environment

TIMEOUT_S: Final = 20.0
LEVEL_MAX: Final = 3
WORDS: Final = (
    "limits only, so workers run on nodes with --insecure alone",
    "system calls are filtered",
    "system calls are filtered, no files and no network are seen",
    "system calls are filtered, no files and no network are seen, Landlock besides",
)


class Tried(NamedTuple):
    """What was reached."""

    level: int | None
    """0 to 3, see `din.sandbox.enter`; None = it could not be tried."""
    reason: str
    """Why it is not 3."""


class _Said(msgspec.Struct, frozen=True):
    level: int
    reason: str


def try_sandbox() -> Tried:
    """Takes about as long as a start of Python. Raises nothing: what is wrong is the reason."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "din.sandbox"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=plain_environment(os.environ),
            timeout=TIMEOUT_S,
            check=True,
        )
        said = msgspec.json.decode(done.stdout, type=_Said)
    except (OSError, subprocess.SubprocessError, *MALFORMED) as error:
        return Tried(None, f"could not be tried: {error}")
    return Tried(said.level, said.reason)


def level_words(level: int) -> str:
    """For people: the level and what it means."""
    meaning = WORDS[level] if 0 <= level < len(WORDS) else "unknown to this version"
    return f"level {level} of {LEVEL_MAX}: {meaning}"
