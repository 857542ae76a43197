"""One post as the front's protocol reads it, and the answer as it writes it; no sockets here."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final, Literal
from urllib.parse import parse_qsl, quote

from msgspec import Struct

from din.api.problem import Flavour, Refused, as_din_error, headers_of, problem_body
from din.api.signature import plain_text
from din.domain.trust import Caller, Peer
from din.errors import UsageError
from din.gateway.service import Buffer

JSON: Final = b"application/json"
OCTETS: Final = b"application/octet-stream"
REQUEST_ID_MAX: Final = 128
QUERY_FIELDS_MAX: Final = 32
NOBODY: Final = Peer()
STRANGER: Final = Caller(kind="stranger")
BODY_UNLIMITED: Final = 2**62
"""No limit beside the front's own."""
HEADER_TEXT: Final = "!#$&'()*+,-./:;=?@[]^_`{|}~ "

PostKind = Literal["infer", "oip", "heartbeat"]


class Target(Struct, frozen=True):
    """What a path that the front serves itself means; names are still percent-encoded."""

    kind: PostKind
    model: str = ""
    version: str | None = None


class Post(Struct):
    """A whole request."""

    target: Target
    query: bytes
    headers: dict[bytes, bytes]
    chunks: list[Buffer]
    nbytes: int
    peer: Peer = NOBODY
    caller: Caller = STRANGER
    body_bytes_max: int = BODY_UNLIMITED
    refusal: BaseException | None = None
    """Why this caller may not send it."""


class Reply(Struct):
    """A whole answer; `release` gives the parts' memory back and is called exactly once."""

    status: int
    parts: Sequence[Buffer]
    request_id: str = ""
    content_type: bytes = JSON
    extra: bytes = b""
    """More header lines, each ended by CR LF."""
    release: Callable[[], None] | None = None


INFER_TARGET: Final = Target("infer")
HEARTBEAT_TARGET: Final = Target("heartbeat")


def target_of(path: bytes) -> Target | None:
    """The target of a POST when the front serves it itself, else None."""
    if path == b"/infer":
        return INFER_TARGET
    if path == b"/api/v1/heartbeat":
        return HEARTBEAT_TARGET
    if not (path.startswith(b"/v2/models/") and path.endswith(b"/infer")):
        return None
    parts = path[11:-6].decode("latin-1").split("/")
    if len(parts) == 1:
        return Target("oip", parts[0])
    if len(parts) == 3 and parts[1] == "versions":
        return Target("oip", parts[0], parts[2])
    return None


def flavour_of(kind: PostKind) -> Flavour:
    """The error shape of a post."""
    return "api" if kind == "heartbeat" else kind


def new_request_id() -> str:
    """`req-` and 8 hex digits, as the seeds show it."""
    return "req-" + os.urandom(4).hex()


def request_id_of(given: str | None, headers: dict[bytes, bytes]) -> str:
    """The caller's id from body or X-Request-Id, else a new one. Raises UsageError."""
    if given is None:
        raw = headers.get(b"x-request-id")
        if raw is None:
            return new_request_id()
        given = raw.decode("utf-8", "replace")
    return plain_text(given, "request id", REQUEST_ID_MAX)


def header_text(text: str) -> bytes:
    """Any text as a header value: what is not printable ASCII is percent-encoded."""
    if text.isascii() and text.replace("-", "").isalnum():
        return text.encode("ascii")  # as ids mostly are
    return quote(text, safe=HEADER_TEXT).encode("ascii")


def query_of(query: bytes) -> dict[str, str]:
    """Query fields. Raises UsageError when they are no UTF-8, too many or given twice."""
    if not query:
        return {}
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=QUERY_FIELDS_MAX,
        )
    except ValueError as error:
        raise UsageError(
            f"the query string cannot be read: {error}", hint="percent-encode it in UTF-8"
        ) from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise UsageError("a query field is given twice", hint="give each field once")
    return fields


def flag_of(value: str | None, name: str) -> bool:
    """A yes or no in a query. Raises UsageError."""
    if value is None or value in ("false", "0", "no"):
        return False
    if value in ("", "true", "1", "yes"):
        return True
    raise UsageError(f"{name} is {value!r:.40}", hint=f"{name} is true or false")


def error_reply(kind: PostKind, error: BaseException, request_id: str) -> Reply:
    """The answer to a failed post."""
    status = error.status if isinstance(error, Refused) else None
    shown = error.error if isinstance(error, Refused) else as_din_error(error)
    body = problem_body(flavour_of(kind), shown, request_id)
    return Reply(status or shown.http_status, [body], request_id, extra=_extra_of(error))


def _extra_of(error: BaseException) -> bytes:
    return b"".join(
        b"%s: %s\r\n" % (name.encode(), value.encode()) for name, value in headers_of(error).items()
    )
