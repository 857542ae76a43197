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
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Final

import msgspec

from din.api.app import build_app
from din.api.limits import FrontLimits
from din.api.serve import HttpServer, Secure, bind, serve
from din.api.turn import Front
from din.api.turns import Turns
from din.artifacts.files import ArtifactFolder
from din.bootstrap.access import Access, open_access
from din.bootstrap.log import Log
from din.bootstrap.own_node import settle_own_node
from din.bootstrap.reach import CertifiedHosts, Reach
from din.bootstrap.running import Served, adopt, run
from din.config import GatewayConfig, check_gateway_network, is_loopback, received_config
from din.discovery.membership import Membership
from din.discovery.schedule import BeatSchedule
from din.errors import DinError
from din.gateway.control import GatewayService
from din.gateway.core import Effects, Gateway
from din.gateway.examination import Examination
from din.gateway.nodes.tokens import TokenBook
from din.gateway.registration.carve_cache import opened_cache
from din.gateway.registration.carving import Carving
from din.gateway.telemetry.metrics import GatewayMetrics
from din.gateway.trust.vault import Vault
from din.placement.policy import policy_of
from din.store.sqlite import SqliteStore
from din.system.clock import fine_monotonic_ms, monotonic_ms, wall_clock_iso, wall_clock_ms
from din.system.descriptors import raise_limit
from din.system.identity import Identity, start_error
from din.system.lines import unblock_stderr
from din.system.memory import give_memory_back, resident_bytes
from din.system.network import AddressWatch
from din.system.notify import ServiceManager
from din.system.privacy import hide
from din.transport.datagram import DatagramServer
from din.transport.limits import LinkLimits
from din.transport.server import LinkServer
from din.transport.tls_identity import TlsIdentity
from din.version import __version__

if TYPE_CHECKING:
    from din.bootstrap.trust import GatewayTrust
    from din.gateway.nodes.enrolment import Enrolment

REFRESH_SECONDS: Final = 10.0
"""How often interfaces are looked at again."""
DAY_MS: Final = 24 * 3600 * 1000
MIB: Final = 1024 * 1024
STATE_FILE: Final = "gateway.json"
REST_S: Final = 5.0
GARBAGE_OBJECTS: Final = 10_000
"""The collector looks for cycles after so many new objects. A request leaves some dozens in the
book of traces and hardly a cycle; at 700, the default, looking costs it 5 % of its time."""
WORTH_BYTES: Final = 16 * 1024 * 1024
"""Giving back takes milliseconds: not for less than this."""


def main() -> int:
    """Run until SIGTERM or SIGINT. Exit code of the error tree."""
    hide()
    unblock_stderr()
    try:
        config = received_config(GatewayConfig, os.environ)
        check_gateway_network(config)
        raise_limit()
        asyncio.run(run(config, ServiceManager(os.environ), _serve))
    except (DinError, OSError) as fault:
        error = start_error(fault)
        sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


async def _serve(
    config: GatewayConfig,
    identity: Identity,
    state: Path,
    log: Log,
    stack: contextlib.AsyncExitStack,
) -> Served:
    sock = _bound(config, config.plain_host, config.port, stack)
    trust, secure = _secured(config, identity, state, log, stack)
    store = SqliteStore(state / "store.sqlite", wall_clock_ms)
    stack.push_async_callback(store.close)
    await store.open()
    reach = Reach(config, identity, _port_of(sock), _port_of(secure.sock) if secure else 0)
    schedule = BeatSchedule(config.node_heartbeat_interval_ms, config.node_heartbeat_jitter_ms)
    effects = _effects(config, identity, state, store, reach, schedule, log)
    gateway = Gateway(effects)
    adopt(gateway, config)
    stack.push_async_callback(gateway.stop)
    _take_links(gateway, config, identity, trust, reach, log, stack)
    await gateway.start()
    _watch(gateway, config)
    resting = asyncio.get_running_loop().create_task(_give_back_at_rest(gateway))
    stack.callback(resting.cancel)
    refusal_of_node = gateway.roll.refusal_of
    access = await open_access(config, store, effects.metrics, log, stack, refusal_of_node)
    late_ms = config.late_renewal_days * DAY_MS
    enrolment = _enrolment(gateway, trust, reach, access, late_ms) if trust is not None else None
    if config.own_node_dir:
        own = await settle_own_node(config, os.uname().nodename, trust, enrolment, log)
        gateway.roll.is_own_plain = not own
    if secure is not None:
        _hear_datagrams(gateway, config, reach, stack)
    server, front = await _front(gateway, config, reach, access, enrolment, sock, secure)
    stack.push_async_callback(server.stop)
    await stack.enter_async_context(_announced(config, identity, reach, log))
    if warning := schedule.warning():
        log("heartbeat", warning=warning)
    stack.callback(_write_state(state, reach, config).unlink, missing_ok=True)
    # What start-up made lives as long as the process: the collector need not walk it again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)
    log(
        "ready", url=reach.url, cluster=config.cluster, gateway_id=identity.node_id, pid=os.getpid()
    )
    take_up = partial(_take_up, gateway, front, trust)
    return Served(reach.url, lambda: len(gateway.fleet.fleet_nodes()), take_up)


