"""Whom an HTTP connection comes from: its address, and the name in its certificate."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final, cast

from starlette.requests import Request

from din.api.admission import Visit
from din.domain.trust import Caller, Peer
from din.transport.tls import peer_name

SCOPE_KEY: Final = "din.visitor"
"""Where the ASGI scope holds its connection's Visitor; once admitted, the request's Visit."""


def peer_of_transport(transport: asyncio.BaseTransport) -> Peer:
    """Raises Denied when a certificate of our authority holds no name of DIN's."""
    found: Any = transport.get_extra_info("peername")
    address = str(found[0]) if isinstance(found, tuple) else ""
    connection = cast("ssl.SSLObject | None", transport.get_extra_info("ssl_object"))
    if connection is None:
        return Peer(address)
    return Peer(address, is_tls=True, name=peer_name(connection))


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
