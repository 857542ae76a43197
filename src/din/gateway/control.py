"""What the fronts call: gateway.service's two surfaces over the gateway's rooms."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

import msgspec

from din.access.scopes import sees
from din.domain.enrolment import RevokedView
from din.domain.gateway_view import GatewayView
from din.domain.heat import HeatView
from din.domain.model import ModelManifest
from din.domain.plan import Plan
from din.domain.request import Trace
from din.domain.trust import GATEWAY, Caller, Peer
from din.domain.views import (
    CutsView,
    ModelList,
    ModelView,
    NodeList,
    NodeView,
    PlanSlices,
    RegisterModel,
    SliceAgainView,
)
from din.errors import NotFound
from din.gateway.core import Gateway
from din.gateway.draining import Draining
from din.gateway.ends import lift
from din.gateway.heating import heat_of
from din.gateway.planning import plan_now
from din.gateway.reslicing import cuts_of, slice_again
from din.gateway.revoking import revoke
from din.gateway.service import InferenceAnswer, InferenceCall, InferenceDone, Started
from din.gateway.trust.audit import AuditLog
from din.gateway.trying import plan_slices
from din.gateway.viewing import model_view, node_view
from din.version import __version__
from din.wire.registration import Admission, decode_registration, encode_answer

WATCH_PERIOD_S = 0.5
"""Server-sent events carry changes at most this often, however busy the fleet is."""


class GatewayService:
    """Implements service.InferenceService and service.ControlService."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        cluster: str,
        discovery_mode: str,
        state: str,
        audit: AuditLog | None = None,
        tls_url: Callable[[], str] = str,
        is_insecure_network: bool = False,
        is_key_required: bool = False,
    ) -> None:
        self._gateway = gateway
        self._draining = Draining(gateway)
        self._tls_url = tls_url
        self._is_insecure_network = is_insecure_network
        self._is_key_required = is_key_required
        self._cluster = cluster
        self._discovery_mode = discovery_mode
        self._state_path = state
        self._audit = audit
        """None for programs that hold a gateway without a disk."""

    # service.InferenceService.

    async def infer(self, call: InferenceCall) -> InferenceAnswer:
        """See InferenceService."""
        return await self._gateway.dispatch.infer(call)

    def start(self, call: InferenceCall, done: InferenceDone) -> Started | None:
        """See InferenceService."""
        return self._gateway.dispatch.start(call, done)

    def plan(self, model_id: str, version: str | None, *, is_adapted: bool) -> Plan:
        """See InferenceService: plans as if nothing were placed by chance, but keeps what is."""
        return plan_now(self._gateway, model_id, version, is_adapted=is_adapted)

    def manifest(self, model_id: str, version: str | None = None) -> ModelManifest:
        """See InferenceService."""
        return self._gateway.models.record(model_id, version).manifest

    def is_ready(self, model_id: str, version: str | None = None) -> bool:
        """See InferenceService."""
        gateway = self._gateway
        serving = gateway.models.serving(model_id, version)
        return serving.is_idle or all(
            any(gateway.fleet.is_routable(node) for node in serving.replicas(index))
            for index in serving.raw.slices
        )

    def is_gateway_ready(self) -> bool:
        """See InferenceService."""
        models = self._gateway.models
        is_stopping = self._gateway.dispatch.is_stopping
        try:
            return not is_stopping and all(self.is_ready(each) for each in models.model_ids())
        except NotFound:  # one is just being registered or removed
            return False

    def count_rejected(self, model_id: str, error_code: str) -> None:
        """See InferenceService."""
        self._gateway.effects.metrics.count_request(model_id, error_code, None)

    # service.ControlService: nodes.

    def gateway_view(self) -> GatewayView:
        """See ControlService."""
        cache = self._gateway.effects.carve_cache
        return GatewayView(
            gateway_id=self._gateway.effects.gateway_id,
            cluster=self._cluster,
            version=__version__,
            pid=os.getpid(),
            state_path=self._state_path,
            discovery_mode=self._discovery_mode,
            nodes=len(self._gateway.fleet.members()),
            models=len(self._gateway.models.model_ids()),
            tls_url=self._tls_url(),
            links=self._gateway.effects.terms().links,
            is_insecure_network=self._is_insecure_network,
            is_key_required=self._is_key_required,
            slicing_cache=cache.view() if cache is not None else None,
        )

    def list_nodes(self) -> NodeList:
        """See ControlService."""
        return NodeList(
            cluster=self._cluster,
            gateway_id=self._gateway.effects.gateway_id,
            discovery_mode=self._discovery_mode,
            is_insecure_network=self._is_insecure_network,
            items=tuple(
                node_view(self._gateway, member, is_whole=False)
                for member in self._gateway.fleet.members()
            ),
        )

    def inspect_node(self, name_or_id: str) -> NodeView:
        """See ControlService."""
        return self._draining.view(self._gateway.fleet.find(name_or_id).profile.node_id)

    async def heat_of_node(self, name_or_id: str, window_ms: int, core_mask: int) -> HeatView:
        """See ControlService."""
        return await heat_of(self._gateway, name_or_id, window_ms, core_mask)

    async def drain_node(
        self,
        name_or_id: str,
        caller: Caller = GATEWAY,
        *,
        is_forced: bool = False,
        is_dry_run: bool = False,
    ) -> NodeView:
        """See ControlService."""
        work = partial(self._draining.drain, is_forced=is_forced, is_dry_run=is_dry_run)
        if is_dry_run:
            return await work(name_or_id)
        node_id = self._gateway.fleet.find(name_or_id).profile.node_id
        facts = {"name": self._gateway.fleet.name_of(node_id), "forced": is_forced}
        async with self._change(caller, "node.drain", node_id, after=facts):
            return await work(node_id)

    async def undrain_node(self, name_or_id: str, caller: Caller = GATEWAY) -> NodeView:
        """See ControlService."""
        node_id = self._draining.drained(name_or_id)
        facts = {"name": self._gateway.fleet.name_of(node_id)}
        async with self._change(caller, "node.undrain", node_id, after=facts):
            return await self._draining.undrain(node_id)

    async def lift_node(self, name_or_id: str, caller: Caller = GATEWAY) -> NodeView:
        """See ControlService."""
        node_id = self._gateway.fleet.find(name_or_id).profile.node_id
        facts = {"name": self._gateway.fleet.name_of(node_id)}
        async with self._change(caller, "node.lift", node_id, after=facts):
            lift(self._gateway, node_id)
        return self._draining.view(node_id)

    async def revoke_node(
        self, name_or_id: str, caller: Caller = GATEWAY, *, is_dry_run: bool = False
    ) -> RevokedView:
        """See ControlService."""
        node_id, name = self._gateway.who(name_or_id)
        if is_dry_run:
            is_new = not self._gateway.roll.is_revoked(node_id)
            return RevokedView(node_id=node_id, name=name, is_new=is_new)
        async with self._change(caller, "node.revoke", node_id, before={"name": name}):
            return await revoke(self._gateway, node_id, name)

    async def label_node(
        self, name_or_id: str, changes: Mapping[str, str | None], caller: Caller = GATEWAY
    ) -> NodeView:
        """See ControlService."""
        gateway = self._gateway
        profile = gateway.fleet.find(name_or_id).profile
        labels = profile.labels
        by_token = tuple(gateway.roll.labels_of(profile.node_id))
        gateway.labels.check(profile, changes, by_token)
        before = {"labels": {name: labels.get(name) for name in changes}}
        after = {"name": profile.name, "labels": changes}
        async with self._change(caller, "node.label", profile.node_id, before=before, after=after):
            taken = [name for name, text in changes.items() if text is None]
            await gateway.roll.take_labels(profile.node_id, taken)
            relabelled = await gateway.labels.change(profile, changes, by_token)
        gateway.fleet.relabel(profile.node_id, relabelled.labels)
        gateway.deployer.look()
        return self.inspect_node(profile.node_id)

    def register_node(self, body: bytes, peer: Peer, sent_wall_ms: int | None) -> bytes:
        """See ControlService."""
        fleet = self._gateway.fleet
        registration = decode_registration(body)
        node_id, session = registration.profile.node_id, registration.profile.session
        is_new = not fleet.is_known(node_id)
        roll, labels = self._gateway.roll, self._gateway.labels
        now_ms = self._gateway.effects.wall_clock_ms()
        answer = fleet.register(
            registration,
            lambda each: labels.applied(roll.admitted(peer, each)),
            None if sent_wall_ms is None else sent_wall_ms - now_ms,
        )
        if is_new and fleet.is_known(node_id):
            self._note("node.join", node_id, peer.address)
        if isinstance(answer, Admission):
            answer = self._gateway.beats.offered(answer, peer, node_id, session)
        return encode_answer(answer)

    def deregister_node(self, node_id: str, session: int, peer: Peer) -> None:
        """See ControlService."""
        known_id = self._gateway.fleet.find(node_id).profile.node_id
        self._gateway.roll.check_claim(peer, known_id)
        self._gateway.fleet.left(known_id, session)
        self._note("node.leave", known_id, peer.address)

    async def remove_node(self, name_or_id: str, session: int, caller: Caller) -> None:
        """See ControlService."""
        node_id = self._gateway.fleet.find(name_or_id).profile.node_id
        async with self._change(caller, "node.remove", node_id):
            self._gateway.fleet.left(node_id, session, "was removed")

    def heartbeat(self, body: bytes, peer: Peer) -> bytes:
        """See ControlService."""
        gateway = self._gateway
        gateway.effects.metrics.heartbeats["http"] += 1
        return gateway.fleet.heartbeat(body, partial(gateway.roll.check_claim, peer))

    # Models.

    def list_models(self, caller: Caller = GATEWAY) -> ModelList:
        """See ControlService."""
        views = map(self.inspect_model, self._gateway.models.model_ids())
        return ModelList(items=tuple(each for each in views if sees(caller, each.tenant)))

    def inspect_model(self, model_id: str, version: str | None = None) -> ModelView:
        """See ControlService."""
        return model_view(self._gateway, self._gateway.models.record(model_id, version))

    def plan_slices(self, asked: PlanSlices) -> Plan:
        """See ControlService."""
        return plan_slices(self._gateway.fleet, asked)

    async def register_model(self, order: RegisterModel, caller: Caller = GATEWAY) -> ModelView:
        """See ControlService."""
        points = order.slicing_strategy.partition_points
        facts = {"source_sha256": order.source_sha256, "slices": points}
        what = "model.try" if order.is_dry_run else "model.register"
        before = self._version_of(order.model_id)
        async with self._change(caller, what, order.model_id, before=before, after=facts):
            record = await self._gateway.models.register(order, caller)
        self._gateway.effects.metrics.know_models(self._gateway.models.model_ids())
        return model_view(self._gateway, record)

    async def cuts_of_model(self, model_id: str, version: str | None = None) -> CutsView:
        """See ControlService."""
        return await cuts_of(self._gateway, model_id, version)

    async def slice_model(self, model_id: str, caller: Caller = GATEWAY) -> SliceAgainView:
        """See ControlService."""
        before = self._version_of(model_id)
        async with self._change(caller, "model.slice", model_id, before=before):
            return await slice_again(self._gateway, model_id, caller)

    async def remove_model(self, model_id: str, caller: Caller = GATEWAY) -> ModelView:
        """See ControlService."""
        view = self.inspect_model(model_id)
        facts = {"version": view.version, "state": view.state, "tenant": view.tenant}
        async with self._change(caller, "model.remove", view.model_id, before=facts):
            await self._gateway.models.remove(model_id, caller)
        self._gateway.effects.metrics.know_models(self._gateway.models.model_ids())
        return view

    # Traces.

    def list_traces(self, limit: int, caller: Caller = GATEWAY) -> tuple[Trace, ...]:
        """See ControlService."""
        return self._gateway.traces.newest(limit, caller)

    def trace(self, request_id: str, caller: Caller = GATEWAY) -> Trace:
        """See ControlService."""
        return self._gateway.traces.find(request_id, caller)

    # Artifacts.

    def has_artifact(self, sha256: str) -> int | None:
        """See ControlService."""
        return self._gateway.effects.artifacts.size(sha256)

    async def put_artifact(
        self,
        sha256: str,
        body: AsyncIterator[bytes],
        nbytes: int,
        *,
        is_encrypted: bool | None = None,
        start: int = 0,
    ) -> None:
        """See ControlService."""
        artifacts, vault = self._gateway.effects.artifacts, self._gateway.effects.vault
        sealer = None
        if vault.seals(is_encrypted):
            sealer = await asyncio.to_thread(vault.sealer, sha256, nbytes)
        await artifacts.put(sha256, body, nbytes, sealer, start)

    def uploaded_bytes(self, sha256: str) -> int:
        """See ControlService."""
        return self._gateway.effects.artifacts.uploaded_bytes(sha256)

    def artifact_path(self, sha256: str) -> str:
        """See ControlService."""
        return str(self._gateway.effects.artifacts.file(sha256))

    # Watching.

    def metrics_text(self) -> bytes:
        """See ControlService."""
        return self._gateway.effects.metrics.text()

    async def watch(self, caller: Caller = GATEWAY) -> AsyncIterator[tuple[str, bytes]]:
        """See ControlService: `nodes` and `models`, whole, whenever they changed."""
        before: dict[str, bytes] = {}
        while not self._gateway.dispatch.is_stopping:
            nodes, models = self.list_nodes(), self.list_models(caller)
            # The age of a heartbeat always grows: alone it is no news.
            aged = tuple(msgspec.structs.replace(each, heartbeat_age_ms=0) for each in nodes.items)
            still = msgspec.structs.replace(nodes, items=aged)
            for name, view, facts in (("nodes", nodes, still), ("models", models, models)):
                body = msgspec.json.encode(facts)
                if before.get(name) != body:
                    before[name] = body
                    yield name, msgspec.json.encode(view)
            await asyncio.sleep(WATCH_PERIOD_S)

    # Audit.

    def _change(
        self,
        caller: Caller,
        what: str,
        target: str,
        *,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> AbstractAsyncContextManager[None]:
        if self._audit is None:
            return nullcontext()
        return self._audit.change(caller, what, target, before=before, after=after)

    def _version_of(self, model_id: str) -> dict[str, str]:
        try:
            manifest = self._gateway.models.record(model_id).manifest
        except NotFound:
            return {}
        return {"version": manifest.version, "source_sha256": manifest.source_sha256}

    def _note(self, what: str, node_id: str, address: str) -> None:
        if self._audit is not None:
            caller = Caller(kind="node", name=node_id, address=address)
            facts = {"name": self._gateway.fleet.name_of(node_id)}
            self._audit.note(caller, what, node_id, after=facts)
