"""Response heads, and parts written without joining and without keeping them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from din.api.post import Reply, header_text
from din.gateway.service import Buffer

PARTS_MAX: Final = 64
"""More parts than this are joined: the kernel takes a bounded number at once."""

_STATUS_LINES: Final = {
    each.value: b"HTTP/1.1 %d %s\r\n" % (each.value, each.phrase.encode()) for each in HTTPStatus
}


def head_of(reply: Reply, defaults: Sequence[tuple[bytes, bytes]], *, keep_alive: bool) -> bytes:
    """Status line and header fields of an answer."""
    lines = [
        _STATUS_LINES[reply.status],
        b"content-type: %s\r\ncontent-length: %d\r\ndin-request-id: %s\r\n"
        % (reply.content_type, _nbytes(reply.parts), header_text(reply.request_id)),
        reply.extra,
    ]
    lines += [b"%s: %s\r\n" % pair for pair in defaults]
    lines.append(b"\r\n" if keep_alive else b"connection: close\r\n\r\n")
    return b"".join(lines)


def _nbytes(parts: Sequence[Buffer]) -> int:
    total = 0
    for part in parts:
        total += part.nbytes if isinstance(part, memoryview) else len(part)
    return total


def is_writable_now(transport: asyncio.Transport) -> bool:
    """Whether anything written would still go out."""
    return not transport.is_closing()


def send_parts(transport: asyncio.Transport, parts: list[Buffer]) -> None:
    """Write all parts in order. Afterwards nothing refers to them any more.

    They go to the kernel in one writev; what it does not take is copied, because newer event loops
    keep views of what they could not send and the caller gives the memory back at once.
    """
    sock = transport.get_extra_info("socket")
    is_plain = transport.get_extra_info("sslcontext") is None
    if sock is None or not is_plain or transport.get_write_buffer_size() or len(parts) > PARTS_MAX:
        transport.write(b"".join(parts))
        return
    try:
        sent = os.writev(sock.fileno(), parts)
    except OSError:
        # Full or broken: the transport's own write finds out which and acts on it.
        sent = 0
    if sent < _nbytes(parts):
        transport.write(_after(parts, sent))


def _after(parts: Sequence[Buffer], sent: int) -> bytes:
    """A copy of everything but the first `sent` bytes."""
    left: list[Buffer] = []
    for part in parts:
        view = memoryview(part)
        if not view.nbytes:
            continue  # a view with a zero in its shape cannot be cast
        view = view.cast("B")
        if sent >= view.nbytes:
            sent -= view.nbytes
            continue
        left.append(view[sent:])
        sent = 0
    return b"".join(left)
