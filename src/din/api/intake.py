"""Where the bytes of a connection land: in one buffer that all connections share, or, once it is
known what comes, straight in the body they belong to.

Clients repeat themselves: on a connection that is kept alive most heads are the one before, byte
for byte. A head at the beginning of a message means the same each time, so what the parser found in
the last one is kept, and the parser does not see a post that begins with it again. Who may send it
is asked anew. Only plain posts are kept: ours, HTTP/1.1, kept alive, with a Content-Length and no
Expect or Upgrade. Everything else, and everything that does not fit, goes through the parser.

A claimed length costs nothing to send, so bodies that have not come yet share a budget of their
own; beyond it they are taken in pieces, and counted as they come.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from din.api.post import Post, Target

RECEIVE_BYTES: Final = 256 * 1024
"""One read of a socket, at most."""
HEAD_BYTES_MAX: Final = 2048
"""Of a head that is kept."""
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Larger bodies are few, and their size in one piece is hard to get."""
AWAITED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of all bodies together that have begun to come."""
_HEAD_END: Final = b"\r\n\r\n"


class KnownPost(NamedTuple):
    """A head, and what it says."""

    head: bytes
    target: Target
    query: bytes
    headers: dict[bytes, bytes]
    body_bytes: int


class Reception:
    """What all connections share; they take turns, since each uses up what it read at once."""

    def __init__(self) -> None:
        self.buffer = bytearray(RECEIVE_BYTES)
        self.view = memoryview(self.buffer)
        self.awaited_bytes = 0


class Intake:
    """The receiving end of one connection."""

    __slots__ = ("_awaited_bytes", "_common", "_head", "_last", "room")

    def __init__(self, common: Reception) -> None:
        self._common = common
        self.room = common.view
        """Where the next bytes shall go."""
        self._awaited_bytes = 0
        self._last: KnownPost | None = None
        self._head = b""
        """The head that the last bytes began with, for `keep`; empty = none, or not whole."""

    def taken(self, nbytes: int) -> bytes:
        """What was just received into the common buffer."""
        return bytes(self._common.view[:nbytes])

    def known(self, nbytes: int) -> KnownPost | None:
        """The post that the bytes just received begin, when its head is known and nothing of
        another request follows. Ask only between two messages."""
        common, last = self._common, self._last
        if last is not None and common.buffer.startswith(last.head):
            come = nbytes - len(last.head)
            is_awaitable = common.awaited_bytes + last.body_bytes <= AWAITED_BYTES_MAX
            if 0 <= come <= last.body_bytes and (is_awaitable or come == last.body_bytes):
                return last
        start = common.buffer.find(_HEAD_END, 0, min(nbytes, HEAD_BYTES_MAX))
        self._head = bytes(common.view[: start + len(_HEAD_END)]) if start >= 0 else b""
        return None

    def begin(self, known: KnownPost, nbytes: int, post: Post) -> int:
        """Take what has come of the body of a known post; how many bytes that are."""
        common, start = self._common, len(known.head)
        come = nbytes - start
        if come == known.body_bytes:
            post.chunks = [bytes(common.view[start:nbytes])]
            return come
        body = bytearray(known.body_bytes)
        post.chunks = [body]
        room = memoryview(body)
        room[:come] = common.view[start:nbytes]
        self.room = room[come:]
        self._awaited_bytes = known.body_bytes
        common.awaited_bytes += known.body_bytes
        return come

    @property
    def is_filling(self) -> bool:
        """Whether more of a body is awaited."""
        return self._awaited_bytes > 0

    def fill(self, nbytes: int) -> None:
        """So much more of the body came."""
        self.room = self.room[nbytes:]
        if not self.room.nbytes:
            self.end()

    def end(self) -> None:
        """The body is whole, or nobody wants the rest of it; repeating it is harmless."""
        self._common.awaited_bytes -= self._awaited_bytes
        self._awaited_bytes = 0
        self.room = self._common.view

    def keep(self, post: Post, body_bytes: int) -> None:
        """Remember the head of this post, if it surely ended where the parser saw its end."""
        head, self._head = self._head, b""
        is_clear = head.startswith(b"POST ") and head.count(b"\n") == head.count(b"\r\n")
        if is_clear and 0 < body_bytes <= BODY_BYTES_MAX:
            self._last = KnownPost(head, post.target, post.query, post.headers, body_bytes)

    def passed(self) -> None:
        """A message ended: what follows begins elsewhere."""
        self._head = b""
