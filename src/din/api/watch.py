"""The clock of one connection: one lazy timer for slow heads, slow bodies and idle clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

from din.api.limits import FrontLimits

RECHECK_S = 5.0
"""While a request runs nothing is timed here; its deadline is the gateway's."""


class Stage(Enum):
    """What the connection is waited for."""

    HEAD = 1
    BODY = 2
    BUSY = 3
    IDLE = 4
    LINGER = 5


class Watch:
    """Notes stage and time, cheap to call; a timer looks now and then whether it is too late."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: FrontLimits,
        too_slow: Callable[[Stage], None],
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._too_slow = too_slow
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused: Callable[[], bool] = bool
        self.stage = Stage.HEAD
        self._since_s = 0.0
        self._touched_s = 0.0

    def start(self, is_paused: Callable[[], bool]) -> None:
        """A new connection owes us a head. While `is_paused`, waiting is our own doing."""
        self._is_paused = is_paused
        self.touch()
        self.enter(Stage.HEAD)
        self._check()

    def stop(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._too_slow = _nothing

    def touch(self) -> None:
        """Bytes came."""
        self._touched_s = self._loop.time()

    def enter(self, stage: Stage) -> None:
        """The connection is at this stage from now on."""
        self.stage = stage
        self._since_s = self._touched_s if stage is not Stage.IDLE else self._loop.time()
        if stage is Stage.LINGER:
            self._since_s = self._loop.time()
            self._check()

    def _left_s(self) -> float | None:
        """Seconds until it is too late; None = nothing is due."""
        now_s, limits = self._loop.time(), self._limits
        if self.stage is Stage.LINGER:
            return self._since_s + limits.linger_s - now_s
        if self.stage is Stage.IDLE:
            return self._since_s + limits.keep_alive_timeout_s - now_s
        if self.stage is Stage.BUSY or self._is_paused():
            return None
        if self.stage is Stage.HEAD:
            return self._since_s + limits.head_timeout_s - now_s
        idle_s = self._touched_s + limits.body_idle_timeout_s - now_s
        return min(idle_s, self._since_s + limits.body_timeout_s - now_s)

    def _check(self) -> None:
        left_s = self._left_s()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if left_s is not None and left_s <= 0:
            self._too_slow(self.stage)
            if self._too_slow is _nothing or self.stage is not Stage.LINGER:
                return
            left_s = self._limits.linger_s
        delay_s = RECHECK_S if left_s is None else min(max(left_s, 0.01), RECHECK_S)
        self._timer = self._loop.call_later(delay_s, self._check)


def _nothing(_stage: Stage) -> None:
    """After the end."""
