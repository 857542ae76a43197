"""Signals that ask a program to end in good order, or to read its settings again."""

from __future__ import annotations

import os
import signal


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
