"""Workers that a gateway on this host may feed itself: offered, revoked, forgotten.

An offer travels with two descriptors and therefore only over a Unix socket. Each worker is offered
once per link; a new link means new offers, because the gateway dropped the old ones with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from din.errors import DinError
from din.execution.events import SliceKey
from din.transport.link import Link
from din.wire.messages import Offer, Revoke
from din.wire.worker import ArenaLayout

REVOKE_TIMEOUT_S: Final = 10.0
"""How long a gateway may take to finish what runs in a worker that is unloaded."""

Report = Callable[..., None]


class _Direct:
    __slots__ = ("arena_fd", "key", "layout", "link", "revoked", "socket_fd")

    def __init__(self, key: SliceKey, socket_fd: int, arena_fd: int, layout: ArenaLayout) -> None:
        self.key = key
        self.socket_fd = socket_fd
        self.arena_fd = arena_fd
        self.layout = layout
        self.link: Link | None = None
        """Over which it was offered."""
        self.revoked: asyncio.Event | None = None


class Offers:
    """Every worker that could be handed over. The descriptors stay the pool's."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._workers: dict[int, _Direct] = {}
        self._gateway: Link | None = None

    def __len__(self) -> int:
        return len(self._workers)

    def worker_ready(
        self, key: SliceKey, worker_id: int, socket_fd: int, arena_fd: int, layout: ArenaLayout
    ) -> None:
        """A worker with a channel for a gateway is ready."""
        self._workers[worker_id] = _Direct(key, socket_fd, arena_fd, layout)
        self._offer(worker_id)

    def worker_died(self, worker_id: int) -> None:
        """The pool closes its descriptors now."""
        direct = self._workers.pop(worker_id, None)
        if direct is not None and direct.revoked is not None:
            direct.revoked.set()

    def gateway_opened(self, link: Link) -> None:
        """The link to the gateway is up: offer everything over it, if it can carry it."""
        self._gateway = link
        for worker_id in list(self._workers):
            self._offer(worker_id)

    def gateway_closed(self, link: Link) -> None:
        """The gateway dropped what it had from us."""
        if self._gateway is link:
            self._gateway = None
        for direct in self._workers.values():
            if direct.link is link:
                direct.link = None
                if direct.revoked is not None:
                    direct.revoked.set()

    def revoked(self, worker_id: int) -> bool:
        """The gateway has nothing in this worker any more; False when it was not asked to: the
        worker did not answer it."""
        direct = self._workers.get(worker_id)
        if direct is not None and direct.revoked is not None:
            direct.revoked.set()
            return True
        return False

    async def revoke(self, key: SliceKey, worker: int | None = None) -> None:
        """Take back every worker of a slice, or one; returns when nothing of a gateway runs in it,
        or after REVOKE_TIMEOUT_S."""
        waiting: list[asyncio.Event] = []
        leaving = [
            worker_id
            for worker_id, direct in self._workers.items()
            if direct.key == key and worker in (None, worker_id)
        ]
        for worker_id in leaving:
            direct = self._workers[worker_id]
            if direct.link is None or not direct.link.send(Revoke(worker_id)):
                continue
            direct.revoked = asyncio.Event()
            waiting.append(direct.revoked)
        try:
            async with asyncio.timeout(REVOKE_TIMEOUT_S):
                for each in waiting:
                    await each.wait()
        except TimeoutError:
            self._report("revoke_failed", slice=key[1], timeout_s=REVOKE_TIMEOUT_S)
        for worker_id in leaving:
            self._workers.pop(worker_id, None)

    def _offer(self, worker_id: int) -> None:
        direct, link = self._workers[worker_id], self._gateway
        if link is None or not link.is_local or not link.is_open:
            return
        if direct.link is link or direct.revoked is not None:
            return
        epoch, index = direct.key
        layout = direct.layout
        offer = Offer(epoch, index, worker_id, layout.arena_bytes, layout.input_bytes)
        try:
            is_queued = link.send(offer, fds=(direct.socket_fd, direct.arena_fd))
        except (DinError, OSError) as error:
            self._report("offer_failed", worker=worker_id, reason=str(error))
            return
        if is_queued:
            direct.link = link
        else:
            self._report("offer_failed", worker=worker_id, reason="the link is full")
