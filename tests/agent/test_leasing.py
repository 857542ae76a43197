"""The watch over leases, by a clock of the test."""

from __future__ import annotations

import asyncio

import pytest

from din.agent.leasing import LeaseWatch
from din.domain.deployment import Epoch
from din.domain.model import Slice
from din.errors import Denied
from din.execution.events import SliceKey
from din.wire.messages import Prepare, Renew

EPOCH = Epoch(1, 1)
KEY: SliceKey = (EPOCH, 0)


def order(lease_ms: int) -> Prepare:
    part = Slice(index=0, slice_id="", name="s", inputs=(), outputs=())
    return Prepare(EPOCH, "m", part, (), (), 1, {}, "", {}, 1, b"", b"", lease_ms)


def test_an_unrenewed_lease_is_told_once_and_refused_from_then_on() -> None:
    async def story() -> None:
        now_ms = 0
        ended: list[SliceKey] = []
        over = asyncio.Event()

        def on_over(key: SliceKey) -> None:
            ended.append(key)
            over.set()

        watch = LeaseWatch(on_over, lambda: now_ms)
        watch.grant(KEY, order(1_000))
        watch.check(KEY)
        now_ms = 999
        watch.renew(Renew(EPOCH, 1_000))
        now_ms = 1_998
        watch.check(KEY)
        now_ms = 1_999
        with pytest.raises(Denied, match="lease"):
            watch.check(KEY)
        watch.renew(Renew(EPOCH, 1_000))  # too late, and it makes the watch look at once
        await over.wait()
        assert ended == [KEY]
        watch.close()

    asyncio.run(story())


def test_a_slice_without_a_lease_or_without_an_order_is_never_told() -> None:
    async def story() -> None:
        ended: list[SliceKey] = []
        watch = LeaseWatch(ended.append, lambda: 10**12)
        watch.grant(KEY, order(0))
        watch.end(KEY)
        watch.check(KEY)
        await asyncio.sleep(0)
        assert ended == []
        watch.close()

    asyncio.run(story())
