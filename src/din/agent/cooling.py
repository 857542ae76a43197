"""Carries out what the thermal governor decides: which cores the workers of this node may use.

The zygote keeps all cores, since a worker counts them once, when it loads; its workers are confined
again at each look while something is held back, so that new ones do not escape.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Final, Protocol

from din.execution.governor import Change, Governor, limit_of, steps_of
from din.system.affinity import confine, descendants, own_cores
from din.system.temperature import ThrottlePoint

LOOK_EVERY_S: Final = 2.0


class Thermometer(Protocol):
    """What this needs of the node's sensors."""

    def temperature_c(self) -> float | None:
        """Now, or None."""
        ...

    @property
    def throttle_point(self) -> ThrottlePoint | None:
        """Where the hardware helps itself."""
        ...


class Cooling:
    """Of one node. All calls in the loop's thread."""

    def __init__(
        self,
        thermometer: Thermometer,
        zygote_pid: Callable[[], int | None],
        report: Callable[..., None],
        *,
        limit_c: float | None = None,
        is_governed: bool = True,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """`limit_c` None = from the hardware's own trip points; `alive` is called at each look;
        without `is_governed` nothing else is done at one."""
        self._thermometer = thermometer
        self._zygote_pid = zygote_pid
        self._report = report
        self._limit_c = limit_c
        self._is_governed = is_governed
        self._alive = alive
        self._cores = own_cores()
        self._governor: Governor | None = None
        """Made when the first temperature is known: without one there is nothing to govern."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def share(self) -> float:
        """Of the cores, what workers may use now."""
        return self._governor.share if self._governor is not None else 1.0

    @property
    def is_capping(self) -> bool:
        """Whether something is held back."""
        return self._governor is not None and self._governor.is_capping

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to look."""
        self._timer = loop.call_later(LOOK_EVERY_S, self.start, loop)
        self.look(int(loop.time() * 1000))

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self, now_ms: int) -> None:
        """Read the temperature, and act."""
        self._alive()
        if not self._is_governed:
            return
        temperature_c = self._thermometer.temperature_c()
        if self._governor is None:
            if temperature_c is None:
                return
            self._governor = self._make_governor()
        change = self._governor.take(now_ms, temperature_c)
        if change is not None:
            self._tell(change)
        if change is not None or self._governor.is_capping:
            self._confine()

    def _make_governor(self) -> Governor:
        limit_c = self._limit_c
        if limit_c is None:
            point = self._thermometer.throttle_point
            limit_c = (
                limit_of(None)
                if point is None
                else limit_of(point.temperature_c, is_critical=point.is_critical)
            )
        return Governor(limit_c, steps_of(len(self._cores)))

    def _tell(self, change: Change) -> None:
        self._report(
            "thermal_governor",
            cores=self._kept(),
            cores_of=len(self._cores),
            temperature_c=change.temperature_c,
            reason=change.reason,
        )

    def _kept(self) -> int:
        return max(1, round(len(self._cores) * self.share))

    def _confine(self) -> None:
        zygote = self._zygote_pid()
        if zygote is None:
            return
        try:
            confine(descendants(zygote), self._cores[: self._kept()])
        except OSError as error:  # a cpuset that does not have these cores any more
            if error.errno != errno.EINVAL:
                raise
            self._cores = own_cores()
