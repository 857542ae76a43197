"""What it takes to send bytes from node to node: measured where it was, else assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from din.domain.node import NodeId
from din.placement.layout import LINK_LATENCY_MS, LINK_MIB_PER_SECOND

Matrix = npt.NDArray[np.float64]

HERE: Final = NodeId("")
"""The gateway as an end of a way."""
_MIB: Final = 1024 * 1024


Source = Literal["assumed", "measured", "same machine"]


class WayFacts(Struct, frozen=True):
    """One way between two nodes."""

    latency_ms: float = LINK_LATENCY_MS
    mib_per_second: float = LINK_MIB_PER_SECOND
    latency_from: Source = "assumed"
    rate_from: Source = "assumed"

    @classmethod
    def measured(cls, latency_ms: float | None, mib_per_second: float | None) -> WayFacts:
        """What is None is assumed."""
        facts = cls()
        if latency_ms is not None:
            facts = replace(facts, latency_ms=latency_ms, latency_from="measured")
        if mib_per_second is not None:
            facts = replace(facts, mib_per_second=mib_per_second, rate_from="measured")
        return facts


ASSUMED: Final = WayFacts()
SAME_MACHINE: Final = WayFacts(0.15, 1500.0, "same machine", "same machine")
"""Between two processes of one machine, by a Unix socket."""


class Ways(Struct, frozen=True, kw_only=True):
    """What is known of the ways between nodes."""

    known: Mapping[tuple[NodeId, NodeId], WayFacts] = {}
    """(from, to), HERE for the gateway; taken for both directions where one is missing."""
    undialable: frozenset[tuple[NodeId, NodeId]] = frozenset()
    """Pairs (from, to) that the gateway relays: both legs count."""
    assumed: WayFacts = ASSUMED

    def between(self, source: NodeId, target: NodeId) -> WayFacts:
        """One way, relays left aside."""
        found = self.known.get((source, target)) or self.known.get((target, source))
        return found or self.assumed


@dataclass(frozen=True)
class WayTimes:
    """Milliseconds, node by node; 0 on the diagonals."""

    hop: Matrix
    per_byte: Matrix
    gateway_hop: Matrix
    gateway_per_byte: Matrix


def way_times(nodes: Sequence[NodeId], ways: Ways) -> WayTimes:
    """The ways between these nodes, and between each and the gateway."""
    count = len(nodes)
    hop = np.full((count, count), ways.assumed.latency_ms)
    per_byte = np.full((count, count), _ms_per_byte(ways.assumed))
    places = {node: number for number, node in enumerate(nodes)}
    for (source, target), facts in ways.known.items():
        one, other = places.get(source), places.get(target)
        if one is None or other is None:
            continue
        pairs = [(one, other)] if (target, source) in ways.known else [(one, other), (other, one)]
        for pair in pairs:
            hop[pair], per_byte[pair] = facts.latency_ms, _ms_per_byte(facts)
    home = [ways.between(HERE, node) for node in nodes]
    gateway_hop = np.array([each.latency_ms for each in home])
    gateway_per_byte = np.array([_ms_per_byte(each) for each in home])
    for source, target in ways.undialable:
        one, other = places.get(source), places.get(target)
        if one is not None and other is not None:
            hop[one, other] = gateway_hop[one] + gateway_hop[other]
            per_byte[one, other] = gateway_per_byte[one] + gateway_per_byte[other]
    np.fill_diagonal(hop, 0.0)
    np.fill_diagonal(per_byte, 0.0)
    return WayTimes(hop, per_byte, gateway_hop, gateway_per_byte)


def _ms_per_byte(facts: WayFacts) -> float:
    return 1000.0 / (facts.mib_per_second * _MIB)
