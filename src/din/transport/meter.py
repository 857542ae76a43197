"""Times large bodies as they come in: a link's throughput, measured by what it carries anyway.

Only bytes that arrive after the clock is started count. What lay in the kernel's buffer by then
came at a time that nobody knows: counting it would make a slow link look as fast as memory whenever
this process was late to read.
"""

from __future__ import annotations

import fcntl
import struct
import termios
from typing import Final

from din.flow.pace import Pace

DATED_BYTES_MIN: Final = 64 * 1024
"""Fewer bytes say more of latency, and of the reader's punctuality, than of throughput."""
_COUNT: Final = struct.Struct("i")


class BodyMeter:
    """One body at a time."""

    __slots__ = ("_nbytes", "_started_ms", "is_running", "pace")

    def __init__(self) -> None:
        self.pace = Pace()
        self.is_running = False
        self._nbytes = 0
        self._started_ms = 0.0

    def begin(self, nbytes: int, descriptor: int, now_ms: float) -> None:
        """`nbytes` of a body are to be received; those waiting at the descriptor do not count."""
        self._nbytes = nbytes - waiting_bytes(descriptor)
        self._started_ms = now_ms
        self.is_running = self._nbytes >= DATED_BYTES_MIN

    def end(self, now_ms: float) -> None:
        """The body is here."""
        self.is_running = False
        self.pace.note(self._nbytes, now_ms - self._started_ms, now_ms)


def waiting_bytes(descriptor: int) -> int:
    """Received by the kernel and not read; 0 where it does not say."""
    try:
        said = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(_COUNT.size))
    except OSError:
        return 0
    return int(_COUNT.unpack(said)[0])
