"""Signals that ask a program to end in good order, or to read its settings again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Final

SAME_BREATH_S: Final = 1.0


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT, and SIGHUP where that means that our terminal was closed."""
    if is_reload_signal():
        return (signal.SIGTERM, signal.SIGINT)
    return (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def is_reload_signal() -> bool:
    """Whether SIGHUP asks for a reload: without a terminal there is none to be closed. `nohup` has
    SIGHUP ignored, and asks for no more than that a closed terminal does not end us."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def heed_no_more(loop: asyncio.AbstractEventLoop) -> None:
    """The program is ending in good order: one more signal to stop must not spoil its exit code."""
    for number in stop_signals():
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


class ToldTwice:
    """What a program does about signals to stop: the first begins an orderly end, one that comes
    later than in the same breath ends it at once. In one breath come the terminal's signal to all
    of a group and the one of the program that started us."""

    def __init__(
        self, begin: Callable[[], None], end: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        """`clock`: seconds."""
        self._begin = begin
        self._end = end
        self._clock = clock
        self._first_s: float | None = None

    def __call__(self) -> None:
        """A signal came."""
        now_s = self._clock()
        if self._first_s is None:
            self._first_s = now_s
            self._begin()
        elif now_s - self._first_s > SAME_BREATH_S:
            self._end()
