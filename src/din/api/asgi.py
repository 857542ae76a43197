"""Pieces that every route of the application uses: JSON answers, errors, bounded bodies."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from din.api.post import header_text, new_request_id, request_id_of
from din.api.problem import (
    RETRY_AFTER_S,
    Flavour,
    Refused,
    as_din_error,
    is_retry_later,
    problem_body,
)
from din.errors import DinError, TooLarge, UsageError

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
    if is_retry_later(status):
        response.headers["retry-after"] = str(RETRY_AFTER_S)
    if status == 413:
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
