"""One kept-alive HTTP connection to a gateway, and its answers as DIN's errors.

Knows no model and no tensor. A request is sent again only when it is harmless to run twice and the
connection died before any byte of an answer came.
"""

from __future__ import annotations

import http.client
import select
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec

from din.client.credentials import Credentials, is_here
from din.domain.malformed import MALFORMED
from din.errors import (
    Conflict,
    DeadlineExceeded,
    Denied,
    DinError,
    Internal,
    NotFound,
    Unauthenticated,
    Unreachable,
    UsageError,
    error_of_code,
)

CONNECT_MS: Final = 2000
ANSWER_BYTES_MAX: Final = 1024 * 1024 * 1024
PIECE_BYTES: Final = 256 * 1024
_BY_STATUS: Final[dict[int, type[DinError]]] = {
    400: UsageError,
    401: Unauthenticated,
    403: Denied,
    404: NotFound,
    409: Conflict,
    504: DeadlineExceeded,
}
_START_ONE: Final = "start one with `din up`, or name another with --gateway or DIN_GATEWAY"
_LOOK_THERE: Final = (
    "is the address right, does `din up --host` run there, and does a firewall let its TLS port "
    "(8443 unless told otherwise) through?"
)
_GIVE_CA: Final = (
    "give the authority of its cluster, trust/ca.pem of the gateway's state directory: --ca FILE "
    "(ca_file= in Python), or DIN_CA_FILE"
)
_OF_CLOCKS: Final = (9, 10)
"""OpenSSL: a certificate is not yet valid, or has expired."""
_SET_CLOCK: Final = "certificates count by the clock: compare `date -u` on both machines"
NO_CREDENTIALS: Final = Credentials()
Body = bytes | Sequence[bytes | memoryview] | Callable[[], Iterable[bytes]]
"""Bytes, pieces, or a maker of pieces (called again when the request is sent again)."""


