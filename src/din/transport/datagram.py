"""Datagrams: a port that answers some, and a caller that waits for one answer. Neither trusts."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

from din.errors import Conflict, DinError, Unreachable
from din.transport.datagram_calls import (
    DATAGRAM_BYTES_MAX,
    DATAGRAMS_PER_TURN_MAX,
    calls_for,
)
from din.transport.sockets import reason_of

RECEIVE_BUFFER_BYTES: Final = 1024 * 1024
"""A few thousand beats: a gateway that pauses for a moment loses none."""

Receive = Callable[[bytes], bytes | None]


class DatagramServer:
    """Answers datagrams at one port until `close`."""

    def __init__(self, host: str, port: int, receive: Receive) -> None:
        """`receive` never raises. Raises Conflict or Unreachable when the port cannot be had."""
        self._receive = receive
        self._socket = _bound(host, port)
        self._calls = calls_for(self._socket)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._on_readable)
        self.unsent = 0
        """Answers that the kernel did not take; the node beats again."""

    @property
    def port(self) -> int:
        """The port that is really bound."""
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Give the port back."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _on_readable(self) -> None:
        """First all that has come, then what is said to it, then the answers: the caches of the
        kernel and ours stay warm, and others get a turn before the next."""
        receive = self._receive
        self.unsent += self._calls.answer([receive(each) for each in self._calls.receive()])


class DatagramCaller:
    """Sends datagrams to one address and hears what comes back from there."""

    def __init__(self, sock: socket.socket, heard: Callable[[bytes], None]) -> None:
        """`heard` never raises. Made by `datagram_caller`."""
        self._heard = heard
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self._on_readable)

    def send(self, datagram: bytes) -> None:
        """Raises Unreachable when it cannot leave now."""
        try:
            self._socket.send(datagram)
        except OSError as error:
            raise Unreachable(f"the datagram cannot leave: {reason_of(error)}") from None

    def close(self) -> None:
        """Hear nothing more."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _on_readable(self) -> None:
        for _ in range(DATAGRAMS_PER_TURN_MAX):
            try:
                datagram = self._socket.recv(DATAGRAM_BYTES_MAX)
            except OSError:
                return  # nothing more now, or "port unreachable": silence says the same
            self._heard(datagram)


async def datagram_caller(host: str, port: int, heard: Callable[[bytes], None]) -> DatagramCaller:
    """A caller of one address. Raises Unreachable when there is no way to it."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise _unreachable(host, port, error) from None
    family, _, _, _, target = found[0]
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setblocking(False)
    try:
        sock.connect(target)
    except OSError as error:
        sock.close()
        raise Unreachable(f"no way to {host}:{port}: {reason_of(error)}") from None
    return DatagramCaller(sock, heard)


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    except OSError as error:
        raise _unreachable(host, port, error) from None
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        sock.setblocking(False)
        sock.bind(address)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise Conflict(
                f"UDP port {port} on {host} is in use", hint="give another --tls-port"
            ) from None
        raise _unreachable(host, port, error) from None
    return sock


def _unreachable(host: str, port: int, error: OSError) -> DinError:
    return Unreachable(
        f"no datagrams at {host}:{port}: {error.strerror or error}",
        hint="give an address of this machine",
    )
