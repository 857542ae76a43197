"""What the fronts ask of an examiner: by a model's id, for a caller, written down in the audit log.

Wires the rooms that look at models; `gateway.core` holds it.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

from msgspec.structs import replace

from din.access.scopes import owns
from din.domain.profile import ProfileModel, ProfileView, VerifyModel, VerifyView
from din.domain.trust import GATEWAY, Caller
from din.errors import Denied
from din.gateway.audit import AuditLog
from din.gateway.examining import Examiner
from din.gateway.models import ModelBook
from din.gateway.record import ModelRecord


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
            await self._models.verified(record, replace(found, report=None))
        manifest = record.manifest
        return VerifyView(model_id=manifest.model_id, version=manifest.version, verification=found)

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
