"""A gateway's life from its claim on the state directory to its last line: what signals and the
service manager have to do with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

from din.bootstrap.log import Log
from din.config import GatewayConfig
from din.gateway.core import Gateway
from din.system.identity import Identity, claim_directory
from din.system.log import choose_log
from din.system.notify import ServiceManager
from din.system.reload import Reloader
from din.system.signals import heed_no_more, is_reload_signal, stop_signals


class Served(NamedTuple):
    """A gateway that answers."""

    url: str
    nodes: Callable[[], int]
    """How many nodes are here."""
    take_up: Callable[[GatewayConfig], None]
    """Those of LIVE that changed, and certificates. May raise DinError."""

    def standing(self) -> str:
        """For `systemctl status`."""
        return f"serves {self.url}, nodes: {self.nodes()}"


LIVE: Final = frozenset(
    {
        "artifact_quota_mib",
        "body_bytes_max",
        "buffered_bytes_max",
        "connections_max",
        "idle_unload_s",
        "log_format",
        "log_level",
        "operators_allowed",
    }
)
"""Settings that a reload changes."""
Serve = Callable[[GatewayConfig, Identity, Path, Log, contextlib.AsyncExitStack], Awaitable[Served]]


def adopt(gateway: Gateway, config: GatewayConfig) -> None:
    """Settings of its rooms that a reload may change."""
    gateway.deployer.idling.unload_ms = config.idle_unload_s * 1000.0
    gateway.models.builder.operators_allowed = config.operators_allowed


async def run(config: GatewayConfig, manager: ServiceManager, serve: Serve) -> None:
    """Claim the state directory, serve until a signal, and end in order. Raises DinError."""
    choose_log(config.log_level, config.log_format)
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
            stack.callback(_reloading(config, served, manager, log).cancel)
            await stop.wait()
            log("stopping")
    log("stopped")
    heed_no_more(asyncio.get_running_loop())


def _stop_signal(manager: ServiceManager) -> asyncio.Event:
    stop = asyncio.Event()

    def begin() -> None:
        manager.stopping()
        stop.set()

    for number in stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, begin)
    return stop


def _reloading(
    config: GatewayConfig, served: Served, manager: ServiceManager, log: Log
) -> asyncio.Task[None]:
    """Read settings again at SIGHUP, where that is what it means."""
    loop = asyncio.get_running_loop()

    def take_up(fresh: GatewayConfig) -> None:
        choose_log(fresh.log_level, fresh.log_format)
        served.take_up(fresh)

    reloader = Reloader(
        config,
        LIVE,
        take_up,
        manager=manager,
        standing=served.standing,
        report=_told_by(log),
        environment=os.environ,
    )
    if is_reload_signal():
        loop.add_signal_handler(signal.SIGHUP, reloader.ask)
    return loop.create_task(reloader.run())


def _told_by(log: Log) -> Callable[..., None]:
    """As a gateway names events: in words, and what is a warning by its facts."""

    def report(event: str, **facts: object) -> None:
        if event == "reload_warning":
            facts["warning"] = facts.pop("hint")
        log(event.replace("_", " "), **facts)

    return report
