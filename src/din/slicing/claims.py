"""What ranges of operators ask of the nodes that hold them, and whether it can be had together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from din.domain.strategy import RangeSetting
from din.errors import BadStrategy
from din.slicing.operators import OperatorGraph
from din.slicing.points import places_of


@dataclass(frozen=True)
class Claim:
    """What one part of the strategy asks; empty tuples ask nothing."""

    source: str
    """For people: `slices[0]` or `range 'a:b'`."""
    nodes: tuple[str, ...] = ()
    not_nodes: tuple[str, ...] = ()
    sensitive: bool = field(default=False, kw_only=True)

    @property
    def asked(self) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
        """All but who asks it."""
        return self.nodes, self.not_nodes, self.sensitive


def claims_by_ranges(
    graph: OperatorGraph, ranges: Sequence[RangeSetting]
) -> dict[int, tuple[Claim, ...]]:
    """Claims on each dynamic operator; ranges may overlap. Raises BadStrategy for unknown ones."""
    found: dict[int, tuple[Claim, ...]] = {}
    for each in ranges:
        claim = Claim(f"range {each.range!r}", each.nodes, each.not_nodes, sensitive=each.sensitive)
        start, end = places_of(graph, each.range, "range")
        for operator in graph.dynamic[start : end + 1]:
            found[operator.index] = (*found.get(operator.index, ()), claim)
    return found


def merged(where: str, claims: Sequence[Claim]) -> Claim:
    """All claims as one. Raises BadStrategy naming two that leave no node."""
    pinning = [each for each in claims if each.nodes]
    nodes = pinning[0].nodes if pinning else ()
    for each in pinning[1:]:
        nodes = tuple(node for node in nodes if node in each.nodes)
        if not nodes:
            apart = (one for one in pinning if not set(one.nodes) & set(each.nodes))
            raise _contradiction(where, next(apart, pinning[0]), each)
    not_nodes = tuple(dict.fromkeys(node for each in claims for node in each.not_nodes))
    if nodes and all(node in not_nodes for node in nodes):
        forbidding = next(each for each in claims if set(nodes) & set(each.not_nodes))
        raise _contradiction(where, pinning[-1], forbidding)
    left = tuple(node for node in nodes if node not in not_nodes)
    return Claim(where, left, not_nodes, sensitive=any(each.sensitive for each in claims))


def _contradiction(where: str, one: Claim, other: Claim) -> BadStrategy:
    return BadStrategy(
        f"no node may hold {where}: {_words(one)}, {_words(other)}",
        hint="cut between them, or let both name the same node (a name and an id are not compared)",
    )


def _words(claim: Claim) -> str:
    if claim.nodes:
        return f"{claim.source} pins it to {', '.join(claim.nodes)}"
    return f"{claim.source} keeps it off {', '.join(claim.not_nodes)}"
