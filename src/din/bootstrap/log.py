"""One line per event on standard error: JSON for machines, plain text on a terminal."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import structlog


class Log:
    """Call it with what happened and the facts: `log("node lost", node="edge-1")`."""

    def __init__(self, program: str) -> None:
        # Python has no stream at all where descriptor 2 was closed before it started.
        stream = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - lives as long as the process
        is_terminal = stream.isatty()
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
            logger_factory=structlog.WriteLoggerFactory(stream),
        )
        self._logger = structlog.get_logger(program=program)

    def __call__(self, event: str, **facts: object) -> None:
        """Write one line; a stream that is gone is not worth dying for. What carries a `warning`,
        `error` or `fault` is a warning."""
        # `reason` is in ordinary events as well, so it makes nothing a warning.
        is_bad = not facts.keys().isdisjoint({"warning", "error", "fault"})
        write = self._logger.warning if is_bad else self._logger.info
        with suppress(OSError, ValueError):
            write(event, **facts)
