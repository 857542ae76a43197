"""One line per event on standard error: JSON for machines, plain text on a terminal."""

from __future__ import annotations

import sys

import structlog


class Log:
    """Call it with what happened and the facts: `log("node lost", node="edge-1")`."""

    def __init__(self, program: str) -> None:
        is_terminal = sys.stderr.isatty()
        renderer = (
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
            if is_terminal
            else structlog.processors.JSONRenderer()
        )
        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso"),
                renderer,
            ],
            logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        )
        self._logger = structlog.get_logger(program=program)

    def __call__(self, event: str, **facts: object) -> None:
        """Write one line. What carries a `warning`, `error` or `fault` is a warning."""
        # `reason` is in ordinary events as well, so it makes nothing a warning.
        is_bad = not facts.keys().isdisjoint({"warning", "error", "fault"})
        write = self._logger.warning if is_bad else self._logger.info
        write(event, **facts)
