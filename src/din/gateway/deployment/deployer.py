"""Keeps deployments alive: places what has no home, loads it, repairs what broke, retires the old.

    placing --planned--> loading --every slice has a ready replica--> ready
    ready --a slice has none left--> degraded --repaired--> ready
    ready --nobody asked for idle_unload_s--> idle --a request comes--> placing
    placing, loading --the bytes are no usable model--> failed

One task looks at every deployment whenever something changed and once a second: what is missing is
computed from what is (level-triggered), so a lost event costs a second and never the deployment.
A node that is suspect keeps its replicas for its return but does not count as having them: a slice
without any other ready replica gets a new home at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from msgspec.structs import replace

from din.domain.deployment import Deployment, DeploymentState, Epoch
from din.domain.node import NodeId
from din.domain.plan import Plan
from din.errors import CannotPlace, DinError, UsageError, error_of_code
from din.flow.timeout import Timeouts
from din.gateway.deployment.drains import DrainBook, SliceName
from din.gateway.deployment.epochs import EpochBook
from din.gateway.deployment.handover import kept_on, let_go, only_on_leaving
from din.gateway.deployment.hearing import FleetFacts
from din.gateway.deployment.holding import Holding, Known
from din.gateway.deployment.idling import Idling
from din.gateway.deployment.leftovers import Leftovers
from din.gateway.deployment.measured import MemoryBook
from din.gateway.deployment.orders import PREPARE_MS_MAX, Orders
from din.gateway.registration.record import ModelRecord
from din.gateway.requests.relay import Sender
from din.gateway.routes.serving import Serving
from din.wire.messages import Prepared, PrepareFailed, Unload

RECONCILE_SECONDS: Final = 1.0

Report = Callable[..., None]


class Deployer:
    """All deployments of this gateway. Implements models.Deploying."""

    def __init__(
        self,
        *,
        epochs: EpochBook,
        fleet: FleetFacts,
        drains: DrainBook,
        sender: Sender,
        is_local: Callable[[str], bool],
        clock: Callable[[], float],
        orders: Orders,
        memory: MemoryBook,
        timeouts: Timeouts,
        report: Report,
    ) -> None:
        self._epochs = epochs
        self._leftovers = Leftovers(sender)
        self._fleet, self._drains = fleet, drains
        self._sender = sender
        self._is_local = is_local
        self._clock = clock
        self._orders = orders
        self._report = report
        self._memory = memory
        self._timeouts = timeouts
        self._holdings: dict[Epoch, Holding] = {}
        self._wake = asyncio.Event()
        self.idling = Idling()
        self.on_ready: Callable[[Serving], None] = lambda serving: None
        self.on_failed: Callable[[Serving], None] = lambda serving: None
        self.on_too_large: Callable[[ModelRecord, int], bool] = lambda record, memory_mib: False
        """Asked when no node can hold a model that the user did not cut (with the MiB that one
        worker of it needs), until it says that it takes care."""

    # models.Deploying.

    async def deploy(self, record: ModelRecord, tenant: str = "") -> Serving:
        """Start to place and load a version under a new epoch; `tenant`: for its requests only."""
        epoch = await self._epochs.next(record, tenant)
        deployment = Deployment(
            epoch=epoch, manifest=record.manifest, partition=record.partition, tenant=tenant
        )
        serving = Serving(deployment, self._timeouts)
        holding = self._holdings[epoch] = Holding(record, serving, self._memory.needed_mib)
        serving.on_wanted = partial(self._wanted, holding)
        self.look()
        return serving

    async def retire(self, serving: Serving) -> None:
        """Unload everywhere; agents let running work finish first."""
        holding = self._holdings.pop(serving.deployment.epoch, None)
        manifest = serving.deployment.manifest
        if holding is not None:
            self._empty(holding)
        serving.is_retired = True
        serving.deployment = replace(serving.deployment, state="failed", reason="it was removed")
        serving.notify()
        await self._epochs.end(serving.deployment.epoch, manifest, serving.deployment.tenant)

    def follow(self, before: ModelRecord, after: ModelRecord) -> None:
        """See models.Deploying."""
        for holding in self._holdings.values():
            if holding.record is before:
                holding.record = after

    # What others see.

    def holdings(self) -> tuple[Holding, ...]:
        """All deployments with their replicas."""
        return tuple(self._holdings.values())

    def holding(self, serving: Serving) -> Holding | None:
        """The replicas of one deployment."""
        return self._holdings.get(serving.deployment.epoch)

    def promised_mib(self, node_id: NodeId) -> int:
        """Memory promised to slices on a node, loaded or loading."""
        return sum(holding.promised_mib(node_id) for holding in self._holdings.values())

    def slices_held(self, node_id: NodeId) -> int:
        """How many slices a node holds or loads."""
        return sum(len(each.indexes_on(node_id)) for each in self._holdings.values())

    def loaded_mib(self, node_id: NodeId) -> int:
        """The part of it that is loaded, so that measured free memory already lacks it."""
        return sum(holding.loaded_mib(node_id) for holding in self._holdings.values())

    def slices_on(self, node_id: NodeId) -> frozenset[SliceName]:
        """What a node holds or loads."""
        return frozenset[SliceName]().union(
            *(holding.names_on(node_id) for holding in self._holdings.values())
        )

    # What happens.

    def look_now(self, node_id: NodeId) -> None:
        """Plan again what a node holds, at once: somebody waits for what comes of it."""
        for holding in list(self._holdings.values()):
            holding.plan_again_ms = 0.0
            if holding.indexes_on(node_id):
                self._reconcile(holding)
        self.look()

    def look(self) -> None:
        """Something changed: look at every deployment soon."""
        self._wake.set()

    def node_connected(self, node_id: NodeId) -> None:
        """A link is up: say again what the node shall hold (a restarted one has forgotten)."""
        for holding in self._holdings.values():
            for index in (*holding.indexes_on(node_id), *kept_on(holding, self._drains, node_id)):
                holding.assign(index, node_id, self._clock())
                holding.serving.drop(index, node_id)
                self._prepare(holding, index, node_id)
        self.node_moved(node_id)
        self._leftovers.node_connected(node_id, self._epochs.former, partial(self._has, node_id))
        self.look()

    def node_moved(self, node_id: NodeId) -> None:
        """A node may have other addresses now: those that send to it learn them."""
        for holding in self._holdings.values():
            if not holding.indexes_on(node_id):
                continue
            for other in holding.nodes():
                # Preparing again what is loaded only makes the node dial those that it lacks.
                if other != node_id:
                    self._prepare(holding, holding.indexes_on(other)[0], other)

    def node_gone(self, node_id: NodeId, *, is_final: bool) -> None:
        """A node is unroutable; finally, when it is lost or drained."""
        for holding in self._holdings.values():
            holding.serving.drop_node(node_id)
            if is_final:
                self._drop(holding, node_id)
            self._settle(holding)
        self.look()

    def node_back(self, node_id: NodeId) -> None:
        """A suspect node is routable again and still holds what it held, or a new one came."""
        for holding in self._holdings.values():
            holding.plan_again_ms = 0.0
            if holding.cut_refusal is not None:  # with one node more it may be different
                holding.cut_refusal, holding.may_be_cut = None, True
            ready = holding.ready_on(node_id)
            for index in holding.indexes_on(node_id):
                if index in ready:
                    self._serve(holding, index, node_id)
                else:
                    # It may have been silent while it was asked: asking twice is harmless.
                    self._prepare(holding, index, node_id)
            self._settle(holding)
        self.look()

    def prepared(self, node_id: NodeId, message: Prepared) -> None:
        """A node has a slice loaded and warm."""
        holding = self._holdings.get(message.epoch)
        if holding is None:
            self._sender.send(node_id, Unload(message.epoch))
            return
        index, memory_mib = message.slice_index, message.memory_mib
        if not holding.loaded(index, node_id, message.undialable):
            # It was given up meanwhile: the memory may be promised to others.
            self._sender.send(node_id, Unload(message.epoch, index))
            return
        if self._fleet.is_routable(node_id):
            self._serve(holding, index, node_id)
        if memory_mib is not None:
            part, manifest = holding.partition.slices[index], holding.record.manifest
            believed_mib = self._memory.learn(part, manifest, node_id, memory_mib)
            holding.measured(index, node_id, believed_mib)
        self._settle(holding)
        self._fleet.memory_changed()

    def prepare_failed(self, node_id: NodeId, message: PrepareFailed) -> None:
        """A node could not load a slice."""
        holding = self._holdings.get(message.epoch)
        if holding is None or not holding.has(message.slice_index, node_id):
            return
        holding.serving.drop(message.slice_index, node_id)
        error = error_of_code(message.code, message.message, message.hint)
        holding.failed(message.slice_index, node_id, error, self._clock())
        self._report("slice not loaded", node=node_id, reason=error.message)
        if isinstance(error, UsageError):
            # Bad bytes or options: every node would say the same.
            holding.hint, holding.error_code = error.hint, error.code
            self._set_state(holding, "failed", error.message)
        self._settle(holding)
        self._fleet.memory_changed()
        self.look()

    def refuse(self, model_id: str, error: DinError) -> None:
        """A model that cannot be cut to fit either: say so where people look."""
        for holding in self._holdings.values():
            if holding.record.manifest.model_id == model_id:
                holding.cut_refusal = error
                self._settle(holding, error.message)
                self.look()

    async def run(self) -> None:
        """Reconcile for ever."""
        while True:
            # Not wait_for: in Python 3.11 it loses a cancellation that comes with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(RECONCILE_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            for holding in list(self._holdings.values()):
                try:
                    self._reconcile(holding)
                except Exception as fault:  # one broken deployment must not stop the others
                    name = holding.record.manifest.model_id
                    self._report("deployment not reconciled", model=name, fault=repr(fault))
            await self._drains.flush()

    # Reconciling one deployment.

    def _reconcile(self, holding: Holding) -> None:
        now_ms = self._clock()
        if holding.serving.deployment.state == "failed" or self._is_idle(holding, now_ms):
            return
        holding.fail_overdue(now_ms, PREPARE_MS_MAX)
        for node_id in holding.nodes():
            if not (self._fleet.is_member(node_id) and self._orders.may_hold(holding, node_id)):
                self._drop(holding, node_id)
        if let_go(holding, self._drains, self._sender):
            self._fleet.memory_changed()
        self._orders.renew(holding, self._sender, now_ms)
        known = holding.known(self._fleet.is_routable, self._drains.leaving(), now_ms)
        if known.is_satisfied or not holding.is_worth_planning(known, now_ms):
            self._settle(holding)
            return
        try:
            plan = self._fleet.plan(known)
        except CannotPlace as refusal:
            self._refused(holding, known, refusal)
            return
        self._follow(holding, plan)

    def _is_idle(self, holding: Holding, now_ms: float) -> bool:
        serving = holding.serving
        if not serving.is_idle and self.idling.is_due(serving, now_ms):
            serving.is_idle = True
            self._empty(holding)
            self._set_state(holding, "idle", self.idling.reason)
        return serving.is_idle

    def _wanted(self, holding: Holding) -> None:
        holding.plan_again_ms = 0.0
        self._set_state(holding, "placing", "")
        self.look()

    def _empty(self, holding: Holding) -> None:
        """No node shall hold anything of a deployment any more."""
        for node_id in holding.nodes():
            for name in holding.names_on(node_id):
                self._drains.let_go(node_id, name)
            self._drop(holding, node_id)
        self._fleet.memory_changed()

    def _follow(self, holding: Holding, plan: Plan) -> None:
        holding.plan = plan
        holding.chosen(plan.placements)
        fresh = [
            (placement.slice_index, placement.node_id)
            for placement in plan.placements
            if not holding.has(placement.slice_index, placement.node_id)
        ]
        for index, node_id in fresh:
            holding.assign(index, node_id, self._clock())
        holding.stuck = only_on_leaving(holding, self._drains)
        if fresh:
            self._fleet.memory_changed()
            # Everybody learns the new peers; preparing again what is loaded changes nothing else.
            for node_id in holding.nodes():
                for index in holding.indexes_on(node_id):
                    self._prepare(holding, index, node_id)
        self._settle(holding)

    def _refused(self, holding: Holding, known: Known, refusal: CannotPlace) -> None:
        holding.stuck = only_on_leaving(holding, self._drains)
        # A node that could not load it says more than "left out for now".
        told = holding.cut_refusal or holding.latest_error() or refusal
        message = refusal.message if told is refusal else f"{told.message}\n{refusal.message}"
        holding.hint, holding.error_code = told.hint, told.code
        self._settle(holding, message)
        needed = max((part.memory_mib for part in holding.partition.slices), default=0)
        # Who holds it and is only suspect, or failed and will be asked again, is waited for.
        is_hopeless = not holding.nodes() and not known.excluded
        is_hopeless = is_hopeless and not self._drains.is_kept(holding.slice_names())
        if holding.may_be_cut and is_hopeless and holding.is_only_memory(refusal):
            holding.may_be_cut = not self.on_too_large(holding.record, needed)

    def _prepare(self, holding: Holding, index: int, node_id: NodeId) -> None:
        try:
            is_sent = self._sender.send(node_id, self._orders.prepare(holding, index, node_id))
        except DinError as error:  # no key for this node, or too much for one frame
            holding.failed(index, node_id, error, self._clock())
            is_sent = False
        if not is_sent:
            name = holding.partition.slices[index].name
            self._report("slice not sent", node=node_id, slice=name)

    def _serve(self, holding: Holding, index: int, node_id: NodeId) -> None:
        numerics = self._fleet.table().numerics(node_id, holding.partition.slices[index])
        holding.serving.add(index, node_id, is_local=self._is_local(node_id), numerics=numerics)

    def _drop(self, holding: Holding, node_id: NodeId) -> None:
        """A node shall hold nothing of a deployment any more."""
        if not holding.indexes_on(node_id):
            return
        holding.forget_node(node_id)
        holding.serving.drop_node(node_id)
        self._leftovers.unload(node_id, holding.serving.deployment.epoch)

    def _has(self, node_id: NodeId, epoch: Epoch) -> bool:
        holding = self._holdings.get(epoch)
        return holding is not None and bool(holding.indexes_on(node_id))

    def _settle(self, holding: Holding, refusal: str = "") -> None:
        """Set the state from what is ready, and tell who waits."""
        serving = holding.serving
        state = serving.deployment.state
        if state in ("failed", "idle"):
            return
        if serving.is_complete:
            self._set_state(holding, "ready", "")
            return
        reason = refusal or holding.trouble()
        if state in ("ready", "degraded"):
            self._set_state(holding, "degraded", reason)
        else:
            is_placed = not refusal and bool(holding.nodes())
            self._set_state(holding, "loading" if is_placed else "placing", reason)

    def _set_state(self, holding: Holding, state: DeploymentState, reason: str) -> None:
        serving = holding.serving
        before = serving.deployment.state
        serving.deployment = replace(
            serving.deployment, state=state, reason=reason, replicas=holding.replicas()
        )
        if state == "ready":
            holding.hint, holding.error_code, serving.is_returning = "", "", False
        serving.notify()
        if before != state:
            manifest = serving.deployment.manifest
            self._report("deployment", model=manifest.model_id, state=state, reason=reason)
            if state == "ready":
                self.on_ready(serving)
            elif state == "failed":
                self.on_failed(serving)
