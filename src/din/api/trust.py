"""Handlers of /api/v1/trust and of revocation: they translate, the gateway decides."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from din.api.asgi import json_response, only_query, read_body
from din.api.decoding import decode_json
from din.api.peers import caller_of_request, peer_of_request
from din.domain.enrolment import CreateToken, JoinOrder, RenewOrder, TokenList
from din.errors import Unavailable, UsageError
from din.gateway.service import TrustService

ORDER_BYTES_MAX: Final = 8192
PEM_TYPE: Final = "application/x-pem-file"
_TOKEN_ID: Final = re.compile(r"[0-9a-f]{1,8}")
_CREATE: Final = msgspec.json.Decoder(CreateToken)
_JOIN: Final = msgspec.json.Decoder(JoinOrder)
_RENEW: Final = msgspec.json.Decoder(RenewOrder)


class TrustRoutes:
    """One method per route; without TLS there is no authority and each of them says so."""

    def __init__(self, trust: TrustService | None) -> None:
        self._service = trust

    @property
    def _trust(self) -> TrustService:
        if self._service is None:
            raise Unavailable(
                "this gateway runs without TLS, so nobody can join it by a token",
                hint="start it with --tls, or with a --host that other machines reach",
            )
        return self._service

    async def authority(self, request: Request) -> Response:
        """GET /api/v1/trust/ca: PEM, to be compared with the hash in a token."""
        only_query(request)
        return Response(self._trust.authority_pem(), media_type=PEM_TYPE)

    async def join(self, request: Request) -> Response:
        """POST /api/v1/trust/join."""
        body = await read_body(request, ORDER_BYTES_MAX, "the join")
        order = decode_json(_JOIN, body, "the join")
        return json_response(await self._trust.join(order, peer_of_request(request)))

    async def renew(self, request: Request) -> Response:
        """POST /api/v1/trust/renew."""
        body = await read_body(request, ORDER_BYTES_MAX, "the renewal")
        order = decode_json(_RENEW, body, "the renewal")
        return json_response(await self._trust.renew(order, peer_of_request(request)))

    async def create_token(self, request: Request) -> Response:
        """POST /api/v1/trust/tokens; an empty body means the defaults."""
        body = await read_body(request, ORDER_BYTES_MAX, "the token")
        order = decode_json(_CREATE, body or b"{}", "the token")
        return json_response(await self._trust.create_token(order, caller_of_request(request)), 201)

    async def tokens(self, request: Request) -> Response:
        """GET /api/v1/trust/tokens."""
        only_query(request)
        return json_response(TokenList(items=await self._trust.tokens()))

    async def revoke_token(self, request: Request) -> Response:
        """DELETE /api/v1/trust/tokens/{token}."""
        token_id = unquote(request.path_params["token"])
        if _TOKEN_ID.fullmatch(token_id) is None:
            # It may be a whole token, so it is not said again.
            raise UsageError("a token is named by its id", hint="8 hex digits: din token list")
        return json_response(await self._trust.revoke_token(token_id, caller_of_request(request)))
