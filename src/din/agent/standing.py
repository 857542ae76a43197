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


def standing(url: str) -> str:
    """For `systemctl status`; `url` is the gateway's, empty = none."""
    return f"joined {url}" if url else "not joined: looks for its gateway"


@asynccontextmanager
async def told(manager: ServiceManager, gateway_url: Callable[[], str]) -> AsyncGenerator[None]:
    """While the agent runs inside, the manager knows how it stands."""

    async def tell() -> None:
        if not manager.is_there:
            return
        alive = asyncio.ensure_future(manager.keep_told(lambda: standing(gateway_url())))
        try:
            end_s = asyncio.get_running_loop().time() + UNJOINED_S_MAX
            while not gateway_url() and asyncio.get_running_loop().time() < end_s:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
            manager.ready(standing(gateway_url()))
            await alive
        finally:
            alive.cancel()

    telling = asyncio.get_running_loop().create_task(tell())
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
