"""Links of this node to gateways and to other nodes, and what goes which way.

Tensors go straight to the node that needs them. A node that cannot be dialled gets them through the
gateway, which passes frames with a `target` on; a broken link is dialled again with back-off while
the gateway relays. A peer may have two links to us, one dialled by each side. Any open one serves,
so the newest is taken: after a change of addresses the older may be dead before anybody says so.
A link by an address that is gone, ours or the peer's, is closed as soon as that is known. What a
broken link may have swallowed is told to the gateway, which runs it again: nobody else would know.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final

from msgspec.structs import replace

from din.agent.executor import Sent
from din.errors import DinError, Unavailable
from din.flow.backoff import Backoff
from din.transport.dial import dial
from din.transport.link import Link, LinkHandler
from din.transport.server import RoleOf, node_role
from din.transport.tls_identity import TlsIdentity
from din.wire.messages import AnyMessage, Failed, Run

PEERS_MAX: Final = 256
"""Nodes whose addresses are kept; a deployment is rarely on more than a handful."""
DIALS_AT_ONCE_MAX: Final = 8
DIAL_MS: Final = 2_000
FORWARDED_MAX: Final = 1024
"""Frames by one link whose arrival is not certain; of more, the oldest are left to time-outs."""
UNCERTAIN_S: Final = 1.0
"""A frame that the kernel took so long before the peer was last heard has arrived."""
REDIAL: Final = Backoff(base_ms=500.0, cap_ms=30_000.0, jitter=0.5)

Report = Callable[..., None]


def _nobody(_: str) -> bool:
    return False


class _Peer:
    __slots__ = ("addresses", "dialling", "failures", "links", "retry_at_s")

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ()
        self.links: list[Link] = []
        self.dialling: asyncio.Task[None] | None = None
        self.failures = 0
        self.retry_at_s = 0.0

    def link(self) -> Link | None:
        return next((link for link in reversed(self.links) if link.is_open), None)

    def move(self, addresses: tuple[str, ...]) -> None:
        """It is dialled elsewhere from now on. What is queued to where it was may still leave."""
        gone = _hosts(self.addresses) - _hosts(addresses)
        self.addresses = addresses
        self.dial_afresh()
        for link in self.links:
            if link.peer_host in gone:
                link.close(f"the peer has left {link.peer_host}", is_orderly=True)

    def dial_afresh(self) -> None:
        """What failed, or is being tried, says nothing of the next dial."""
        self.retry_at_s, self.failures = 0.0, 0
        if self.dialling is not None:
            self.dialling.cancel()
            self.dialling = None


class Peers:
    """All links by the id at the other end. Implements executor.Post."""

    def __init__(
        self,
        own_id: str,
        session: int,
        random: Random,
        report: Report,
        *,
        tls: TlsIdentity | None = None,
        role_of: RoleOf = node_role,
        is_out: Callable[[str], bool] = _nobody,
    ) -> None:
        """With an identity other machines are reached encrypted only, and each must prove the role
        that `role_of` wants of its id. Who `is_out` is not dialled, whatever orders say."""
        self._is_out = is_out
        self._tls = tls
        self._role_of = role_of
        self._own_id = own_id
        self._session = session
        self._random = random
        self._report = report
        self._handler: LinkHandler | None = None
        self._on_reach: Callable[[str], None] = _ignore
        self._peers: dict[str, _Peer] = {}
        self._forwarded: dict[Link, deque[tuple[float, Run]]] = {}
        """What the kernel took of late, and when."""
        self._places = asyncio.Semaphore(DIALS_AT_ONCE_MAX)
        self._loop = asyncio.get_running_loop()

    def connect(self, handler: LinkHandler, on_reach: Callable[[str], None]) -> None:
        """Who hears of dialled links, and of peers that got one or could not be dialled. Once,
        before the first `dial_all`."""
        self._handler, self._on_reach = handler, on_reach

    # Links come and go.

    def opened(self, link: Link) -> None:
        """A link is up, whoever dialled."""
        peer = self._peers.setdefault(link.peer_id, _Peer())
        peer.links.append(link)
        peer.failures = 0
        self._on_reach(link.peer_id)

    def closed(self, link: Link, *, is_orderly: bool) -> None:
        """A link is down."""
        forwarded = self._forwarded.pop(link, ())
        if not is_orderly:
            self._tell_lost(link, forwarded)
        peer = self._peers.get(link.peer_id)
        if peer is None:
            return
        if link in peer.links:
            peer.links.remove(link)
        if not peer.links and not peer.addresses:
            del self._peers[link.peer_id]

    def _tell_lost(self, link: Link, forwarded: Iterable[tuple[float, Run]]) -> None:
        since_s = link.heard_at - UNCERTAIN_S
        for sent_s, run in forwarded:
            if sent_s >= since_s:
                message = f"the link from node {self._own_id} ended, perhaps before this arrived"
                self.tell(
                    run.origin,
                    Failed(
                        run.request_id,
                        run.attempt,
                        run.slice_index,
                        link.peer_id,
                        Unavailable.code,
                        message,
                    ),
                )

    def link(self, peer_id: str) -> Link | None:
        """An open link to somebody."""
        peer = self._peers.get(peer_id)
        return peer.link() if peer is not None else None

    def links(self) -> Iterator[Link]:
        """All that are open."""
        return (link for peer in self._peers.values() for link in peer.links if link.is_open)

    def address_changed(self, gone: Container[str]) -> None:
        """Our own addresses changed: links by one that is gone are dead, and dials that failed may
        succeed now."""
        for node_id, peer in self._peers.items():
            for link in peer.links:
                if link.local_host in gone:
                    link.close(f"{link.local_host} is no address of this machine any more")
            peer.dial_afresh()
            self._dial_soon(node_id, peer)

    async def dial_all(self, addresses: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        """Dial the nodes that have no link yet; those that could not be reached within DIAL_MS."""
        wanted: list[_Peer] = []
        for node_id, known in addresses.items():
            if node_id == self._own_id or self._is_out(node_id):
                continue
            if node_id not in self._peers and len(self._peers) >= PEERS_MAX:
                self._report("peer_not_kept", peer=node_id, peers_max=PEERS_MAX)
                continue
            peer = self._peers.setdefault(node_id, _Peer())
            if peer.addresses != known:
                peer.move(known)
            wanted.append(peer)
            self._dial_soon(node_id, peer)
        # Again while there are any: a dial is begun anew when addresses change meanwhile.
        while tasks := [peer.dialling for peer in wanted if peer.dialling is not None]:
            await asyncio.wait(tasks)
        return tuple(
            node_id
            for node_id in addresses
            if node_id != self._own_id and self.link(node_id) is None
        )

    def _dial_soon(self, node_id: str, peer: _Peer) -> None:
        """Begin to dial, unless there is a link, a try under way, or a pause after a failure."""
        is_due = self._loop.time() >= peer.retry_at_s
        if peer.link() is None and peer.dialling is None and peer.addresses and is_due:
            peer.dialling = self._loop.create_task(self._dial(node_id, peer))

    async def _dial(self, node_id: str, peer: _Peer) -> None:
        assert self._handler is not None, "connect() comes first"
        try:
            async with self._places:
                await dial(
                    peer.addresses,
                    own_id=self._own_id,
                    session=self._session,
                    target_id=node_id,
                    target_role=self._role_of(node_id),
                    tls=self._tls,
                    handler=self._handler,
                    timeout_ms=DIAL_MS,
                    report=self._report,
                )
        except DinError as error:
            delay_ms = REDIAL.delay_ms(peer.failures, self._random)
            peer.failures += 1
            peer.retry_at_s = self._loop.time() + delay_ms / 1000
            self._report("peer_not_reached", peer=node_id, reason=error.message)
            self._on_reach(node_id)
        finally:
            if peer.dialling is asyncio.current_task():
                peer.dialling = None

    def forget(self, node_ids: Sequence[str]) -> None:
        """These nodes share no deployment with us any more: dial them no more, and end what is
        open when it has left."""
        for node_id in node_ids:
            self._end(node_id, "no deployment names both ends any more", is_orderly=True)

    def cut(self, node_ids: Sequence[str]) -> None:
        """These nodes were revoked: dial them no more, and end what is open as it is."""
        for node_id in node_ids:
            self._end(node_id, "the node was revoked", is_orderly=False)

    def _end(self, node_id: str, reason: str, *, is_orderly: bool) -> None:
        peer = self._peers.get(node_id)
        if peer is None:
            return
        peer.addresses = ()
        peer.dial_afresh()
        for link in list(peer.links):
            link.close(reason, is_orderly=is_orderly)
        if not peer.links:
            self._peers.pop(node_id, None)

    # executor.Post.

    def tell(self, gateway_id: str, message: AnyMessage) -> bool:
        """See executor.Post."""
        link = self.link(gateway_id)
        return link is not None and link.send(message)

    def answer(
        self, gateway_id: str, message: AnyMessage, body: Sequence[memoryview], sent: Sent
    ) -> None:
        """See executor.Post."""
        link = self.link(gateway_id)
        if link is None:
            sent(f"there is no link to gateway {gateway_id}")
        else:
            self._send(link, message, body, sent)

    def forward(self, node_id: str, run: Run, body: Sequence[memoryview], sent: Sent) -> None:
        """See executor.Post."""
        link = self.link(node_id)
        if link is not None:
            self._send(link, run, body, partial(self._forwarded_by, link, run, sent))
            return
        peer = self._peers.get(node_id)
        if peer is not None:
            self._dial_soon(node_id, peer)
        relay = self.link(run.origin)
        if relay is None:
            sent("there is no link to it, and none to the gateway")
        else:
            self._send(relay, replace(run, target=node_id), body, sent)

    def is_here(self, node_id: str) -> bool:
        """See executor.Post."""
        link = self.link(node_id)
        return link is not None and link.is_local

    def _forwarded_by(self, link: Link, run: Run, sent: Sent, trouble: str) -> None:
        if not trouble and link.is_open:
            forwarded = self._forwarded.setdefault(link, deque(maxlen=FORWARDED_MAX))
            forwarded.append((self._loop.time(), run))
            while forwarded and forwarded[0][0] < link.heard_at - UNCERTAIN_S:
                forwarded.popleft()
        sent(trouble)

    def _send(
        self, link: Link, message: AnyMessage, body: Sequence[memoryview], sent: Sent
    ) -> None:
        def told(is_sent: bool) -> None:
            sent("" if is_sent else "the link ended before they had left")

        try:
            is_queued = link.send(message, body, on_sent=told)
        except DinError as error:
            sent(error.message)
            return
        if not is_queued:
            sent("the link is full" if link.is_open else "the link is closed")

    async def close(self) -> None:
        """End every dial and every link, in an orderly way."""
        tasks = [peer.dialling for peer in self._peers.values() if peer.dialling is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self._peers.values():
            for link in list(peer.links):
                link.close("the node stops", is_orderly=True)


def _ignore(_: str) -> None:
    """Nobody listens yet."""


def _hosts(addresses: Sequence[str]) -> frozenset[str]:
    """The hosts of TCP addresses. They came over a wire: one that is none has no host."""
    return frozenset(
        each.removeprefix("tcp:").rpartition(":")[0].strip("[]")
        for each in addresses
        if each.startswith("tcp:")
    )
