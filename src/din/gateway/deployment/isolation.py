"""`isolate: tenant`: whoever uses a shared model gets a deployment of it for itself.

A deployment has workers, queues, memory claims and epochs of its own, so requests of two tenants
never meet in a process. The model's own deployment serves the tenant whose model it is.

    none --first request--> placing, loading, ready
    ready --unused for a while, or the longest unused when there are too many--> retired
    any --its model is retired--> retired with it
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct

from din.domain.deployment import Epoch
from din.errors import Busy, DinError, Unavailable
from din.gateway.registration.record import ModelRecord
from din.gateway.routes.serving import Serving

ISOLATED_MAX: Final = 64
"""Deployments of tenants beside the models' own."""
ISOLATED_IDLE_MS: Final = 600_000.0
LOOK_SECONDS: Final = 10.0
JUST_USED_MS: Final = 1_000.0
"""A request between its choice and its start is not seen otherwise."""

_Key = tuple[Epoch, str]


class Deploying(Protocol):
    """What is needed of the deployer."""

    async def deploy(self, record: ModelRecord, tenant: str = "") -> Serving:
        """Start to place and load; returns at once."""
        ...

    async def retire(self, serving: Serving) -> None:
        """Unload everywhere."""
        ...

    def follow(self, before: ModelRecord, after: ModelRecord) -> None:
        """A deployed version has another record, with the same slices."""
        ...


class _Own(Struct):
    serving: Serving
    used_ms: float


class Isolation:
    """All deployments of tenants. Implements models.Deploying, so that none outlives its model."""

    def __init__(
        self,
        deployer: Deploying,
        record_of: Callable[[Serving], ModelRecord],
        clock: Callable[[], float],
        report: Callable[..., None],
        *,
        is_on: bool,
    ) -> None:
        """`record_of`: what a model's own deployment was made from. Off, all tenants share it."""
        self._deployer = deployer
        self._record_of = record_of
        self._clock = clock
        self._report = report
        self._is_on = is_on
        self._own: OrderedDict[_Key, _Own] = OrderedDict()
        """Used longest ago first."""
        self._turn = asyncio.Lock()

    # For dispatch.

    def now(self, shared: Serving, tenant: str) -> Serving | None:
        """Who serves this tenant; None = nobody yet, `serving` makes it."""
        deployment = shared.deployment
        if not self._is_on or tenant == deployment.manifest.tenant:
            return shared
        key = (deployment.epoch, tenant)
        own = self._own.get(key)
        if own is None or own.serving.deployment.state == "failed":
            return None
        own.used_ms = self._clock()
        self._own.move_to_end(key)
        return own.serving

    async def serving(self, shared: Serving, tenant: str) -> Serving:
        """The same, deployed when it is not there yet. Raises Busy when every place is in use,
        Unavailable when the model is retired meanwhile or the disk is full."""
        async with self._turn:
            found = self.now(shared, tenant)
            if found is not None:
                return found
            if shared.is_retired or shared.deployment.state == "failed":
                raise Unavailable(
                    f"model {shared.deployment.manifest.model_id!r} is retired", hint="try again"
                )
            key = (shared.deployment.epoch, tenant)
            await self._end(key)  # one that failed
            await self._make_room()
            made = await self._deployer.deploy(self._record_of(shared), tenant)
            self._own[key] = _Own(made, self._clock())
            return made

    async def _make_room(self) -> None:
        if len(self._own) < ISOLATED_MAX:
            return
        idle = next((key for key, own in self._own.items() if self._is_idle(own)), None)
        if idle is None:
            raise Busy(
                f"{ISOLATED_MAX} deployments of single tenants are in use",
                hint="try again later, or let tenants share workers (isolate: none)",
            )
        await self._end(idle)

    def _is_idle(self, own: _Own, since_ms: float = JUST_USED_MS) -> bool:
        return not own.serving.is_used and self._clock() - own.used_ms >= since_ms

    # models.Deploying.

    async def deploy(self, record: ModelRecord, tenant: str = "") -> Serving:
        """See Deploying."""
        return await self._deployer.deploy(record, tenant)

    async def retire(self, serving: Serving) -> None:
        """The tenants' own go with the model."""
        serving.is_retired = True  # nobody makes one more
        async with self._turn:
            for key in [key for key in self._own if key[0] == serving.deployment.epoch]:
                await self._end(key)
        await self._deployer.retire(serving)

    def follow(self, before: ModelRecord, after: ModelRecord) -> None:
        """See Deploying."""
        self._deployer.follow(before, after)

    # Life.

    async def run(self) -> None:
        """End what is unused, for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except DinError as error:  # a full disk: it is tried again
                self._report("isolation", reason=error.message)

    async def look(self) -> None:
        """End what nobody has used for a while."""
        async with self._turn:
            for key, own in list(self._own.items()):
                if self._is_idle(own, ISOLATED_IDLE_MS):
                    await self._end(key)

    async def _end(self, key: _Key) -> None:
        own = self._own.get(key)
        if own is not None:
            await self._deployer.retire(own.serving)
            self._own.pop(key, None)
