"""Whom an HTTP connection comes from: its address, and the name in its certificate."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final, cast

from starlette.requests import Request

from din.api.admission import Visit
from din.domain.trust import Caller, Lapsed, Peer
from din.system.clock import wall_clock_ms
from din.transport.tls import certificate_end_ms, peer_name

SCOPE_KEY: Final = "din.visitor"
"""Where the ASGI scope holds its connection's Visitor; once admitted, the request's Visit."""


def peer_of_transport(transport: asyncio.BaseTransport) -> Peer:
    """Who it is by a certificate that counts now, or whom one names that has ended.

    The TLS port lets ended ones in so that they can be renewed: here they are told apart. Raises
    Denied when a certificate of our authority holds no name of DIN's or has not begun.
    """
    found: Any = transport.get_extra_info("peername")
    address = str(found[0]) if isinstance(found, tuple) else ""
    connection = cast("ssl.SSLObject | None", transport.get_extra_info("ssl_object"))
    if connection is None:
        return Peer(address)
    name = peer_name(connection)
    if name is None:
        return Peer(address, is_tls=True)
    now_ms = wall_clock_ms()
    ends_ms = certificate_end_ms(connection, now_ms)
    if ends_ms <= now_ms:
        return Peer(address, is_tls=True, lapsed=Lapsed(name, ends_ms))
    return Peer(address, is_tls=True, name=name)


def peer_of_request(request: Request) -> Peer:
    """Whose request it is, for routes of the application."""
    return visit_of_request(request).peer


def visit_of_request(request: Request) -> Visit:
    """What admission found, to be asked again by answers that never end."""
    visit: Visit = request.scope[SCOPE_KEY]
    return visit


def caller_of_request(request: Request) -> Caller:
    """Who sent it, as admission found."""
    return visit_of_request(request).caller
