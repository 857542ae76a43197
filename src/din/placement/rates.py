"""How fast tensors get from the nodes that may make them to those that may read them. Pure.

Where a slice will lie is not known yet, so the slowest way that is open to a tensor counts. A label
is what the operator says a node may use of its network, a measurement is what came over it; where
both are there the lower of the two counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from din.domain.model import GATEWAY, Edge, Slice
from din.domain.node import FleetNode, NodeId
from din.placement.capability import Capability, capability_of, wish_of
from din.placement.ways import ASSUMED, SAME_MACHINE, WayFacts

LINK_LABEL: Final = "link_mbit"
"""How fast a node's network is, where somebody said so."""
BITS_PER_BYTE: Final = 8
_SPEED: Final = re.compile(r"[1-9][0-9]{0,6}")
_MIB: Final = 1024 * 1024

KnownWays = Mapping[tuple[NodeId, NodeId], WayFacts]
Nodes = dict[NodeId, FleetNode]


class Rate(NamedTuple):
    """What a way carries, and how that is known."""

    mib_per_second: float
    source: str
    """For people: `measured from a to b`, `label link_mbit of a`, `assumed`, `within one node`."""


ASSUMED_RATE: Final = Rate(ASSUMED.mib_per_second, "assumed")
ONE_NODE: Final = Rate(SAME_MACHINE.mib_per_second, "within one node")


def rates_of(
    slices: Sequence[Slice],
    edges: Sequence[Edge],
    nodes: Sequence[FleetNode],
    known: KnownWays,
    wished: Mapping[int, NodeId],
) -> dict[str, Rate]:
    """Of each tensor between slices. `nodes`: those that are ready; `wished`: where slices shall
    lie by a choice of cuts."""
    able = [(each, capability_of(each)) for each in nodes]
    held = {part.index: _holders(part, able, wished.get(part.index)) for part in slices}
    rates: dict[str, Rate] = {}
    for edge in edges:
        readers = [each for each in edge.consumers if each != GATEWAY]
        if edge.producer != GATEWAY and readers:
            maker = held[edge.producer]
            rates[edge.tensor] = min(slowest_rate(maker, held[each], known) for each in readers)
    return rates


def _holders(
    part: Slice, able: Sequence[tuple[FleetNode, Capability]], wished: NodeId | None
) -> Nodes:
    """Nodes that may hold a slice by what it asks: the wished one alone where it is among them, all
    where none may."""
    wish = wish_of(part)
    kinds = {kind: wish.is_met_by(kind) for kind in {kind for _, kind in able}}
    found = {
        node.profile.node_id: node
        for node, kind in able
        if kinds[kind]
        and (not part.nodes or _is_named(node, part.nodes))
        and not _is_named(node, part.not_nodes)
    }
    if wished is not None and wished in found:
        return {wished: found[wished]}
    return found or {node.profile.node_id: node for node, _ in able}


def _is_named(node: FleetNode, names: Sequence[str]) -> bool:
    return node.profile.node_id in names or node.profile.name in names


def slowest_rate(makers: Nodes, readers: Nodes, known: KnownWays) -> Rate:
    """Of all ways from one of these nodes to another one of those; assumed for ways of which
    nothing is known."""
    if len(makers) == 1 and makers.keys() == readers.keys():
        return ONE_NODE
    rates = [ASSUMED_RATE, *_labelled((makers | readers).values())]
    for (source, target), facts in known.items():
        if facts.rate_from == "measured" and source in makers and target in readers:
            ends = f"{makers[source].profile.name} to {readers[target].profile.name}"
            rates.append(Rate(facts.mib_per_second, f"measured from {ends}"))
    return min(rates, key=lambda each: each.mib_per_second)


def _labelled(nodes: Iterable[FleetNode]) -> Iterator[Rate]:
    for node in nodes:
        text = node.profile.labels.get(LINK_LABEL, "")
        if _SPEED.fullmatch(text):
            mib_per_second = float(text) / BITS_PER_BYTE * 1e6 / _MIB
            yield Rate(mib_per_second, f"label {LINK_LABEL} of {node.profile.name}")
