"""Handlers of /api/v1/keys and /api/v1/audit."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from din.api.asgi import json_response, number_of, only_query, read_body
from din.api.decoding import decode_json
from din.api.peers import caller_of_request
from din.api.signature import plain_text
from din.domain.audit import AuditQuery
from din.domain.keys import CreateKey
from din.errors import UsageError
from din.gateway.service import AccessService

ORDER_BYTES_MAX: Final = 16 * 1024
ENTRIES_MAX: Final = 1_000
ENTRIES_DEFAULT: Final = 100
TEXT_MAX: Final = 128
_ORDER: Final = msgspec.json.Decoder(CreateKey)


class AccessRoutes:
    """One method per route."""

    def __init__(self, access: AccessService) -> None:
        self._access = access

    async def keys(self, request: Request) -> Response:
        """GET /api/v1/keys."""
        only_query(request)
        return json_response(self._access.list_keys())

    async def create_key(self, request: Request) -> Response:
        """POST /api/v1/keys: the answer holds the key, once."""
        body = await read_body(request, ORDER_BYTES_MAX, "the order for a key")
        order = decode_json(_ORDER, body, "the order for a key")
        made = await self._access.create_key(order, caller_of_request(request))
        response = json_response(made, 201)
        response.headers["cache-control"] = "no-store"
        return response

    async def revoke_key(self, request: Request) -> Response:
        """DELETE /api/v1/keys/{key}."""
        only_query(request)
        name = plain_text(unquote(request.path_params["key"]), "key", TEXT_MAX)
        return json_response(await self._access.revoke_key(name, caller_of_request(request)))

    async def audit(self, request: Request) -> Response:
        """GET /api/v1/audit?since=&until=&who=&what=&target=&limit=."""
        only_query(request, "since", "until", "who", "what", "target", "limit")
        query = AuditQuery(
            since=_moment(request, "since"),
            until=_moment(request, "until"),
            who=_text(request, "who"),
            what=_text(request, "what"),
            target=_text(request, "target"),
            limit=number_of(
                request.query_params.get("limit"), "limit", 1, ENTRIES_MAX, ENTRIES_DEFAULT
            ),
        )
        return json_response(await self._access.audit(query))

    async def check_audit(self, request: Request) -> Response:
        """GET /api/v1/audit/check."""
        only_query(request)
        return json_response(await self._access.check_audit())


def _text(request: Request, name: str) -> str:
    given = request.query_params.get(name)
    return "" if given is None else plain_text(given, name, TEXT_MAX)


def _moment(request: Request, name: str) -> str:
    """A time as the log writes it, so that texts compare as times do. Raises UsageError."""
    given = _text(request, name)
    if not given:
        return ""
    try:
        return moment_of(given)
    except ValueError:
        raise UsageError(
            f"{name} is {given!r:.40}", hint=f"{name} is a time such as 2026-01-31T08:00:00+00:00"
        ) from None


def moment_of(text: str) -> str:
    """ISO 8601 in UTC with milliseconds; without a zone it is UTC. Raises ValueError."""
    from datetime import UTC, datetime

    # In a query a plus sign is a space.
    found = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
    found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    return found.isoformat(timespec="milliseconds")
