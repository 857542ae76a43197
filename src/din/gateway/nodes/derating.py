"""Nodes that are slower than they could be: told once when it begins, and once when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from din.domain.node import NodeHealth, NodeId, SpeedLimit

WORDS: Final[dict[SpeedLimit, str]] = {
    "undervoltage": "its supply's voltage is too low",
    "frequency_capped": "its clock is capped",
    "throttled": "its hardware throttles",
    "soft_temperature_limit": "it is at its soft temperature limit",
    "undervoltage_before": "its supply's voltage was too low since it started",
    "frequency_capped_before": "its clock was capped since it started",
    "throttled_before": "its hardware throttled since it started",
    "soft_temperature_limit_before": "it was at its soft temperature limit since it started",
    "governor": "its governor holds cores back because of heat",
}


def slowdown_words(health: NodeHealth) -> str:
    """What people are told of a node that is slowed down, or was; empty for one that was not."""
    if not health.limits:
        return ""
    reasons = "; ".join(WORDS[each] for each in health.limits if not _is_told_twice(each, health))
    is_slow = health.capacity_percent is not None and health.capacity_percent < 100
    return f"runs at {health.capacity_percent} %: {reasons}" if is_slow else reasons


class DeratingNews:
    """Compares each beat with the last one of its node."""

    def __init__(self, report: Callable[..., None], name_of: Callable[[NodeId], str]) -> None:
        self._report = report
        self._name_of = name_of
        self._known: dict[NodeId, tuple[SpeedLimit, ...]] = {}

    def look(self, node_id: NodeId, health: NodeHealth) -> None:
        """One beat. Costs a look into a dictionary where nothing is limited."""
        known = self._known.get(node_id, ())
        if health.limits == known:
            return
        name = self._name_of(node_id)
        if health.limits:
            self._known[node_id] = health.limits
            self._report("node slowed down", node=name, capacity_percent=health.capacity_percent,
                         limits=", ".join(health.limits))  # fmt: skip
        else:
            del self._known[node_id]
            self._report("node at full speed", node=name)

    def forget(self, node_id: NodeId) -> None:
        """A node is in no list any more."""
        self._known.pop(node_id, None)


def _is_told_twice(limit: SpeedLimit, health: NodeHealth) -> bool:
    """Whether it holds now, so that it was so before as well says nothing."""
    return limit.endswith("_before") and limit.removesuffix("_before") in health.limits
