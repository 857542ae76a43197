"""Sockets of links: addresses, options, connecting, receiving with descriptors.

A lane needs no more of a socket than `SocketLike`, so an encrypted one can take its place.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from din.errors import UsageError
from din.wire.frame import DESCRIPTORS_MAX

KEEPALIVE_IDLE_S: Final = 5
KEEPALIVE_INTERVAL_S: Final = 2
KEEPALIVE_COUNT: Final = 2
TCP_USER_TIMEOUT_MS: Final = 8_000
"""Unacknowledged for so long = the peer is gone; the lane without pings is told by this."""
UNIX_BUFFER_BYTES: Final = 1024 * 1024
"""Asked for; the kernel gives what `wmem_max` allows."""
UNIX_PATH_BYTES_MAX: Final = 107

_CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred of unix(7): process, user, group."""
_ROOM: Final = socket.CMSG_SPACE(DESCRIPTORS_MAX * 4)


class SocketLike(Protocol):
    """What a lane uses of a non-blocking stream socket."""

    def fileno(self) -> int:
        """For the loop to watch."""
        ...

    def recv_into(self, buffer: memoryview, /) -> int:
        """Bytes received, 0 at the end. Raises BlockingIOError, OSError."""
        ...

    def recvmsg_into(
        self, buffers: Iterable[memoryview], ancbufsize: int, flags: int, /
    ) -> tuple[int, list[tuple[int, int, bytes]], int, Any]:
        """As `recv_into`, with descriptors; called on Unix sockets only."""
        ...

    def sendmsg(
        self, buffers: Iterable[memoryview], ancdata: Iterable[tuple[int, int, Any]], flags: int, /
    ) -> int:
        """Bytes taken. Raises BlockingIOError, OSError."""
        ...

    def shutdown(self, how: int, /) -> None:
        """End one direction."""
        ...

    def getsockname(self) -> Any:
        """Our own address; for TCP its first part is the host. Raises OSError."""
        ...

    def getpeername(self) -> Any:
        """The peer's address, likewise."""
        ...

    def close(self) -> None:
        """End both."""
        ...


class Address(Struct, frozen=True):
    """`unix:/path` or `tcp:host:port`; an IPv6 host stands in brackets."""

    text: str
    path: str = ""
    host: str = ""
    port: int = 0


def parse_address(text: str) -> Address:
    """Raises UsageError naming the address and what it lacks."""
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest:
        check_path(rest)
        return Address(text, path=rest)
    host, _, port = rest.rpartition(":")
    if kind == "tcp" and host and port.isdecimal() and 0 < int(port) < 65536:
        return Address(text, host=host.removeprefix("[").removesuffix("]"), port=int(port))
    raise UsageError(f"{text!r} is no address of a link", hint="write unix:/path or tcp:host:port")


def host_of(name: Any) -> str:
    """The host of a TCP socket's name, as addresses are written: no scope, IPv4 as IPv4."""
    return str(name[0]).partition("%")[0].removeprefix("::ffff:")


def check_path(path: str) -> None:
    """Raises UsageError for a path that the kernel would not take as a socket."""
    nbytes = len(os.fsencode(path))
    if nbytes > UNIX_PATH_BYTES_MAX or "\0" in path:
        raise UsageError(
            f"the socket path {path!r} has {nbytes} bytes, over {UNIX_PATH_BYTES_MAX}",
            hint="choose a shorter state directory",
        )


def tune(sock: socket.socket) -> None:
    """Make a fresh socket non-blocking, prompt, and quick to notice a dead peer."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_BUFFER_BYTES)
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)


async def connect(address: Address) -> socket.socket:
    """A tuned socket to the first of the host's addresses that answers. Raises OSError."""
    loop = asyncio.get_running_loop()
    if address.path:
        sock = await _connect(loop, socket.AF_UNIX, address.path)
        if _listener_of(sock) != os.geteuid():
            sock.close()
            raise PermissionError("another user listens there")
        return sock
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    last: OSError | None = None
    for family, _, _, _, target in found:
        try:
            return await _connect(loop, family, target)
        except OSError as error:
            last = error
    raise last if last is not None else OSError(f"{address.host} has no address")


async def _connect(loop: asyncio.AbstractEventLoop, family: int, target: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        tune(sock)
        await loop.sock_connect(sock, target)
    except BaseException:
        sock.close()
        raise
    return sock


def _listener_of(sock: socket.socket) -> int:
    """The user whose program listens where a Unix socket was connected to, as the kernel says."""
    said = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(said)[1])


def receive(sock: SocketLike, room: memoryview, *, is_local: bool) -> tuple[int, list[int]]:
    """Bytes received into `room` and descriptors beside them, close-on-exec, the caller's.

    0 bytes = the end. Raises BlockingIOError, and OSError for a broken socket.
    """
    if not is_local:
        return sock.recv_into(room), []
    nbytes, ancillary, flags, _ = sock.recvmsg_into([room], _ROOM, socket.MSG_CMSG_CLOEXEC)
    if not ancillary:
        return nbytes, []
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % 4])
    if flags & socket.MSG_CTRUNC:
        for descriptor in descriptors:
            os.close(descriptor)
        raise OSError(f"over {DESCRIPTORS_MAX} descriptors came at once")
    return nbytes, list(descriptors)


def send(sock: SocketLike, views: Sequence[memoryview], descriptors: Sequence[int]) -> int:
    """Bytes that the socket took. Raises BlockingIOError, and OSError for a broken socket."""
    if not descriptors:
        return sock.sendmsg(views, (), socket.MSG_NOSIGNAL)
    rights = array.array("i", descriptors)
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
    return sock.sendmsg(views, beside, socket.MSG_NOSIGNAL)


def reason_of(error: OSError) -> str:
    """What a person needs of an OSError; asyncio hides the cause behind texts of its own."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
