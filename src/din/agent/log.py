"""Log lines of the agent: one JSON object a line on standard error.

A logger of its own, because the agent must stay small: importing a logging library costs more
memory than the agent's whole state.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, Literal, TextIO

import msgspec

from din.system.clock import wall_clock_iso

Level = Literal["info", "warning", "error"]
TEXT_CHARACTERS_MAX: Final = 2000
_BAD_WORDS: Final = ("fail", "refused", "died", "cannot", "not_", "lost", "dropped", "warning")


class Log:
    """Writes lines; safe to call from anywhere in the loop's thread."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], str] = wall_clock_iso
    ) -> None:
        # Python has no stream at all where descriptor 2 was closed before it started.
        self._stream: TextIO | None = stream if stream is not None else sys.stderr
        self._clock = clock

    def report(self, event: str, **facts: object) -> None:
        """A line whose level follows from its words, for rooms that know no levels."""
        is_bad = any(word in event for word in _BAD_WORDS)
        self.write("warning" if is_bad else "info", event, facts)

    def error(self, event: str, **facts: object) -> None:
        """A line about something that an operator must see."""
        self.write("error", event, facts)

    def write(self, level: Level, event: str, facts: dict[str, object]) -> None:
        """One line; a stream that is gone is not worth dying for."""
        line: dict[str, object] = {"time": self._clock(), "level": level, "event": event}
        for key, value in facts.items():
            is_plain = value is None or isinstance(value, (bool, int, float))
            line[key] = value if is_plain else str(value)[:TEXT_CHARACTERS_MAX]
        if self._stream is None:
            return
        try:
            self._stream.write(msgspec.json.encode(line).decode() + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return
