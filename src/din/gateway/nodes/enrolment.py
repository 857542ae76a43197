"""How machines get certificates: a token joins one, its certificate renews itself.

The authority signs what this room has checked: the token, that no other key holds the node id, that
the node was not thrown out. `docs/decisions/0009-trust.md` has the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from math import ceil
from typing import Final

from din.access.limits import FailureLimiter
from din.domain.enrolment import (
    CreateToken,
    Enrolled,
    JoinOrder,
    NewToken,
    RenewOrder,
    TokenView,
)
from din.domain.node import NodeId
from din.domain.trust import GATEWAY, Caller, Peer, PeerName
from din.errors import Busy, Conflict, Denied, Limited, TooLarge
from din.gateway.nodes.labels import LABELS_MAX, check_label
from din.gateway.nodes.roll import Binding, Roll
from din.gateway.nodes.tokens import TokenBook
from din.gateway.trust.audit import AuditLog
from din.trust.authority import CERTIFICATE_LIFE, Authority
from din.trust.requests import key_digest, public_key_bytes, public_key_of_request

JOINS_AT_ONCE_MAX: Final = 16
DAY_MS: Final = 24 * 3600 * 1000
JOIN_ANEW: Final = "join the machine anew with a token: din node join -; it keeps its id"


class Enrolment:
    """The gateway's side of joining. Times are wall clock: certificates need it."""

    def __init__(
        self,
        *,
        authority: Authority,
        tokens: TokenBook,
        roll: Roll,
        session_of: Callable[[NodeId], int | None],
        cluster: str,
        gateway_id: str,
        gateways: Callable[[], tuple[str, ...]],
        now_ms: Callable[[], int],
        audit: AuditLog,
        signing_key: str,
        late_renewal_ms: int,
        clock_ms: Callable[[], float],
        count: Callable[[str], None],
    ) -> None:
        """`late_renewal_ms`: how long after its end a certificate may still be renewed; `clock_ms`
        is monotonic; `count` hears the reason of each refusal."""
        self._authority = authority
        self._tokens = tokens
        self._roll = roll
        self._session_of = session_of
        self._cluster = cluster
        self._gateway_id = gateway_id
        self._gateways = gateways
        self._now_ms = now_ms
        self._audit = audit
        self._signing_key = signing_key
        self._late_renewal_ms = late_renewal_ms
        self._clock_ms = clock_ms
        self._count = count
        self._failures = FailureLimiter()
        self._joins = 0

    def authority_pem(self) -> bytes:
        """What joining machines compare with the hash in their token."""
        return self._authority.pem

    async def create_token(self, order: CreateToken, caller: Caller) -> NewToken:
        """A token for one machine. Raises Busy when there are too many, UsageError for a label that
        none is, TooLarge for more of them than a node has."""
        if len(order.labels) > LABELS_MAX:
            raise TooLarge(f"{len(order.labels)} labels", hint=f"a node has at most {LABELS_MAX}")
        for name, text in order.labels.items():
            check_label(name, text)
        facts = {"ttl_s": order.ttl_s, "labels": order.labels}
        async with self._audit.change(caller, "token.create", "", after=facts):
            token = await self._tokens.create(order, self._authority.sha256)
        self._audit.note(caller, "token.created", token.id)
        return NewToken(
            id=token.id,
            token=token.text,
            ttl_s=order.ttl_s,
            labels=dict(order.labels),
            gateways=self._gateways(),
        )

    async def tokens(self) -> tuple[TokenView, ...]:
        """All tokens without their secrets."""
        return await self._tokens.list()

    async def revoke_token(self, beginning: str, caller: Caller) -> TokenView:
        """What the token was. Raises NotFound, or Conflict when several ids begin so."""
        token = await self._tokens.find(beginning)
        async with self._audit.change(caller, "token.revoke", token.id):
            await self._tokens.revoke(token.id)
        return token

    async def join(self, order: JoinOrder, peer: Peer) -> Enrolled:
        """A certificate for the machine that shows a token. Raises Denied, UsageError, Busy, or
        Limited when too many joins of its address were refused; a right token is never."""
        if not peer.is_tls:
            raise Denied("a machine joins over TLS only", hint="use the gateway's https address")
        if self._joins >= JOINS_AT_ONCE_MAX:
            raise Busy(f"{self._joins} machines are joining at this moment", hint="try again")
        self._joins += 1
        try:
            return await self._join(order, peer)
        except Denied as error:
            self._refused(order, peer, error)
            raise
        finally:
            self._joins -= 1

    def _refused(self, order: JoinOrder, peer: Peer, error: Denied) -> None:
        """Write a refusal down. Raises Limited instead when there were too many: those are only
        counted, so that guessing fills no log."""
        self._count("token")
        wait_ms = self._failures.fail(peer.address, self._clock_ms())
        if wait_ms:
            self._count("limited")
            wait_s = ceil(wait_ms / 1000)
            raise Limited(
                f"too many joins from {peer.address} were refused within a minute, the last since "
                f"{error.message}",
                hint=f"use a fresh token (din token create on the gateway), or wait {wait_s} s",
                retry_after_s=wait_s,
            ) from None
        caller = Caller(kind="stranger", address=peer.address)
        self._audit.refused(caller, error.message, f"node.enrol {order.node_id}")

    async def _join(self, order: JoinOrder, peer: Peer) -> Enrolled:
        use = await self._tokens.check(order.token_id, order.secret)
        key = public_key_of_request(order.request.encode())
        digest = key_digest(key)
        self._roll.check_free(order.node_id, digest)
        is_new = self._roll.binding(order.node_id) is None
        if is_new and self._session_of(NodeId(order.node_id)) is not None:
            raise Conflict(
                f"node {order.node_id} is a member now, without a certificate",
                hint="stop that node, then join; it keeps its id",
            )
        caller = Caller(kind="node", name=order.node_id, address=peer.address)
        binding = Binding(digest, order.name, use.labels, public_key_bytes(key))
        facts = {"name": order.name, "token_id": use.id, "labels": use.labels}
        async with self._audit.change(caller, "node.enrol", order.node_id, after=facts):
            await self._tokens.use(use, order.node_id, digest)
            await self._roll.bind(order.node_id, binding, is_repeated=use.is_repeated)
        return self._enrolled(order.request, order.node_id)

    async def enrol_own(self, request: str, node_id: str, name: str) -> Enrolled:
        """A certificate for the node of the gateway's own user on its machine, who could read the
        authority's key: a token would prove no more. Raises Denied when another key holds the id
        or the node was revoked."""
        key = public_key_of_request(request.encode())
        digest = key_digest(key)
        self._roll.check_free(node_id, digest)
        before = self._roll.binding(node_id)
        is_renamed = before is not None and before.name != name and not self._roll.owner_of(name)
        if before is None or not before.is_own or is_renamed:
            binding = Binding(digest, name, {}, public_key_bytes(key), is_own=True)
            facts = {"name": name, "own": True}
            async with self._audit.change(GATEWAY, "node.enrol", node_id, after=facts):
                await self._roll.bind(node_id, binding, is_repeated=True)
        return self._enrolled(request, node_id)

    async def renew(self, order: RenewOrder, peer: Peer) -> Enrolled:
        """A new certificate for the key that the roll holds under this name, and with which the
        connection was made. One that has ended may be renewed for a while: that is written down.
        Raises Denied."""
        name = peer.name or (peer.lapsed.name if peer.lapsed is not None else None)
        if name is None or name.role != "node":
            raise Denied("only a node with a certificate can renew one", hint="din node join -")
        caller = Caller(kind="node", name=name.id, address=peer.address)
        try:
            self._check_renewal(order, peer, name)
        except Denied as error:
            self._audit.refused(caller, error.message, f"node.renew {name.id}")
            raise
        if peer.lapsed is None:
            return self._enrolled(order.request, name.id)
        facts = {"late_s": (self._now_ms() - peer.lapsed.ended_ms) // 1000}
        async with self._audit.change(caller, "node.renew", name.id, after=facts):
            return self._enrolled(order.request, name.id)

    def _check_renewal(self, order: RenewOrder, peer: Peer, name: PeerName) -> None:
        # The handshake has proved the key, whether the certificate has ended or not.
        self._roll.check_claim(Peer(peer.address, is_tls=peer.is_tls, name=name), name.id)
        binding = self._roll.binding(name.id)
        digest = key_digest(public_key_of_request(order.request.encode()))
        if binding is None or binding.key_sha256 != digest:
            raise Denied(
                f"node {name.id} asks for a certificate on another key than it joined with",
                hint=JOIN_ANEW,
            )
        late_ms = self._now_ms() - peer.lapsed.ended_ms if peer.lapsed is not None else 0
        if late_ms > self._late_renewal_ms:
            raise Denied(
                f"the certificate of node {name.id} ended {late_ms / DAY_MS:.1f} days ago, and is "
                f"renewed for {self._late_renewal_ms / DAY_MS:g} days after its end",
                hint=JOIN_ANEW,
            )

    def _enrolled(self, request: str, node_id: str) -> Enrolled:
        begins_ms = self._now_ms()
        binding = self._roll.binding(node_id)
        certificate = self._authority.issue(
            public_key_of_request(request.encode()),
            PeerName(self._cluster, "node", node_id),
            datetime.fromtimestamp(begins_ms / 1000, UTC),
        )
        return Enrolled(
            certificate=certificate.decode(),
            cluster=self._cluster,
            gateway_id=self._gateway_id,
            gateways=self._gateways(),
            signing_key=self._signing_key,
            begins_ms=begins_ms,
            ends_ms=begins_ms + int(CERTIFICATE_LIFE.total_seconds() * 1000),
            name=binding.name if binding is not None else "",
        )
