"""The answering half of a connection: whose turn it is, what is written, when the next begins, and
what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, ClassVar

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from din.api.intake import Intake
from din.api.post import Post, Reply, Target, error_reply, new_request_id, target_of
from din.api.problem import Refused
from din.api.turn import Front, Turn
from din.api.watch import Stage, Watch
from din.api.writing import head_of, is_writable_now, send_parts
from din.errors import Unavailable

Item = Turn | RequestResponseCycle


class AnsweringProtocol(HttpToolsProtocol):
    """Answers of one connection in the order of its requests; `FrontProtocol` reads these."""

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
        self._intake = Intake(self.front.reception)
        self._head_bytes = 0
        """Of the head that is being read."""
        self._refusal: BaseException | None = None
        """Why nothing more is taken from this connection."""
        self._watch = Watch(self.loop, self.front.limits, self._too_slow)

    def _last(self) -> Item | None:
        """The request that was read last; uvicorn says it is never None, but it starts so."""
        return self.cycle

    def _forget_body(self, turn: Turn) -> None:
        self.front.buffered_bytes -= turn.forget_body()

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
        turn.running = self.front.turns.start(turn.post, partial(self._answer, turn))
        if turn.running is None:
            self._spawn(turn, self._serve(turn))

    def _spawn(self, turn: Turn, work: Coroutine[Any, Any, None]) -> None:
        task = turn.running = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _answer(self, turn: Turn, reply: Reply) -> None:
        """What a turn without a task came to."""
        self._write_now(turn, reply)
        if self.flow.write_paused:
            self._spawn(turn, self._finish_drained(turn))
        else:
            self._finish(turn)

    async def _serve(self, turn: Turn) -> None:
        """Run one turn to its last byte. Cancelled when the client disconnects."""
        try:
            self._write_now(turn, await self.front.turns.serve(turn.post))
            await self._finish_drained(turn)
        finally:
            if not turn.response_complete and not self.transport.is_closing():
                # Stopped from within (shutdown): the client must not wait for an answer.
                self.transport.close()

    async def _finish_drained(self, turn: Turn) -> None:
        if self.flow.write_paused:
            self._forget_body(turn)
            self.front.unsent.begin(self.transport, self.transport.get_write_buffer_size())
            try:
                await self._drained()
            finally:
                self.front.unsent.end(self.transport)
        self._finish(turn)

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
        turn.running = None
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

    def _send_continue(self, turn: Turn) -> None:
        if turn.wants_continue and not turn.is_body_complete:
            turn.wants_continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # -- refusing --------------------------------------------------------------------------------

    def _refuse(self, error: BaseException) -> None:
        """Answer what cannot be read in its turn, then drain and close the connection."""
        self._refusal = error
        self._intake.end()
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
