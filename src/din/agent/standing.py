"""What an agent tells the service manager that started it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from din.system.notify import ServiceManager

UNJOINED_S_MAX: Final = 20.0
"""A node is ready when it has joined. After so long without a gateway it is ready to wait for one:
else the manager would end a sound node, and hold up the machine's start, for a gateway that is off.
"""
LOOK_S: Final = 0.2


@asynccontextmanager
async def told(manager: ServiceManager, gateway_url: Callable[[], str]) -> AsyncGenerator[None]:
    """While the agent runs inside, the manager knows how it stands."""

    def standing() -> str:
        url = gateway_url()
        return f"joined {url}" if url else "not joined: looks for its gateway"

    async def tell() -> None:
        if not manager.is_there:
            return
        alive = asyncio.ensure_future(manager.keep_told(standing))
        try:
            end_s = asyncio.get_running_loop().time() + UNJOINED_S_MAX
            while not gateway_url() and asyncio.get_running_loop().time() < end_s:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
            manager.ready(standing())
            await alive
        finally:
            alive.cancel()

    telling = asyncio.get_running_loop().create_task(tell())
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
