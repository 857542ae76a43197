"""The agent: parts, wires, and its life from the first line of the log to the last.

claim the state directory, count this session, look at the machine
listen for peers (TCP and a Unix socket), then find a gateway and join
dial the link that the gateway names; load, run and forward what it orders
SIGTERM, SIGINT: say goodbye, finish what was accepted, stop the workers, leave
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from msgspec.structs import replace

from din.agent.addresses import OwnAddresses, interface_patterns
from din.agent.admission import admission_of
from din.agent.engines import Engines
from din.agent.executor import Executor
from din.agent.files import SliceFiles
from din.agent.foreign import foreign_servers
from din.agent.join import Joined, Joiner
from din.agent.log import Log
from din.agent.named import Named
from din.agent.offers import Offers
from din.agent.peers import Peers
from din.agent.profile import labels_of
from din.agent.router import Router
from din.agent.senses import Senses
from din.agent.slices import Slices
from din.agent.socket_path import socket_path
from din.agent.trust import NodeTrust
from din.agent.unsealer import Unsealer
from din.agent.way_news import WayNews
from din.agent.zygotes import Zygotes
from din.config import NodeConfig
from din.domain.node import NodeHealth, NodeProfile
from din.errors import DinError
from din.execution.events import SliceKey
from din.system.bound import Bound, write_bound
from din.system.identity import Identity
from din.system.log import is_read_by_a_person
from din.system.memory import give_memory_back
from din.system.network import AddressWatch
from din.system.sensors import Sensors
from din.transport.find import browse, browse_command
from din.transport.http_client import HttpClient, fetch
from din.transport.redial import Redialler
from din.transport.server import LinkServer
from din.wire.messages import AnyMessage

GRACE_S: Final = 10.0
"""Accepted work may take so long after a stop was asked for."""
TRIM_AFTER_S: Final = 5.0
"""By then a node has joined, as a rule."""


class Agent:
    """One node. Made inside the running loop; `run` is its life."""

    def __init__(
        self,
        config: NodeConfig,
        identity: Identity,
        sensors: Sensors,
        profile: NodeProfile,
        trust: NodeTrust | None = None,
    ) -> None:
        self._trust = trust
        self._tls = trust.identity if trust is not None else None
        self._loop = asyncio.get_running_loop()
        self._config, self._identity = config, identity
        self._profile = profile
        self._log = Log(is_plain=is_read_by_a_person())
        report = self._log.report
        self._engines = Engines(config.backends, Path(config.state_dir), report, self._tell)
        self._random = Random()
        self._addresses = self._make_addresses()
        self._socket_path = socket_path(Path(config.state_dir), identity.node_id)
        self._named = Named(report)
        self._peers = self._make_peers()
        self._executor = Executor(self._loop, identity.node_id, self._peers, self._drop)
        self._zygote = Zygotes(
            self._loop, lambda text: report("zygote", reason=text), is_insecure=config.insecure
        )
        self._senses = Senses(config, sensors, lambda: self._zygote.pid, self._tell, report)
        self._offers, self._files = Offers(report), self._make_files()
        self._unsealer = Unsealer(Path(config.state_dir) / "trust")
        self._slices = Slices(
            zygote=self._zygote,
            foreign=foreign_servers(config, self._tell, report, self._random),
            executor=self._executor,
            peers=self._peers,
            named=self._named,
            offers=self._offers,
            files=self._files,
            unsealer=self._unsealer,
            tell=self._tell,
            admission=admission_of(config, profile),
            report=report,
        )
        self._router = self._make_router()
        self._peers.connect(self._router, self._slices.reach_changed)
        self._way_news = WayNews(self._peers.links, self._tell)
        self._server, self._joiner = self._make_server(), self._make_joiner()
        self._redialler: Redialler | None = None
        self._changes: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()

    def _make_addresses(self) -> OwnAddresses:
        watch = partial(AddressWatch, *interface_patterns(self._config))
        return OwnAddresses(self._config.host, self._on_addresses, self._log.report, watch=watch)

    def _make_peers(self) -> Peers:
        named = self._named
        peers = Peers(
            self._identity.node_id,
            self._identity.session,
            self._random,
            self._log.report,
            tls=self._tls,
            role_of=named.role_of,
            is_out=named.is_out,
        )
        named.connect(peers.forget, peers.cut)
        return peers

    def _make_router(self) -> Router:
        return Router(
            self._executor,
            self._peers,
            self._offers,
            self._slices,
            self._named,
            self._senses.heating.ask,
            self._log.report,
        )

    def _make_server(self) -> LinkServer:
        return LinkServer(
            self._identity.node_id,
            self._identity.session,
            self._router,
            report=self._log.report,
            admit=self._named.refusal_of_link,
            tls=self._tls,
            role_of=self._named.role_of,
        )

    def _make_files(self) -> SliceFiles:
        return SliceFiles(
            Path(self._config.state_dir) / "slices",
            self._log.report,
            fetch=partial(fetch, tls=self._tls, is_insecure=self._config.insecure_network),
            quota_bytes=self._config.slice_quota_mib * 1024 * 1024,
        )

    def stop(self) -> None:
        """Begin to leave; repeating it is harmless."""
        self._stop.set()

    def end(self) -> None:
        """End at once, and our workers with us: somebody does not want to wait."""
        self._log.error("stopped_at_once", unfinished=self._executor.queue_length)
        os._exit(1)

    def take_up(self, config: NodeConfig) -> None:
        """What changes while it runs: labels, and the disk for slices."""
        self._files.allow(config.slice_quota_mib * 1024 * 1024)
        labels = labels_of(config)
        if labels != self._profile.labels:
            self._profile = replace(self._profile, labels=labels)
            self._joiner.look_again()

    @property
    def gateway_url(self) -> str:
        """Where the node is registered now; empty = nowhere."""
        return self._joiner.gateway_url

    async def run(self) -> None:
        """Until `stop`. Raises DinError when this node can never join as it is configured."""
        port = self._listen()
        for warning in self._identity.warnings:
            self._log.report("identity_warning", warning=warning)
        self._log.report(
            "started",
            node_id=self._identity.node_id,
            name=self._profile.name,
            session=self._identity.session,
            device_type=self._profile.device_type,
            cluster=self._config.cluster,
            port=port,
            pid=os.getpid(),
        )
        self._loop.call_later(TRIM_AFTER_S, give_memory_back)
        give_memory_back()
        await self._warm_up()
        if self._trust is not None:
            self._trust.start(self._joiner.look_again)
        asking = self._loop.create_task(self._ask_engines())
        joining = self._loop.create_task(self._joiner.run())
        stopping = self._loop.create_task(self._stop.wait())
        try:
            self._senses.start(self._loop)
            await asyncio.wait({joining, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if joining.done():
                joining.result()  # raises: without `stop` it ends by an error only
            await self._leave()
        finally:
            for task in (asking, joining, stopping):
                task.cancel()
            await asyncio.gather(asking, joining, stopping, return_exceptions=True)
            await self._close()

    async def _ask_engines(self) -> None:
        """While it joins; the gateway is told again when an engine is not what it seemed."""
        machine = f"{self._profile.fingerprint_sha256} {self._profile.accelerator or ''}"
        if await self._engines.ask(machine):
            self._joiner.look_again()

    async def _warm_up(self) -> None:
        """A node that held slices will be asked for some again: load the engine meanwhile."""
        if self._files.is_empty:
            return
        try:
            await self._zygote.start()
        except DinError as error:
            self._log.report("zygote", reason=error.message)

    def _make_joiner(self) -> Joiner:
        config = self._config
        return Joiner(
            profile=self._current_profile,
            health=self._health,
            cluster=self._cluster,
            discovery_mode=config.discovery_mode,
            gateways=config.gateway,
            state_dir=Path(config.state_dir),
            random=self._random,
            report=self._log.report,
            connect=partial(HttpClient, tls=self._tls, is_insecure=config.insecure_network),
            browse=partial(browse, command=browse_command(*interface_patterns(config))),
            on_joined=self._on_joined,
            on_rejoin=self._on_joined,
            secure_gateways=self._trust.membership.gateways if self._trust is not None else None,
        )

    @property
    def _cluster(self) -> str:
        return self._tls.cluster if self._tls is not None else self._config.cluster

    def _current_profile(self) -> NodeProfile:
        profile = replace(self._profile, addresses=self._addresses.current)
        return self._engines.shown(profile, self._cluster)

    def _health(self) -> NodeHealth:
        now_ms = self._loop.time() * 1000
        self._way_news.look(now_ms)
        self._engines.look(now_ms)
        return self._senses.health(now_ms, self._executor.queue_length)

    def _on_joined(self, joined: Joined) -> None:
        """A registration was accepted, the first or another one."""
        answer = joined.answer
        is_other = answer.gateway_id != self._named.gateway_id
        if self._redialler is not None and not is_other:
            self._redialler.update(joined.links)
            return
        self._named.gateway_id = answer.gateway_id
        self._slices.unload_all()
        former, self._redialler = (
            self._redialler,
            Redialler(
                joined.links,
                own_id=self._identity.node_id,
                session=self._identity.session,
                handler=self._router,
                random=self._random,
                target_id=answer.gateway_id,
                tls=self._tls,
                report=self._log.report,
            ),
        )
        self._redialler.start()
        if former is not None:
            change = self._loop.create_task(former.stop("the node joined another gateway"))
            self._changes.add(change)
            change.add_done_callback(self._changes.discard)

    # Wires.

    def _tell(self, message: AnyMessage) -> bool:
        return self._peers.tell(self._named.gateway_id, message)

    def _drop(self, key: SliceKey) -> None:
        self._slices.drop(key)

    # Listening.

    def _listen(self) -> int:
        port = self._server.listen_tcp(self._config.host, self._config.port)
        self._server.listen_unix(str(self._socket_path))
        self._addresses.start(str(self._socket_path), port, self._server.tcp_host)
        bound = Bound(host=self._config.host, port=port, is_encrypted=self._tls is not None)
        try:
            write_bound(Path(self._config.state_dir), bound)
        except DinError as error:  # a full disk: only `din doctor` misses it
            self._log.report("listening_not_noted", reason=error.message)
        return port

    def _on_addresses(self, gone: frozenset[str]) -> None:
        """The gateway is told at once; what goes by an address that is gone is dead, although
        nobody would say so for seconds."""
        self._joiner.look_again()
        if self._redialler is not None:
            self._redialler.address_changed(gone)
        self._peers.address_changed(gone)

    # Leaving.

    async def _leave(self) -> None:
        self._log.report("stopping", accepted=self._executor.queue_length)
        self._router.is_stopping = True
        await self._joiner.stop()
        end_s = self._loop.time() + GRACE_S
        while not self._executor.is_idle and self._loop.time() < end_s:  # noqa: ASYNC110 (callbacks)
            await asyncio.sleep(0.02)
        if not self._executor.is_idle:
            left = self._executor.queue_length
            self._log.error("grace_over", unfinished=left, grace_s=GRACE_S)

    async def _close(self) -> None:
        self._router.is_stopping = True
        self._addresses.close()
        self._senses.close()
        if self._redialler is not None:
            await self._redialler.stop("the node stops")
        await asyncio.gather(*self._changes, return_exceptions=True)
        if self._trust is not None:
            await self._trust.stop()
        await self._slices.close()
        await self._unsealer.close()
        await self._peers.close()
        self._server.close("the node stops")
        self._executor.close()
        await self._zygote.stop()
        await asyncio.sleep(0)  # closed links tell their handler in the next turn
        self._log.report("stopped")
