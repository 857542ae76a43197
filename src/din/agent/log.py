"""What an agent says of itself."""

from __future__ import annotations

from typing import Final

from din.system.log import LogLines

_BAD_WORDS: Final = ("fail", "refused", "died", "cannot", "not_", "lost", "dropped", "warning")


class Log(LogLines):
    """What every room of the agent reports to."""

    def report(self, event: str, **facts: object) -> None:
        """A line whose level follows from its words, for rooms that know no levels."""
        is_bad = any(word in event for word in _BAD_WORDS)
        self.write("warning" if is_bad else "info", event, facts)

    def error(self, event: str, **facts: object) -> None:
        """A line about something that an operator must see."""
        self.write("error", event, facts)
