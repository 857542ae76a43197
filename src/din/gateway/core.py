"""The gateway as a whole: its rooms, who tells whom, start and stop.

    links --frames--> relay, direct, deployer        fleet --usable, unusable--> deployer, relay
    dispatch --suspect--> fleet                      deployer --ready--> models

Built once by bootstrap with its effects (store, artifacts, clock, chance) handed in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from typing import Any, Protocol

from din.artifacts.files import ArtifactFolder
from din.config_forms import Isolate
from din.discovery.admission import Terms
from din.discovery.membership import Membership
from din.domain.foreign import ForeignServer
from din.domain.forms import runs_whole
from din.domain.node import NodeId
from din.flow.timeout import Timeouts
from din.gateway.deploying import deployer_of, isolation_of
from din.gateway.deployment.drains import DrainBook
from din.gateway.deployment.epochs import ISOLATED, EpochBook
from din.gateway.deployment.orders import Orders
from din.gateway.ends import crashes_of, note_death
from din.gateway.examination import encoder_of, examiner_of, probes_of
from din.gateway.live_factors import live_factors
from din.gateway.nodes.beats import BeatKeys
from din.gateway.nodes.dialable import dialable
from din.gateway.nodes.fleet import Fleet
from din.gateway.nodes.labels import LabelBook
from din.gateway.nodes.links import NodeLinks
from din.gateway.nodes.roll import Roll
from din.gateway.nodes.way_book import WayBook
from din.gateway.probing.profiles import ProfileBook
from din.gateway.registration.carve_cache import CarveCache
from din.gateway.registration.carving import Carving
from din.gateway.registration.cutting import CutChooser
from din.gateway.registration.models import ModelBook
from din.gateway.registration.names import id_of
from din.gateway.registration.record import ModelRecord
from din.gateway.requests.direct import DirectWorkers
from din.gateway.requests.dispatch import Dispatch
from din.gateway.requests.relay import Relay
from din.gateway.requests.request_tools import TIMEOUT_LIMITS, RequestTools
from din.gateway.reslicing import cut_to_fit
from din.gateway.revoking import strike_out_revoked
from din.gateway.routes.serving import Serving
from din.gateway.telemetry.metrics import GatewayMetrics
from din.gateway.telemetry.traces import TraceBook
from din.gateway.terrain import foreign_signature, roomiest_mib, terrain_of
from din.gateway.trust.vault import Vault, has_aes
from din.placement.capability import TRUSTED
from din.placement.policy import Policy
from din.store.contract import Store
from din.wire.messages import (
    Foreign,
    Measured,
    Offer,
    Prepared,
    PrepareFailed,
    ThrownOut,
    WorkerDied,
)

REQUEST_BITS = 62
"""Of the first request's number: the rest counts up from there in 63 bits."""
STOP_SECONDS_MAX = 10.0
"""How long running requests may take to end when the gateway stops."""


class ArtifactUrl(Protocol):
    """Where nodes fetch artifacts."""

    def __call__(self, host: str, *, is_joined: bool) -> str:
        """For a node that has us at this address (empty = on this host), with a certificate or
        without."""
        ...


@dataclass(frozen=True)
class Effects:
    """What the gateway is given from outside."""

    gateway_id: str
    store: Store
    artifacts: ArtifactFolder
    carving: Carving
    vault: Vault
    membership: Membership
    policy: Policy
    terms: Callable[[], Terms]
    artifact_url: ArtifactUrl
    metrics: GatewayMetrics
    clock: Callable[[], float]
    """Monotonic milliseconds with fractions."""
    wall_clock_iso: Callable[[], str]
    wall_clock_ms: Callable[[], int]
    """For what outlasts a restart: tokens, certificates, revocations."""
    random: Random
    report: Callable[..., None]
    result_bytes_max: int
    carve_cache: CarveCache | None = None
    """The one that `carving` asks; None = it asks none."""
    isolate: Isolate = "none"
    takes_workers: bool = True
    """Whether workers on this host are fed by this process itself."""


