"""The gateway's end of every agent's link: who is connected, which message goes to which room.

Also the relay between two nodes that cannot dial each other: a RUN frame with a `target` is passed
on as it came, or answered with a failure that blames the target.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace

from din.config import is_loopback
from din.domain.node import NodeId
from din.errors import Busy, DinError, Unreachable
from din.flow.seldom import Seldom
from din.gateway.nodes.engine_book import EngineBook
from din.gateway.nodes.heat_desk import HeatDesk
from din.gateway.requests.direct import DirectWorkers
from din.gateway.requests.relay import Relay
from din.observability.printable import SAID_CHARACTERS_MAX, one_line
from din.system.clock import monotonic_ms
from din.system.descriptors import close_all
from din.transport.link import Link
from din.wire.messages import (
    Accepted,
    AnyMessage,
    BusyNode,
    EngineNews,
    Failed,
    Foreign,
    Heat,
    Measured,
    MeasuredWay,
    Offer,
    Prepared,
    PrepareFailed,
    Result,
    Revoke,
    Revoked,
    Run,
    WorkerDied,
)

RELAYED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Tensors of foreign edges that may lie in this process at once."""

Report = Callable[..., None]
_Failure = TypeVar("_Failure", Failed, PrepareFailed)


class LinkEvents(Protocol):
    """Who hears of links and of answers to PREPARE."""

    def link_opened(self, node_id: NodeId, session: int, link_id: int) -> None:
        """A node's link is up."""
        ...

    def link_closed(
        self, node_id: NodeId, session: int, link_id: int, reason: str, *, is_orderly: bool
    ) -> None:
        """A node's link is down."""
        ...

    def prepared(self, node_id: NodeId, message: Prepared) -> None:
        """A slice is loaded."""
        ...

    def prepare_failed(self, node_id: NodeId, message: PrepareFailed) -> None:
        """A slice could not be loaded."""
        ...

    def offered(self, node_id: NodeId, message: Offer) -> None:
        """A worker was handed over."""
        ...

    def worker_died(self, node_id: NodeId, message: WorkerDied) -> None:
        """A worker ended and is started again."""
        ...

    def measured(self, node_id: NodeId, message: Measured) -> None:
        """What a node knows of its links."""
        ...

    def foreign_heard(self, node_id: NodeId, message: Foreign) -> None:
        """Which servers stand behind a node."""
        ...


