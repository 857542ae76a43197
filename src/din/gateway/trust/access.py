"""Keys and the audit log, as the control API offers them: every change is written down first."""

from __future__ import annotations

import msgspec

from din.access.keys import check_key_order
from din.domain.audit import AuditCheck, AuditList, AuditQuery
from din.domain.keys import CreateKey, KeyCreated, KeyList, KeyView
from din.domain.trust import Caller
from din.gateway.trust.audit import AuditLog
from din.gateway.trust.keys import KeyBook


class GatewayAccess:
    """Implements service.AccessService."""

    def __init__(self, keys: KeyBook, audit: AuditLog) -> None:
        self._keys = keys
        self._audit = audit

    async def create_key(self, order: CreateKey, caller: Caller) -> KeyCreated:
        """See AccessService."""
        check_key_order(order)
        facts = msgspec.structs.asdict(order)
        async with self._audit.change(caller, "key.create", order.name, after=facts):
            made = await self._keys.create(order, f"{caller.kind} {caller.name}".strip())
        self._audit.note(caller, "key.created", made.view.id, after={"name": order.name})
        return made

    def list_keys(self) -> KeyList:
        """See AccessService."""
        return self._keys.list()

    async def revoke_key(self, id_or_name: str, caller: Caller) -> KeyView:
        """See AccessService."""
        before = self._keys.find(id_or_name)
        facts = msgspec.to_builtins(before)
        async with self._audit.change(
            caller, "key.revoke", before.id, before=facts, after={"state": "revoked"}
        ):
            return await self._keys.revoke(before.id)

    async def audit(self, query: AuditQuery) -> AuditList:
        """See AccessService."""
        return await self._audit.query(query)

    async def check_audit(self) -> AuditCheck:
        """See AccessService."""
        return await self._audit.check()
