"""The HTTP front: a protocol that serves inference posts itself and leaves the rest to uvicorn.

One parser (llhttp) reads every request of a connection. A post of ours becomes a `Turn`, which
looks to uvicorn like one of its own request cycles, so that pipelined requests of both kinds are
answered in order. Measured: uvicorn's own flow of tasks, events and queues costs a request more
than all codecs and copies together, and inference posts need none of it.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from din.api.admission import Visitor
from din.api.parsing import check_no_body, refusal_of
from din.api.peers import SCOPE_KEY, peer_of_transport
from din.api.post import NOBODY, Post, Reply, Target, error_reply, new_request_id, target_of
from din.api.problem import Refused
from din.api.turn import Front, Turn
from din.api.watch import Stage, Watch
from din.api.writing import head_of, is_writable_now, send_parts
from din.errors import Busy, Denied, TooLarge, Unavailable

Item = Turn | RequestResponseCycle


class FrontProtocol(HttpToolsProtocol):
    """One connection; `front_protocol` binds `front`."""

    front: ClassVar[Front]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._current: Item | None = None
        """Whose answer is due now; later ones wait in uvicorn's `pipeline`."""
        self._head_bytes = 0
        self._refusal: BaseException | None = None
        self._discarded_bytes = 0
        self._visitor = Visitor(self.front.admission, NOBODY)
        self._watch = Watch(self.loop, self.front.limits, self._too_slow)

    # -- connection ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self._watch.start(lambda: self.flow.read_paused)
        if len(self.connections) > (limit := self.front.limits.connections_max):
            self._refuse(Busy(f"all {limit} connections are taken", hint="try again later"))
        try:
            self._visitor = Visitor(self.front.admission, peer_of_transport(transport))
        except Denied as error:
            self._refuse(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: whatever still runs for it is cancelled."""
        self._watch.stop()
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
        if turn.task is not None:
            turn.task.cancel()

    def _forget_body(self, turn: Turn) -> None:
        self.front.buffered_bytes -= turn.forget_body()

    def eof_received(self) -> None:
        """The client will send no more; for us it is gone. The transport closes itself."""

    # -- reading ---------------------------------------------------------------------------------

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
        return Refused(431, TooLarge(f"the request head is over the limit of {limit} bytes"))

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
        self._count_head(len(name) + len(value))

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

    def _last(self) -> Item | None:
        """The request that was read last; uvicorn says it is never None, but it starts so."""
        return self.cycle

    def _target(self) -> tuple[Target | None, bytes]:
        if self._parser().get_method() != b"POST":
            return None, b""
        url = self.url
        if not url.startswith(b"/"):
            parsed = httptools.parse_url(url)
            url = parsed.path + (b"?" + parsed.query if parsed.query else b"")
        path, _, query = url.partition(b"?")
        return target_of(path), query.partition(b"#")[0]

    def _new_turn(self, target: Target, query: bytes) -> Turn:
        is_old = self._parser().get_http_version() == "1.0"
        return Turn(
            self._visitor.post(target, query, dict(self.headers), self.front.limits),
            keep_alive=not is_old and self._parser().should_keep_alive(),
            wants_continue=self.expect_100_continue and not is_old,
        )

    def _check_size(self, turn: Turn) -> None:
        claimed = turn.post.headers.get(b"content-length")
        if claimed is not None and int(claimed) > turn.post.body_bytes_max:
            raise self._too_large(turn, f"{int(claimed)} bytes")
        if turn is self._current:
            self._send_continue(turn)

    def _too_large(self, turn: Turn, seen: str) -> BaseException:
        return turn.post.refusal or TooLarge(
            f"the body is {seen}; the limit is {turn.post.body_bytes_max} bytes",
            hint="send smaller inputs, or raise the gateway's body limit",
        )

    def _send_continue(self, turn: Turn) -> None:
        if turn.wants_continue and not turn.is_body_complete:
            turn.wants_continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

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
            raise Busy("the gateway holds too many request bytes", hint="try again later")

    def on_message_complete(self) -> None:
        """A request is whole."""
        self._watch.enter(Stage.BUSY)
        turn = self.cycle
        if not isinstance(turn, Turn):
            super().on_message_complete()
            if turn.response_complete:
                self._watch.enter(Stage.IDLE)
            return
        turn.is_body_complete = True
        if turn is self._current:
            self._run(turn)

    # -- answering -------------------------------------------------------------------------------

    def _begin(self, turn: Turn) -> None:
        """It is this turn's time to be answered."""
        self._current = turn
        if turn.error is not None:
            self._answer_error(turn, turn.error)
        elif turn.is_body_complete:
            self._run(turn)

    def _run(self, turn: Turn) -> None:
        if turn.post.target.kind == "heartbeat":
            self._write_now(turn, self.front.turns.heartbeat(turn.post))
            self._finish(turn)
            return
        turn.task = self.loop.create_task(self._serve(turn))
        self.tasks.add(turn.task)

    async def _serve(self, turn: Turn) -> None:
        """Run one turn to its last byte. Cancelled when the client disconnects."""
        try:
            self._write_now(turn, await self.front.turns.serve(turn.post))
            if self.flow.write_paused:
                await self._drained()
            self._finish(turn)
        finally:
            if turn.task is not None:
                self.tasks.discard(turn.task)
                turn.task = None
            if not turn.response_complete and not self.transport.is_closing():
                # Stopped from within (shutdown): the client must not wait for an answer.
                self.transport.close()

    def _write_now(self, turn: Turn, reply: Reply) -> None:
        """Hand the answer to the kernel or a copy of the rest to the transport, then release."""
        try:
            if not is_writable_now(self.transport):
                return
            head = head_of(reply, self.server_state.default_headers, keep_alive=turn.keep_alive)
            send_parts(self.transport, [head, *reply.parts])
        finally:
            if reply.release is not None:
                reply.release()

    async def _drained(self) -> None:
        """Wait for a slow reader as long as it takes bytes at all."""
        timeout_s = self.front.limits.write_timeout_s
        left = self.transport.get_write_buffer_size()
        while self.flow.write_paused and not self.transport.is_closing():
            try:
                await asyncio.wait_for(self.flow.drain(), timeout_s)
            except TimeoutError:
                if self.transport.get_write_buffer_size() >= left:
                    self.transport.abort()
                    return
                left = self.transport.get_write_buffer_size()

    def _finish(self, turn: Turn) -> None:
        self._forget_body(turn)
        turn.response_complete = True
        if not turn.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        """An answer is out, ours or uvicorn's: the next in line begins."""
        self.server_state.total_requests += 1
        self._current = None
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if not self.pipeline:
            if self._watch.stage is Stage.BUSY:
                self._watch.enter(Stage.IDLE)
            return
        item, app = self.pipeline.pop()
        if isinstance(item, Turn):
            self._begin(item)
            if not item.response_complete:
                self._send_continue(item)
        else:
            self._current = item
            self._start_asgi_task(item, app)

    # -- refusing --------------------------------------------------------------------------------

    def _refuse(self, error: BaseException) -> None:
        """Answer what cannot be read in its turn, then drain and close the connection."""
        self._refusal = error
        if self.transport.is_closing():
            return
        turn = self._last()
        if isinstance(turn, Turn) and not turn.is_body_complete and not turn.response_complete:
            turn.error = error
            turn.keep_alive = False
            self._forget_body(turn)
            self.front.turns.rejected(error)
            if turn is self._current:
                self._answer_error(turn, error)
            return
        if isinstance(turn, RequestResponseCycle) and turn.more_body and not turn.response_complete:
            # The application waits for a body that will never be whole.
            self.transport.close()
            return
        self._refuse_next(error)

    def _refuse_next(self, error: BaseException) -> None:
        url = getattr(self, "url", b"") or b""
        target = target_of(url.partition(b"?")[0]) or Target("heartbeat")
        turn = Turn(Post(target, b"", {}, [], 0), keep_alive=False, wants_continue=False)
        turn.error = error
        if turn.post.target.kind != "heartbeat":
            self.front.turns.rejected(error)
        if self._current is None:
            self._current = turn
            self._answer_error(turn, error)
        else:
            self.pipeline.appendleft((turn, self.app))  # pyright: ignore[reportArgumentType]

    def _answer_error(self, turn: Turn, error: BaseException) -> None:
        reply = error_reply(turn.post.target.kind, error, new_request_id())
        self._write_now(turn, reply)
        turn.response_complete = True
        self._watch.enter(Stage.LINGER)
        self.flow.resume_reading()
        try:
            if self.transport.can_write_eof():
                self.transport.write_eof()
        except OSError:
            self.transport.close()  # reset by the client, which this socket has not told yet

    def _too_slow(self, stage: Stage) -> None:
        """The watch ran out."""
        is_theirs = isinstance(self._current, RequestResponseCycle)
        is_silent = stage is Stage.HEAD and not self._head_bytes
        if is_theirs or is_silent or stage in (Stage.IDLE, Stage.LINGER):
            self.transport.close()
            return
        what = f"head did not end within {self.front.limits.head_timeout_s} s"
        if stage is Stage.BODY:
            what = f"body paused for {self.front.limits.body_idle_timeout_s} s or never ended"
        self._refuse(Refused(408, Unavailable(f"the request's {what}", hint="send faster")))


def front_protocol(front: Front) -> type[FrontProtocol]:
    """The class for `uvicorn.Config(http=...)`."""
    return type("BoundFrontProtocol", (FrontProtocol,), {"front": front})
