"""Ends runs that are over their deadline or are not wanted any more.

The serving thread is blocked inside the engine then, so a second thread looks. It costs nothing
while runs are short: a timer is armed at most once per tick and only by a run, and while a run
lasts longer the thread reads the sockets, so that an Abort is seen behind a waiting order.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from socket import MSG_DONTWAIT
from typing import Final, Literal

from din.wire.worker import Abort, FeederMessage
from din.worker.feed import Feed

TICK_MS: Final = 25
GRACE_MS: Final = 2000
"""A run that has not ended this long after it was stopped takes the worker with it."""
EXIT_STUCK: Final = 75
INBOX_MAX: Final = 64
"""Messages read ahead while a run lasts."""

StopReason = Literal["", "deadline", "abort"]

_CLOCK_MONOTONIC: Final = 1
_TFD_CLOEXEC: Final = 0o2000000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class _Time(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Watchdog:
    """Knows the present run, and the messages that were read while it lasted."""

    def __init__(self, feeds: Sequence[Feed], stop: Callable[[], None]) -> None:
        self.inbox: deque[tuple[Feed, FeederMessage]] = deque()
        self._feeds = feeds
        self._stop = stop
        self._lock = threading.Lock()
        self._current: tuple[Feed | None, int] | None = None
        self._deadline_ms = 0
        self._reason: StopReason = ""
        self._stopped_ms = 0
        self._is_armed = False
        self._timer: int = _LIBC.timerfd_create(_CLOCK_MONOTONIC, _TFD_CLOEXEC)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "no timer for the worker's watchdog")
        self._tick = _Time(0, 0, 0, TICK_MS * 1_000_000)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def begin(self, feed: Feed | None, ticket: int, deadline_ms: int) -> None:
        """A run starts; `deadline_ms` is of the monotonic clock."""
        with self._lock:
            self._current = (feed, ticket)
            self._deadline_ms = deadline_ms
            self._reason = ""
            self._arm()

    def end(self) -> StopReason:
        """The run is over; why it was stopped, or nothing."""
        with self._lock:
            self._current = None
            return self._reason

    @property
    def reason(self) -> StopReason:
        """Why the present run is to stop, or nothing."""
        return self._reason

    def take_abort(self, feed: Feed, ticket: int) -> bool:
        """Whether an Abort for this ticket was read already; it is used up."""
        for entry in self.inbox:
            if entry[0] is feed and isinstance(entry[1], Abort) and entry[1].ticket == ticket:
                self.inbox.remove(entry)
                return True
        return False

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            _LIBC.timerfd_settime(self._timer, 0, ctypes.byref(self._tick), None)

    def _watch(self) -> None:
        while True:
            os.read(self._timer, 8)
            with self._lock:
                self._is_armed = False
                if self._current is not None:
                    self._look(*self._current)
                    self._arm()

    def _look(self, feed: Feed | None, ticket: int) -> None:
        now_ms = monotonic_ms()
        self._read_ahead()
        if self._reason:
            if now_ms - self._stopped_ms > GRACE_MS:
                os._exit(EXIT_STUCK)
            self._stop()  # again: the first call may have come before the engine looked
        elif now_ms >= self._deadline_ms:
            self._stop_for("deadline", now_ms)
        elif feed is not None and (self.take_abort(feed, ticket) or not feed.is_open):
            self._stop_for("abort", now_ms)

    def _stop_for(self, reason: StopReason, now_ms: int) -> None:
        self._reason = reason
        self._stopped_ms = now_ms
        self._stop()

    def _read_ahead(self) -> None:
        for feed in self._feeds:
            while feed.is_open and len(self.inbox) < INBOX_MAX:
                message = feed.receive(MSG_DONTWAIT)
                if message is None:
                    break
                self.inbox.append((feed, message))


def monotonic_ms() -> int:
    """Milliseconds of the clock that all processes of this host share."""
    return time.monotonic_ns() // 1_000_000
