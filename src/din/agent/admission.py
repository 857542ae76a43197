"""Whether a slice fits into this node's memory: asked before a byte of it is loaded.

    claim --refused--> Unavailable, with what is needed, free and held
    claim --granted--> loading: its need counts as taken, although the machine does not show it yet
    loading --settle--> held: the machine shows it, and what it took is remembered for the next time
    loading, held --release--> nothing

The machine is asked what is free, so programs beside DIN count too. Knows no process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from din.agent.recipe import Allowance
from din.config import NodeConfig
from din.domain.estimates import needed_mib
from din.domain.node import NodeProfile
from din.errors import Unavailable
from din.execution.events import SliceKey
from din.system.headroom import Headroom, read_headroom
from din.wire.messages import Prepare

KEPT_MIB: Final = 64
"""Memory that loading leaves to the rest of the machine."""
MEASURED_MAX: Final = 1024
"""Slices whose measured size is remembered; the one that was measured longest ago goes first."""
HOLDERS_NAMED_MAX: Final = 4
LIMIT_SLACK_MIB: Final = 256
"""A worker may take so much beyond its need times the factor: small slices need some air."""


class _Claim(Struct):
    name: str
    mib: int
    is_held: bool = False


class Admission:
    """The memory of one node, claimed by its slices."""

    def __init__(
        self,
        headroom: Callable[[], Headroom | None],
        offered_mib: int,
        limit_factor: float,
        requests_max: int = 0,
    ) -> None:
        """`offered_mib`: what slices may take together; `limit_factor`: how many times its need a
        worker may take, 0 = as much as the machine has; `requests_max`: after so many it is
        replaced, 0 = never."""
        self._requests_max = requests_max
        self._headroom = headroom
        self._offered_mib = offered_mib
        self._limit_factor = limit_factor
        self._claims: dict[SliceKey, _Claim] = {}
        self._measured: OrderedDict[tuple[str, str, str], int] = OrderedDict()

    def claim(self, key: SliceKey, order: Prepare) -> None:
        """Count a slice in that is about to be loaded; repeating it asks again. Raises Unavailable,
        and counts nothing then."""
        self._claims.pop(key, None)
        each_mib = self._need_mib(order)
        needed_mib_ = each_mib * order.workers
        taken_mib = sum(claim.mib for claim in self._claims.values())
        loading_mib = sum(claim.mib for claim in self._claims.values() if not claim.is_held)
        found = self._headroom()
        free_mib, bound = self._offered_mib - taken_mib, "what this node offers (memory_mib)"
        if found is not None and found.free_mib - KEPT_MIB - loading_mib < free_mib:
            free_mib, bound = max(0, found.free_mib - KEPT_MIB - loading_mib), found.bound
        if needed_mib_ > free_mib:
            raise self._refusal(order, each_mib, free_mib, bound)
        self._claims[key] = _Claim(f"{order.model_id}/{order.slice.name}", needed_mib_)

    def settle(self, key: SliceKey, order: Prepare, memory_mib: int) -> None:
        """It is loaded, and one worker of it takes this much."""
        measured = self._measured
        name = _kind(order)
        measured[name] = max(memory_mib, measured.pop(name, 0))
        while len(measured) > MEASURED_MAX:
            measured.popitem(last=False)
        if key in self._claims:
            self._claims[key].mib = self._need_mib(order) * order.workers
            self._claims[key].is_held = True

    def release(self, key: SliceKey) -> None:
        """It is loaded no more; repeating it is harmless."""
        self._claims.pop(key, None)

    def allowance(self, order: Prepare) -> Allowance:
        """What one worker may take beside what it is born with; at half of it it is replaced."""
        if not self._limit_factor:
            return Allowance(requests_max=self._requests_max)
        need_mib = max(self._need_mib(order), order.slice.memory_mib)
        limit_mib = LIMIT_SLACK_MIB + int(self._limit_factor * need_mib)
        return Allowance(limit_mib, limit_mib // 2, self._requests_max)

    def check_one_more(self, order: Prepare) -> None:
        """Raises Unavailable where the machine has no memory for one more worker of a slice."""
        found, each_mib = self._headroom(), self._need_mib(order)
        if found is not None and each_mib + KEPT_MIB > found.free_mib:
            raise self._refusal(order, each_mib, max(0, found.free_mib - KEPT_MIB), found.bound)

    def _need_mib(self, order: Prepare) -> int:
        return needed_mib(order.slice, self._measured.get(_kind(order)))

    def _refusal(self, order: Prepare, each_mib: int, free_mib: int, bound: str) -> Unavailable:
        how = "measured here" if _kind(order) in self._measured else "estimated"
        held = sorted(self._claims.values(), key=lambda claim: -claim.mib)
        named = [f"{claim.name} ({claim.mib} MiB)" for claim in held[:HOLDERS_NAMED_MAX]]
        if len(held) > HOLDERS_NAMED_MAX:
            named.append(f"{len(held) - HOLDERS_NAMED_MAX} more")
        return Unavailable(
            f"slice {order.slice.name!r} needs {each_mib * order.workers} MiB of memory "
            f"({order.workers} x {each_mib}, {how}), {free_mib} MiB are free by {bound} and "
            f"{KEPT_MIB} are kept; held by slices: {', '.join(named) or 'nothing'}",
            hint="use fewer workers, cut the model smaller, remove a model that nobody uses, or "
            "free memory on the node",
        )


def _kind(order: Prepare) -> tuple[str, str, str]:
    """Loaded with other options the same slice takes another size."""
    options = " ".join(f"{name}={text}" for name, text in sorted(order.backend_options.items()))
    return order.slice.slice_id, order.slice.backend, options


def admission_of(config: NodeConfig, profile: NodeProfile) -> Admission:
    """As the operator wants it, on this machine."""
    return Admission(
        read_headroom,
        profile.memory_mib,
        config.worker_memory_factor,
        config.worker_requests_max,
    )
