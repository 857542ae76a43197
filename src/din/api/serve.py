"""Runs front and application on one port, inside the caller's event loop.

Uvicorn's `Server` would install signal handlers and poll ten times a second; only its protocol and
its configuration are used here.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from email.utils import formatdate
from typing import Any, Final, NamedTuple

from uvicorn.config import Config
from uvicorn.server import ServerState

from din.api.accepting import Acceptor
from din.api.front import FrontProtocol, front_protocol
from din.api.secure import SecureListener
from din.api.turn import Front
from din.config import is_loopback
from din.errors import Conflict, Denied, Unreachable

BACKLOG: Final = 1024
GRACE_S: Final = 5.0
"""What a stopping gateway gives running requests."""
_POLL_S: Final = 0.02
_DATE_S: Final = 1.0


def bind(host: str, port: int, *, is_off_loopback_allowed: bool = False) -> socket.socket:
    """A listening socket. Raises Conflict (port in use), Denied (not loopback, or a low port)."""
    family, address = _resolve(host, port)
    if not is_off_loopback_allowed and not is_loopback(address[0]):
        raise Denied(
            f"{host} is not a loopback address: plain HTTP would leave this machine",
            hint="TLS listens there by itself; --insecure-network allows plain text as well",
        )
    # With protocol 0 asyncio would not turn Nagle off, and two small writes would wait 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _bind_error(host, port, error) from None
    return sock


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise Unreachable(
            f"cannot listen on {host!r}: {error.strerror or error}",
            hint="give an address of this machine, such as 127.0.0.1",
        ) from None
    return found[0][0], found[0][4]


def _bind_error(host: str, port: int, error: OSError) -> Conflict | Denied | Unreachable:
    if error.errno == errno.EADDRINUSE:
        return Conflict(
            f"port {port} on {host} is in use",
            hint=f"stop what listens there (`ss -ltnp 'sport = :{port}'`), or give another --port",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return Denied(
            f"port {port} on {host} needs rights that this user has not",
            hint="give a port of 1024 or more",
        )
    return Unreachable(
        f"cannot listen on {host}:{port}: {error.strerror}", hint="give an address of this machine"
    )


class Secure(NamedTuple):
    """A second socket for the same application, and how TLS is spoken on it."""

    sock: socket.socket
    context: ssl.SSLContext


class HttpServer:
    """Front and application on one or two sockets, from `start` to `stop`."""

    def __init__(
        self, app: Any, front: Front, sock: socket.socket, secure: Secure | None = None
    ) -> None:
        self._config = Config(
            app,
            http=front_protocol(front),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        self._state = ServerState()
        self._sock = sock
        self._secure = secure
        self._listener: SecureListener | None = None
        self._acceptor: Acceptor | None = None
        self._coming: set[asyncio.Task[None]] = set()
        """Connections on their way from the socket to the protocol."""
        self._clock: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port that is really listened on."""
        return int(self._sock.getsockname()[1])

    async def start(self) -> None:
        """Accept from now on; returns at once."""
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._config.load()
        self._tick()
        self._acceptor = Acceptor(self._sock, self._take)
        self._acceptor.start()
        if self._secure is not None:
            self._listener = SecureListener(*self._secure, self._protocol)
            self._listener.start()

    def _take(self, accepted: socket.socket, _address: str) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(accepted))
        self._coming.add(task)
        task.add_done_callback(self._coming.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, accepted)
        except OSError:
            accepted.close()  # gone already

    def _protocol(self) -> FrontProtocol:
        build: type[FrontProtocol] = self._config.http_protocol_class  # pyright: ignore[reportAssignmentType]
        return build(self._config, self._state, {}, asyncio.get_running_loop())

    def _tick(self) -> None:
        date = formatdate(usegmt=True).encode("ascii")
        self._state.default_headers = [(b"date", date)]
        self._clock = asyncio.get_running_loop().call_later(_DATE_S, self._tick)

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """Accept nothing more, give running requests `grace_s`, then close what is left."""
        if self._acceptor is None:
            return
        self._acceptor.close()
        self._sock.close()
        if self._listener is not None:
            self._listener.close()
        if self._coming:
            await asyncio.wait(self._coming)
        for connection in list(self._state.connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + grace_s
        while self._is_busy() and loop.time() < end_s:  # noqa: ASYNC110 - uvicorn's sets tell nobody
            await asyncio.sleep(_POLL_S)
        await self._close_rest()
        if self._clock is not None:
            self._clock.cancel()
        self._acceptor = None

    def _is_busy(self) -> bool:
        return bool(self._state.connections or self._state.tasks)

    async def _close_rest(self) -> None:
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
        for connection in list(self._state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)


async def serve(
    app: Any, front: Front, sock: socket.socket, secure: Secure | None = None
) -> HttpServer:
    """Start serving on bound sockets (see `bind`); the caller stops the server it gets."""
    server = HttpServer(app, front, sock, secure)
    await server.start()
    return server
