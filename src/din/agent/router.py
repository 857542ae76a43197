"""Which message goes to which part of the agent. Implements transport.link.LinkHandler.

Frames and cancels come from gateways and from other nodes; orders to load, unload and hand over are
taken from the gateway that this node joined, and from nobody else.
"""

from __future__ import annotations

from collections.abc import Callable

from din.agent.executor import Executor
from din.agent.offers import Offers
from din.agent.peers import Peers
from din.agent.slices import Slices
from din.system.descriptors import close_all
from din.transport.link import Link
from din.wire.messages import AnyMessage, Cancel, Prepare, Renew, Revoked, Run, Unload

Report = Callable[..., None]


class Router:
    """The handler of every link of the agent."""

    def __init__(
        self, executor: Executor, peers: Peers, offers: Offers, slices: Slices, report: Report
    ) -> None:
        self._executor = executor
        self._peers = peers
        self._offers = offers
        self._slices = slices
        self._report = report
        self.gateway_id = ""
        """Whose orders count; empty = nobody's yet."""
        self.is_stopping = False

    def on_open(self, link: Link) -> None:
        """See LinkHandler."""
        self._peers.opened(link)
        if link.peer_id == self.gateway_id:
            self._report("gateway_linked", gateway_id=link.peer_id, is_local=link.is_local)
            self._offers.gateway_opened(link)

    def on_closed(self, link: Link, reason: str, is_orderly: bool) -> None:
        """See LinkHandler."""
        self._peers.closed(link, is_orderly=is_orderly)
        self._offers.gateway_closed(link)
        is_gateway = link.peer_id == self.gateway_id
        if not self.is_stopping and (is_gateway or not is_orderly):
            event = "gateway_link_lost" if is_gateway else "peer_link_lost"
            self._report(event, peer=link.peer_id, reason=reason)

    def place_body(self, link: Link, message: AnyMessage, nbytes: int) -> memoryview | None:
        """See LinkHandler."""
        del link
        return self._executor.place(message, nbytes) if isinstance(message, Run) else None

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
                self._executor.take(message, body)
            case Cancel():
                self._executor.cancel(message)
            case Prepare() | Renew() | Unload() | Revoked() if link.peer_id == self.gateway_id:
                self._obey(message)
            case _:
                kind = type(message).__name__
                self._report("message_refused", peer=link.peer_id, kind=kind)

    def _obey(self, message: Prepare | Renew | Unload | Revoked) -> None:
        match message:
            case Prepare():
                if not self.is_stopping:
                    self._slices.prepare(message)
            case Renew():
                self._slices.renew(message)
            case Unload():
                self._slices.unload(message)
            case Revoked():
                self._offers.revoked(message.worker_id)
