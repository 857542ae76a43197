"""How hot a node runs: what it measures itself, with the runs of slices that ended meanwhile."""

from __future__ import annotations

from din.domain.heat import HeatView, with_runs
from din.gateway.core import Gateway


async def heat_of(gateway: Gateway, name_or_id: str, window_ms: int, core_mask: int) -> HeatView:
    """One window from now on; mask 0 = every core. Raises NotFound, Conflict, Busy, Unreachable,
    DeadlineExceeded."""
    profile = gateway.fleet.find(name_or_id).profile
    watch = gateway.effects.metrics.runs
    number = watch.begin(profile.name)
    try:
        view = await gateway.links.heat.ask(profile.node_id, profile.name, window_ms, core_mask)
    finally:
        runs = watch.end(number)
    return with_runs(view, *runs)
