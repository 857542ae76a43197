"""Deployments that are one tenant's: made once, bounded, ended unused or with their model."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from din.domain.deployment import Deployment, Epoch
from din.domain.model import ModelManifest, Partition, Slice
from din.errors import Busy, Unavailable
from din.flow.timeout import Timeouts
from din.gateway.deployment.isolation import ISOLATED_IDLE_MS, ISOLATED_MAX, Isolation
from din.gateway.requests.request_tools import TIMEOUT_LIMITS
from din.gateway.routes.serving import Serving

MANIFEST = ModelManifest(model_id="m", version="1", source_sha256="", inputs=(), outputs=())
PART = Slice(index=0, slice_id="s", name="m/0", artifacts=(), inputs=(), outputs=())


class Deployer:
    def __init__(self) -> None:
        self.made: list[Serving] = []
        self.retired: list[str] = []

    async def deploy(self, record: object, tenant: str = "") -> Serving:
        await asyncio.sleep(0)
        deployment = Deployment(
            epoch=Epoch(1, len(self.made)),
            manifest=MANIFEST,
            partition=Partition(slices=(PART,), edges=()),
            tenant=tenant,
        )
        self.made.append(Serving(deployment, Timeouts(TIMEOUT_LIMITS)))
        return self.made[-1]

    async def retire(self, serving: Serving) -> None:
        self.retired.append(serving.deployment.tenant)

    def follow(self, before: object, after: object) -> None:
        del before, after


class Stand:
    def __init__(self, *, is_on: bool = True) -> None:
        self.now_ms = 0.0
        self.deployer = Deployer()
        self.isolation = Isolation(
            cast("Any", self.deployer),
            lambda _: cast("Any", None),
            lambda: self.now_ms,
            lambda *_, **__: None,
            is_on=is_on,
        )

    async def shared(self) -> Serving:
        return await self.isolation.deploy(cast("Any", None))


def test_off_all_tenants_share() -> None:
    async def play() -> None:
        stand = Stand(is_on=False)
        shared = await stand.shared()
        assert await stand.isolation.serving(shared, "line-4") is shared

    asyncio.run(play())


def test_requests_at_once_make_one_deployment_for_each_tenant() -> None:
    async def play() -> None:
        stand = Stand()
        shared = await stand.shared()
        assert await stand.isolation.serving(shared, "default") is shared
        assert stand.isolation.now(shared, "a") is None
        found = await asyncio.gather(
            *(stand.isolation.serving(shared, name) for name in ("a", "b", "a", "b"))
        )
        assert (found[0] is found[2], found[1] is found[3]) == (True, True)
        assert [each.deployment.tenant for each in stand.deployer.made] == ["", "a", "b"]
        assert stand.isolation.now(shared, "a") is found[0]

    asyncio.run(play())


def test_the_longest_unused_goes_and_none_in_use_does() -> None:
    async def play() -> None:
        stand = Stand()
        shared = await stand.shared()
        names = [f"t{number}" for number in range(ISOLATED_MAX)]
        for name in names:
            await stand.isolation.serving(shared, name)
            stand.now_ms += 1
        with pytest.raises(Busy, match=str(ISOLATED_MAX)):
            await stand.isolation.serving(shared, "one-more")  # all were used just now
        stand.now_ms += 10_000
        first = stand.isolation.now(shared, "t0")
        assert first is not None
        waiting = asyncio.create_task(stand.deployer.made[2].wait_for_change(60))
        await asyncio.sleep(0)
        await stand.isolation.serving(shared, "one-more")
        await stand.isolation.look()
        assert stand.deployer.made[2].deployment.tenant == "t1"
        assert stand.deployer.retired == ["t2"]
        waiting.cancel()

    asyncio.run(play())


def test_what_nobody_uses_ends_after_a_while() -> None:
    async def play() -> None:
        stand = Stand()
        shared = await stand.shared()
        for name in ("a", "b"):
            await stand.isolation.serving(shared, name)
        stand.now_ms += ISOLATED_IDLE_MS
        stand.isolation.now(shared, "b")
        await stand.isolation.look()
        assert stand.deployer.retired == ["a"]

    asyncio.run(play())


def test_tenants_deployments_go_with_their_model_and_none_comes_after() -> None:
    async def play() -> None:
        stand = Stand()
        shared = await stand.shared()
        await stand.isolation.serving(shared, "a")
        await stand.isolation.retire(shared)
        assert stand.deployer.retired == ["a", ""]
        with pytest.raises(Unavailable, match="retired"):
            await stand.isolation.serving(shared, "a")

    asyncio.run(play())
