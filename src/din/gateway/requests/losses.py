"""Workers that one request has lost, and whether it is to blame.

An input may end every worker that computes it. Such a request is tried twice and not on the whole
fleet, until nobody is left. Workers that somebody killed, or that died with their node, do not
count against it: those requests are run again as ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from din.domain.crash import Death
from din.domain.deployment import Epoch
from din.domain.node import NodeId
from din.errors import WorkerLost
from din.gateway.requests.request_tools import RequestTools

LOSSES_MAX: Final = 2
"""Workers that one request may end by its own doing."""
REPORT_MS_MAX: Final = 1000.0
"""Nodes tell within milliseconds how a worker ended; one that died itself never does."""


class Losses:
    """Of one request."""

    def __init__(self, tools: RequestTools, epoch: Epoch) -> None:
        self._tools = tools
        self._epoch = epoch
        self._since_ms = 0.0
        self._counts: dict[NodeId, int] = {}

    async def judge(self, nodes: Iterable[str], began_ms: float) -> WorkerLost | None:
        """One more worker is lost, on these nodes; the error of a request that has ended too many
        and is not tried again."""
        if not self._counts:
            self._since_ms = began_ms
        for node in nodes:
            self._counts[NodeId(node)] = self._counts.get(NodeId(node), 0) + 1
        if sum(self._counts.values()) < LOSSES_MAX:
            return None
        found = await self._reports()
        own = [each for each in found if each[1].is_own_fault]
        return self._error(own, f"ended {len(own)} workers") if len(own) >= LOSSES_MAX else None

    async def explained(self, error: WorkerLost) -> WorkerLost:
        """The same error in the words of the nodes, where they came."""
        found = await self._reports()
        return self._error(found[-1:], "lost its worker") if found else error

    async def _reports(self) -> list[tuple[NodeId, Death]]:
        """What the nodes told, as many for each as were lost there."""
        crashes, clock = self._tools.crashes, self._tools.clock
        until_ms = clock() + REPORT_MS_MAX
        while True:
            found = [
                (node, death)
                for node, count in self._counts.items()
                for death in crashes.since(self._epoch, node, self._since_ms)[-count:]
            ]
            left_ms = until_ms - clock()
            if len(found) >= sum(self._counts.values()) or left_ms <= 0:
                return found
            await crashes.wait_for_change(left_ms / 1000)
            await asyncio.sleep(0)

    def _error(self, found: list[tuple[NodeId, Death]], what: str) -> WorkerLost:
        told = "; ".join(f"{self._tools.name_of(node)}: {death.story()}" for node, death in found)
        return WorkerLost(
            f"the request {what} and is not tried again: {told}",
            hint="look at its inputs; `din node inspect NODE` lists the crashes of a node",
        )
