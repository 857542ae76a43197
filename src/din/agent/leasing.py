"""Watches the leases of this node's slices and says when one is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from din.errors import Denied
from din.execution.events import SliceKey
from din.execution.leases import Leases
from din.system.clock import boot_ms
from din.wire.messages import Prepare, Renew

LOOK_MS_MAX: Final = 5_000
"""The loop's own clock stands still while the machine sleeps: look at the other one that often."""


class LeaseWatch:
    """All calls in the loop's thread."""

    def __init__(
        self, on_over: Callable[[SliceKey], None], clock_ms: Callable[[], int] = boot_ms
    ) -> None:
        self._leases = Leases()
        self._on_over = on_over
        self._clock_ms = clock_ms
        self._timer: asyncio.TimerHandle | None = None

    def grant(self, key: SliceKey, order: Prepare) -> None:
        """A slice was ordered, with a lease or without."""
        self._leases.grant(key, self._clock_ms(), order.lease_ms)
        self._arm()

    def renew(self, order: Renew) -> None:
        """The gateway prolongs the leases of a deployment."""
        self._leases.renew(order.epoch, self._clock_ms(), order.lease_ms)
        self._arm()

    def end(self, key: SliceKey) -> None:
        """The slice is gone."""
        self._leases.end(key)

    def check(self, key: SliceKey) -> None:
        """Raises Denied when the slice may not be opened any more."""
        if self._leases.is_over(key, self._clock_ms()):
            raise over_error()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        self.close()
        wakeup_ms = self._leases.next_wakeup_ms()
        if wakeup_ms is not None:
            delay_ms = min(max(wakeup_ms - self._clock_ms(), 1), LOOK_MS_MAX)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._look)

    def _look(self) -> None:
        for key in self._leases.over(self._clock_ms()):
            self._leases.end(key)
            self._on_over(key)
        self._arm()


def over_error() -> Denied:
    """What is said of a slice whose lease was not renewed."""
    return Denied(
        "the lease of the sealed slice is over",
        hint="it is loaded again when the gateway orders it; was this node revoked or cut off",
    )
