"""The gateway's side of joining with a real store, authority and audit log, and a clock to turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from din.domain.audit import AuditFact, AuditQuery
from din.domain.enrolment import CreateToken, Enrolled, JoinOrder, RenewOrder
from din.domain.trust import Caller, Lapsed, Peer, PeerName
from din.gateway.nodes.enrolment import Enrolment
from din.gateway.nodes.roll import Roll
from din.gateway.nodes.tokens import TokenBook
from din.gateway.trust.audit import AuditLog
from din.store.sqlite import SqliteStore
from din.trust.authority import open_authority
from din.trust.requests import new_key_pem, signing_request

DAY_MS = 24 * 3600 * 1000
CLUSTER = "plant"
NODE_ID = "00000000000000aa"
OTHER_ID = "00000000000000bb"
GATEWAY_ID = "00000000000000ff"
ADMIN = Caller(kind="local", address="127.0.0.1")
MACHINE = Peer("10.0.0.9", is_tls=True)


class Desk:
    """Made by `at_desk`."""

    def __init__(self, folder: Path) -> None:
        self.now_ms = int(datetime.now(UTC).timestamp() * 1000)
        self.uptime_ms = 0.0
        self.members: dict[str, int] = {}
        self.counted: list[str] = []
        self.store = SqliteStore(folder / "store.sqlite", lambda: self.now_ms)
        self.tokens = TokenBook(self.store, lambda: self.now_ms)
        self.roll = Roll(self.store, lambda: self.now_ms)
        self.audit = AuditLog(
            folder / "audit", lambda: "now", lambda: self.uptime_ms, lambda *_, **__: None
        )
        self.enrolment = self.made(folder)

    def made(self, folder: Path, **others: Any) -> Enrolment:
        facts: dict[str, Any] = {
            "authority": open_authority(folder / "trust", CLUSTER, datetime.now(UTC)),
            "tokens": self.tokens,
            "roll": self.roll,
            "session_of": self.members.get,
            "cluster": CLUSTER,
            "gateway_id": GATEWAY_ID,
            "gateways": lambda: ("https://10.0.0.1:8443",),
            "now_ms": lambda: self.now_ms,
            "audit": self.audit,
            "signing_key": "",
            "late_renewal_ms": 30 * DAY_MS,
            "clock_ms": lambda: self.uptime_ms,
            "count": self.counted.append,
        }
        return Enrolment(**{**facts, **others})

    async def token(self, **order: Any) -> tuple[str, str]:
        """Id and secret of a new token."""
        made = await self.enrolment.create_token(CreateToken(**order), ADMIN)
        return made.id, made.token.rpartition(".")[2]

    async def join(
        self, key: bytes, node_id: str = NODE_ID, peer: Peer = MACHINE, **order: Any
    ) -> Enrolled:
        token_id, secret = await self.token(**order)
        return await self.enrolment.join(join_order(token_id, secret, key, node_id), peer)

    async def audited(self, what: str) -> list[AuditFact]:
        """Oldest first, with what is still on its way to the disk."""
        while (writing := self.audit._writing) is not None:  # pyright: ignore[reportPrivateUsage]
            await asyncio.wait({writing})
        return [each.entry for each in reversed((await self.audit.query(query(what))).items)]


def query(what: str) -> AuditQuery:
    return AuditQuery(what=what, limit=1000)


def join_order(
    token_id: str, secret: str, key: bytes | None = None, node_id: str = NODE_ID
) -> JoinOrder:
    request = signing_request(key or new_key_pem()).decode()
    return JoinOrder(
        token_id=token_id, secret=secret, node_id=node_id, name="edge-1", request=request
    )


def renew_order(key: bytes) -> RenewOrder:
    return RenewOrder(request=signing_request(key).decode())


def named(node_id: str = NODE_ID, peer: Peer = MACHINE) -> Peer:
    """The peer with a certificate that counts."""
    return replace(peer, name=PeerName(CLUSTER, "node", node_id))


def lapsed(ended_ms: int, node_id: str = NODE_ID, peer: Peer = MACHINE) -> Peer:
    """The peer with a certificate that has ended."""
    return replace(peer, lapsed=Lapsed(PeerName(CLUSTER, "node", node_id), ended_ms))


def at_desk(folder: Path, story: Callable[[Desk], Awaitable[None]]) -> None:
    async def run() -> None:
        desk = Desk(folder)
        await desk.store.open()
        await desk.roll.load()
        await desk.audit.open()
        try:
            async with asyncio.timeout(60):
                await story(desk)
        finally:
            await desk.audit.close()
            await desk.store.close()

    asyncio.run(run())
