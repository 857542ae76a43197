"""A small HTTP/1.1 client for the agent: JSON and TLV calls, downloads that can be resumed.

Plain, or over TLS to a gateway of the node's own cluster; one request at a time on one connection
that is kept alive. A kept connection that the server has closed meanwhile is opened again once,
when nothing of an answer was seen.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

import h11
from msgspec import Struct

from din.config import is_loopback
from din.errors import Conflict, Denied, DinError, NotFound, TooLarge, Unreachable, UsageError
from din.transport.sockets import reason_of
from din.transport.tls import check_peer, peer_name
from din.transport.tls_identity import TlsIdentity

ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
HEAD_BYTES_MAX: Final = 64 * 1024
CHUNK_BYTES: Final = 256 * 1024
REQUEST_TIMEOUT_MS: Final = 5_000
STALL_TIMEOUT_MS: Final = 10_000
"""A download may last as long as bytes keep coming."""

FAILURES: Final = (DinError, OSError, h11.ProtocolError)
"""TimeoutError is an OSError."""

Headers = dict[str, str]
"""Names in lower case; the last of equal names wins."""
Sink = Callable[[bytes], object]


class Fetched(Struct, frozen=True):
    """A download that came whole."""

    start: int
    """Offset of the first byte that came: below the asked one if the server knows no ranges."""
    nbytes: int
    headers: Headers


class _Target(Struct, frozen=True):
    host: str
    port: int
    path: str
    is_secure: bool = False

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_secure else 80) else f"{host}:{self.port}"


class _StaleError(Exception):
    """A kept connection turned out to be closed before any byte of an answer."""


class _Connection:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._authority = authority
        self._machine = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._is_used = False
        self._has_heard = False

    @property
    def is_reusable(self) -> bool:
        state = self._machine.states
        return state[h11.CLIENT] is h11.IDLE and not self._reader.at_eof()

    async def ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        self._has_heard = False
        fields = {"host": self._authority, "user-agent": "din", **headers}
        if body or method in ("POST", "PUT", "PATCH"):
            fields["content-length"] = str(len(body))
        request = h11.Request(method=method, target=path or "/", headers=list(fields.items()))
        data = self._machine.send(request) or b""
        data += self._machine.send(h11.Data(data=body)) or b"" if body else b""
        data += self._machine.send(h11.EndOfMessage()) or b""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError:
            if self._is_used:
                raise _StaleError from None
            raise

    async def head(self) -> tuple[int, Headers]:
        """Status and headers."""
        try:
            event = await self._next()
            while isinstance(event, h11.InformationalResponse):
                event = await self._next()
        except (ConnectionError, h11.RemoteProtocolError):
            if self._is_used and not self._has_heard:
                raise _StaleError from None
            raise
        if not isinstance(event, h11.Response):
            raise Unreachable("the connection was closed before an answer")
        self._is_used = True
        named = ((name.decode(), value.decode("latin-1")) for name, value in event.headers)
        return event.status_code, dict(named)

    async def chunk(self) -> bytes:
        """The next piece of the body; empty at its end."""
        event = await self._next()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if self._machine.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
            self._machine.start_next_cycle()
        return b""

    async def _next(self) -> object:
        while True:
            event = self._machine.next_event()
            if event is not h11.NEED_DATA:
                return event
            data = await self._reader.read(CHUNK_BYTES)
            self._has_heard = self._has_heard or bool(data)
            self._machine.receive_data(data)

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()

    async def wait_closed(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # the peer was quicker


class HttpClient:
    """One server, by its base URL. Raises UsageError for a URL that is not plain HTTP."""

    def __init__(
        self,
        base_url: str,
        *,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        tls: TlsIdentity | None = None,
        is_insecure: bool = False,
    ) -> None:
        """Plain text goes to this host only, unless `is_insecure` and there is no identity; what is
        asked over TLS must be a gateway of the identity's cluster. Raises Denied."""
        self._base_url = base_url.rstrip("/")
        self._base = _parse(
            self._base_url, is_secure_possible=tls is not None, is_insecure=is_insecure
        )
        self._tls = tls
        self._answer_bytes_max = answer_bytes_max
        self._connection: _Connection | None = None
        self._turn = asyncio.Lock()

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> tuple[int, Headers, bytes]:
        """Status, headers and whole body, whatever the status.

        Raises Unreachable naming URL, cause and time; TooLarge for an answer over the limit.
        """
        began_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._turn:
                return await self._guarded(method, path, body, headers or {})
        except FAILURES as error:
            raise _told(self._base_url + path, error, began_at, timeout_ms) from error

    def reset(self) -> None:
        """Give up a connection that may be dead without anybody saying so. A request under way on
        it is made once more, on a new one, when it was kept and nothing of an answer was seen."""
        if self._connection is not None:
            self._connection.abort()

    async def close(self) -> None:
        """Close the connection; a later request opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.wait_closed()

    # Inside.

    async def _guarded(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, Headers, bytes]:
        try:
            return await self._once(method, path, body, headers)
        except _StaleError:
            self._drop()
            return await self._once(method, path, body, headers)
        except BaseException:
            self._drop()  # in the middle of an answer: nothing can follow on this connection
            raise

    async def _once(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, Headers, bytes]:
        connection = self._connection
        if connection is None or not connection.is_reusable:
            self._drop()
            connection = self._connection = await _open(self._base, self._tls)
        await connection.ask(method, self._base.path + path, body, headers)
        status, answer_headers = await connection.head()
        pieces: list[bytes] = []
        nbytes = 0
        while piece := await connection.chunk():
            nbytes += len(piece)
            if nbytes > self._answer_bytes_max:
                raise TooLarge(f"the answer is over {self._answer_bytes_max} bytes")
            pieces.append(piece)
        return status, answer_headers, b"".join(pieces)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


async def fetch(
    url: str,
    start: int,
    sink: Sink,
    *,
    bytes_max: int,
    headers: Mapping[str, str] | None = None,
    on_start: Callable[[int], object] | None = None,
    stall_timeout_ms: int = STALL_TIMEOUT_MS,
    tls: TlsIdentity | None = None,
    is_insecure: bool = False,
) -> Fetched:
    """Stream a file from byte `start` on into `sink`, piece by piece, in the caller's turn.

    `on_start` hears the true first offset before the first piece: 0 when the server does not do
    ranges, so that the file is begun anew. Raises NotFound (404, 410), Conflict (416: `start` is
    not inside the file), TooLarge, Unreachable (also for an end in mid-file: call again with the
    new start). What `sink` raises passes through.
    """
    began_at = asyncio.get_running_loop().time()
    target = _parse(url, is_secure_possible=tls is not None, is_insecure=is_insecure)
    connection: _Connection | None = None
    try:
        async with asyncio.timeout(stall_timeout_ms / 1000) as watch:
            connection = await _open(target, tls)
            wanted = {"range": f"bytes={start}-"} if start else {}
            await connection.ask("GET", target.path, b"", {**wanted, **(headers or {})})
            status, answer_headers = await connection.head()
            first = _first_offset(status, answer_headers, start)
            if on_start is not None:
                on_start(first)
            nbytes = await _stream(connection, sink, bytes_max, watch, stall_timeout_ms)
        return Fetched(first, nbytes, answer_headers)
    except (DinError, TimeoutError, h11.ProtocolError, ConnectionError) as error:
        raise _told(url, error, began_at, stall_timeout_ms) from error
    finally:
        if connection is not None:
            await connection.wait_closed()


async def _stream(
    connection: _Connection, sink: Sink, bytes_max: int, watch: asyncio.Timeout, stall_ms: int
) -> int:
    loop = asyncio.get_running_loop()
    nbytes = 0
    while True:
        watch.reschedule(loop.time() + stall_ms / 1000)
        piece = await connection.chunk()
        if not piece:
            return nbytes
        nbytes += len(piece)
        if nbytes > bytes_max:
            raise TooLarge(f"the file is over {bytes_max} bytes")
        sink(piece)


def _first_offset(status: int, headers: Headers, start: int) -> int:
    if status == 200:
        return 0
    if status == 206:
        unit, _, rest = headers.get("content-range", "").partition(" ")
        first = rest.partition("-")[0]
        if unit == "bytes" and first == str(start):
            return start
        raise Unreachable(f"asked for bytes from {start}, got {headers.get('content-range')!r}")
    if status in (404, 410):
        raise NotFound(f"the server has no such file (HTTP {status})")
    if status == 416:
        raise Conflict(f"byte {start} is not inside the file (HTTP 416)")
    raise Unreachable(f"the server answered HTTP {status}")


async def _open(target: _Target, tls: TlsIdentity | None) -> _Connection:
    context = tls.client() if tls is not None and target.is_secure else None
    try:
        reader, writer = await asyncio.open_connection(target.host, target.port, ssl=context)
    except ssl.SSLCertVerificationError as error:
        raise Denied(
            f"{target.authority} is no gateway of this node's cluster: {error.verify_message}",
            hint="or the clocks differ: see `timedatectl`",
        ) from error
    except OSError as error:
        raise Unreachable(f"no connection to {target.authority}: {reason_of(error)}") from error
    if tls is not None and context is not None:
        try:
            check_peer(peer_name(writer.get_extra_info("ssl_object")), tls.cluster, "gateway")
        except Denied:
            writer.close()
            raise
    return _Connection(reader, writer, target.authority)


def _parse(url: str, *, is_secure_possible: bool, is_insecure: bool = False) -> _Target:
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise UsageError(f"{url!r} is no URL: {error}") from error
    if parts.scheme == "https" and not is_secure_possible:
        raise UsageError(
            f"{url!r} speaks TLS, and this node has no certificate",
            hint="join its cluster: din node join -",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is no HTTP URL", hint="write it as http://host:port")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        _check_plain(url, has_joined=is_secure_possible, is_insecure=is_insecure)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    return _Target(parts.hostname, port, path, parts.scheme == "https")


def _check_plain(url: str, *, has_joined: bool, is_insecure: bool) -> None:
    """Raises Denied where plain text must not leave this machine: whoever answers could be anybody,
    and would give orders."""
    if has_joined:
        raise Denied(
            f"{url!r} is plain text, and this node has joined its cluster by certificate",
            hint="name the gateway's TLS address: https://HOST:8443",
        )
    if not is_insecure:
        raise Denied(
            f"{url!r} is plain text to another machine, where anybody may answer",
            hint="join the cluster (din node join -), or say --insecure-network",
        )


def _told(url: str, error: Exception, began_at: float, timeout_ms: int) -> Exception:
    after_ms = (asyncio.get_running_loop().time() - began_at) * 1000
    if isinstance(error, TimeoutError):
        return Unreachable(
            f"{url} did not answer within {timeout_ms} ms", hint="is the server overloaded or gone"
        )
    if isinstance(error, h11.LocalProtocolError):
        return UsageError(f"{url} cannot be asked for: {error}")
    if isinstance(error, h11.ProtocolError):
        return Unreachable(f"{url} answered no valid HTTP after {after_ms:.0f} ms: {error}")
    if isinstance(error, DinError):
        return type(error)(f"{url} after {after_ms:.0f} ms: {error.message}", hint=error.hint)
    if isinstance(error, OSError):
        return Unreachable(f"{url} broke off after {after_ms:.0f} ms: {reason_of(error)}")
    return error
