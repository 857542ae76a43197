"""A gateway's life from its claim on the state directory to its last line: what signals and the
service manager have to do with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from din.bootstrap.log import Log
from din.config import GatewayConfig
from din.system.identity import Identity, claim_directory
from din.system.notify import ServiceManager
from din.system.signals import stop_signals


class Served(NamedTuple):
    """A gateway that answers."""

    url: str
    nodes: Callable[[], int]
    """How many nodes are here."""

    def standing(self) -> str:
        """For `systemctl status`."""
        return f"serves {self.url}, nodes: {self.nodes()}"


Serve = Callable[[GatewayConfig, Identity, Path, Log, contextlib.AsyncExitStack], Awaitable[Served]]


async def run(config: GatewayConfig, manager: ServiceManager, serve: Serve) -> None:
    """Claim the state directory, serve until a signal, and end in order. Raises DinError."""
    log = Log("gateway")
    state = Path(config.state_dir)
    with claim_directory(state, "din gateway") as claim:
        identity = claim.next_identity()
        for warning in identity.warnings:
            log("identity", warning=warning)
        async with contextlib.AsyncExitStack() as stack:
            stop = _stop_signal(manager)
            served = await serve(config, identity, state, log, stack)
            manager.ready(served.standing())
            telling = asyncio.get_running_loop().create_task(manager.keep_told(served.standing))
            stack.callback(telling.cancel)
            await stop.wait()
            log("stopping")
    log("stopped")


def _stop_signal(manager: ServiceManager) -> asyncio.Event:
    stop = asyncio.Event()

    def begin() -> None:
        manager.stopping()
        stop.set()

    for number in stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, begin)
    return stop
