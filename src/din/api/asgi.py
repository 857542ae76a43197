"""Pieces that every route of the application uses: JSON answers, errors, bounded bodies."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from din.access.scopes import ANY_OR_NODE, needs_of
from din.api.admission import Visit, Visitor
from din.api.limits import KEY_LIMIT_HINT
from din.api.peers import SCOPE_KEY
from din.api.post import BODY_UNLIMITED, header_text, new_request_id, request_id_of
from din.api.problem import (
    Flavour,
    Refused,
    as_din_error,
    headers_of,
    problem_body,
)
from din.errors import DinError, Internal, TooLarge, UsageError

_LOG = logging.getLogger("din.api")


def json_response(content: Any, status: int = 200) -> Response:
    """Anything that msgspec encodes."""
    body = msgspec.json.encode(content)
    return Response(body, status_code=status, media_type="application/json")


def flavour_of_path(path: str) -> Flavour:
    """Which API's error shape a path wants."""
    if path == "/v2" or path.startswith("/v2/"):
        return "oip"
    return "infer" if path == "/infer" else "api"


def error_response(path: str, error: BaseException, request_id: str) -> Response:
    """An error in the shape of the API that `path` belongs to."""
    shown = as_din_error(error.error if isinstance(error, Refused) else error)
    status = error.status if isinstance(error, Refused) else shown.http_status
    body = problem_body(flavour_of_path(path), shown, request_id)
    response = Response(body, status_code=status, media_type="application/json")
    response.headers.update(headers_of(error))
    if status in (401, 413):
        response.headers["connection"] = "close"  # the rest of the body is not read
    return response


async def read_body(request: Request, bytes_max: int, what: str) -> bytes:
    """The whole body. Raises TooLarge at its Content-Length, or when it grows over the limit."""
    declared = request.headers.get("content-length")
    hint = "send less; the limit is the gateway's"
    if declared is not None and int(declared) > bytes_max:
        raise TooLarge(f"{what} is {declared} bytes; the limit is {bytes_max}", hint=hint)
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > bytes_max:
            raise TooLarge(f"{what} is over the limit of {bytes_max} bytes", hint=hint)
        pieces.append(piece)
    return b"".join(pieces)


async def body_stream(request: Request) -> AsyncIterator[bytes]:
    """The body in pieces as they come."""
    async for piece in request.stream():
        if piece:
            yield piece


def number_of(text: str | None, name: str, least: int, most: int, default: int) -> int:
    """A whole number of a query. Raises UsageError naming the range."""
    if text is None:
        return default
    if text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most:
        return int(text)
    raise UsageError(f"{name} is {text!r:.40}", hint=f"{name} is a whole number, {least}..{most}")


def flag_of(request: Request, name: str) -> bool:
    """`true` or `false` of a query; false where it is absent. Raises UsageError."""
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        raise UsageError(f"{name} is {text!r:.40}", hint=f"{name} is true or false")
    return text == "true"


def only_query(request: Request, *names: str) -> None:
    """Refuse query fields that the route does not know. Raises UsageError."""
    for name in request.query_params:
        if name not in names:
            known = f"query fields here are {', '.join(names)}" if names else "it takes none"
            raise UsageError(f"unknown query field {name!r:.80}", hint=known)


class Admitted:
    """Lets through who may, before anything of the body is read, and bounds the body as the
    caller's key says. A path that no route has is for anybody known: the router says so."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. Raises Unauthenticated, Denied, Limited or TooLarge."""
        visitor: Visitor | None = scope.get(SCOPE_KEY)
        if visitor is None:
            raise Internal("the application runs without its front: nobody is known here")
        path = path_of(scope)
        needs = needs_of(scope["method"], path)
        headers = dict(scope["headers"])
        wanted = f"{scope['method']} {path}"
        caller = visitor.admit(ANY_OR_NODE if needs is None else needs, headers, wanted)
        # The connection's next request may show another key before this one is answered.
        scope = {**scope, SCOPE_KEY: Visit(visitor.peer, caller, visitor.keys)}
        limit = visitor.body_bytes_max
        if limit < int(headers.get(b"content-length", b"0")):
            raise TooLarge(
                f"the body is over the limit of this API key, {limit} bytes",
                hint=KEY_LIMIT_HINT,
            )
        await self._app(scope, _bounded(receive, limit), send)


def _bounded(receive: Receive, bytes_max: int) -> Receive:
    if bytes_max == BODY_UNLIMITED:
        return receive
    left = bytes_max

    async def receive_bounded() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise TooLarge(
                f"the body is over the limit of this API key, {bytes_max} bytes",
                hint=KEY_LIMIT_HINT,
            )
        return message

    return receive_bounded


def path_of(scope: Scope) -> str:
    """The path as it was sent, percent-encoded, so that an encoded slash stays in its segment."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("latin-1")


class ErrorsAndIds:
    """Outermost layer: each answer carries `din-request-id`, each error has its API's shape."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        request_id = _id_of(scope)
        has_started = False

        async def send_with_id(message: Any) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"din-request-id", header_text(request_id)),
                ]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            return
        except Exception as error:
            if not isinstance(error, (DinError, Refused)):
                _LOG.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
            if has_started:
                raise
            response = error_response(scope["path"], error, request_id)
            await response(scope, receive, send_with_id)


def _id_of(scope: Scope) -> str:
    try:
        return request_id_of(None, dict(scope["headers"]))
    except DinError:
        return new_request_id()
