"""`python -m din.runner.forward`: carries connections from this machine into a container.

The port is bound out here and handed over; the connections are made inside the container's network,
which this process enters first. It can do nothing else there, and has no rights left by then.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Final, cast

from din.sandbox.kernel import LIBC, checked, drop_capabilities, promise_no_privileges
from din.system.privacy import end_with_parent, hide_memory

CONNECTIONS_MAX: Final = 256
BACKLOG: Final = 64
_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_NOBODY: Final = 65534


class _Side(asyncio.Protocol):
    """One of two connections; what it reads the other writes."""

    def __init__(self, count: set[_Side]) -> None:
        self.other: _Side | None = None
        self.transport: asyncio.Transport | None = None
        self._all = count
        self.has_ended = False
        """It says no more, but may still hear."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._all.add(self)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        self.has_ended = True
        other = self.other
        if other is None or other.transport is None or other.transport.is_closing():
            return False
        other.transport.write_eof()
        if not other.has_ended:
            return True
        other.transport.close()  # both have said all: what is written still goes out
        return False

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.discard(self)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class _Outer(_Side):
    """From this machine: what it says first is kept until the inner connection is made."""

    def __init__(self, count: set[_Side], port: int) -> None:
        super().__init__(count)
        self._port = port
        self._dialling: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        """Read before there is where to write it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        own = cast("asyncio.Transport", transport)
        if len(self._all) > 2 * CONNECTIONS_MAX:
            own.abort()
            return
        self._dialling = asyncio.get_running_loop().create_task(self._dial(own))

    def data_received(self, data: bytes) -> None:
        if self.other is None and self.transport is not None:
            self._early.append(data)
            # Not as the connection is made: Python 3.11.2 forgets it then.
            self.transport.pause_reading()
        else:
            super().data_received(data)

    async def _dial(self, own: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, inner = await loop.create_connection(
                lambda: _Side(self._all), "127.0.0.1", self._port
            )
        except OSError:
            own.abort()  # the server does not listen yet: seen as a connection that is reset
            return
        self.other, inner.other = inner, self
        if own.is_closing():
            if inner.transport is not None:
                inner.transport.abort()
            return
        if inner.transport is not None:
            inner.transport.writelines(self._early)
        self._early.clear()
        own.resume_reading()


async def carry(listener: socket.socket, port: int) -> None:
    """Until this process is ended."""
    sides: set[_Side] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Outer(sides, port), sock=listener, backlog=BACKLOG)
    await server.serve_forever()


def enter_network(pid: int, *, is_rootless: bool) -> None:
    """Be in a process's network from here on, with its 127.0.0.1 up. Raises OSError."""
    kinds = [("user", _NEWUSER)] if is_rootless else []
    opened = [
        (os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), flag)
        for name, flag in [*kinds, ("net", _NEWNET)]
    ]
    for descriptor, flag in opened:
        checked(LIBC.setns(ctypes.c_int(descriptor), ctypes.c_int(flag)), "setns")
        os.close(descriptor)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        name = b"lo".ljust(16, b"\0")
        flags: int = struct.unpack_from(
            "16sH", fcntl.ioctl(asked, _SIOCGIFFLAGS, name + bytes(24))
        )[1]
        if not flags & _IFF_UP:
            request = struct.pack("16sH22x", name, flags | _IFF_UP)
            fcntl.ioctl(asked, _SIOCSIFFLAGS, request)


def give_up_rights() -> None:
    """From here on it carries bytes and may do nothing. Raises OSError."""
    promise_no_privileges()
    if os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split()[2] != "1":
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    drop_capabilities()
    hide_memory()


def main() -> int:
    """The exit code; it ends by a signal otherwise."""
    parser = argparse.ArgumentParser(prog="python -m din.runner.forward", description=__doc__)
    parser.add_argument("--listen-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--pid", type=int, required=True, help="a process of the container")
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    try:
        enter_network(given.pid, is_rootless=os.geteuid() != 0)
        give_up_rights()
    except OSError as error:
        sys.stderr.write(f"the container's network cannot be entered: {error}\n")
        return 1
    end_with_parent()
    if os.getppid() != given.parent_pid:
        return 0
    listener = socket.socket(fileno=given.listen_fd)
    asyncio.run(carry(listener, given.port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
