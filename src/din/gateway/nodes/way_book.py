"""What was measured of the ways between nodes, and between nodes and this gateway: in memory only.

The receiving end knows how fast tensors come, either end how long a round trip takes. Nodes say
what they measured (MEASURED), the gateway measures on its own links. What is not said again is
forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Final, Protocol

from msgspec import Struct

from din.domain.estimates import MIB
from din.domain.node import NodeId
from din.placement.ways import HERE, WayFacts
from din.wire.messages import Measured, MeasuredWay

NODES_MAX: Final = 4_096
"""That have said something; who was silent longest goes first."""
WAYS_MAX: Final = 256
"""Of what one node says."""
AGE_MS_MAX: Final = 300_000.0
LATENCY_MS_MAX: Final = 60_000.0
MIB_PER_SECOND_MAX: Final = 1e6
MIB_PER_SECOND_MIN: Final = 1e-3
BITS_PER_BYTE: Final = 8


class OwnLinks(Protocol):
    """What this needs of the gateway's links."""

    def measured(self) -> Iterable[tuple[NodeId, MeasuredWay]]:
        """Of each open link that is no Unix socket, what this end knows."""
        ...


class _Said(Struct, frozen=True):
    at_ms: float
    ways: dict[NodeId, MeasuredWay]


class WayBook:
    """Measured ways by (from, to); HERE stands for the gateway."""

    def __init__(self, gateway_id: str, own: OwnLinks, clock: Callable[[], float]) -> None:
        """`clock`: monotonic milliseconds."""
        self._gateway_id = gateway_id
        self._own = own
        self._clock = clock
        self._said: OrderedDict[NodeId, _Said] = OrderedDict()

    def heard(self, node_id: NodeId, message: Measured) -> None:
        """What a node says of its links replaces what it said before; what cannot be is dropped."""
        ways = {
            HERE if way.peer_id == self._gateway_id else NodeId(way.peer_id): way
            for way in message.ways[:WAYS_MAX]
            if way.peer_id != node_id
        }
        self._said.pop(node_id, None)
        self._said[node_id] = _Said(self._clock(), ways)
        while len(self._said) > NODES_MAX:
            self._said.popitem(last=False)

    def known(self) -> dict[tuple[NodeId, NodeId], WayFacts]:
        """Every way of which something is known."""
        latencies: dict[tuple[NodeId, NodeId], float] = {}
        rates: dict[tuple[NodeId, NodeId], float] = {}
        for reader, writer, way in self._all():
            latency_ms = _within(way.latency_ms, 0.0, LATENCY_MS_MAX)
            if latency_ms is not None:
                for pair in ((writer, reader), (reader, writer)):
                    latencies[pair] = min(latency_ms, latencies.get(pair, latency_ms))
            rate = _within(way.mib_per_second, MIB_PER_SECOND_MIN, MIB_PER_SECOND_MAX)
            if rate is not None:
                rates[writer, reader] = rate
        for (writer, reader), rate in list(rates.items()):
            rates.setdefault((reader, writer), rate)  # the other direction is the best guess
        return {
            pair: WayFacts.measured(latencies.get(pair), rates.get(pair))
            for pair in {**latencies, **rates}
        }

    def measured_mbit(self, source: NodeId, target: NodeId) -> float | None:
        """Mbit/s at which large tensors came over the way from `source` to `target`, else over the
        opposite one; None where neither was measured of late. HERE is the gateway."""
        facts = self.known().get((source, target))
        if facts is None or facts.rate_from != "measured":
            return None
        return facts.mib_per_second * MIB * BITS_PER_BYTE / 1e6

    def _all(self) -> Iterable[tuple[NodeId, NodeId, MeasuredWay]]:
        """(who received, who sent, what is known)."""
        oldest_ms = self._clock() - AGE_MS_MAX
        while self._said and next(iter(self._said.values())).at_ms < oldest_ms:
            self._said.popitem(last=False)
        for reader, said in self._said.items():
            for writer, way in said.ways.items():
                yield reader, writer, way
        for writer, way in self._own.measured():
            yield HERE, writer, way


def _within(value: float | None, least: float, most: float) -> float | None:
    """None for what is not a number in this range: it came over a wire."""
    return value if value is not None and isfinite(value) and least <= value <= most else None
