"""Log lines of a program: one JSON object a line on standard error, or plain text for a terminal.

A writer of our own: importing a logging library costs more memory than an agent's whole state, and
more time than starting a gateway can spare.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, Literal, TextIO

import msgspec

from din.observability.printable import printable_json
from din.system.clock import wall_clock_iso

Level = Literal["info", "warning", "error"]
TEXT_CHARACTERS_MAX: Final = 2000


def is_read_by_a_person() -> bool:
    """Whether standard error is a terminal; there is none at all where descriptor 2 was closed
    before Python started."""
    return sys.stderr is not None and sys.stderr.isatty()


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
        self._line = _plain if is_plain else _json

    def write(self, level: Level, event: str, facts: dict[str, object]) -> None:
        """One line; a stream that is gone is not worth dying for."""
        line: dict[str, object] = {"time": self._clock(), "level": level, "event": event}
        for key, value in facts.items():
            is_bare = value is None or isinstance(value, (bool, int, float))
            line[key] = value if is_bare else str(value)[:TEXT_CHARACTERS_MAX]
        if self._stream is None:
            return
        try:
            self._stream.write(self._line(line) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return


def _json(value: object) -> str:
    return printable_json(msgspec.json.encode(value).decode())


def _plain(line: dict[str, object]) -> str:
    """The facts stay JSON: what others wrote into them must not steer a terminal."""
    time, level, event, *facts = line.items()
    said = "".join(f"  {name}={_json(value)}" for name, value in facts)
    return f"{time[1]}  {level[1]:7}  {event[1]}{said}"
