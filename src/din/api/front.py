"""The HTTP front: a protocol that serves inference posts itself and leaves the rest to uvicorn.

One parser (llhttp) reads every request of a connection. A post of ours becomes a `Turn`, which
looks to uvicorn like one of its own request cycles, so that pipelined requests of both kinds are
answered in order. Measured: uvicorn's own flow of tasks, events and queues costs a request more
than all codecs and copies together, and inference posts need none of it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from din.api.admission import Visitor
from din.api.answering import AnsweringProtocol, Item
from din.api.limits import KEY_LIMIT_HINT
from din.api.parsing import check_no_body, refusal_of
from din.api.peers import SCOPE_KEY, peer_of_transport
from din.api.post import NOBODY, Post, Target, target_of
from din.api.problem import Refused
from din.api.turn import Front, Turn
from din.api.watch import Stage
from din.domain.trust import Caller
from din.errors import Busy, Denied, DinError, Limited, TooLarge


class FrontProtocol(AnsweringProtocol, asyncio.BufferedProtocol):
    """One connection; `front_protocol` binds `front`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._discarded_bytes = 0
        self._known_as = ""
        self._visitor = Visitor(self.front.admission, NOBODY)

    # -- connection ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self._watch.start(lambda: self.flow.read_paused)
        if len(self.connections) > (limit := self.front.limits.connections_max):
            self._refuse(Busy(f"all {limit} connections are taken", hint="try again later"))
        try:
            peer = peer_of_transport(transport)
        except Denied as error:
            self._refuse(error)
            return
        self._visitor = Visitor(self.front.admission, peer, self._on_known)
        if peer.is_tls:
            gone = self.front.strangers.enter(self, peer.address)
            if isinstance(gone, FrontProtocol):
                gone.transport.abort()

    def _on_known(self, caller: Caller) -> None:
        """The client has shown who it is. Raises Limited when it is here too often already."""
        front = self.front
        if caller.kind in ("key", "node"):
            who = f"{caller.kind} {caller.name}"
            if front.known[who] >= (limit := front.limits.own_connections_max):
                raise Limited(
                    f"{who} has {limit} connections open, the limit of one",
                    hint="close some, and send requests one after another on those that are open",
                )
            front.known[who] += 1
            self._known_as = who
        front.strangers.leave(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: whatever still runs for it is cancelled."""
        self.front.strangers.leave(self)
        if self._known_as:
            self.front.known[self._known_as] -= 1
            if not self.front.known[self._known_as]:
                del self.front.known[self._known_as]
        self._watch.stop()
        self._intake.end()
        waiting: list[Item] = [item for item, _ in self.pipeline]
        self.pipeline.clear()
        for item in (self._current, *waiting):
            if isinstance(item, Turn):
                self._drop(item)
            elif item is not None and not item.response_complete:
                item.disconnected = True
                item.message_event.set()
        super().connection_lost(exc)

    def _drop(self, turn: Turn) -> None:
        self._forget_body(turn)
        if turn.running is not None:
            turn.running.cancel()

    def eof_received(self) -> None:
        """The client will send no more; for us it is gone. The transport closes itself."""

    # -- reading ---------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes shall go."""
        return self._intake.room

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came: more of a body that is awaited, a post with a known head, or the rest."""
        intake = self._intake
        if intake.is_filling:
            self._watch.touch()
            intake.fill(nbytes)
            self._body_came(nbytes)
        elif not (self._is_between() and self._take_known(nbytes)):
            self.data_received(intake.taken(nbytes))
            intake.passed()

    def _take_known(self, nbytes: int) -> bool:
        known = self._intake.known(nbytes)
        if known is None:
            return False
        self._watch.touch()
        self._watch.enter(Stage.BODY)
        target, query, headers = known.target, known.query, known.headers
        try:
            post = self._visitor.post(target, query, headers, self.front.limits)
        except (DinError, Refused) as error:
            self._sit(Post(target, query, headers, [], 0))
            self._refuse(error)
            return True
        turn = self._sit(post)
        if known.body_bytes > post.body_bytes_max:
            self._refuse(self._too_large(turn, f"{known.body_bytes} bytes"))
        else:
            self._body_came(self._intake.begin(known, nbytes, post))
        return True

    def _sit(self, post: Post) -> Turn:
        turn = self._current = Turn(post, keep_alive=True, wants_continue=False)
        self.cycle = turn  # pyright: ignore[reportAttributeAccessIssue]
        return turn

    def _body_came(self, nbytes: int) -> None:
        turn = self._current
        assert isinstance(turn, Turn), "nobody else's body is awaited"
        turn.post.nbytes += nbytes
        self.front.buffered_bytes += nbytes
        if self.front.buffered_bytes > self.front.limits.buffered_bytes_max:
            self._refuse(_too_many_bytes())
        elif not self._intake.is_filling:
            self.on_message_complete()

    def _is_between(self) -> bool:
        """Whether nothing is under way and the parser stands before a message."""
        is_fresh = self._last() is None and not self._head_bytes
        return self._watch.stage is Stage.IDLE or (is_fresh and self._watch.stage is Stage.HEAD)

    def data_received(self, data: bytes) -> None:
        """Bytes came; the parser calls back below."""
        if self._refusal is not None:
            self._discard(data)
            return
        self._watch.touch()
        is_head_open = self._watch.stage is Stage.HEAD
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._refuse(refusal_of(error))
            return
        if is_head_open and self._watch.stage is Stage.HEAD:
            # Fields come only when they are whole, so one endless field is counted here.
            self._head_bytes += len(data)
            if self._head_bytes > self.front.limits.head_bytes_max:
                self._refuse(self._head_too_large())

    def _feed(self, data: bytes) -> None:
        parser = self._parser()
        while data:
            try:
                parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # Nothing is upgraded here: the request is answered as if it had not asked.
                data = data[upgrade.args[0] :]
            else:
                return

    def _parser(self) -> httptools.HttpRequestParser:
        assert self.parser is not None, "bytes after the end of the connection"
        return self.parser

    def _discard(self, data: bytes) -> None:
        self._discarded_bytes += len(data)
        if self._discarded_bytes > self.front.limits.body_bytes_max:
            self.transport.close()

    def _head_too_large(self) -> Refused:
        limit = self.front.limits.head_bytes_max
        return Refused(
            431,
            TooLarge(
                f"the request head is over the limit of {limit} bytes",
                hint="shorten the URL and the headers",
            ),
        )

    # -- parser callbacks ------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request starts."""
        super().on_message_begin()
        self.scope[SCOPE_KEY] = self._visitor  # pyright: ignore[reportGeneralTypeIssues]
        self._head_bytes = 0
        self._watch.enter(Stage.HEAD)

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header field."""
        super().on_header(name, value)
        self._count_head(len(name) + len(b": ") + len(value) + len(b"\r\n"))

    def _count_head(self, nbytes: int) -> None:
        self._head_bytes += nbytes
        if self._head_bytes > self.front.limits.head_bytes_max:
            raise self._head_too_large()

    def on_headers_complete(self) -> None:
        """Ours or uvicorn's?"""
        if len(self.pipeline) >= (limit := self.front.limits.pipelined_max):
            raise Busy(f"more than {limit} pipelined requests wait", hint="wait for answers")
        self._watch.enter(Stage.BODY)
        if self._parser().should_upgrade():
            check_no_body(self.headers)
        target, query = self._target()
        last = self._last()
        is_first = last is None or last.response_complete
        if target is None:
            super().on_headers_complete()
            if is_first:
                self._current = self.cycle
            return
        turn = self._new_turn(target, query)
        self.cycle = turn  # pyright: ignore[reportAttributeAccessIssue]
        if is_first:
            self._begin(turn)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((turn, self.app))  # pyright: ignore[reportArgumentType]
        self._check_size(turn)

    def _target(self) -> tuple[Target | None, bytes]:
        if self._parser().get_method() != b"POST":
            return None, b""
        url = self.url.partition(b"#")[0]
        if not url.startswith(b"/"):
            parsed = httptools.parse_url(url)
            url = parsed.path + (b"?" + parsed.query if parsed.query else b"")
        path, _, query = url.partition(b"?")
        return target_of(path), query

    def _new_turn(self, target: Target, query: bytes) -> Turn:
        is_old = self._parser().get_http_version() == "1.0"
        return Turn(
            self._visitor.post(target, query, dict(self.headers), self.front.limits),
            keep_alive=not is_old and self._parser().should_keep_alive(),
            wants_continue=self.expect_100_continue and not is_old,
        )

    def _check_size(self, turn: Turn) -> None:
        claimed = int(turn.post.headers.get(b"content-length", b"0"))
        if claimed > turn.post.body_bytes_max:
            raise self._too_large(turn, f"{claimed} bytes")
        if turn is self._current:
            if turn.keep_alive and not turn.wants_continue and not self._parser().should_upgrade():
                self._intake.keep(turn.post, claimed)
            self._send_continue(turn)

    def _too_large(self, turn: Turn, seen: str) -> BaseException:
        post = turn.post
        is_less = post.body_bytes_max < self.front.limits.body_bytes_max
        is_of_key = is_less and post.caller.kind == "key"
        own = "send smaller inputs, or raise body_bytes_max: din config explain body_bytes_max"
        return post.refusal or TooLarge(
            f"the body is {seen}; the limit is {post.body_bytes_max} bytes",
            hint=KEY_LIMIT_HINT if is_of_key else own,
        )

    def on_body(self, body: bytes) -> None:
        """A piece of a body; kept as it came."""
        turn = self.cycle
        if not isinstance(turn, Turn):
            super().on_body(body)
            return
        turn.add(body)
        self.front.buffered_bytes += len(body)
        if turn.post.nbytes > turn.post.body_bytes_max:
            raise self._too_large(turn, "larger")
        if self.front.buffered_bytes > self.front.limits.buffered_bytes_max:
            raise _too_many_bytes()

    def on_message_complete(self) -> None:
        """A request is whole."""
        self._watch.enter(Stage.BUSY)
        self._intake.passed()
        turn = self.cycle
        if not isinstance(turn, Turn):
            super().on_message_complete()
            if turn.response_complete:
                self._watch.enter(Stage.IDLE)
            return
        turn.is_body_complete = True
        if turn is self._current:
            self._run(turn)


def _too_many_bytes() -> Busy:
    return Busy("the gateway holds too many request bytes", hint="try again later")


def front_protocol(front: Front) -> type[FrontProtocol]:
    """The class for `uvicorn.Config(http=...)`."""
    return type("BoundFrontProtocol", (FrontProtocol,), {"front": front})
