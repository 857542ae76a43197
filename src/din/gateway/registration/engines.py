"""Slices that are to run on other engines than the one that probes look at: they are compared on a
node that has both. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from din.domain.model import Slice
from din.domain.node import FleetNode, NodeId
from din.domain.probe import ENGINES_OPTION, PROBED, ProbeOrder


def engines_of_slices(slices: Iterable[Slice]) -> tuple[str, ...]:
    """Backends of slices beside PROBED."""
    return tuple(sorted({part.backend for part in slices} - {PROBED}))


def able_node(
    nodes: Iterable[FleetNode], engines: Collection[str], wanted: NodeId | None
) -> NodeId | None:
    """The healthiest ready node, or the wanted one, that has all of these engines and the one that
    probes look at. None without engines."""
    needed = {PROBED, *engines}
    found = [
        each
        for each in nodes
        if each.status == "ready"
        and wanted in (None, each.profile.node_id)
        and needed.issubset(each.profile.backends)
    ]
    best = max(found, key=lambda each: each.health_score, default=None)
    return best.profile.node_id if best is not None and engines else None


def on_engines(order: ProbeOrder, engines: Collection[str]) -> ProbeOrder:
    """The order with parts on these engines alone, all others on PROBED."""
    parts = (
        each if each.index >= 0 and each.backend in engines else replace(each, backend=PROBED)
        for each in order.parts
    )
    return replace(order, parts=tuple(parts))


def not_compared(engines: Sequence[str]) -> str:
    """Why slices on these engines were not held to the whole."""
    named = " and ".join(engines)
    return f"what {named} makes was not compared: no ready node has {named} and {PROBED}"


def with_engines(options: Mapping[str, str], order: ProbeOrder) -> dict[str, str]:
    """Backend options of a probe that needs more than PROBED."""
    engines = sorted({part.backend for part in order.parts} - {PROBED})
    return {**options, ENGINES_OPTION: ",".join(engines)} if engines else dict(options)
