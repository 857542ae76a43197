"""Opening a link to a peer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from din.domain.trust import Role
from din.errors import DinError, Unreachable
from din.transport.handshake import greet
from din.transport.lane import Lane
from din.transport.limits import DEFAULT_LIMITS, LinkLimits
from din.transport.link import Link, LinkHandler, Report
from din.transport.sockets import Address, SocketLike, connect, parse_address, reason_of
from din.transport.tls_handshake import secure
from din.transport.tls_identity import TlsIdentity
from din.wire.messages import Hello, Welcome
from din.wire.messages import Lane as LaneName

DIAL_TIMEOUT_MS: Final = 5_000
ADDRESSES_MAX: Final = 16
"""Tried in one dial; the rest is ignored and said so."""


def ignore_reports(text: str, **facts: object) -> None:
    """The report callback of those who do not want one."""
    del text, facts


class _Call(Struct, frozen=True, kw_only=True):
    """Whom one link is for, and who asks."""

    own_id: str
    session: int
    target_id: str
    target_role: Role
    tls: TlsIdentity | None
    limits: LinkLimits
    link_id: int

    def hello(self, lane: LaneName) -> Hello:
        """The first frame of one lane."""
        return Hello(self.own_id, self.session, lane, self.link_id, target_id=self.target_id)


async def dial(
    addresses: Sequence[str],
    *,
    own_id: str,
    session: int,
    handler: LinkHandler,
    target_id: str = "",
    target_role: Role = "gateway",
    tls: TlsIdentity | None = None,
    timeout_ms: int = DIAL_TIMEOUT_MS,
    limits: LinkLimits = DEFAULT_LIMITS,
    report: Report = ignore_reports,
) -> Link:
    """The first address that answers, in the given order, becomes a link; `on_open` was called.

    A `unix:` address is tried only where its file exists, and is never encrypted: a program of our
    user must listen there, since others may make a file of that name. A `tcp:` address is encrypted
    when there is an identity, and plain otherwise; nothing is said to a peer whose certificate has
    another role or id. Each address gets an equal part of what is left of
    `timeout_ms`. Raises Unreachable naming each address and its reason.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + timeout_ms / 1000
    reasons: list[str] = []
    for index, text in enumerate(addresses[:ADDRESSES_MAX]):
        share_s = (ends_at - loop.time()) / (min(len(addresses), ADDRESSES_MAX) - index)
        call = _Call(
            own_id=own_id,
            session=session,
            target_id=target_id,
            target_role=target_role,
            tls=tls,
            limits=limits,
            link_id=secrets.randbits(63),
        )
        try:
            lanes, welcome, is_local = await _open(text, call, share_s)
        except DinError as error:
            reasons.append(f"{text}: {error.message}")
            continue
        link = Link(
            welcome.node_id, welcome.session, lanes, handler, limits, report, is_local=is_local
        )
        link.start()
        return link
    raise _unreached(target_id or "the peer", len(addresses), reasons)


def _unreached(who: str, count: int, reasons: list[str]) -> Unreachable:
    if count > ADDRESSES_MAX:
        reasons.append(f"{count - ADDRESSES_MAX} more addresses were not tried")
    return Unreachable(
        f"{who} cannot be reached: {'; '.join(reasons) or 'it has no address'}",
        hint="is it running, and is its port open from here",
    )


async def _open(
    text: str, call: _Call, timeout_s: float
) -> tuple[tuple[Lane, Lane], Welcome, bool]:
    address = parse_address(text)
    if address.path and not await asyncio.to_thread(_is_there, Path(address.path)):
        raise Unreachable("no such socket on this host, or another user's")
    try:
        async with asyncio.timeout(timeout_s):
            lanes, welcome = await _both(address, call)
    except TimeoutError:
        raise Unreachable(f"no answer within {max(timeout_s, 0) * 1000:.0f} ms") from None
    return lanes, welcome, bool(address.path)


def _is_there(path: Path) -> bool:
    """Unlike Path.exists, False for what another user's directory hides."""
    try:
        path.stat()
    except OSError:
        return False
    return True


async def _both(address: Address, call: _Call) -> tuple[tuple[Lane, Lane], Welcome]:
    tasks = [asyncio.ensure_future(_one(address, call, name)) for name in ("urgent", "bulk")]
    try:
        (urgent, welcome), (bulk, other) = await asyncio.gather(*tasks)
    except BaseException:
        await _give_up(tasks)
        raise
    if (welcome.node_id, welcome.session) != (other.node_id, other.session):
        urgent.close()
        bulk.close()
        raise Unreachable(f"two peers answered: {welcome.node_id!r} and {other.node_id!r}")
    return (urgent, bulk), welcome


async def _one(address: Address, call: _Call, lane: LaneName) -> tuple[Lane, Welcome]:
    try:
        sock: SocketLike = await connect(address)
    except OSError as error:
        raise Unreachable(reason_of(error)) from error
    hello = call.hello(lane)
    if call.tls is not None and not address.path:
        secured = await secure(sock, call.tls.client(), is_server=False)
        try:
            found = call.tls.check(secured, call.target_role, call.target_id)
        except DinError:
            secured.close()
            raise
        # The Welcome must come from whom the certificate names.
        sock, hello = secured, replace(hello, target_id=found)
    return await greet(sock, hello, call.limits, is_local=bool(address.path))


async def _give_up(tasks: Sequence[asyncio.Future[tuple[Lane, Welcome]]]) -> None:
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(ended, BaseException):
            ended[0].close()
