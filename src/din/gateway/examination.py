"""What the fronts ask of an examiner: by a model's id, for a caller, written down in the audit log.

Wires the rooms that look at models; `gateway.core` holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace as with_other
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from din.access.scopes import owns
from din.domain.probe import PROBED
from din.domain.profile import (
    Profile,
    ProfileModel,
    ProfileView,
    VerifyModel,
    VerifyView,
    device_class_of,
)
from din.domain.trust import GATEWAY, Caller
from din.errors import Denied
from din.gateway.live_factors import pairs_of
from din.gateway.probing.examining import Examiner, ExaminerRooms
from din.gateway.probing.probes import ProbeRooms, Probes
from din.gateway.registration.encoding import Encoder
from din.gateway.registration.foreign import check_file
from din.gateway.registration.models import ModelBook
from din.gateway.registration.record import ModelRecord
from din.gateway.registration.trial import EncodingRooms
from din.gateway.requests.request_tools import RequestTools
from din.gateway.telemetry.metrics import GatewayMetrics
from din.gateway.telemetry.traces import TraceBook
from din.gateway.trust.audit import AuditLog

if TYPE_CHECKING:
    from din.gateway.core import Gateway


def probes_of(gateway: Gateway, tools: RequestTools) -> Probes:
    """Probes by the machinery of a gateway. Nobody asked them: no trace or count has them."""
    effects = gateway.effects
    own = with_other(
        tools,
        traces=TraceBook(gateway.fleet.name_of, effects.wall_clock_iso),
        metrics=GatewayMetrics(),
    )
    bits = effects.random.getrandbits
    return Probes(ProbeRooms(gateway.deployer, own, gateway.timeouts, gateway.epochs, bits))


def examiner_of(gateway: Gateway) -> Examiner:
    """Who looks at the models of a gateway, by its probes."""
    return Examiner(
        ExaminerRooms(
            probes=gateway.probes,
            profiles=gateway.profiles,
            carve=gateway.models.builder.carve,
            borrowing=gateway.models.keeper.borrowing,
            fleet_nodes=gateway.fleet.fleet_nodes,
            wall_clock_iso=gateway.effects.wall_clock_iso,
            table=gateway.cutter.table,
            live_pairs=partial(_live_pairs, gateway),
        )
    )


def encoder_of(gateway: Gateway) -> Encoder:
    """Who decides about encodings in a gateway, by its probes and by what it knows of ways."""
    effects = gateway.effects
    return Encoder(
        EncodingRooms(
            examiner=gateway.examiner,
            fleet_nodes=gateway.fleet.fleet_nodes,
            known_ways=gateway.ways.known,
            read=effects.carving.read,
            wall_clock_iso=effects.wall_clock_iso,
        )
    )


def _live_pairs(
    gateway: Gateway, record: ModelRecord, profile: Profile, times: Sequence[float]
) -> list[tuple[float, float]]:
    holding = next((each for each in gateway.deployer.holdings() if each.record is record), None)
    if holding is None:
        return []
    alike = {
        node.profile.node_id
        for node in gateway.fleet.fleet_nodes()
        if device_class_of(node.profile, PROBED) == profile.device
    }
    return list(pairs_of(holding, profile, times, alike, gateway.effects.clock()))


class Examination:
    """Implements service.ExamineService."""

    def __init__(
        self, models: ModelBook, examiner: Examiner, audit: AuditLog | None = None
    ) -> None:
        self._models = models
        self._examiner = examiner
        self._audit = audit

    async def profile_model(
        self,
        model_id: str,
        version: str | None,
        asked: ProfileModel,
        caller: Caller = GATEWAY,
    ) -> ProfileView:
        """See ExamineService."""
        record = self._owned(model_id, version, caller)
        check_file(record.order, record.partition.slices, "profiled")
        async with self._noted(caller, "model.profile", record):
            return await self._examiner.profile(record, asked)

    async def verify_model(
        self,
        model_id: str,
        version: str | None,
        asked: VerifyModel,
        caller: Caller = GATEWAY,
    ) -> VerifyView:
        """See ExamineService."""
        record = self._owned(model_id, version, caller)
        async with self._noted(caller, "model.verify", record):
            found = await self._examiner.verify(record, asked)
            rewrite = await self._examiner.compare_again(record, asked)
            await self._models.verified(record, replace(found, report=None), rewrite)
        return VerifyView(
            model_id=record.manifest.model_id,
            version=record.manifest.version,
            verification=found,
            rewrite=rewrite,
        )

    def _owned(self, model_id: str, version: str | None, caller: Caller) -> ModelRecord:
        record = self._models.record(model_id, version)
        if not owns(caller, record.manifest.tenant):
            raise Denied(
                f"model {model_id!r} belongs to tenant {record.manifest.tenant!r}",
                hint="a key of that tenant, or one with scope admin, may have it looked at",
            )
        return record

    def _noted(
        self, caller: Caller, what: str, record: ModelRecord
    ) -> AbstractAsyncContextManager[None]:
        """A probe takes a node's memory and time: who had it run is written down."""
        if self._audit is None:
            return nullcontext()
        facts = {"version": record.manifest.version}
        return self._audit.change(caller, what, record.manifest.model_id, after=facts)
