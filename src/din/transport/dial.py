"""Opening a link to a peer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from din.errors import DinError, Unreachable
from din.transport.handshake import greet
from din.transport.lane import Lane
from din.transport.limits import DEFAULT_LIMITS, LinkLimits
from din.transport.link import Link, LinkHandler, Report
from din.transport.sockets import Address, connect, parse_address, reason_of
from din.wire.messages import Hello, Welcome
from din.wire.messages import Lane as LaneName

DIAL_TIMEOUT_MS: Final = 5_000
ADDRESSES_MAX: Final = 16
"""Tried in one dial; the rest is ignored and said so."""


def ignore_reports(text: str, **facts: object) -> None:
    """The report callback of those who do not want one."""
    del text, facts


async def dial(
    addresses: Sequence[str],
    *,
    own_id: str,
    session: int,
    handler: LinkHandler,
    target_id: str = "",
    timeout_ms: int = DIAL_TIMEOUT_MS,
    limits: LinkLimits = DEFAULT_LIMITS,
    report: Report = ignore_reports,
) -> Link:
    """The first address that answers, in the given order, becomes a link; `on_open` was called.

    A `unix:` address is tried only where its file exists. Each address gets an equal part of what
    is left of `timeout_ms`. Raises Unreachable naming each address and its reason.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + timeout_ms / 1000
    reasons: list[str] = []
    for index, text in enumerate(addresses[:ADDRESSES_MAX]):
        share_s = (ends_at - loop.time()) / (min(len(addresses), ADDRESSES_MAX) - index)
        try:
            lanes, welcome, is_local = await _open(
                text, own_id, session, target_id, share_s, limits
            )
        except DinError as error:
            reasons.append(f"{text}: {error.message}")
            continue
        link = Link(
            welcome.node_id, welcome.session, lanes, handler, limits, report, is_local=is_local
        )
        link.start()
        return link
    who = target_id or "the peer"
    if len(addresses) > ADDRESSES_MAX:
        reasons.append(f"{len(addresses) - ADDRESSES_MAX} more addresses were not tried")
    raise Unreachable(
        f"{who} cannot be reached: {'; '.join(reasons) or 'it has no address'}",
        hint="is it running, and is its port open from here",
    )


async def _open(
    text: str, own_id: str, session: int, target_id: str, timeout_s: float, limits: LinkLimits
) -> tuple[tuple[Lane, Lane], Welcome, bool]:
    address = parse_address(text)
    if address.path and not await asyncio.to_thread(Path(address.path).exists):
        raise Unreachable("no such socket on this host")
    link_id = secrets.randbits(63)
    try:
        async with asyncio.timeout(timeout_s):
            lanes, welcome = await _both(address, own_id, session, target_id, link_id, limits)
    except TimeoutError:
        raise Unreachable(f"no answer within {max(timeout_s, 0) * 1000:.0f} ms") from None
    return lanes, welcome, bool(address.path)


async def _both(
    address: Address, own_id: str, session: int, target_id: str, link_id: int, limits: LinkLimits
) -> tuple[tuple[Lane, Lane], Welcome]:
    def hello(lane: LaneName) -> Hello:
        return Hello(own_id, session, lane, link_id, target_id=target_id)

    tasks = [
        asyncio.ensure_future(_one(address, hello(name), limits)) for name in ("urgent", "bulk")
    ]
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


async def _one(address: Address, hello: Hello, limits: LinkLimits) -> tuple[Lane, Welcome]:
    try:
        sock = await connect(address)
    except OSError as error:
        raise Unreachable(reason_of(error)) from error
    return await greet(sock, hello, limits, is_local=bool(address.path))


async def _give_up(tasks: Sequence[asyncio.Future[tuple[Lane, Welcome]]]) -> None:
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(ended, BaseException):
            ended[0].close()
