"""What happens to one gateway and its fleet, told in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from gateway_fakes import VirtualLoop, finish
from gateway_play import GatewayPlay

from din.errors import DinError
from din.store.sqlite import SqliteStore

Story = Callable[[GatewayPlay], Coroutine[Any, Any, None]]


def perform(
    folder: Path, story: Story, *, is_durable: bool = False, cut: DinError | None = None
) -> None:
    """From the gateway's start to its stop; whatever happened, no memory was promised twice and no
    task failed. `cut` is what every wish to cut a model ends with."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)

    async def whole() -> None:
        store = SqliteStore(folder / "store.sqlite", lambda: 0) if is_durable else None
        if store is not None:
            await store.open()
        play = GatewayPlay(folder, store)
        if cut is not None:
            play.carving.cut = cut
        await play.start()
        try:
            await story(play)
            assert not play.broken_promises()
            assert not play.reports.of("background task failed")
            assert not play.reports.of("deployment not reconciled")
        finally:
            for node in play.nodes:
                node.kill()
            await play.stop()
            if store is not None:
                await store.close()

    try:
        loop.run_until_complete(whole())
    finally:
        finish(loop)
        asyncio.set_event_loop(None)
