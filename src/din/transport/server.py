"""Accepting links: listening sockets, handshakes with limits, one link per peer.

A newer link of the same peer replaces the older one at once, so that a restarted node is never
shadowed by its own ghost; a Hello of an older session is refused.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec import Struct

from din.access.limits import WaitingRoom
from din.domain.trust import PeerName, Role
from din.errors import DinError
from din.transport.dial import ignore_reports
from din.transport.handshake import REASON_CHARACTERS_MAX, FirstFrame, refusal_of, say
from din.transport.lane import Lane
from din.transport.limits import DEFAULT_LIMITS, LinkLimits
from din.transport.link import Link, LinkHandler, Report
from din.transport.listening import Identity, bind_tcp, bind_unix, identity_of, unlink_unix
from din.transport.refusals import Refusals
from din.transport.sockets import SocketLike, host_of, tune
from din.transport.tls_handshake import secure
from din.transport.tls_identity import TlsIdentity
from din.wire.messages import PROTOCOL_VERSION, AnyMessage, Hello, Refused, Welcome

ACCEPTS_PER_TURN_MAX: Final = 16
ACCEPT_PAUSE_S: Final = 0.5
"""Without free descriptors accepting only burns the processor."""


Admit = Callable[[str, int], str]
"""(peer id, session) -> why no link of theirs is wanted; an empty text = it is."""


def _admit_all(_: str, __: int) -> str:
    return ""


RoleOf = Callable[[str], Role]
"""Which role the certificate of a peer with this id must name."""


def node_role(_: str) -> Role:
    """Everybody is a node."""
    return "node"


class _Visitor(Struct, eq=False):
    """A socket without a finished handshake."""

    who: str
    is_local: bool
    timer: asyncio.TimerHandle | None = None
    securing: asyncio.Task[None] | None = None
    name: PeerName | None = None
    """What its certificate says; None on a plain connection."""
    lane: Lane | None = None
    hello: Hello | None = None


class LinkServer:
    """Listens on any number of addresses for one program. All calls in the loop's thread."""

    def __init__(
        self,
        own_id: str | Callable[[], str],
        session: int,
        handler: LinkHandler | Callable[[], LinkHandler],
        *,
        limits: LinkLimits = DEFAULT_LIMITS,
        report: Report = ignore_reports,
        admit: Admit = _admit_all,
        tls: TlsIdentity | None = None,
        role_of: RoleOf = node_role,
    ) -> None:
        """`admit` is asked before a link replaces an older one: a stranger that says the name of a
        node must not cost that node its link. With an identity TCP is encrypted, and a peer's
        certificate must name the id of its Hello and the role that `role_of` wants of that id."""
        self._admit = admit
        self._tls = tls
        self._role_of = role_of
        self._own_id = own_id
        self._session = session
        self._handler = handler
        self._limits = limits
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._refusals = Refusals(self._loop, report)
        self._listeners: list[socket.socket] = []
        self.tcp_host = ""
        """Address that the TCP listener is bound to, as a number."""
        self._files: dict[str, Identity] = {}
        self._visitors = WaitingRoom[_Visitor](limits.handshakes_max)
        self._links: dict[str, Link] = {}
        self._pauses: dict[int, asyncio.TimerHandle] = {}

    @property
    def links(self) -> tuple[Link, ...]:
        """Accepted and open."""
        return tuple(link for link in self._links.values() if link.is_open)

    def listen_tcp(self, host: str, port: int) -> int:
        """Listen; port 0 picks a free one. Answers the port. Raises Conflict or UsageError."""
        sock = bind_tcp(host, port)
        self.tcp_host = host_of(sock.getsockname())
        self._watch(sock)
        return int(sock.getsockname()[1])

    def listen_unix(self, path: str) -> None:
        """Listen on a socket file of mode 0600, in place of one whose owner died.

        Raises Conflict when somebody listens there or the file is no socket, UsageError when the
        path cannot be used.
        """
        self._watch(bind_unix(path))
        self._files[path] = identity_of(path)

    def close(self, reason: str = "stopping") -> None:
        """Stop listening and end all links in an orderly way."""
        for pause in self._pauses.values():
            pause.cancel()
        for path, identity in self._files.items():
            unlink_unix(path, identity)
        for sock in self._listeners:
            self._loop.remove_reader(sock.fileno())
            sock.close()
        self._files.clear()
        self._listeners.clear()
        for visitor in list(self._visitors):
            self._drop(visitor)
        self._refusals.close()
        for link in list(self._links.values()):
            link.close(reason, is_orderly=True)

    async def wait_closed(self) -> None:
        """After `close`: until the last link has flushed, `linger_ms` at most."""
        for link in self._links.values():
            await link.wait_ended()

    # Accepting.

    def _watch(self, sock: socket.socket) -> None:
        self._listeners.append(sock)
        self._loop.add_reader(sock.fileno(), self._on_acceptable, sock)

    def _on_acceptable(self, sock: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN_MAX):
            try:
                accepted, who = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(sock, error)
                return
            self._welcome_in(accepted, who)

    def _pause(self, sock: socket.socket, error: OSError) -> None:
        hint = "raise the limit of open files" if error.errno == errno.EMFILE else ""
        self._report("link server cannot accept", error=error.strerror, hint=hint)
        number = sock.fileno()
        self._loop.remove_reader(number)
        self._pauses[number] = self._loop.call_later(
            ACCEPT_PAUSE_S, self._loop.add_reader, number, self._on_acceptable, sock
        )

    def _welcome_in(self, sock: socket.socket, who: Any) -> None:
        try:
            tune(sock)
        except OSError:
            sock.close()  # it was gone before it was greeted
            return
        visitor = _Visitor(
            f"{who[0]}:{who[1]}" if who else "a local process", sock.family == socket.AF_UNIX
        )
        late = partial(
            self._on_failed, visitor, f"no handshake within {self._limits.handshake_ms} ms"
        )
        visitor.timer = self._loop.call_later(self._limits.handshake_ms / 1000, late)
        gone = self._visitors.enter(visitor, str(who[0]) if who else "")
        if gone is not None:
            self._refusals.refused("too many unfinished handshakes", address=gone.who,
                                   handshakes_max=self._limits.handshakes_max)  # fmt: skip
            self._drop(gone)
        if self._tls is None or visitor.is_local:
            self._listen_to(visitor, sock)
        else:
            visitor.securing = self._loop.create_task(self._secure(visitor, sock, self._tls))
            # Cancelled before it began, it has not taken the socket over.
            visitor.securing.add_done_callback(lambda _: sock.close())

    # Handshake.

    async def _secure(self, visitor: _Visitor, sock: socket.socket, tls: TlsIdentity) -> None:
        try:
            secured = await secure(sock, tls.server(), is_server=True)
        except DinError as error:
            visitor.securing = None
            self._on_failed(visitor, error.message)
            return
        visitor.securing, visitor.name = None, secured.peer
        self._listen_to(visitor, secured)

    def _listen_to(self, visitor: _Visitor, sock: SocketLike) -> None:
        def heard(_: Lane, message: AnyMessage) -> None:
            self._on_first(visitor, message)

        def failed(_: Lane, reason: str) -> None:
            self._on_failed(visitor, reason)

        visitor.lane = Lane(
            sock, FirstFrame(heard, failed), self._limits, is_local=visitor.is_local
        )
        visitor.lane.resume()

    def _on_failed(self, visitor: _Visitor, reason: str) -> None:
        if visitor in self._visitors:
            said = visitor.hello.node_id if visitor.hello is not None else ""
            proven = visitor.name.id if visitor.name is not None else ""
            peer = said or proven or "unknown"
            self._refusals.refused(reason, peer=peer, address=visitor.who)
            self._drop(visitor)

    def _drop(self, visitor: _Visitor) -> None:
        self._visitors.leave(visitor)
        if visitor.timer is not None:
            visitor.timer.cancel()
        if visitor.securing is not None:
            visitor.securing.cancel()
        if visitor.lane is not None:
            visitor.lane.close()

    def _refuse(self, visitor: _Visitor, lane: Lane, reason: str) -> None:
        say(lane, Refused(reason[:REASON_CHARACTERS_MAX]))
        self._on_failed(visitor, reason)

    def _on_first(self, visitor: _Visitor, message: AnyMessage) -> None:
        assert visitor.lane is not None, "it has spoken"
        if not isinstance(message, Hello):
            self._on_failed(visitor, f"{type(message).__name__} came instead of a Hello")
            return
        reason = (
            refusal_of(message, self._name())
            or self._refusal_of_name(visitor, message)
            or self._refusal_among_links(message)
            or self._admit(message.node_id, message.session)
        )
        if reason:
            self._refuse(visitor, visitor.lane, reason)
            return
        visitor.hello = message
        other = self._other_lane(visitor, message)
        if other is not None:
            self._join(visitor, other)

    def _refusal_of_name(self, visitor: _Visitor, hello: Hello) -> str:
        if self._tls is None or visitor.name is None:
            return ""
        wanted = (self._tls.cluster, self._role_of(hello.node_id), hello.node_id)
        if (visitor.name.cluster, visitor.name.role, visitor.name.id) == wanted:
            return ""
        cluster, role, node_id = wanted
        return (
            f"your certificate names {visitor.name.uri}, your Hello {role} {node_id!r:.40} of "
            f"cluster {cluster!r}"
        )

    def _refusal_among_links(self, hello: Hello) -> str:
        known = self._links.get(hello.node_id)
        if known is not None and known.is_open:
            if hello.session < known.peer_session:
                return f"session {hello.session} of {hello.node_id!r} was replaced by a newer one"
        elif len(self.links) >= self._limits.links_max:
            return f"{self._limits.links_max} links are open already"
        return ""

    def _other_lane(self, visitor: _Visitor, hello: Hello) -> _Visitor | None:
        wanted = (hello.node_id, hello.session, hello.link_id)
        for other in self._visitors:
            said = other.hello
            if other is visitor or said is None or said.lane == hello.lane:
                continue
            if other.is_local != visitor.is_local:
                continue
            if (said.node_id, said.session, said.link_id) == wanted:
                return other
        return None

    def _join(self, one: _Visitor, other: _Visitor) -> None:
        assert one.hello is not None, "a visitor is joined after its Hello"
        hello = one.hello
        first, second = self._let_in(one), self._let_in(other)
        lanes = (first, second) if hello.lane == "urgent" else (second, first)
        known = self._links.get(hello.node_id)
        if known is not None:
            known.close(f"replaced by a newer link of {hello.node_id}")
        link = Link(hello.node_id, hello.session, lanes, self._pick_handler(), self._limits,
                    self._report, is_local=one.is_local)  # fmt: skip
        self._links[hello.node_id] = link
        # In a later turn, so that the replaced link's on_closed comes first.
        self._loop.call_soon(link.start)
        self._forget_closed()

    def _let_in(self, visitor: _Visitor) -> Lane:
        assert visitor.lane is not None, "it has said Hello"
        assert visitor.timer is not None, "it was timed from the first"
        visitor.timer.cancel()
        self._visitors.leave(visitor)
        say(visitor.lane, Welcome(self._name(), self._session, PROTOCOL_VERSION))
        return visitor.lane

    def _forget_closed(self) -> None:
        if len(self._links) > self._limits.links_max:
            self._links = {name: link for name, link in self._links.items() if link.is_open}

    def _name(self) -> str:
        return self._own_id if isinstance(self._own_id, str) else self._own_id()

    def _pick_handler(self) -> LinkHandler:
        return self._handler() if callable(self._handler) else self._handler
