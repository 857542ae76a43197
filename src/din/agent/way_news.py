"""Tells the gateway what this node measured of its links: round trips, and how fast tensors came.

Nothing is sent to measure it: links ping each other anyway, and tensors come anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from din.transport.link import Link
from din.wire.messages import AnyMessage, Measured, MeasuredWay

TELL_EVERY_MS: Final = 5_000.0
REPEAT_EVERY_MS: Final = 60_000.0
"""What has not changed is said again so often: the gateway forgets what it does not hear."""
CHANGE_MIN: Final = 0.1
"""Less is noise."""
WAYS_MAX: Final = 256


class WayNews:
    """Looks at every beat."""

    def __init__(
        self, links: Callable[[], Iterable[Link]], tell: Callable[[AnyMessage], bool]
    ) -> None:
        """`links`: those that are open; of two to one peer, the newer is the later."""
        self._links = links
        self._tell = tell
        self._told: dict[str, MeasuredWay] = {}
        self._told_ms: float | None = None

    def look(self, now_ms: float) -> None:
        """Tell what is new and due."""
        if self._told_ms is not None and now_ms - self._told_ms < TELL_EVERY_MS:
            return
        ways = dict(list(_measured(self._links()))[-WAYS_MAX:])
        is_due = self._told_ms is None or now_ms - self._told_ms >= REPEAT_EVERY_MS
        if not ways or not (is_due or _differ(ways, self._told)):
            return
        if self._tell(Measured(tuple(ways.values()))):
            self._told, self._told_ms = ways, now_ms


def _measured(links: Iterable[Link]) -> Iterable[tuple[str, MeasuredWay]]:
    """Unix sockets are left out: within one machine the way is memory, and what would be measured
    is how busy the machine is."""
    for link in links:
        if link.is_local or link.rtt_ms is None:
            continue
        yield link.peer_id, MeasuredWay(link.peer_id, link.rtt_ms / 2, link.mib_per_second)


def _differ(now: dict[str, MeasuredWay], told: dict[str, MeasuredWay]) -> bool:
    return now.keys() != told.keys() or any(
        _is_other(way.latency_ms, told[peer_id].latency_ms)
        or _is_other(way.mib_per_second, told[peer_id].mib_per_second)
        for peer_id, way in now.items()
    )


def _is_other(now: float | None, told: float | None) -> bool:
    if now is None or told is None:
        return now is not told
    return abs(now - told) > CHANGE_MIN * max(told, now)
