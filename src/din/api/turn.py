"""One post on its way through one connection, and what all connections share."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from din.access.limits import WaitingRoom
from din.api.admission import Admission
from din.api.intake import Reception
from din.api.limits import FrontLimits
from din.api.post import Post
from din.api.turns import Turns
from din.api.unsent import Unsent
from din.gateway.service import Started

SMALL_BYTES: Final = 1024
SMALL_PIECES_MAX: Final = 1024
"""So many small pieces of a body are joined, or a body of one-byte chunks would cost 40 times its
size in objects."""


class Front:
    """Whom to ask, who may, the limits, and the body bytes in memory on all connections."""

    def __init__(
        self,
        turns: Turns,
        limits: FrontLimits | None = None,
        admission: Admission | None = None,
    ) -> None:
        self.turns = turns
        self.limits = limits or FrontLimits()
        self.admission = admission or Admission()
        self.buffered_bytes = 0
        self.unsent = Unsent(self.limits.unsent_bytes_max)
        self.reception = Reception()
        self.strangers = WaitingRoom[asyncio.BaseProtocol](self.limits.strangers_max)
        """Connections by TLS until a certificate or key of theirs was taken once."""
        self.known = Counter[str]()
        """Open connections of each key and node, by the first that a connection showed."""


class _NoWaiter:
    """Stands where uvicorn expects an event of its cycle: nobody waits for a turn."""

    def set(self) -> None:
        """Do nothing."""


class Turn:
    """One post of ours on one connection; has the fields that uvicorn reads of a cycle."""

    __slots__ = (
        "_pieces_joined",
        "_pieces_small",
        "disconnected",
        "error",
        "is_body_complete",
        "keep_alive",
        "message_event",
        "post",
        "response_complete",
        "running",
        "wants_continue",
    )

    def __init__(self, post: Post, *, keep_alive: bool, wants_continue: bool) -> None:
        self.post = post
        self.keep_alive = keep_alive
        self.wants_continue = wants_continue
        self.is_body_complete = False
        self.error: BaseException | None = None
        self.response_complete = False
        self.disconnected = False
        self.message_event = _NoWaiter()
        self.running: asyncio.Task[None] | Started | None = None
        self._pieces_small = 0
        self._pieces_joined = 0

    def add(self, body: bytes) -> None:
        """Keep a piece of the body as it came."""
        chunks = self.post.chunks
        chunks.append(body)
        self.post.nbytes += len(body)
        if len(body) < SMALL_BYTES:
            self._pieces_small += 1
            if self._pieces_small == SMALL_PIECES_MAX:
                chunks[self._pieces_joined :] = [b"".join(chunks[self._pieces_joined :])]
                self._pieces_joined += 1
                self._pieces_small = 0

    def forget_body(self) -> int:
        """Drop the body; how many bytes that were."""
        nbytes = self.post.nbytes
        self.post.nbytes = 0
        self.post.chunks = []
        return nbytes
