"""What it takes to send bytes from node to node: measured where it was, else assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from din.domain.cuts import WaySource
from din.domain.node import NodeId
from din.placement.layout import LINK_LATENCY_MS, LINK_MIB_PER_SECOND

Matrix = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

HERE: Final = NodeId("")
"""The gateway as an end of a way."""
_MIB: Final = 1024 * 1024


class WayFacts(Struct, frozen=True):
    """One way between two nodes."""

    latency_ms: float = LINK_LATENCY_MS
    mib_per_second: float = LINK_MIB_PER_SECOND
    latency_from: WaySource = "assumed"
    rate_from: WaySource = "assumed"

    @classmethod
    def measured(cls, latency_ms: float | None, mib_per_second: float | None) -> WayFacts:
        """What is None is assumed."""
        facts = cls()
        if latency_ms is not None:
            facts = replace(facts, latency_ms=latency_ms, latency_from="measured")
        if mib_per_second is not None:
            facts = replace(facts, mib_per_second=mib_per_second, rate_from="measured")
        return facts

    def over(self, older: WayFacts) -> WayFacts:
        """These, and where they are assumed the older ones."""
        facts = self
        if self.latency_from == "assumed":
            facts = replace(facts, latency_ms=older.latency_ms, latency_from=older.latency_from)
        if self.rate_from == "assumed":
            facts = replace(facts, mib_per_second=older.mib_per_second, rate_from=older.rate_from)
        return facts


ASSUMED: Final = WayFacts()
SAME_MACHINE: Final = WayFacts(0.15, 1500.0, "same machine", "same machine")
"""Between two processes of one machine, by a Unix socket."""
UNLIKE_MIN: Final = 1.5
"""By so much the ways of two nodes to the gateway differ before the slower one is taken to be slow
towards the other node too: else what is slow may be the gateway's own end."""


class Ways(Struct, frozen=True, kw_only=True):
    """What is known of the ways between nodes.

    Of a way that nobody has used, the ways of both ends to the gateway tell something. Were it
    shorter than their latencies differ, the longer of them could be had by it; were it faster than
    the slower of two unlike rates, that one could be, too. So it is taken to be neither.
    """

    known: Mapping[tuple[NodeId, NodeId], WayFacts] = {}
    """(from, to), HERE for the gateway; taken for both directions where one is missing."""
    undialable: frozenset[tuple[NodeId, NodeId]] = frozenset()
    """Pairs (from, to) that the gateway relays: both legs count."""
    assumed: WayFacts = ASSUMED

    def direct(self, source: NodeId, target: NodeId) -> WayFacts:
        """What is known of one way by itself, else what is assumed."""
        found = self.known.get((source, target)) or self.known.get((target, source))
        return found or self.assumed

    def between(self, source: NodeId, target: NodeId) -> WayFacts:
        """One way as it is reckoned with; `way_times` has the same numbers."""
        near, far = self.direct(HERE, source), self.direct(HERE, target)
        if (source, target) in self.undialable:
            return WayFacts(
                near.latency_ms + far.latency_ms,
                1 / (1 / near.mib_per_second + 1 / far.mib_per_second),
                _of_both(near.latency_from, far.latency_from),
                _of_both(near.rate_from, far.rate_from),
            )
        facts = self.direct(source, target)
        if HERE in (source, target):
            return facts
        apart_ms = abs(near.latency_ms - far.latency_ms)
        is_told = "assumed" not in (near.latency_from, far.latency_from)
        if facts.latency_from == "assumed" and is_told and apart_ms > facts.latency_ms:
            facts = replace(facts, latency_ms=apart_ms, latency_from="inferred")
        slower, faster = sorted((near.mib_per_second, far.mib_per_second))
        is_told = "assumed" not in (near.rate_from, far.rate_from)
        is_unlike = is_told and faster >= UNLIKE_MIN * slower
        if facts.rate_from == "assumed" and is_unlike and slower < facts.mib_per_second:
            facts = replace(facts, mib_per_second=slower, rate_from="inferred")
        return facts


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
    home = [ways.direct(HERE, node) for node in nodes]
    gateway_hop = np.array([each.latency_ms for each in home], dtype=np.float64)
    gateway_per_byte = np.array([_ms_per_byte(each) for each in home], dtype=np.float64)
    hop = np.full((count, count), ways.assumed.latency_ms)
    per_byte = np.full((count, count), _ms_per_byte(ways.assumed))
    places = {node: number for number, node in enumerate(nodes)}
    is_hop_said, is_rate_said = np.zeros((2, count, count), dtype=np.bool_)
    for (source, target), facts in ways.known.items():
        one, other = places.get(source), places.get(target)
        if one is None or other is None:
            continue
        pairs = [(one, other)] if (target, source) in ways.known else [(one, other), (other, one)]
        for pair in pairs:
            hop[pair], per_byte[pair] = facts.latency_ms, _ms_per_byte(facts)
            is_hop_said[pair] = facts.latency_from != "assumed"
            is_rate_said[pair] = facts.rate_from != "assumed"
    if any((each.latency_from, each.rate_from) != ("assumed", "assumed") for each in home):
        _infer(hop, per_byte, is_hop_said, is_rate_said, home)
    for source, target in ways.undialable:
        one, other = places.get(source), places.get(target)
        if one is not None and other is not None:
            hop[one, other] = gateway_hop[one] + gateway_hop[other]
            per_byte[one, other] = gateway_per_byte[one] + gateway_per_byte[other]
    np.fill_diagonal(hop, 0.0)
    np.fill_diagonal(per_byte, 0.0)
    return WayTimes(hop, per_byte, gateway_hop, gateway_per_byte)


def _infer(
    hop: Matrix, per_byte: Matrix, is_hop_said: Flags, is_rate_said: Flags, home: Sequence[WayFacts]
) -> None:
    """Where nothing was said of a way: at least what those to the gateway tell."""
    near = np.array([each.latency_ms for each in home], dtype=np.float64)
    is_open = ~is_hop_said & _both([each.latency_from != "assumed" for each in home])
    np.maximum(hop, np.abs(near[:, None] - near), out=hop, where=is_open)
    own = np.array([_ms_per_byte(each) for each in home], dtype=np.float64)
    slower, faster = np.maximum(own[:, None], own), np.minimum(own[:, None], own)
    is_open = ~is_rate_said & _both([each.rate_from != "assumed" for each in home])
    is_open &= slower >= UNLIKE_MIN * faster
    np.maximum(per_byte, slower, out=per_byte, where=is_open)


def _both(flags: Sequence[bool]) -> Flags:
    line = np.array(flags, dtype=np.bool_)
    return line[:, None] & line


def _of_both(one: WaySource, other: WaySource) -> WaySource:
    """Of two legs together: assumed when either is."""
    return (
        "assumed"
        if "assumed" in (one, other)
        else "measured"
        if "measured" in (one, other)
        else one
    )


def _ms_per_byte(facts: WayFacts) -> float:
    return 1000.0 / (facts.mib_per_second * _MIB)
