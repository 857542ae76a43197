"""An encrypted socket of a link: TLS over a non-blocking TCP socket, in the place of a plain one.

Over `ssl.SSLSocket`: an `SSLObject` with buffers of our own needs fewer system calls, but copies
once more in each direction, and took a tenth more processor for large frames and a quarter more for
small ones. Bytes are decrypted straight into their place. Small parts are joined into one record,
large ones are encrypted where they lie.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, NoReturn

from din.domain.trust import PeerName

RECORD_BYTES: Final = 16 * 1024
"""Plain bytes in one TLS record at most."""
TURN_BYTES_MAX: Final = 256 * 1024
"""Encrypted or decrypted in one call: on a small board without instructions for AES that takes
milliseconds, in which nothing else of this process moves."""

NEW_KEYS: Final = "the peer asks for new keys and does not read our answer"
"""The library answers later while a write of ours waits; only between two writes it wants to
write in the middle of a read. DIN never asks for new keys, so a link may end by that."""
CUT: Final = "the connection was cut without a TLS close notice"
_REASONS: Final = {
    "BAD_RECORD_MAC": "a TLS record was changed on the way",
    "DECRYPTION_FAILED_OR_BAD_RECORD_MAC": "a TLS record was changed on the way",
    "HTTP_REQUEST": "the peer speaks HTTP, not TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer showed no certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer refused our certificate",
    "SSLV3_ALERT_BAD_RECORD_MAC": "a TLS record was changed on the way, says the peer",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer refused our certificate: it has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer refused our certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer wants a certificate and got none",
    "TLSV1_ALERT_DECRYPT_ERROR": "the peer refused our certificate: it is not of its authority",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer does not speak TLS 1.3",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer refused our certificate: it is not of its authority",
    "UNEXPECTED_EOF_WHILE_READING": CUT,
    "UNSUPPORTED_PROTOCOL": "the peer does not speak TLS 1.3",
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS there",
}


class TlsSocket:
    """Implements sockets.SocketLike. Made by `tls_handshake.secure`, after the handshake."""

    __slots__ = ("_fault", "_has_more", "_record", "_retry_bytes", "_socket", "peer")

    def __init__(self, sock: ssl.SSLSocket, peer: PeerName) -> None:
        self.peer = peer
        """Whom the verified certificate of the other side names."""
        self._socket = sock
        self._record = memoryview(bytearray(RECORD_BYTES))
        self._retry_bytes = 0
        self._has_more = False
        self._fault: OSError | None = None

    def fileno(self) -> int:
        """See SocketLike."""
        return self._socket.fileno()

    @property
    def has_more(self) -> bool:
        """Whether `recv_into` has something although the descriptor may not become readable."""
        return self._has_more or self._socket.pending() > 0

    def recv_into(self, buffer: memoryview, /) -> int:
        """See SocketLike. Raises ConnectionError that says what is wrong with the stream."""
        if self._fault is not None:
            raise_plainly(self._fault)
        receive, done = self._socket.recv_into, 0
        room = min(len(buffer), TURN_BYTES_MAX)
        self._has_more = False
        try:
            while done < room:
                nbytes = receive(buffer[done:room])
                done += nbytes
                if nbytes < RECORD_BYTES:
                    # A short record ends what was sent at once: asking for more would be in vain.
                    self._has_more = nbytes == 0 < done
                    break
        except (ssl.SSLWantReadError, BlockingIOError):
            if not done:
                raise BlockingIOError from None
        except OSError as error:
            if not done:
                raise_plainly(error)
            self._fault = error  # the library would not say it twice
            self._has_more = True
        return done

    def recvmsg_into(
        self, buffers: Iterable[memoryview], ancbufsize: int, flags: int, /
    ) -> NoReturn:
        """Raises OSError: descriptors come from this host only."""
        del buffers, ancbufsize, flags
        raise OSError("descriptors do not travel over TLS")

    def sendmsg(
        self, buffers: Iterable[memoryview], ancdata: Iterable[tuple[int, int, Any]], flags: int, /
    ) -> int:
        """See SocketLike. What a call did not take must begin the next call."""
        del flags  # there is no signal to suppress: Python ignores SIGPIPE
        if tuple(ancdata):
            raise OSError("descriptors do not travel over TLS")
        write, done, piece = self._socket.send, 0, memoryview(b"")
        try:
            for piece in self._records(buffers):
                done += write(piece)
                self._retry_bytes = 0
                if done >= TURN_BYTES_MAX:
                    break
        except ssl.SSLWantWriteError:
            # The record is encrypted already and waits in the library, which wants the same bytes
            # again to go on with it.
            self._retry_bytes = len(piece)
            if not done:
                raise BlockingIOError from None
        except OSError as error:
            raise_plainly(error)
        return done

    def shutdown(self, how: int, /) -> None:
        """Say that nothing more comes. What still arrives is received as it is, encrypted."""
        with suppress(OSError, ValueError):  # the peer need not answer, nor be there
            self._socket.unwrap()
        self._socket.shutdown(how)

    def getsockname(self) -> Any:
        """See SocketLike."""
        return self._socket.getsockname()

    def getpeername(self) -> Any:
        """See SocketLike."""
        return self._socket.getpeername()

    def close(self) -> None:
        """See SocketLike."""
        self._socket.close()

    def _records(self, buffers: Iterable[memoryview]) -> Iterator[memoryview]:
        """The bytes of all parts in pieces of one record; only the last may be smaller."""
        limit = self._retry_bytes or RECORD_BYTES
        joined = 0
        for view in buffers:
            start, end = 0, len(view)
            while start < end:
                if not joined and end - start >= limit:
                    yield view[start : start + limit]
                    start += limit
                    limit = RECORD_BYTES
                    continue
                taken = min(limit - joined, end - start)
                self._record[joined : joined + taken] = view[start : start + taken]
                joined += taken
                start += taken
                if joined == limit:
                    yield self._record[:joined]
                    joined, limit = 0, RECORD_BYTES
        if joined:
            yield self._record[:joined]


def raise_plainly(error: OSError) -> NoReturn:
    """Raise a ConnectionError that says in words what OpenSSL said in constants."""
    if isinstance(error, ssl.SSLError):
        raise ConnectionError(tls_reason(error)) from error
    raise error


def tls_reason(error: ssl.SSLError) -> str:
    """What went wrong, for a person."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate does not count: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        return CUT
    if isinstance(error, ssl.SSLWantWriteError):
        return NEW_KEYS
    name = str(getattr(error, "reason", None) or "")
    return _REASONS.get(name, f"TLS failed: {name.lower().replace('_', ' ') or error.strerror}")