def _take_up(
    gateway: Gateway, front: Front, trust: GatewayTrust | None, fresh: GatewayConfig
) -> None:
    """What changes while a gateway runs. Raises Unavailable for a certificate that is broken."""
    front.limits = _limits(fresh)
    gateway.effects.artifacts.allow(fresh.artifact_quota_mib * MIB)
    adopt(gateway, fresh)
    if trust is not None:
        trust.reload()


def _take_links(
    gateway: Gateway,
    config: GatewayConfig,
    identity: Identity,
    trust: GatewayTrust | None,
    reach: Reach,
    log: Log,
    stack: contextlib.AsyncExitStack,
) -> None:
    """Nodes may dial from now on. Raises Conflict."""
    links = LinkServer(
        identity.node_id,
        identity.session,
        gateway.links,
        limits=LinkLimits(body_bytes_max=config.result_bytes_max),
        report=log,
        admit=gateway.fleet.refusal_of_link,
        tls=TlsIdentity(trust.files, config.cluster, log) if trust is not None else None,
    )
    stack.push_async_callback(links.wait_closed)
    stack.callback(links.close)
    reach.listen(links)


def _effects(
    config: GatewayConfig,
    identity: Identity,
    state: Path,
    store: SqliteStore,
    reach: Reach,
    schedule: BeatSchedule,
    log: Log,
) -> Effects:
    artifacts = ArtifactFolder(state / "artifacts", config.artifact_quota_mib * MIB)
    vault = _vault(config, state)
    cache = opened_cache(state / "slicing-cache", artifacts, config, log)
    return Effects(
        gateway_id=identity.node_id,
        store=store,
        artifacts=artifacts,
        carving=Carving(artifacts, state / "carving", vault, cache, is_insecure=config.insecure),
        carve_cache=cache,
        vault=vault,
        membership=Membership(schedule),
        policy=policy_of(config.policy),
        terms=lambda: reach.terms(schedule),
        artifact_url=reach.artifact_url,
        metrics=GatewayMetrics(),
        clock=fine_monotonic_ms,
        wall_clock_iso=wall_clock_iso,
        wall_clock_ms=wall_clock_ms,
        random=SystemRandom(),
        report=log,
        result_bytes_max=config.result_bytes_max,
        isolate=config.isolate,
        takes_workers=config.direct,
    )


def _secured(
    config: GatewayConfig,
    identity: Identity,
    state: Path,
    log: Log,
    stack: contextlib.AsyncExitStack,
) -> tuple[GatewayTrust | None, Secure | None]:
    if not config.is_tls:
        return None, None
    from din.bootstrap.trust import open_trust  # 9 MiB that a gateway without TLS does not need

    hosts = CertifiedHosts(config.host)
    trust = open_trust(state, config.cluster, identity.node_id, hosts, log)
    context = trust.context()
    keeping = asyncio.get_running_loop().create_task(trust.keep_fresh())
    stack.callback(keeping.cancel)
    return trust, Secure(_bound(config, config.host, config.tls_port, stack), context)


