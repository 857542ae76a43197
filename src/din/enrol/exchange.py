"""One HTTPS request at a time, blocking, with a limit on everything; for a child that soon ends."""

from __future__ import annotations

import http.client
import ssl
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from din.domain.gateway_view import ErrorView
from din.domain.malformed import MALFORMED
from din.domain.trust import PeerName
from din.errors import Denied, DinError, Unreachable, error_of_code
from din.transport.tls import peer_name

TIMEOUT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 64 * 1024
CLOCKS: Final = "certificates count by the clock: set it (timedatectl set-ntp true), then try again"
REACHED_BY: Final = (
    "is the gateway up, and with --host? its TLS port (8443 unless told otherwise) must be open"
)
_OF_CLOCKS: Final = (9, 10)
"""OpenSSL's codes for a certificate that is not valid yet, and for one that has expired."""


class _Failed(Struct):
    error: ErrorView


class Channel:
    """A connection to one gateway; it is open when it has been made."""

    def __init__(self, url: str, context: ssl.SSLContext, timeout_s: float = TIMEOUT_S) -> None:
        """Raises Unreachable, or SSLCertVerificationError when the context does not trust it."""
        parts = urlsplit(url)
        self.url = url
        self._http = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=timeout_s, context=context
        )
        self.gateway_ms: int | None = None
        """The other side's clock, seconds precise, as its last answer told it."""
        try:
            self._http.connect()
        except ssl.SSLCertVerificationError:
            self._http.close()
            raise
        except OSError as error:
            self._http.close()
            reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or error
            raise Unreachable(f"{url}: {reason}", hint=REACHED_BY) from None

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def peer(self) -> PeerName | None:
        """Whom the other side's verified certificate names. Raises Denied for no name of DIN's."""
        sock = self._http.sock
        assert isinstance(sock, ssl.SSLSocket), "the connection was closed"
        return peer_name(sock)

    def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of a good answer. Raises the error that the gateway tells, or Unreachable."""
        headers = {"content-type": "application/json"} if body else {}
        try:
            self._http.request(method, path, body or None, headers)
            answer = self._http.getresponse()
            content = answer.read(ANSWER_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(
                f"{self.url} broke off: {_reason(error)}", hint=_hint(error)
            ) from None
        self.gateway_ms = _milliseconds(answer.getheader("date", ""))
        if len(content) > ANSWER_BYTES_MAX:
            raise Unreachable(f"{self.url} answered more than {ANSWER_BYTES_MAX} bytes")
        if not 200 <= answer.status < 300:
            raise _told(self.url, answer.status, content)
        return content


def _told(url: str, status: int, content: bytes) -> DinError:
    try:
        view = msgspec.json.decode(content, type=_Failed).error
    except MALFORMED:
        return Unreachable(f"{url} answered HTTP {status}", hint="is it a gateway of DIN?")
    return error_of_code(view.code, view.message, view.hint)


def _milliseconds(date: str) -> int | None:
    try:
        return int(parsedate_to_datetime(date).timestamp() * 1000)
    except (ValueError, TypeError, OverflowError):
        return None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error) or type(error).__name__


def _hint(error: Exception) -> str:
    is_cut = isinstance(error, (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected))
    text = "is that a gateway's TLS port (8443 unless told otherwise), and of this token's cluster?"
    return text if is_cut else ""


def foreign(url: str, error: ssl.SSLCertVerificationError) -> Denied:
    """The authority is the right one, but whoever answers cannot prove that it certified him."""
    if error.verify_code in _OF_CLOCKS:
        return Denied(
            f"the certificate of {url} does not count now: {error.verify_message}", hint=CLOCKS
        )
    return Denied(
        f"{url} does not prove that it is a gateway of this authority: {error.verify_message}",
        hint="somebody in between may pass the authority on; nothing secret was sent",
    )
