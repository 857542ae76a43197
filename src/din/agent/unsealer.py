"""The agent's side of `python -m din.unseal`: slices are verified and opened there, not here.

The child holds the node's key and `cryptography`; it is started for the first order of a burst and
ends when nothing more is asked for a while. A node that never joined believes its own user's
gateway: it needs the child for sealed slices only.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path
from typing import Final

import msgspec

from din.agent.child import end_child, start_child
from din.domain.malformed import MALFORMED
from din.errors import DeadlineExceeded, Internal, TooLarge, Unavailable, error_of_code
from din.system.descriptors import close_all, receive_message, send_message
from din.wire.messages import Prepare
from din.wire.statement import statement_of
from din.wire.unseal import MESSAGE_BYTES_MAX, Unseal, UnsealAnswer, UnsealFailed

IDLE_S: Final = 2.0
"""A worker that dies is replaced within that time, as a rule, and slices come in bursts."""
ANSWER_S_MAX: Final = 120.0
END_S_MAX: Final = 2.0
CLUSTER_FILE: Final = "cluster.json"
NO_FILE: Final = -1

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(UnsealAnswer)


class Unsealer:
    """At most one child, one order at a time. All calls in the loop's thread."""

    def __init__(self, trust: Path, *, idle_s: float = IDLE_S) -> None:
        self._trust = trust
        self._idle_s = idle_s
        self._turn = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._answer: asyncio.Future[tuple[UnsealAnswer, int]] | None = None
        self._ticket = 0
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def pid(self) -> int | None:
        """Of the running child."""
        return self._process.pid if self._process is not None else None

    def is_needed(self, order: Prepare) -> bool:
        """Whether a slice has to be verified, because this node joined, or opened."""
        return order.slice.is_sealed or (self._trust / CLUSTER_FILE).exists()

    async def open(self, order: Prepare, artifact: int, path: Path | str = "") -> int:
        """A descriptor of sealed memory with the content of the slice's file, owned by the caller;
        NO_FILE after a check of the signature alone (`artifact` is NO_FILE).

        Raises Denied, BadModel, UsageError as the child says; Unavailable, DeadlineExceeded or
        TooLarge when it could not be asked.
        """
        statement = statement_of(order.model_id, order.slice, order.backend_options)
        async with self._turn:
            self._ticket += 1
            data = _ENCODER.encode(
                Unseal(
                    ticket=self._ticket,
                    statement=statement.decode(),
                    signature=order.signature,
                    grant=order.grant_of(artifact),
                    artifact=artifact,
                    path=str(path),
                )
            )
            if len(data) > MESSAGE_BYTES_MAX:
                raise TooLarge(f"what was signed of the slice has {len(data)} bytes")
            answer, descriptor = await self._ask(data)
        if isinstance(answer, UnsealFailed):
            raise error_of_code(answer.code, answer.message, answer.hint)
        return descriptor

    async def close(self) -> None:
        """End the child."""
        self._end()
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _ask(self, data: bytes) -> tuple[UnsealAnswer, int]:
        loop = asyncio.get_running_loop()
        if self._idle is not None:
            self._idle.cancel()
        control = self._control or self._start(loop)
        answer = self._answer = loop.create_future()
        try:
            send_message(control, data)
            async with asyncio.timeout(ANSWER_S_MAX):
                return await answer
        except TimeoutError:
            self._end()
            raise DeadlineExceeded(f"din.unseal gave no answer in {ANSWER_S_MAX:g} s") from None
        except OSError as error:
            self._end()
            raise Unavailable(f"din.unseal takes no orders: {error.strerror}") from error
        finally:
            if answer.done() and answer.cancelled():
                self._end()  # what it answers now belongs to nobody
            self._answer = None
            self._idle = loop.call_later(self._idle_s, self._end)

    def _start(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        words = ("--trust", str(self._trust))
        self._process, control = start_child("din.unseal", words)
        self._control = control
        loop.add_reader(control.fileno(), self._on_readable)
        return control

    def _on_readable(self) -> None:
        if self._control is None:
            return
        try:
            data, descriptors = receive_message(self._control, MESSAGE_BYTES_MAX)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, Internal):
            data, descriptors = b"", []
        try:
            answer = _DECODER.decode(data)
        except MALFORMED:
            close_all(descriptors)
            self._fail(Unavailable("din.unseal ended before it answered", hint="see the log"))
            self._end()
            return
        waiting = self._answer
        if waiting is None or waiting.done() or answer.ticket != self._ticket:
            close_all(descriptors)
            return
        close_all(descriptors[1:])
        waiting.set_result((answer, descriptors[0] if descriptors else NO_FILE))

    def _fail(self, error: Unavailable) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _end(self) -> None:
        """Close the socket, by which the child ends; whatever it does then is waited for."""
        if self._idle is not None:
            self._idle.cancel()
        if self._control is None or self._process is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._control.fileno())
        self._control.close()
        ending = loop.create_task(end_child(self._process, END_S_MAX))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        self._control = self._process = None
