"""`python -m din.bootstrap.gateway`: wires the gateway's rooms to disk, network and clock.

Settings come as JSON in the environment (`din.config`). When it answers, it writes `gateway.json`
(URL, pid, link addresses) into its state directory; that file goes when it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from random import SystemRandom
from typing import Final

import msgspec

from din.api.app import build_app
from din.api.limits import FrontLimits
from din.api.serve import HttpServer, bind, serve
from din.api.turn import Front
from din.api.turns import Turns
from din.artifacts.files import ArtifactFolder
from din.bootstrap.access import Access, open_access
from din.bootstrap.log import Log
from din.config import GatewayConfig, received_config
from din.discovery.admission import Terms
from din.discovery.membership import Membership
from din.discovery.schedule import BeatSchedule
from din.errors import DinError
from din.gateway.carving import Carving
from din.gateway.control import GatewayService
from din.gateway.core import Effects, Gateway
from din.gateway.metrics import GatewayMetrics
from din.placement.policy import policy_of
from din.store.sqlite import SqliteStore
from din.system.clock import fine_monotonic_ms, monotonic_ms, wall_clock_iso, wall_clock_ms
from din.system.descriptors import raise_limit
from din.system.identity import Identity, claim_directory
from din.system.lines import unblock_stderr
from din.system.memory import give_memory_back, resident_bytes
from din.system.network import AddressWatch, bound_addresses
from din.system.signals import stop_signals
from din.transport.limits import LinkLimits
from din.transport.server import LinkServer
from din.version import __version__
from din.wire.registration import ADDRESS_COUNT_MAX

UNIX_PATH_BYTES_MAX: Final = 100
"""The kernel allows 107; some room for a suffix."""
REFRESH_SECONDS: Final = 10.0
"""How often interfaces are looked at again."""
STATE_FILE: Final = "gateway.json"
REST_S: Final = 5.0
WORTH_BYTES: Final = 16 * 1024 * 1024
"""Giving back takes milliseconds: not for less than this."""


def main() -> int:
    """Run until SIGTERM or SIGINT. Exit code of the error tree."""
    unblock_stderr()
    try:
        config = received_config(GatewayConfig, os.environ)
        raise_limit()
        asyncio.run(_run(config))
    except DinError as error:
        sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


async def _run(config: GatewayConfig) -> None:
    log = Log("gateway")
    state = Path(config.state_dir)
    with claim_directory(state, "din gateway") as claim:
        identity = claim.next_identity()
        for warning in identity.warnings:
            log("identity", warning=warning)
        async with contextlib.AsyncExitStack() as stack:
            stop = _stop_signal()
            await _serve(config, identity, state, log, stack)
            await stop.wait()
            log("stopping")
    log("stopped")


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    for number in stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def _serve(
    config: GatewayConfig,
    identity: Identity,
    state: Path,
    log: Log,
    stack: contextlib.AsyncExitStack,
) -> None:
    sock = bind(config.host, config.port, is_insecure_network=config.insecure_network)
    stack.callback(sock.close)
    port = int(sock.getsockname()[1])
    store = SqliteStore(state / "store.sqlite", wall_clock_ms)
    stack.push_async_callback(store.close)
    await store.open()
    reach = _Reach(config, identity, port)
    schedule = BeatSchedule(config.node_heartbeat_interval_ms, config.node_heartbeat_jitter_ms)
    effects = _effects(config, identity, state, store, reach, schedule, log)
    gateway = Gateway(effects)
    stack.push_async_callback(gateway.stop)
    links = LinkServer(
        identity.node_id,
        identity.session,
        gateway.links,
        limits=LinkLimits(body_bytes_max=config.result_bytes_max),
        report=log,
        admit=gateway.fleet.refusal_of_link,
    )
    stack.push_async_callback(links.wait_closed)
    stack.callback(links.close)
    reach.listen(links)
    await gateway.start()
    _watch(gateway, config)
    resting = asyncio.get_running_loop().create_task(_give_back_at_rest(gateway))
    stack.callback(resting.cancel)
    access = await open_access(config, store, effects.metrics, log, stack)
    server = await _front(gateway, config, sock, access)
    stack.push_async_callback(server.stop)
    await stack.enter_async_context(_announced(config, identity, port, log))
    if warning := schedule.warning():
        log("heartbeat", warning=warning)
    stack.callback(_write_state(state, reach, config).unlink, missing_ok=True)
    # What start-up made lives as long as the process: the collector need not walk it again.
    gc.collect()
    gc.freeze()
    log(
        "ready", url=reach.url, cluster=config.cluster, gateway_id=identity.node_id, pid=os.getpid()
    )


def _effects(
    config: GatewayConfig,
    identity: Identity,
    state: Path,
    store: SqliteStore,
    reach: _Reach,
    schedule: BeatSchedule,
    log: Log,
) -> Effects:
    artifacts = ArtifactFolder(state / "artifacts", config.artifact_quota_mib * 1024 * 1024)
    return Effects(
        gateway_id=identity.node_id,
        session=identity.session,
        store=store,
        artifacts=artifacts,
        carving=Carving(artifacts, state / "carving"),
        membership=Membership(schedule),
        policy=policy_of(config.policy),
        terms=lambda: reach.terms(schedule),
        artifact_url=reach.artifact_url,
        metrics=GatewayMetrics(),
        clock=fine_monotonic_ms,
        wall_clock_iso=wall_clock_iso,
        random=SystemRandom(),
        report=log,
        result_bytes_max=config.result_bytes_max,
        takes_workers=config.direct,
    )


def _watch(gateway: Gateway, config: GatewayConfig) -> None:
    metrics = gateway.effects.metrics
    metrics.watch_fleet(gateway.fleet.fleet_nodes, monotonic_ms, config.discovery_mode)
    metrics.watch_load(lambda: gateway.direct.waiting, lambda: gateway.dispatch.inflight)
    metrics.know_models(gateway.models.model_ids())


async def _give_back_at_rest(gateway: Gateway) -> None:
    """Large requests leave hundreds of MiB with the C library: return them when nobody asks."""
    kept = resident_bytes()
    while True:
        await asyncio.sleep(REST_S)
        if not gateway.dispatch.inflight and resident_bytes() > kept + WORTH_BYTES:
            give_memory_back()
            kept = resident_bytes()


async def _front(
    gateway: Gateway, config: GatewayConfig, sock: socket.socket, access: Access
) -> HttpServer:
    service = GatewayService(
        gateway,
        cluster=config.cluster,
        discovery_mode=config.discovery_mode,
        state=config.state_dir,
        audit=access.audit,
    )
    limits = FrontLimits(
        body_bytes_max=config.body_bytes_max,
        buffered_bytes_max=config.buffered_bytes_max,
        connections_max=config.connections_max,
    )
    front = Front(Turns(service, service), limits, access.admission)
    return await serve(build_app(service, service, limits, access.service), front, sock)


class _Reach:
    """Under which addresses nodes and people reach this gateway."""

    def __init__(self, config: GatewayConfig, identity: Identity, port: int) -> None:
        self._config = config
        self._identity = identity
        self._port = port
        self._hosts = bound_addresses(config.host, AddressWatch().current)
        self.url = f"http://{self._hosts[0]}:{port}"
        self.links: tuple[str, ...] = ()

    def listen(self, server: LinkServer) -> None:
        """Open the link addresses. Raises Conflict."""
        path = str(Path(self._config.state_dir) / "gateway.sock")
        if len(path.encode()) > UNIX_PATH_BYTES_MAX:
            path = str(Path(tempfile.gettempdir()) / f"din-{self._identity.node_id}.sock")
        server.listen_unix(path)
        link_port = server.listen_tcp(self._config.host, self._config.link_port)
        # Nodes in several networks reach us under several addresses, and perhaps not each other.
        tcp = (f"tcp:{host}:{link_port}" for host in self._hosts)
        self.links = (f"unix:{path}", *tcp)[:ADDRESS_COUNT_MAX]

    def artifact_url(self, host: str) -> str:
        """Where artifacts are for a node that has us at this address; empty = on this host."""
        shown = f"[{host}]" if ":" in host else host or self._hosts[0]
        return f"http://{shown}:{self._port}/api/v1/artifacts/"

    def terms(self, schedule: BeatSchedule) -> Terms:
        """What every admitted node is told."""
        warning = schedule.warning()
        return Terms(
            cluster=self._config.cluster,
            gateway_id=self._identity.node_id,
            links=self.links,
            warnings=(warning,) if warning else (),
        )


@contextlib.asynccontextmanager
async def _announced(
    config: GatewayConfig, identity: Identity, port: int, log: Log
) -> AsyncGenerator[None]:
    if config.discovery_mode == "unicast":
        log("not announced", reason="discovery mode is unicast")
        yield
        return
    from din.transport.announce import Announcer  # a gateway that is not announced needs no mDNS

    announcer = Announcer(
        cluster=config.cluster,
        gateway_id=identity.node_id,
        version=__version__,
        http_host=config.host,
        http_port=port,
        report=log,
    )

    async def announce() -> None:
        await announcer.start()
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            await announcer.refresh()

    task = asyncio.get_running_loop().create_task(announce())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await announcer.stop()


def _write_state(state: Path, reach: _Reach, config: GatewayConfig) -> Path:
    path = state / STATE_FILE
    facts = {
        "url": reach.url,
        "pid": os.getpid(),
        "cluster": config.cluster,
        "links": reach.links,
    }
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(facts))
    part.replace(path)
    return path


if __name__ == "__main__":
    sys.exit(main())