class NodeLinks:
    """All open links by node. Implements transport.link.LinkHandler and relay.Sender."""

    def __init__(self, report: Report, *, takes_workers: bool = True) -> None:
        self._takes_workers = takes_workers
        self.engines = EngineBook()
        self.heat = HeatDesk(self.send)
        self._links: dict[str, Link] = {}
        self._numbers: dict[Link, int] = {}
        self._count = 0
        self._report = report
        self._relayed_bytes = 0
        self._refused = Seldom()
        self._relay: Relay | None = None
        self._direct: DirectWorkers | None = None
        self._events: LinkEvents | None = None

    def connect(self, relay: Relay, direct: DirectWorkers, events: LinkEvents) -> None:
        """Who gets what arrives. Once, before the first link."""
        self._relay, self._direct, self._events = relay, direct, events

    def is_open(self, node_id: str) -> bool:
        """Whether frames can be sent to a node."""
        link = self._links.get(node_id)
        return link is not None and link.is_open

    def is_local(self, node_id: str) -> bool:
        """Whether a node is on this host (its link is a Unix socket)."""
        link = self._links.get(node_id)
        return link is not None and link.is_local

    def local_host(self, node_id: str) -> str:
        """Under which of our addresses a node reached us; empty on this host or without a link."""
        link = self._links.get(node_id)
        return link.local_host if link is not None else ""

    def machine_of(self, node_id: str) -> str | None:
        """Where a node is, comparable with another's: empty = on this host; None without a link."""
        link = self._links.get(node_id)
        if link is None:
            return None
        is_here = link.is_local or is_loopback(link.peer_host) or link.peer_host == link.local_host
        return "" if is_here else link.peer_host

    def measured(self) -> Iterator[tuple[NodeId, MeasuredWay]]:
        """See way_book.OwnLinks."""
        for node_id, link in self._links.items():
            if not link.is_local and link.rtt_ms is not None:
                way = MeasuredWay(node_id, link.rtt_ms / 2, link.mib_per_second)
                yield NodeId(node_id), way

    def send(
        self, node_id: str, message: AnyMessage, body: Sequence[memoryview | bytes] = ()
    ) -> bool:
        """See relay.Sender."""
        link = self._links.get(node_id)
        return link is not None and link.send(message, body)

    def tell_all(self, message: AnyMessage) -> None:
        """To every node. A link that cannot take it is closed: its node dials again, and hears at
        the opening what it has missed."""
        for link in list(self._links.values()):
            if not link.send(message):
                link.close("it could not be told what all nodes must know")

    def close_session(self, node_id: str, session: int, reason: str) -> None:
        """Close the link of one session of a node; another session's is left alone."""
        link = self._links.get(node_id)
        if link is not None and link.peer_session == session:
            link.close(reason)

    # transport.link.LinkHandler.

    def on_open(self, link: Link) -> None:
        """A node dialled."""
        self._links[link.peer_id] = link
        self._count += 1
        self._numbers[link] = self._count
        self._who().link_opened(NodeId(link.peer_id), link.peer_session, self._count)

    def on_closed(self, link: Link, reason: str, is_orderly: bool) -> None:
        """A node's link is gone; a newer link of the same node is left alone."""
        node_id = NodeId(link.peer_id)
        number = self._numbers.pop(link, 0)
        is_current = self._links.get(link.peer_id) is link
        if is_current:
            del self._links[link.peer_id]
        self._who().link_closed(node_id, link.peer_session, number, reason, is_orderly=is_orderly)
        if is_current:
            relay, direct = self._rooms()
            direct.drop_node(node_id)
            relay.node_down(node_id, reason)

    def place_body(self, link: Link, message: AnyMessage, nbytes: int) -> memoryview | None:
        """Memory for a body, or None to throw it away."""
        match message:
            case Result():
                relay = self._rooms()[0]
                is_party = relay.is_party(link.peer_id, message.request_id)
                return relay.place_result(message, nbytes) if is_party else None
            case Run(target=target) if target:
                if not self._may_pass(link, message):
                    return None
                if self._relayed_bytes + nbytes > RELAYED_BYTES_MAX or not self.is_open(target):
                    return None
                self._relayed_bytes += nbytes
                return memoryview(bytearray(nbytes))
            case _:
                return None

    def on_body_abandoned(self, link: Link, message: AnyMessage, view: memoryview) -> None:
        """The link broke in mid-body."""
        if isinstance(message, Run):
            self._relayed_bytes -= len(view)

    def on_message(
        self, link: Link, message: AnyMessage, body: memoryview | None, fds: tuple[int, ...]
    ) -> None:
        """One frame from a node."""
        node_id = NodeId(link.peer_id)
        relay, direct = self._rooms()
        match message:
            case Result() | Failed() | BusyNode():
                self._answered(relay, link, message, body)
            case Accepted(marks=marks):
                ours = [each for each in marks if relay.is_party(node_id, each.request_id)]
                if len(ours) < len(marks):
                    self._refuse(link, message)
                    message = Accepted(tuple(ours))
                relay.on_accepted(message)
            case WorkerDied():
                self._who().worker_died(node_id, _cut_death(message))
            case Run():
                self._pass_on(link, message, body)
            case Prepared():
                self._who().prepared(node_id, message)
            case Measured():
                self._who().measured(node_id, message)
            case EngineNews():
                self.engines.heard(node_id, message)
            case Heat():
                self.heat.heard(node_id, message)
            case Foreign():
                self._who().foreign_heard(node_id, message)
            case PrepareFailed():
                self._who().prepare_failed(node_id, _cut(message))
            case Offer():
                self._take_offer(node_id, message, fds)
                return
            case Revoke():
                answer = Revoked(message.worker_id)
                direct.revoke(node_id, message.worker_id, partial(self._answer, link, answer))
            case _:
                self._report("unexpected message", node=node_id, kind=type(message).__name__)
        for descriptor in fds:
            os.close(descriptor)

    # Inside.

    def _answered(
        self,
        relay: Relay,
        link: Link,
        message: Result | Failed | BusyNode,
        body: memoryview | None,
    ) -> None:
        if not relay.is_party(link.peer_id, message.request_id):
            self._refuse(link, message)
            return
        match message:
            case Result():
                relay.on_result(message, body)
            case Failed():
                relay.on_failed(_cut(message))
            case BusyNode():
                relay.on_busy(message)

    def _refuse(self, link: Link, message: AnyMessage) -> None:
        """Whoever has no part in a request says nothing about it."""
        frames = self._refused.count(monotonic_ms())
        if frames:
            kind = type(message).__name__
            self._report("frame refused", node=link.peer_id, kind=kind, frames=frames,
                         reason="the node has no part in that request")  # fmt: skip

    def _take_offer(self, node_id: NodeId, message: Offer, fds: tuple[int, ...]) -> None:
        if not self._takes_workers:
            close_all(fds)  # the agent keeps the worker and feeds it
            return
        try:
            self._rooms()[1].offered(node_id, message, fds)
        except DinError as error:
            self._report("offer refused", node=node_id, error=error.message)
        else:
            self._who().offered(node_id, message)

    @staticmethod
    def _answer(link: Link, message: AnyMessage) -> None:
        link.send(message)

    def _may_pass(self, link: Link, message: Run) -> bool:
        relay = self._rooms()[0]
        return relay.is_under_way(message) and relay.is_edge(link.peer_id, message)

    def _pass_on(self, link: Link, message: Run, body: memoryview | None) -> None:
        nbytes = 0 if body is None else len(body)
        if not self._may_pass(link, message):
            self._relayed_bytes -= nbytes
            if self._rooms()[0].is_under_way(message):
                self._refuse(link, message)
            return
        target = self._links.get(message.target)

        def sent(_: bool) -> None:
            self._relayed_bytes -= nbytes

        has_body = any(tensor.nbytes for tensor in message.tensors)
        is_whole = body is not None or not has_body
        error: DinError = Busy("its link or the gateway's memory for relayed tensors is full")
        if target is None or not target.is_open:
            error = Unreachable("it has no link to the gateway")
        elif is_whole:
            try:
                if target.send(message, [] if body is None else [body], on_sent=sent):
                    return
            except DinError as refusal:
                error = refusal
        self._relayed_bytes -= nbytes
        failure = Failed(
            message.request_id,
            message.attempt,
            message.slice_index,
            message.target,
            error.code,
            f"a relayed frame could not be passed on: {error.message}",
            isinstance(error, Busy | Unreachable),
            error.hint,
        )
        self._rooms()[0].on_failed(failure)
        self._report(
            "relay refused", source=link.peer_id, target=message.target, reason=error.message
        )

    def _rooms(self) -> tuple[Relay, DirectWorkers]:
        assert self._relay is not None, "connect() comes before the first link"
        assert self._direct is not None, "connect() comes before the first link"
        return self._relay, self._direct

    def _who(self) -> LinkEvents:
        assert self._events is not None, "connect() comes before the first link"
        return self._events


def _cut_death(message: WorkerDied) -> WorkerDied:
    death = message.death
    reason, running = (
        one_line(each, SAID_CHARACTERS_MAX) for each in (death.reason, death.running)
    )
    return replace(message, death=replace(death, reason=reason, running=running))


def _cut(message: _Failure) -> _Failure:
    """What a node says goes into answers and lists."""
    text, hint = (one_line(each, SAID_CHARACTERS_MAX) for each in (message.message, message.hint))
    return replace(message, message=text, hint=hint)