def _bound(
    config: GatewayConfig, host: str, port: int, stack: contextlib.AsyncExitStack
) -> socket.socket:
    is_allowed = config.insecure_network or host != config.plain_host
    sock = bind(host, port, is_off_loopback_allowed=is_allowed)
    stack.callback(sock.close)
    return sock


def _port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def _enrolment(
    gateway: Gateway, trust: GatewayTrust, reach: Reach, access: Access, late_ms: int
) -> Enrolment:
    from din.gateway.nodes.enrolment import Enrolment

    effects = gateway.effects
    return Enrolment(
        authority=trust.authority,
        tokens=TokenBook(effects.store, effects.wall_clock_ms),
        roll=gateway.roll,
        session_of=gateway.fleet.session_of,
        cluster=trust.name.cluster,
        gateway_id=effects.gateway_id,
        gateways=lambda: reach.tls_urls,
        now_ms=effects.wall_clock_ms,
        audit=access.audit,
        signing_key=gateway.vault.signing_key,
        late_renewal_ms=late_ms,
        clock_ms=effects.clock,
        count=effects.metrics.count_auth_failure,
    )


def _vault(config: GatewayConfig, state: Path) -> Vault:
    """On one machine the keys would lie beside the files: nothing is signed or sealed by itself."""
    is_encrypting = {"auto": config.is_tls, "always": True, "never": False}[config.encrypt_models]
    return Vault(
        state / "trust",
        is_signing=config.is_tls,
        is_encrypting=is_encrypting,
        lease_ms=config.slice_lease_ms,
    )


def _hear_datagrams(
    gateway: Gateway, config: GatewayConfig, reach: Reach, stack: contextlib.AsyncExitStack
) -> None:
    """Heartbeats by datagram at the number of the TLS port. Raises Conflict."""
    server = DatagramServer(config.host, reach.tls_port, gateway.beats.receive)
    stack.callback(server.close)
    gateway.beats.port = server.port
    gateway.effects.metrics.watch_datagrams(gateway.beats.refused)


def _watch(gateway: Gateway, config: GatewayConfig) -> None:
    metrics = gateway.effects.metrics
    metrics.watch_fleet(gateway.fleet.fleet_nodes, monotonic_ms, config.discovery_mode)
    metrics.watch_load(lambda: gateway.direct.waiting, lambda: gateway.dispatch.inflight)
    if (cache := gateway.effects.carve_cache) is not None:
        metrics.watch_slicing_cache(cache.view)
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
    gateway: Gateway,
    config: GatewayConfig,
    reach: Reach,
    access: Access,
    enrolment: Enrolment | None,
    sock: socket.socket,
    secure: Secure | None,
) -> tuple[HttpServer, Front]:
    service = GatewayService(
        gateway,
        cluster=config.cluster,
        discovery_mode=config.discovery_mode,
        state=config.state_dir,
        audit=access.audit,
        tls_url=lambda: reach.tls_urls[0] if reach.tls_urls else "",
        is_insecure_network=not is_loopback(config.plain_host),
        is_key_required=config.require_key,
    )
    limits = _limits(config)
    front = Front(Turns(service, service), limits, access.admission)
    examination = Examination(gateway.models, gateway.examiner, access.audit)
    app = build_app(service, service, limits, access.service, enrolment, examination)
    return await serve(app, front, sock, secure), front


def _limits(config: GatewayConfig) -> FrontLimits:
    return FrontLimits(
        body_bytes_max=config.body_bytes_max,
        buffered_bytes_max=config.buffered_bytes_max,
        # The other descriptors are for links, workers and files.
        connections_max=min(config.connections_max, raise_limit() // 2),
    )


@contextlib.asynccontextmanager
async def _announced(
    config: GatewayConfig, identity: Identity, reach: Reach, log: Log
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
        http_port=reach.port,
        tls_port=reach.tls_port,
        report=log,
        watch=AddressWatch(config.interfaces_allowed, config.interfaces_denied),
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


def _write_state(state: Path, reach: Reach, config: GatewayConfig) -> Path:
    path = state / STATE_FILE
    facts = {
        "url": reach.url,
        "tls_urls": reach.tls_urls,
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
