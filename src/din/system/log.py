"""Log lines of a program: one JSON object a line on standard error, or plain text for a terminal.

A writer of our own: importing a logging library costs more memory than an agent's whole state, and
more time than starting a gateway can spare.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final, Literal, TextIO

import msgspec

from din.observability.printable import printable_json
from din.system.clock import wall_clock_iso

Level = Literal["info", "warning", "error"]
Format = Literal["auto", "json", "text"]
_RANKS: Final[dict[Level, int]] = {"info": 0, "warning": 1, "error": 2}
_PRIORITIES: Final[dict[Level, str]] = {"info": "<6>", "warning": "<4>", "error": "<3>"}
"""How the journal of systemd is told a line's level, see sd-daemon(3): it takes them off again."""
TEXT_CHARACTERS_MAX: Final = 2000


def is_read_by_a_person() -> bool:
    """Whether standard error is a terminal; there is none at all where descriptor 2 was closed
    before Python started."""
    return sys.stderr is not None and sys.stderr.isatty()


class _Chosen:
    """What the operator wants of all logs of this process."""

    least: Level = "info"
    format: Format = "auto"
    is_journal: bool = False


def choose_log(least: Level, log_format: Format) -> None:
    """From now on lines of a lower level are not written, and the others in this form."""
    _Chosen.least, _Chosen.format = least, log_format
    _Chosen.is_journal = _is_read_by_the_journal()


def _is_read_by_the_journal() -> bool:
    """Whether standard error is the very socket that systemd made for the journal."""
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


class LogLines:
    """Writes lines; safe to call from anywhere in the loop's thread."""

    def __init__(
        self,
        stream: TextIO | None = None,
        clock: Callable[[], str] = wall_clock_iso,
        *,
        is_plain: bool = False,
    ) -> None:
        # Python has no stream at all where descriptor 2 was closed before it started.
        self._stream: TextIO | None = stream if stream is not None else sys.stderr
        self._clock = clock
        self._is_plain = is_plain

    def write(self, level: Level, event: str, facts: dict[str, object]) -> None:
        """One line; a stream that is gone is not worth dying for."""
        if _RANKS[level] < _RANKS[_Chosen.least]:
            return
        line: dict[str, object] = {"time": self._clock(), "level": level, "event": event}
        for key, value in facts.items():
            is_bare = value is None or isinstance(value, (bool, int, float))
            line[key] = value if is_bare else str(value)[:TEXT_CHARACTERS_MAX]
        if self._stream is None:
            return
        try:
            self._stream.write(self._shown(level, line) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return

    def _shown(self, level: Level, line: dict[str, object]) -> str:
        is_plain = self._is_plain if _Chosen.format == "auto" else _Chosen.format == "text"
        text = _plain(line) if is_plain else _json(line)
        return f"{_PRIORITIES[level]}{text}" if _Chosen.is_journal else text


def _json(value: object) -> str:
    return printable_json(msgspec.json.encode(value).decode())


def _plain(line: dict[str, object]) -> str:
    """The facts stay JSON: what others wrote into them must not steer a terminal."""
    time, level, event, *facts = line.items()
    said = "".join(f"  {name}={_json(value)}" for name, value in facts)
    return f"{time[1]}  {level[1]:7}  {event[1]}{said}"
