"""The agent's main: from its settings to its exit code, with signals and the service manager."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from din.agent.log import Log
from din.agent.profile import check_host, look_for_accelerator, make_profile, sensor_settings
from din.agent.program import Agent
from din.agent.trust import open_trust
from din.config import NodeConfig
from din.errors import DeadlineExceeded, DinError
from din.sandbox.asking import try_sandbox
from din.system.descriptors import raise_limit
from din.system.identity import NODE_STRIDE, claim_directory, start_error
from din.system.lines import unblock_stderr
from din.system.log import choose_log, is_read_by_a_person
from din.system.privacy import hide
from din.system.sensors import Sensors
from din.system.signals import ToldTwice, heed_no_more, is_reload_signal, stop_signals
from din.transport.membership import FOLDER, has_joined

if TYPE_CHECKING:
    from din.system.notify import ServiceManager
    from din.system.reload import Reloader

LIVE: Final = frozenset(
    {"labels", "log_format", "log_level", "slice_quota_mib", "temp_poll_interval_ms"}
)
"""Settings that a reload changes; certificates are looked at with each new connection anyway."""


async def serve(config: NodeConfig) -> None:
    """Run one node until a signal. Raises DinError."""
    manager = _manager()
    choose_log(config.log_level, config.log_format)
    check_host(config, has_joined=has_joined(Path(config.state_dir) / FOLDER))
    with claim_directory(Path(config.state_dir), f"din node {config.name}") as claim:
        identity = claim.next_identity(stride=NODE_STRIDE)
        try:
            accelerator, found = look_for_accelerator(config)
        except DeadlineExceeded as error:
            accelerator = found = None
            Log().report("accelerator_lost", reason=error.message)
        sensors = Sensors(sensor_settings(config), accelerator)
        trust = open_trust(config, identity.node_id)
        walls = try_sandbox()
        Log().report("sandbox", level=walls.level, reason=walls.reason)
        profile = make_profile(
            config, identity, found, (), has_joined=trust is not None, sandbox_level=walls.level
        )
        agent = Agent(config, identity, sensors, profile, trust)
        _heed_signals(agent, config, sensors, manager)
        sensors.start()
        try:
            if manager is None:
                await agent.run()
            else:
                await _run_told(agent, manager)
        finally:
            sensors.stop()
            heed_no_more(asyncio.get_running_loop())


def _manager() -> ServiceManager | None:
    """Who wants to be told how we stand; mostly nobody, and then a node spares the code for it."""
    if "NOTIFY_SOCKET" not in os.environ:
        return None
    from din.system.notify import ServiceManager

    return ServiceManager(os.environ)


async def _run_told(agent: Agent, manager: ServiceManager) -> None:
    from din.agent.standing import told

    async with told(manager, lambda: agent.gateway_url):
        await agent.run()


def _heed_signals(
    agent: Agent, config: NodeConfig, sensors: Sensors, manager: ServiceManager | None
) -> None:
    loop = asyncio.get_running_loop()
    # Made when it is asked for the first time: an idle node has memory for what it does.
    made: list[tuple[Reloader[NodeConfig], asyncio.Task[None]]] = []

    def reload() -> None:
        if not made:
            reloader = _reloader(agent, config, sensors, manager)
            made.append((reloader, loop.create_task(reloader.run())))
        made[0][0].ask()

    def stop() -> None:
        for _, reloading in made:
            reloading.cancel()
        if manager is not None:
            manager.stopping()
        agent.stop()

    told_to_stop = ToldTwice(stop, agent.end, loop.time)
    for number in stop_signals():
        loop.add_signal_handler(number, told_to_stop)
    if is_reload_signal():
        loop.add_signal_handler(signal.SIGHUP, reload)


def _reloader(
    agent: Agent, config: NodeConfig, sensors: Sensors, manager: ServiceManager | None
) -> Reloader[NodeConfig]:
    from din.agent.standing import standing
    from din.system.notify import ServiceManager
    from din.system.reload import Reloader

    def take_up(fresh: NodeConfig) -> None:
        choose_log(fresh.log_level, fresh.log_format)
        sensors.poll_every(fresh.temp_poll_interval_ms)
        agent.take_up(fresh)

    return Reloader(
        config,
        LIVE,
        take_up,
        manager=manager or ServiceManager({}),
        standing=lambda: standing(agent.gateway_url),
        report=Log(is_plain=is_read_by_a_person()).report,
        environment=os.environ,
    )


def run_agent(config: NodeConfig) -> int:
    """The agent's main; the exit code."""
    hide()
    unblock_stderr()
    raise_limit()
    try:
        asyncio.run(serve(config))
    except (DinError, OSError) as fault:
        error = start_error(fault)
        # Once, and in the words of every command: a person reads it, and so does who waits for it.
        sys.stderr.write(f"error: {error.story()}\n")
        return error.exit_code
    return 0
