"""Is the split worth it? One node alone against the plan, in figures that were measured.

Splitting is an option that may lose: where the whole model on its best node is expected to answer
sooner than the slices with their transfers, DIN would refuse to split and says so. What was not
measured has no figure, and without both figures there is no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from din.domain.model import Edge, Slice
from din.domain.node import NodeId
from din.domain.plan import Placement
from din.placement.layout import LINK_GUESS, LinkGuess, crossings, tensor_bytes
from din.placement.score import TimesOf


class SplitComparison(Struct, frozen=True, kw_only=True):
    """Both figures and what follows."""

    whole_ms: float | None
    """On `whole_node`, the fastest of those measured; None = measured nowhere."""
    whole_node: str | None
    split_ms: float | None
    """Slices where they are placed, transfers (estimated) included; None = some slice not run."""
    transfer_ms: float
    """The part of `split_ms` that is an estimate."""
    is_split_refused: bool | None
    """None = not known."""
    verdict: str
    """One sentence for the plan's notes."""


def compare_split(
    slices: Sequence[Slice],
    edges: Sequence[Edge],
    placements: Sequence[Placement],
    times: TimesOf,
    *,
    links: LinkGuess = LINK_GUESS,
    whole_ms: Mapping[NodeId, float] | None = None,
    names: Mapping[NodeId, str] | None = None,
) -> SplitComparison:
    """Compare a plan with one node alone.

    `whole_ms` holds measured times of the uncut model by node. A node where every slice has run
    counts too, with their sum. The first placement of each slice is the plan's.
    """
    primary = _primaries(placements)
    known = {**{place.node_id: place.node for place in placements}, **(names or {})}
    whole = _wholes(slices, [*known, *(whole_ms or {})], times) | dict(whole_ms or {})
    node = min(whole, key=lambda each: (whole[each], each), default=None)
    transfer_ms = _transfer_ms(slices, edges, primary, links)
    split_ms = _split_ms(slices, primary, times, transfer_ms)
    best_ms = None if node is None else whole[node]
    name = None if node is None else known.get(node, node)
    refused = None if best_ms is None or split_ms is None else best_ms < split_ms
    return SplitComparison(
        whole_ms=best_ms,
        whole_node=name,
        split_ms=split_ms,
        transfer_ms=transfer_ms,
        is_split_refused=refused,
        verdict=_verdict(best_ms, name, split_ms, transfer_ms),
    )


def _primaries(placements: Sequence[Placement]) -> dict[int, NodeId]:
    found: dict[int, NodeId] = {}
    for placement in placements:
        found.setdefault(placement.slice_index, placement.node_id)
    return found


def _sum(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) if known and len(known) == len(values) else None


def _wholes(
    slices: Sequence[Slice], nodes: Sequence[NodeId], times: TimesOf
) -> dict[NodeId, float]:
    sums = {node: _sum([times(part.slice_id, node) for part in slices]) for node in nodes}
    return {node: total for node, total in sums.items() if total is not None}


def _split_ms(
    slices: Sequence[Slice], primary: Mapping[int, NodeId], times: TimesOf, transfer_ms: float
) -> float | None:
    computing = _sum(
        [
            times(part.slice_id, primary[part.index]) if part.index in primary else None
            for part in slices
        ]
    )
    return None if computing is None else computing + transfer_ms


def _transfer_ms(
    slices: Sequence[Slice],
    edges: Sequence[Edge],
    primary: Mapping[int, NodeId],
    links: LinkGuess,
) -> float:
    sizes = tensor_bytes(slices, links)
    return sum(
        links.transfer_ms(sum(sizes.get(name, 0) for name in tensors))
        for (producer, consumer), tensors in crossings(edges).items()
        if primary.get(producer) != primary.get(consumer)
    )


def _verdict(
    whole_ms: float | None, node: str | None, split_ms: float | None, transfer_ms: float
) -> str:
    if split_ms is None:
        return "not known yet whether the split pays: some slice has not run where it is placed"
    if whole_ms is None:
        return "not known yet whether the split pays: the whole model has not run on one node"
    figures = (
        f"{whole_ms:.1f} ms whole on {node}, {split_ms:.1f} ms split "
        f"({transfer_ms:.1f} of it estimated for transfers)"
    )
    if whole_ms == split_ms and not transfer_ms:
        return f"nothing crosses between nodes: {split_ms:.1f} ms on {node}"
    if whole_ms < split_ms:
        return f"DIN would refuse to split: {figures}"
    return f"the split pays: {figures}"
