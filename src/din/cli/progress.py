"""One line on stderr for steps that take over a second. Nothing where stderr is no terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Final

from din.cli.display import byte_count
from din.cli.frame import say, verbosity
from din.observability.printable import one_line

SHOWN_AFTER_S: Final = 1.0
SLOW_AFTER_S: Final = 3.0
REDRAWN_AFTER_S: Final = 0.1
BAR_COLUMNS: Final = 24
LINE_COLUMNS_MAX: Final = 79


@contextmanager
def told_when_slow(text: str, after_s: float = SLOW_AFTER_S) -> Generator[None]:
    """One line for a person while a call that cannot report takes long."""
    timer = threading.Timer(after_s, say, (text,))
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Progress:
    """A context manager; what it drew is gone at its end."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._started_s = time.monotonic()
        self._drawn_s = 0.0
        self._is_drawn = False
        self._may_draw = sys.stderr.isatty() and verbosity() >= 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._erase()

    def sent(self, nbytes: int, total: int) -> None:
        """Show bytes out of a total."""
        share = nbytes / total if total else 1.0
        bar = "#" * round(share * BAR_COLUMNS)
        text = f"[{bar:{BAR_COLUMNS}}] {byte_count(nbytes)} of {byte_count(total)}"
        self._draw(f"{self._title} {text}")

    def say(self, text: str) -> None:
        """Show what is going on, and for how long already."""
        passed_s = time.monotonic() - self._started_s
        self._draw(f"{self._title} {one_line(text)} ({passed_s:.0f} s)")

    def _draw(self, text: str) -> None:
        now_s = time.monotonic()
        if not self._may_draw or now_s - self._started_s < SHOWN_AFTER_S:
            return
        if now_s - self._drawn_s < REDRAWN_AFTER_S:
            return
        self._drawn_s = now_s
        self._is_drawn = True
        sys.stderr.write(f"\r\x1b[K{text[:LINE_COLUMNS_MAX]}")
        sys.stderr.flush()

    def _erase(self) -> None:
        if self._is_drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
