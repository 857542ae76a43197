"""Joins and tokens are written down before they are made."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from din.domain.audit import AuditQuery
from din.domain.enrolment import CreateToken, JoinOrder
from din.domain.trust import Caller, Peer
from din.errors import Denied, Unavailable
from din.gateway.audit import AuditLog
from din.gateway.enrolment import Enrolment
from din.gateway.roll import Roll
from din.gateway.tokens import TokenBook
from din.store.sqlite import SqliteStore
from din.trust.authority import open_authority
from din.trust.requests import new_key_pem, signing_request

NODE_ID = "00000000000000aa"
ADMIN = Caller(kind="local", address="127.0.0.1")
MACHINE = Peer("10.0.0.9", is_tls=True)


def now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def _full(_descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_tokens_and_joins_are_written_down_and_refused_when_they_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        store = SqliteStore(tmp_path / "store.sqlite", now_ms)
        await store.open()
        audit = AuditLog(tmp_path / "audit", lambda: "now", lambda: 0.0, lambda *_, **__: None)
        await audit.open()
        enrolment = Enrolment(
            authority=open_authority(tmp_path / "trust", "default", datetime.now(UTC)),
            tokens=TokenBook(store, now_ms),
            roll=Roll(store, now_ms),
            session_of=lambda _: None,
            cluster="default",
            gateway_id="00000000000000ff",
            gateways=lambda: ("https://10.0.0.1:8443",),
            now_ms=now_ms,
            audit=audit,
            signing_key="",
        )
        try:
            await tell(enrolment, audit)
        finally:
            await audit.close()
            await store.close()
        (path,) = (tmp_path / "audit").glob("*.jsonl")
        told.append(path.read_bytes())

    async def tell(enrolment: Enrolment, audit: AuditLog) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", _full)
            with pytest.raises(Unavailable, match=r"token\.create"):
                await enrolment.create_token(CreateToken(), ADMIN)
        assert await enrolment.tokens() == ()
        made = await enrolment.create_token(CreateToken(), ADMIN)
        secret = made.token.rpartition(".")[2]
        secrets.append(secret.encode())
        order = JoinOrder(
            token_id=made.id,
            secret=secret,
            node_id=NODE_ID,
            name="edge-1",
            request=signing_request(new_key_pem()).decode(),
        )
        wrong = msgspec.structs.replace(order, secret="A" * len(secret))
        with pytest.raises(Denied):
            await enrolment.join(wrong, MACHINE)
        await enrolment.join(order, MACHINE)
        whole = await audit.query(AuditQuery())
        seen = [(each.entry.what, each.entry.address) for each in reversed(whole.items)]
        assert ("token.create", "127.0.0.1") in seen
        assert ("node.enrol", "10.0.0.9") in seen
        (joined,) = (await audit.query(AuditQuery(what="node.enrol"))).items
        assert joined.entry.after["token_id"] == made.id

    told: list[bytes] = []
    secrets: list[bytes] = []
    asyncio.run(story())
    assert b"access.refuse" in told[0]
    assert secrets[0] not in told[0]