class Answer(NamedTuple):
    """An answer that was no error."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class Connection:
    """Connects when first used. Not for two threads at once."""

    def __init__(
        self,
        url: str,
        connect_ms: int = CONNECT_MS,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        """Raises UsageError for what is no http URL, Denied when a key would go out in plain."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise UsageError(
                f"gateway URL {url!r:.200} is not usable",
                hint="it looks like http://127.0.0.1:8000",
            )
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._headers = credentials.headers_for(parts.scheme, parts.hostname)
        if parts.scheme == "https":
            from din.client.secure import connection_to

            self._http = connection_to(parts.hostname, port, credentials)
        else:
            self._http = http.client.HTTPConnection(parts.hostname, port)
        self._connect_ms = connect_ms

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        body: Body = b"",
        headers: Mapping[str, str] | None = None,
        *,
        timeout_ms: int,
        is_idempotent: bool = True,
    ) -> Answer:
        """One request. Raises the DinError that the gateway tells, Unreachable or
        DeadlineExceeded."""
        try:
            response = self._exchange(method, path, body, headers or {}, timeout_ms, is_idempotent)
            content = response.read(ANSWER_BYTES_MAX + 1)
        except TimeoutError:
            self.close()
            raise DeadlineExceeded(
                f"the gateway at {self.url} gave no answer in {timeout_ms / 1000:g} s",
                hint="give more time with --timeout-ms, or see what it does with `din trace list`",
            ) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._died(error) from None
        if len(content) > ANSWER_BYTES_MAX:
            self.close()
            raise Internal(f"an answer of {self.url} has more than {ANSWER_BYTES_MAX} bytes")
        answer = Answer(
            response.status,
            {name.lower(): value for name, value in response.getheaders()},
            content,
        )
        if answer.status >= 400:
            raise error_of_answer(self.url, answer, is_head=method == "HEAD")
        return answer

    def _exchange(
        self,
        method: str,
        path: str,
        body: Body,
        headers: Mapping[str, str],
        timeout_ms: int,
        is_idempotent: bool,
    ) -> http.client.HTTPResponse:
        for is_last in (False, True):
            is_reused = self._open(timeout_ms)
            try:
                return self._send(method, path, body, headers)
            except (ConnectionError, http.client.BadStatusLine):
                # RemoteDisconnected is both; nothing of an answer has come.
                self.close()
                if is_last or not (is_reused and is_idempotent):
                    raise
        raise AssertionError("unreachable")

    def _send(
        self, method: str, path: str, body: Body, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        pieces = body() if callable(body) else [body] if isinstance(body, bytes) else body
        content: Any = body if isinstance(body, bytes) else pieces
        try:
            # With Content-Length among the headers, pieces are sent as they are, not chunked.
            self._http.request(method, path, content or None, {**self._headers, **headers})
        except (BrokenPipeError, ConnectionResetError):
            # A gateway that refuses a body answers first and then closes: read what it said.
            with suppress(OSError, http.client.HTTPException):
                return self._http.getresponse()
            raise
        return self._http.getresponse()

    def _open(self, timeout_ms: int) -> bool:
        """Whether the connection was open before."""
        sock = cast("socket.socket | None", self._http.sock)
        if sock is not None and _is_closed_by_peer(sock):
            self.close()
            sock = None
        if sock is None:
            self._http.timeout = self._connect_ms / 1000
            try:
                self._http.connect()
            except OSError as error:
                self.close()
                raise self._absent(error) from None
        cast("socket.socket", self._http.sock).settimeout(timeout_ms / 1000)
        return sock is not None

    def _absent(self, error: OSError) -> DinError:
        if error.__class__.__name__ == "SSLCertVerificationError":  # ssl is imported for https only
            return Denied(
                f"{self.url} does not show a certificate that counts: {error}",
                hint=_SET_CLOCK if getattr(error, "verify_code", 0) in _OF_CLOCKS else _GIVE_CA,
            )
        if error.__class__.__name__ == "SSLError":
            return Unreachable(
                f"what answers at {self.url} does not speak TLS: {error}",
                hint="an http:// gateway is on this machine only; others listen on port 8443",
            )
        is_late, host = isinstance(error, TimeoutError), urlsplit(self.url).hostname or ""
        reason = f"in {self._connect_ms / 1000:g} s" if is_late else f"({error.strerror or error})"
        return Unreachable(
            f"no gateway answered at {self.url} {reason}",
            hint=_START_ONE if is_here(host) else _LOOK_THERE,
        )

    def _died(self, error: Exception) -> Unreachable:
        reason = str(error) or type(error).__name__
        hint = "see `din doctor`; the gateway's log says whether it stopped"
        if isinstance(error, http.client.RemoteDisconnected) and self.url.startswith("http:"):
            hint += f"; a port of TLS is asked with https: --gateway https{self.url[4:]}"
        return Unreachable(
            f"the connection to the gateway at {self.url} broke: {reason}", hint=hint
        )


def _is_closed_by_peer(sock: socket.socket) -> bool:
    """An idle connection has nothing to read; one that has was closed (or is out of step)."""
    poll = select.poll()  # select() refuses descriptors over 1023, which a large program has
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def error_of_answer(url: str, answer: Answer, *, is_head: bool = False) -> DinError:
    """The error that an answer of 400 or above tells, whatever API it came from."""
    facts = _facts(answer.body)
    message, hint = facts.get("message"), facts.get("hint")
    if isinstance(message, str) and isinstance(facts.get("code"), str):
        return error_of_code(str(facts["code"]), message, hint if isinstance(hint, str) else "")
    kind = _BY_STATUS.get(answer.status, Internal)
    if is_head:
        return kind(f"{url} answered {answer.status}")
    said = answer.headers.get("content-type", "").partition(";")[0]
    shown = "a page of HTML" if "html" in said else repr(answer.body[:120].decode(errors="replace"))
    return kind(
        f"{url} answered {answer.status} without an error of DIN, but with {shown}",
        hint="is that another program's port? name the gateway's with --gateway or DIN_GATEWAY",
    )


def _facts(body: bytes) -> dict[str, object]:
    try:
        found: object = msgspec.json.decode(body)
    except MALFORMED:
        return {}
    if not isinstance(found, dict):
        return {}
    whole = cast("dict[str, object]", found)
    for name in ("din", "error"):
        inner = whole.get(name)
        if isinstance(inner, dict):
            return cast("dict[str, object]", inner)
    return {}
