"""How long to wait for a slice on a node: 3 times the sliding mean of how long it took so far.

A time-out is a sample too, of the time that was waited. Without that a node that becomes four times
slower would time out for ever, because the mean never hears of it; with it the waiting time grows
until the node answers inside it again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from msgspec import Struct

from din.errors import Internal

FACTOR: Final = 3.0
COLD_MS: Final = 2_000.0
FLOOR_MS: Final = 50.0
CAP_MS: Final = 60_000.0
WEIGHT: Final = 1 / 8
"""Of a new sample in the sliding mean, as TCP smooths its round trips (RFC 6298)."""
MEANS_MAX: Final = 65_536
"""Pairs of slice and node that are remembered; the one unused longest is forgotten."""

Key = tuple[str, str]
"""(slice id, node id)"""


class TimeoutLimits(Struct, frozen=True, kw_only=True):
    """The numbers of the rule."""

    factor: float = FACTOR
    cold_ms: float = COLD_MS
    """Stands for the mean before the first sample."""
    floor_ms: float = FLOOR_MS
    cap_ms: float = CAP_MS
    weight: float = WEIGHT

    def __post_init__(self) -> None:
        if not (self.factor >= 1 and 0 < self.weight <= 1 and 0 < self.floor_ms <= self.cap_ms):
            raise Internal(f"time-out limits make no sense: {self}")


TIMEOUT_LIMITS: Final = TimeoutLimits()


class Timeouts:
    """Sliding means by (slice, node) and the time-outs that follow from them."""

    def __init__(self, limits: TimeoutLimits = TIMEOUT_LIMITS, means_max: int = MEANS_MAX) -> None:
        self._limits = limits
        self._means_max = means_max
        self._means: OrderedDict[Key, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._means)

    def mean_ms(self, slice_id: str, node_id: str) -> float | None:
        """The sliding mean, or None before the first sample."""
        return self._means.get((slice_id, node_id))

    def timeout_ms(self, slice_id: str, node_id: str, remaining_ms: float | None = None) -> float:
        """How long to wait; never beyond the client's remaining time."""
        limits = self._limits
        mean = self._means.get((slice_id, node_id), limits.cold_ms)
        wait = min(max(limits.factor * mean, limits.floor_ms), limits.cap_ms)
        return wait if remaining_ms is None else max(min(wait, remaining_ms), 0.0)

    def observe(self, slice_id: str, node_id: str, elapsed_ms: float) -> None:
        """Take the time of a success; negative ones (a clock that went back) are dropped."""
        if not elapsed_ms >= 0:
            return
        key = (slice_id, node_id)
        mean = self._means.get(key)
        self._means[key] = (
            elapsed_ms if mean is None else mean + (elapsed_ms - mean) * self._limits.weight
        )
        self._means.move_to_end(key)
        if len(self._means) > self._means_max:
            self._means.popitem(last=False)

    def observe_timeout(self, slice_id: str, node_id: str) -> None:
        """Take a time-out, or any failure, as a sample of the whole time that would be waited."""
        self.observe(slice_id, node_id, self.timeout_ms(slice_id, node_id))

    def forget(self, slice_id: str, node_id: str) -> None:
        """Drop what is known of one pair."""
        self._means.pop((slice_id, node_id), None)

    def forget_node(self, node_id: str) -> None:
        """Drop everything about a node that left for good."""
        for key in [key for key in self._means if key[1] == node_id]:
            del self._means[key]
