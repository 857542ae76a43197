"""Messages with file descriptors beside them, over Unix sockets that keep message boundaries."""

from __future__ import annotations

import array
import os
import resource
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from din.errors import Internal

DESCRIPTORS_MAX: Final = 64
"""Descriptors beside one message; the kernel allows 253."""


WANTED_MAX: Final = 65_536
"""More than every limit of DIN together asks for."""


def raise_limit() -> int:
    """Allow this process as many open files as its hard limit does; how many those are.

    The usual soft limit of 1024 protects programs that call select(), which DIN does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_MAX if hard == resource.RLIM_INFINITY else min(hard, WANTED_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # then the soft limit stays, and is told when it is met
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return soft


def control_pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair of SEQPACKET sockets: each message arrives whole, an end is seen as EOF."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_message(sock: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send one message; the descriptors stay open here. Raises OSError."""
    if len(descriptors) > DESCRIPTORS_MAX:
        raise Internal(f"{len(descriptors)} descriptors beside one message, over {DESCRIPTORS_MAX}")
    if descriptors:
        rights = array.array("i", descriptors)
        sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    else:
        sock.send(data)


def receive_message(sock: socket.socket, bytes_max: int) -> tuple[bytes, list[int]]:
    """One message and its descriptors, close-on-exec, owned by the caller; b"" at the end of file.

    Raises OSError, and Internal for a message or a list of descriptors over its limit.
    """
    room = socket.CMSG_SPACE(DESCRIPTORS_MAX * 4)
    data, ancillary, flags, _ = sock.recvmsg(bytes_max, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % 4])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_all(descriptors)
        raise Internal(f"a control message is over {bytes_max} bytes or {DESCRIPTORS_MAX} files")
    return data, list(descriptors)


def close_all(descriptors: Iterable[int]) -> None:
    """Close each; one that is closed already is a mistake that must not hide the others."""
    for descriptor in descriptors:
        try:
            os.close(descriptor)
        except OSError:
            continue
