"""Listening sockets: who may have a port or a socket file, and what to say when it is taken."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from din.errors import Conflict, UsageError
from din.transport.sockets import check_path, reason_of

BACKLOG: Final = 512
PROBE_TIMEOUT_S: Final = 1.0


def bind_tcp(host: str, port: int) -> socket.socket:
    """A non-blocking listener. Raises Conflict when the port is taken, UsageError otherwise."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UsageError(f"{host!r} is no address of this host: {reason_of(error)}") from error
    family, _, _, _, target = found[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(target)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _tcp_error(host, port, error) from error
    return sock


def bind_unix(path: str) -> socket.socket:
    """A non-blocking listener on a file of mode 0600. Raises Conflict or UsageError."""
    check_path(path)
    _clear(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(sock.fileno(), 0o600)  # before bind, so the file is never open to others
        sock.bind(path)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise _taken(path) from error
        raise UsageError(
            f"cannot listen on {path!r}: {reason_of(error)}",
            hint="the directory must exist and be writable",
        ) from error
    return sock


Identity = tuple[int, int]


def identity_of(path: str) -> Identity:
    """Which file this is, so that `unlink_unix` removes no other."""
    found = os.stat(path, follow_symlinks=False)  # noqa: PTH116
    return found.st_dev, found.st_ino


def unlink_unix(path: str, identity: Identity) -> None:
    """Remove the socket file, unless another server has put its own there."""
    with suppress(FileNotFoundError):
        if identity_of(path) == identity:
            Path(path).unlink()


def _clear(path: str) -> None:
    """Remove a socket file whose owner died. Raises Conflict when it is alive or no socket."""
    try:
        mode = os.stat(path, follow_symlinks=False).st_mode  # noqa: PTH116
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot listen on {path!r}: {reason_of(error)}") from error
    if not stat.S_ISSOCK(mode):
        raise Conflict(
            f"{path!r} exists and is not a socket", hint="move it away, or name another path"
        )
    if _is_alive(path):
        raise _taken(path)
    with suppress(FileNotFoundError):
        Path(path).unlink()


def _is_alive(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except FileNotFoundError:
            return False
        except OSError:
            return True  # a full backlog or a foreign owner: somebody is there
    return True


def _taken(path: str) -> Conflict:
    return Conflict(
        f"another process listens on {path!r}",
        hint="stop it first, or give this one a state directory of its own",
    )


def _tcp_error(host: str, port: int, error: OSError) -> Conflict | UsageError:
    if error.errno == errno.EADDRINUSE:
        return Conflict(
            f"port {port} on {host} is in use",
            hint="stop the program that has it, or choose another with --port",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return UsageError(
            f"port {port} on {host} is not allowed: {reason_of(error)}",
            hint="choose a port from 1024 up",
        )
    return UsageError(
        f"cannot listen on {host} port {port}: {reason_of(error)}",
        hint="the address must belong to an interface of this host",
    )
