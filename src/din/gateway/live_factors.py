"""By what slices compute longer where they run than profiles say, by class of devices.

A profile is measured on an idle worker; heat, neighbours and other work are seen only later. Only
time inside the engine counts, not that in a queue, and only of requests whose inputs have the
shapes that the profile was measured at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import exp, log
from typing import TYPE_CHECKING

from din.domain.cuts import CutTable
from din.domain.node import NodeId
from din.domain.profile import Profile
from din.domain.views import RegisterModel
from din.gateway.deployment.holding import Holding
from din.gateway.probing.profiles import device_class
from din.gateway.routes.serving import shapes_in
from din.placement.correction import live_factor, slice_ms, times_for

if TYPE_CHECKING:
    from din.gateway.core import Gateway


async def live_factors(gateway: Gateway, order: RegisterModel, table: CutTable) -> dict[str, float]:
    """For each class with a profile; empty while nothing ran. A class on which nothing ran gets
    the mean of the others: it would be preferred for never having been tried."""
    profiles = await gateway.profiles.newest(order, table)
    nodes: dict[str, set[NodeId]] = {}
    for node in gateway.fleet.fleet_nodes():
        nodes.setdefault(device_class(node.profile), set()).add(node.profile.node_id)
    now_ms = gateway.effects.clock()
    known: dict[str, float] = {}
    for name, profile in profiles.items():
        times = times_for(profile, table)
        pairs = [
            pair
            for holding in gateway.deployer.holdings()
            if times is not None and _is_of(holding, order, table)
            for pair in pairs_of(holding, profile, times, nodes.get(name, ()), now_ms)
        ]
        factor = live_factor(pairs)
        if factor is not None:
            known[name] = factor
    if not known:
        return {}
    typical = exp(sum(map(log, known.values())) / len(known))
    return {name: known.get(name, typical) for name in profiles}


def pairs_of(
    holding: Holding,
    profile: Profile,
    times: Sequence[float],
    nodes: Collection[NodeId],
    now_ms: float,
) -> Iterator[tuple[float, float]]:
    """Expected and measured milliseconds of each slice on each of these nodes."""
    shapes = shapes_in(profile.report.inputs)
    expected = slice_ms(times, holding.record.assignment)
    model = [part.index for part in holding.partition.slices if part.kind == "model"]
    for number, index in enumerate(model):
        for node_id, replica in holding.serving.replicas(index).items():
            measured = replica.compute_ms(shapes, now_ms) if node_id in nodes else None
            if measured is not None:
                yield expected.get(number, 0.0), measured


def _is_of(holding: Holding, order: RegisterModel, table: CutTable) -> bool:
    """Whether a deployment runs this very graph with these settings."""
    record = holding.record
    return (
        record.order.source_sha256 == order.source_sha256
        and record.order.backend_options == order.backend_options
        and len(record.assignment) == len(table.operators)
    )