class Gateway:
    """All rooms of one gateway. Implements fleet.FleetListener and links.LinkEvents."""

    def __init__(self, effects: Effects) -> None:
        loop = asyncio.get_running_loop()
        self.effects = effects
        self.timeouts = Timeouts(TIMEOUT_LIMITS)
        self.roll = Roll(effects.store, effects.wall_clock_ms)
        self.labels = LabelBook(effects.store)
        self.links = NodeLinks(effects.report, takes_workers=effects.takes_workers)
        self.ways = WayBook(effects.gateway_id, self.links, effects.clock)
        self.direct, self.drains = DirectWorkers(loop), DrainBook(effects.store, effects.report)
        self.fleet = Fleet(
            effects.membership,
            effects.policy,
            self.drains,
            terms=effects.terms,
            clock=effects.clock,
            random=effects.random,
            report=effects.report,
            is_out=self.roll.is_revoked,
        )
        heard = effects.metrics.heartbeats
        self.beats = BeatKeys(self.fleet.heartbeat, effects.random.randbytes, heard)
        self.relay = Relay(
            loop, effects.gateway_id, self.links, self.fleet.name_of, effects.result_bytes_max
        )
        self.vault = effects.vault
        self.vault.has_aes = lambda: has_aes(self.fleet.fleet_nodes())
        self.orders = Orders(
            self.vault, effects.artifacts, self, self._addresses_for, self._artifact_url
        )
        self.epochs, self.foreign = EpochBook(effects.store, effects.random), self.orders.foreign
        self.deployer = deployer_of(self)
        self.profiles = ProfileBook(effects.store)
        self.cutter = CutChooser(
            effects.carving,
            partial(terrain_of, self),
            self.profiles.times_of,
            partial(live_factors, self),
        )
        self.models = ModelBook(
            effects.store, effects.artifacts, effects.carving, self.cutter, self.vault.seals
        )
        self.traces = TraceBook(self.fleet.name_of, effects.wall_clock_iso)
        self.crashes = crashes_of(self)
        tools = self._request_tools()
        self.dispatch = Dispatch(loop, self.models, tools, effects.report)
        self.dispatch.sharing = self.isolation = isolation_of(self)
        self.probes = probes_of(self, tools)
        self.examiner = examiner_of(self)
        self._tasks: set[asyncio.Task[None]] = set()
        self._connect()

    def _connect(self) -> None:
        """Who tells whom."""
        self.fleet.connect(self)
        self.links.connect(self.relay, self.direct, self)
        self.models.connect(self.isolation)
        if (cache := self.effects.carve_cache) is not None:
            keeper = self.models.keeper
            keeper.needed_too, cache.drop = cache.held, keeper.drop
        self.models.builder.look_over = self.examiner.look_over
        self.models.builder.encode = encoder_of(self).encode
        self.models.builder.compare = self.examiner.compare
        self.models.builder.foreign = partial(foreign_signature, self)
        self.deployer.on_ready = self._model_ready
        self.deployer.on_failed = self._model_failed
        self.deployer.on_too_large = self._model_too_large

    async def start(self) -> None:
        """Deploy what the store knows and keep it deployed."""
        await self.drains.load()
        await self.roll.load()
        self.effects.membership.keep_names(self.roll.owner_of)
        await self.labels.load()
        await strike_out_revoked(self)
        await self.epochs.end_all(ISOLATED)
        await self.probes.load()
        await self.profiles.load()
        await self.models.load()
        self._spawn(self.deployer.run())
        self._spawn(self.isolation.run())

    async def stop(self) -> None:
        """Take no more requests, let the running ones end, stop the rooms."""
        self.dispatch.is_stopping = True
        give_up_ms = self.effects.clock() + STOP_SECONDS_MAX * 1000
        while self.dispatch.inflight and self.effects.clock() < give_up_ms:  # noqa: ASYNC110 - once
            await asyncio.sleep(0.02)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.fleet.close()
        self.direct.close()

    def _addresses_for(self, node_id: NodeId, reader: NodeId) -> tuple[str, ...]:
        """Where the reader can dial the node."""
        machine = self.links.machine_of(node_id)
        return dialable(
            self.fleet.addresses(node_id),
            is_same_machine=machine is not None and machine == self.links.machine_of(reader),
            is_here=machine == self.links.machine_of(reader) == "",
            is_same_kind=self._is_joined(node_id) == self._is_joined(reader),
        )

    def _is_joined(self, node_id: NodeId) -> bool:
        return self.roll.is_certified(node_id)

    def _artifact_url(self, node_id: NodeId) -> str:
        host, is_joined = self.links.local_host(node_id), self._is_joined(node_id)
        return self.effects.artifact_url(host, is_joined=is_joined)

    def who(self, name_or_id: str) -> tuple[NodeId, str]:
        """Id and name of a node, whether it is here now or not. Raises NotFound or Conflict."""
        names = self.roll.names()
        names.update({each.profile.node_id: each.profile.name for each in self.fleet.members()})
        where = "here or among those that joined"
        node_id = id_of(name_or_id, names, where, self.roll.is_revoked)
        return NodeId(node_id), names[node_id]

    def _request_tools(self) -> RequestTools:
        # Numbers that nodes cannot remember, whichever gateway with this id they knew before: one
        # with a restored or copied store would use those of its past again.
        numbers = count(self.effects.random.getrandbits(REQUEST_BITS))
        return RequestTools(
            relay=self.relay,
            direct=self.direct,
            traces=self.traces,
            metrics=self.effects.metrics,
            clock=self.effects.clock,
            random=self.effects.random,
            next_request_id=numbers.__next__,
            name_of=self.fleet.name_of,
            health_of=self.fleet.health_of,
            capacity_of=lambda node: self.fleet.table().capacity_percent_of(node),
            suspect=self.fleet.dispatch_failed,
            crashes=self.crashes,
            slice_failed=self.fleet.slice_failed,
        )

    # fleet.FleetListener.

    def node_usable(self, node_id: NodeId) -> None:
        """A node became ready."""
        self.deployer.node_back(node_id)

    def node_unusable(self, node_id: NodeId, reason: str, *, is_final: bool) -> None:
        """A node is not routable now; running work on it goes on unless its link is gone."""
        self.deployer.node_gone(node_id, is_final=is_final)
        if not self.links.is_open(node_id):
            self.direct.drop_node(node_id)
            self.relay.node_down(node_id, reason)

    def node_moved(self, node_id: NodeId) -> None:
        """A node may have other addresses."""
        self.deployer.node_moved(node_id)

    def forgotten(self, name: str) -> None:
        """A node is in no list any more: its series go."""
        self.effects.metrics.forget_node(name)

    def evicted(self, node_id: NodeId, session: int, reason: str) -> None:
        """A session that is not, or no longer, registered: its link makes no sense."""
        self.links.close_session(node_id, session, reason)

    def promised_mib(self, node_id: NodeId) -> int:
        """Memory promised to slices there."""
        return self.deployer.promised_mib(node_id)

    def slices_held(self, node_id: NodeId) -> int:
        """How many slices lie there, loaded or loading."""
        return self.deployer.slices_held(node_id)

    def takes_grants(self, node_id: NodeId) -> bool:
        """Whether sealed slices can be opened there."""
        return self.orders.takes_grants(node_id)

    def foreign_behind(self, node_id: NodeId) -> tuple[ForeignServer, ...]:
        """Servers of others there."""
        return self.foreign.servers(node_id)

    # orders.Keyholders.

    def is_local(self, node_id: NodeId) -> bool:
        """Whether a node is this user's own on this machine."""
        return self.links.is_local(node_id)

    def is_trusted(self, node_id: NodeId) -> bool:
        """Whether it has the label `trust: high` now."""
        member = self.effects.membership.member(node_id)
        return member is not None and TRUSTED.issubset(member.profile.labels.items())

    def public_key(self, node_id: NodeId) -> bytes | None:
        """Of its certificate; none any more once it was revoked."""
        binding = None if self.roll.is_revoked(node_id) else self.roll.binding(node_id)
        return (binding.public_key or None) if binding is not None else None

    def loaded_mib(self, node_id: NodeId) -> int:
        """The loaded part of it."""
        return self.deployer.loaded_mib(node_id)

    def measured_ms(self, slice_id: str, node_id: NodeId) -> float | None:
        """What a slice was measured to take on a node, in whichever deployment."""
        return self.timeouts.mean_ms(slice_id, node_id)

    # links.LinkEvents.

    def link_opened(self, node_id: NodeId, session: int, link_id: int) -> None:
        """A node dialled: it is reachable, and is told again what it shall hold. That comes first,
        so that what an earlier session held does not count for a moment, and before that who is
        out, so that nothing is opened to them."""
        if thrown_out := self.roll.thrown_out():
            self.links.send(node_id, ThrownOut(thrown_out))
        self.deployer.node_connected(node_id)
        self.fleet.link_opened(node_id, session, link_id)

    def link_closed(
        self, node_id: NodeId, session: int, link_id: int, reason: str, *, is_orderly: bool
    ) -> None:
        """A node's link is down."""
        self.fleet.link_closed(node_id, session, link_id, reason, is_orderly=is_orderly)

    def prepared(self, node_id: NodeId, message: Prepared) -> None:
        """A slice is loaded."""
        self.deployer.prepared(node_id, message)

    def prepare_failed(self, node_id: NodeId, message: PrepareFailed) -> None:
        """A slice could not be loaded."""
        self.deployer.prepare_failed(node_id, message)

    def offered(self, node_id: NodeId, message: Offer) -> None:
        """A worker was handed over: who waits may have room now."""

    def measured(self, node_id: NodeId, message: Measured) -> None:
        """What a node knows of its links."""
        self.ways.heard(node_id, message)

    def foreign_heard(self, node_id: NodeId, message: Foreign) -> None:
        """Which servers stand behind a node, and what they run: slices come and go with them."""
        if self.foreign.heard(node_id, message):
            self.fleet.look_at(node_id)
            self.deployer.node_back(node_id)

    def worker_died(self, node_id: NodeId, message: WorkerDied) -> None:
        """A worker ended: counted and told; what ran in it was answered or is run again."""
        note_death(self, node_id, message)

    # Models.

    def _model_ready(self, serving: Serving) -> None:
        self._spawn(self.models.became_ready(serving))

    def _model_failed(self, serving: Serving) -> None:
        self._spawn(self.models.became_failed(serving))

    def _model_too_large(self, record: ModelRecord, needed_mib: int) -> bool:
        """No node holds the whole: cut it so that those that are here can. False = not now, ask
        again."""
        room_mib = roomiest_mib(self) // record.manifest.workers
        is_whole = any(runs_whole(part.backend) for part in record.partition.slices)
        if record.order.foreign or is_whole or not 0 < room_mib < needed_mib:
            return False
        self._spawn(cut_to_fit(self, record))
        return True

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self.effects.report("background task failed", fault=repr(fault))
