"""What a gateway says of itself: JSON for machines, plain text on a terminal."""

from __future__ import annotations

from din.system.log import LogLines, is_read_by_a_person


class Log(LogLines):
    """Call it with what happened and the facts: `log("node lost", node="edge-1")`."""

    def __init__(self, program: str) -> None:
        super().__init__(is_plain=is_read_by_a_person())
        self._program = program

    def __call__(self, event: str, **facts: object) -> None:
        """Write one line. What carries a `warning`, `error` or `fault` is a warning."""
        # `reason` is in ordinary events as well, so it makes nothing a warning.
        is_bad = not facts.keys().isdisjoint({"warning", "error", "fault"})
        self.write("warning" if is_bad else "info", event, {"program": self._program, **facts})
