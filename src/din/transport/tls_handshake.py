"""From a connected TCP socket to an encrypted one, without blocking the loop.

Neither side falls back: a plain link at an encrypted port is told so in a frame that it can read,
and an encrypted one at a plain port fails at once.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final

from din.domain.trust import PeerName
from din.errors import Denied, Unreachable
from din.transport.sockets import reason_of
from din.transport.tls import peer_name
from din.transport.tls_socket import CUT, TlsSocket, tls_reason
from din.wire.frame import MAGIC, encode_head
from din.wire.messages import Refused

PLAIN_AT_TLS: Final = "links are encrypted here: join the cluster first (din node join -)"
_ENDS: Final = (CUT, os.strerror(errno.ECONNRESET), os.strerror(errno.EPIPE))
_TLS_RECORD: Final = b"\x16"
"""First byte of every TLS handshake."""


async def secure(sock: socket.socket, context: ssl.SSLContext, *, is_server: bool) -> TlsSocket:
    """Shake hands; the certificate of the other side is verified and its name read.

    Takes the socket over: it is closed when this fails or is cancelled. There is no time limit
    here. Raises Unreachable, and Denied when the certificate names no machine of DIN.
    """
    raw: socket.socket = sock
    try:
        if is_server:
            await _check_first_byte(raw)
        raw = wrapped = context.wrap_socket(
            raw,
            server_side=is_server,
            do_handshake_on_connect=False,
            suppress_ragged_eofs=False,
        )
        await _shake_hands(wrapped)
        name = _name_of(wrapped)
    except ssl.SSLError as error:
        raw.close()
        reason = tls_reason(error)
        raise _failed(reason, is_server=is_server) from error
    except OSError as error:
        raw.close()
        raise _failed(reason_of(error), is_server=is_server) from error
    except BaseException:
        raw.close()
        raise
    return TlsSocket(wrapped, name)


def _name_of(sock: ssl.SSLSocket) -> PeerName:
    name = peer_name(sock)
    if name is None:
        raise Denied("the peer showed no certificate")
    return name


async def _shake_hands(sock: ssl.SSLSocket) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            await _until(sock, loop.add_reader, loop.remove_reader)
        except ssl.SSLWantWriteError:
            await _until(sock, loop.add_writer, loop.remove_writer)
        else:
            return


async def _check_first_byte(sock: socket.socket) -> None:
    """Raises Unreachable when the peer does not begin with TLS; a DIN peer is told so."""
    loop = asyncio.get_running_loop()
    await _until(sock, loop.add_reader, loop.remove_reader)
    first = sock.recv(1, socket.MSG_PEEK)
    if first == _TLS_RECORD:
        return
    if not first:
        raise Unreachable("the peer closed the connection before it said anything")
    if not MAGIC.startswith(first):
        raise Unreachable(f"the peer does not speak TLS: its first byte is {first!r}")
    # What it said is read, so that closing does not throw away the answer.
    sock.recv(4096)
    sock.send(encode_head(Refused(PLAIN_AT_TLS)))
    sock.shutdown(socket.SHUT_WR)
    raise Unreachable("a plain link came to an encrypted port", hint=PLAIN_AT_TLS)


async def _until(
    sock: socket.socket,
    add: Callable[[int, Callable[[], None]], None],
    remove: Callable[[int], object],
) -> None:
    """Wait until the loop says that the descriptor is ready."""
    number = sock.fileno()
    ready = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    add(number, wake)
    try:
        await ready
    finally:
        remove(number)


def _failed(reason: str, *, is_server: bool) -> Unreachable:
    # Whoever listens ends a handshake without a word only when it understands none.
    why = "" if is_server or reason not in _ENDS else "; does it speak without TLS there?"
    return Unreachable(
        f"TLS handshake: {reason}{why}",
        hint="both machines must have joined the same cluster: din node join -",
    )
