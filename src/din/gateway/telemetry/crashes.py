"""Workers that ended by themselves: the last of each node, for people and for requests that ask
whether it was their own doing.

A node tells how a worker ended; what ran in it is told by whoever fed it, which may be this
gateway. Both are put together here.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from din.domain.crash import CrashView, Death
from din.domain.deployment import Epoch
from din.domain.node import NodeId

CRASHES_PER_NODE_MAX: Final = 16
NODES_MAX: Final = 4096
CUT_OFF_MAX: Final = 256


class _Crash(Struct, frozen=True):
    at_ms: float
    epoch: Epoch
    model_id: str
    death: Death
    view: CrashView


class CrashBook:
    """The last crashes of every node. All calls in the loop's thread."""

    def __init__(self, clock: Callable[[], float], wall_clock_iso: Callable[[], str]) -> None:
        """`clock`: monotonic milliseconds."""
        self._clock = clock
        self._wall_clock_iso = wall_clock_iso
        self._crashes: OrderedDict[NodeId, deque[_Crash]] = OrderedDict()
        self._cut_off: OrderedDict[tuple[Epoch, int, NodeId], str] = OrderedDict()
        self._changed = asyncio.Event()

    def cut_off(self, key: tuple[Epoch, int, NodeId], running: str) -> None:
        """A worker that the gateway fed broke off while it computed this."""
        if running:
            self._cut_off[key] = running
            self._cut_off.move_to_end(key)
            while len(self._cut_off) > CUT_OFF_MAX:
                self._cut_off.popitem(last=False)

    def died(
        self, key: tuple[Epoch, int, NodeId], node: str, model_id: str, slice_: str, death: Death
    ) -> Death:
        """A worker ended; what is known of that, put together."""
        epoch, _, node_id = key
        running = self._cut_off.pop(key, "")
        death = replace(death, running=death.running or running)
        view = CrashView(
            at=self._wall_clock_iso(),
            node=node,
            slice=slice_,
            kind=death.kind,
            reason=death.reason,
            memory_mib_peak=death.memory_mib_peak or None,
            running=death.running,
        )
        kept = self._crashes.pop(node_id, None) or deque(maxlen=CRASHES_PER_NODE_MAX)
        kept.append(_Crash(self._clock(), epoch, model_id, death, view))
        self._crashes[node_id] = kept
        while len(self._crashes) > NODES_MAX:
            self._crashes.popitem(last=False)
        self._changed.set()
        self._changed = asyncio.Event()
        return death

    def of_node(self, node_id: NodeId) -> tuple[CrashView, ...]:
        """The oldest first."""
        return tuple(each.view for each in self._crashes.get(node_id, ()))

    def of_model(self, model_id: str) -> tuple[CrashView, ...]:
        """On whichever node, the oldest first."""
        found = [c for kept in self._crashes.values() for c in kept if c.model_id == model_id]
        found.sort(key=lambda each: each.at_ms)
        return tuple(each.view for each in found[-CRASHES_PER_NODE_MAX:])

    def since(self, epoch: Epoch, node_id: NodeId, since_ms: float) -> list[Death]:
        """Of one deployment on one node."""
        return [
            each.death
            for each in self._crashes.get(node_id, ())
            if each.epoch == epoch and each.at_ms >= since_ms
        ]

    async def wait_for_change(self, seconds_max: float) -> None:
        """Return at the next crash or when the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await self._changed.wait()
