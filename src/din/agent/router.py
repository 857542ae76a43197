"""Which message goes to which part of the agent. Implements transport.link.LinkHandler.

Frames come from the gateway that this node joined, and from nodes that its deployments name as
their producers; orders are taken from the gateway, and from nobody else.
"""

from __future__ import annotations

from collections.abc import Callable

from din.agent.executor import Executor
from din.agent.named import Named
from din.agent.offers import Offers
from din.agent.peers import Peers
from din.agent.slices import Slices
from din.system.descriptors import close_all
from din.transport.link import Link
from din.wire.messages import (
    AnyMessage,
    AskHeat,
    Cancel,
    Lift,
    Prepare,
    Renew,
    Revoked,
    Run,
    ThrownOut,
    Unload,
)

Report = Callable[..., None]


class Router:
    """The handler of every link of the agent."""

    def __init__(
        self,
        executor: Executor,
        peers: Peers,
        offers: Offers,
        slices: Slices,
        named: Named,
        heat: Callable[[AskHeat], None],
        report: Report,
    ) -> None:
        self._executor = executor
        self._peers = peers
        self._offers = offers
        self._slices = slices
        self._named = named
        self._heat = heat
        self._report = report
        self.is_stopping = False

    def on_open(self, link: Link) -> None:
        """See LinkHandler."""
        self._peers.opened(link)
        if link.peer_id == self._named.gateway_id:
            self._report("gateway_linked", gateway_id=link.peer_id, is_local=link.is_local)
            self._offers.gateway_opened(link)
            self._slices.gateway_opened()

    def on_closed(self, link: Link, reason: str, is_orderly: bool) -> None:
        """See LinkHandler."""
        self._peers.closed(link, is_orderly=is_orderly)
        self._offers.gateway_closed(link)
        is_gateway = link.peer_id == self._named.gateway_id
        if not self.is_stopping and (is_gateway or not is_orderly):
            event = "gateway_link_lost" if is_gateway else "peer_link_lost"
            self._report(event, peer=link.peer_id, reason=reason)

    def place_body(self, link: Link, message: AnyMessage, nbytes: int) -> memoryview | None:
        """See LinkHandler."""
        if not isinstance(message, Run) or not self._named.may_send(link.peer_id, message):
            return None
        return self._executor.place(message, nbytes)

    def on_body_abandoned(self, link: Link, message: AnyMessage, view: memoryview) -> None:
        """See LinkHandler."""
        del link, view
        if isinstance(message, Run):
            self._executor.abandon(message)

    def on_message(
        self, link: Link, message: AnyMessage, body: memoryview | None, fds: tuple[int, ...]
    ) -> None:
        """See LinkHandler."""
        close_all(fds)  # nobody has descriptors for an agent
        match message:
            case Run():
                self._take(link, message, body)
            case AskHeat() if link.peer_id == self._named.gateway_id:
                self._heat(message)
            case Cancel() | Prepare() | Renew() | Unload() | Revoked() | ThrownOut() | Lift() if (
                link.peer_id == self._named.gateway_id
            ):
                self._obey(message)
            case _:
                kind = type(message).__name__
                self._report("message_refused", peer=link.peer_id, kind=kind)

    def _take(self, link: Link, message: Run, body: memoryview | None) -> None:
        if self._named.may_send(link.peer_id, message):
            self._executor.take(message, body)
        else:
            self._executor.abandon(message)
            self._named.refuse(link.peer_id, message)

    def _obey(
        self, message: Cancel | Prepare | Renew | Unload | Revoked | ThrownOut | Lift
    ) -> None:
        match message:
            case Cancel():
                self._executor.cancel(message)
            case Prepare():
                if not self.is_stopping:
                    self._slices.prepare(message)
            case Renew():
                self._slices.renew(message)
            case Unload():
                self._slices.unload(message)
            case Revoked():
                if not self._offers.revoked(message.worker_id):
                    self._slices.end_worker(message.worker_id)
            case Lift():
                self._slices.lift()
            case ThrownOut():
                self._named.throw_out(message.node_ids)
