"""The feeder's end of a worker: slots of the shared arena, orders, answers.

Used by the agent, and by a gateway on the same host that was handed socket and arena. What a worker
says is untrusted: a ticket that was never given, a place outside the output region or a size that
does not fit dtype and shape closes the channel, and the worker counts as broken. The bytes inside
the arena stay the worker's to change at any time: whoever parses them checks while reading.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from din.domain.malformed import MALFORMED
from din.domain.tensor import TensorMeta
from din.errors import Busy, DinError, ExecutionFailed, Internal, TooLarge
from din.execution.allocator import Allocator, Slot
from din.system.arena import map_given_arena
from din.transport.lost import lost, shapes_of, told_by
from din.transport.outputs import Range, Sound, check_apart, check_asked, sound_of
from din.wire.worker import (
    MESSAGE_BYTES_MAX,
    Abort,
    ArenaLayout,
    Attach,
    Compute,
    Computed,
    ComputeFailed,
    Loaded,
    LoadFailed,
    Placed,
    Release,
    WorkerAnswer,
    WorkerMessage,
    Worn,
)

INFLIGHT_MAX: Final = 2
"""Requests in one worker: one runs, one waits in its socket. Deeper queues paid nothing."""
PENDING_MAX: Final = 64
"""Small messages kept while the socket is full; far more than two requests can cause."""
RELEASE_DELAY_S: Final = 0.01
UNSENT_RELEASES_MAX: Final = 8
SOUND_KEPT_MAX: Final = 64
ABORT_TIMEOUT_S: Final = 5.0
"""More than the time after which a healthy worker gives itself up."""
WORKER_DIED: Final = "the worker died"
"""Reason of a channel that the worker's end of life closed; why it died its owner learns."""

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(WorkerAnswer)


class InputSlot:
    """A piece of the input region. Freed by its owner, after the answer came."""

    __slots__ = ("_allocator", "_slot", "offset", "view")

    def __init__(self, allocator: Allocator, slot: Slot, view: memoryview) -> None:
        self.offset = slot.offset
        self.view = view
        self._slot: Slot | None = slot
        self._allocator = allocator

    @property
    def generation(self) -> int:
        """Of the slot; 0 once it is free."""
        return self._slot.generation if self._slot is not None else 0

    def free(self) -> None:
        """Give it back; repeating it is harmless. `view` must not be written afterwards."""
        slot, self._slot = self._slot, None
        if slot is not None:
            self._allocator.free(slot)


class OutputSet:
    """The outputs of one run, in the arena until `release`."""

    __slots__ = ("_release", "accelerator_percent", "compute_us", "encode_us", "metas", "views")

    def __init__(
        self,
        answer: Computed,
        metas: tuple[TensorMeta, ...],
        views: list[memoryview],
        release: Callable[[], None],
    ) -> None:
        self.metas = metas
        self.views = views
        self.compute_us = answer.compute_us
        self.accelerator_percent = answer.accelerator_percent
        self.encode_us = answer.encode_us
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Let the worker write over them; repeating it is harmless."""
        release, self._release = self._release, None
        if release is not None:
            release()


Done = Callable[[OutputSet | DinError], None]


class _Asked(msgspec.Struct):
    inputs: Sequence[Placed]
    outputs: tuple[str, ...]
    compressed: tuple[str, ...]
    done: Done


class WorkerChannel:
    """One feeder's channel to one worker. All calls and callbacks in the loop's thread.

    Takes over `sock` and `arena_fd`, also when it raises Internal for what is no arena.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        arena_fd: int,
        layout: ArenaLayout,
        on_loaded: Callable[[Loaded | LoadFailed], None] | None,
        on_closed: Callable[[str], None],
    ) -> None:
        try:
            self._mapping = map_given_arena(arena_fd, layout)
        except Internal:
            sock.close()
            raise
        finally:
            os.close(arena_fd)
        self._memory = memoryview(self._mapping)
        self._loop = loop
        self._socket = sock
        self._layout = layout
        self._on_loaded = on_loaded
        self._on_closed = on_closed
        self._allocator = Allocator(layout.input_bytes)
        self._asked: dict[int, _Asked] = {}
        self._sound: dict[tuple[Placed, ...], Sound] = {}
        """Outputs that were found right: the same few places come again all the time."""
        self._output_ranges: dict[int, list[Range]] = {}
        self._pending: deque[bytes] = deque()
        self._unsent_releases: list[int] = []
        self._is_release_timed = False
        self._session = secrets.randbits(30) + 1
        self._counter = 0
        self._buffer = bytearray(MESSAGE_BYTES_MAX + 1)
        self._buffer_view = memoryview(self._buffer)
        self.is_open = True
        self.on_worn: Callable[[Worn], None] = lambda worn: None
        self.interrupted = ""
        """Inputs of the run that the worker's end cut off: names, types and shapes."""
        sock.setblocking(False)
        loop.add_reader(sock.fileno(), self._on_readable)
        self._send_small(Attach(self._session))

    @property
    def inflight(self) -> int:
        """Orders without an answer."""
        return len(self._asked)

    @property
    def input_bytes(self) -> int:
        """Size of the input region: an input over it can never be taken."""
        return self._layout.input_bytes

    def allocate(self, nbytes: int) -> InputSlot | None:
        """A slot for one input tensor, or None when there is no room now (or ever, when `nbytes`
        is over `input_bytes`)."""
        if not self.is_open:
            return None
        slot = self._allocator.allocate(nbytes)
        if slot is None:
            return None
        return InputSlot(self._allocator, slot, self._memory[slot.offset : slot.offset + nbytes])

    def compute(
        self,
        inputs: Sequence[Placed],
        outputs: tuple[str, ...],
        remaining_ms: int,
        done: Done,
        compressed: tuple[str, ...] = (),
    ) -> int:
        """Send one order; `done` is called exactly once. Returns the ticket. Outputs of the names
        in `compressed` may come compressed, no others.

        `done` is not called when this raises: Busy when the worker has enough to do or its socket
        is full, TooLarge for a header over the limit, ExecutionFailed on a closed channel.
        """
        if not self.is_open:
            raise ExecutionFailed("the worker's channel is closed")
        if len(self._asked) >= INFLIGHT_MAX or self._pending:
            raise Busy(f"the worker has {len(self._asked)} requests already")
        self._counter += 1
        ticket = self._session << 32 | self._counter & 0xFFFFFFFF
        now_ms = time.monotonic_ns() // 1_000_000
        released = tuple(self._unsent_releases)
        data = _ENCODER.encode(
            Compute(ticket, tuple(inputs), outputs, remaining_ms, now_ms, released, compressed)
        )
        if len(data) > MESSAGE_BYTES_MAX:
            raise TooLarge(
                f"an order of {len(data)} bytes is over {MESSAGE_BYTES_MAX}",
                hint="give the tensors shorter names, or fewer of them",
            )
        try:
            self._socket.send(data, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            raise Busy("the worker's socket is full") from None
        except OSError as error:
            self._break(f"the worker cannot be reached: {error.strerror}")
            raise ExecutionFailed(f"the worker cannot be reached: {error.strerror}") from error
        del self._unsent_releases[: len(released)]
        self._asked[ticket] = _Asked(inputs, outputs, compressed, done)
        return ticket

    def abort(self, ticket: int) -> None:
        """Ask the worker to end this run early; `done` still comes, perhaps with the result.

        A worker that does not answer within ABORT_TIMEOUT_S counts as broken.
        """
        if ticket in self._asked:
            self._send_small(Abort(ticket))
            self._loop.call_later(ABORT_TIMEOUT_S, self._check_aborted, ticket)

    def _check_aborted(self, ticket: int) -> None:
        if ticket in self._asked:
            self._break(f"the worker did not end an aborted run within {ABORT_TIMEOUT_S:g} s")

    def close(self) -> None:
        """End the channel on purpose: runs fail, `on_closed` is not called. Views stay readable."""
        self._shut("the worker's channel was closed", is_told=False)

    def _on_readable(self) -> None:
        try:
            size = self._socket.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0  # reset: it died with an order of ours unread
        if size == 0:
            self._break(WORKER_DIED)
            return
        try:
            self._handle(_decode(self._buffer_view[:size]))
        except (*MALFORMED, Internal) as error:
            self._break(f"the worker broke the protocol: {error}")

    def _handle(self, message: WorkerAnswer) -> None:
        if isinstance(message, Computed):
            self._on_computed(message)
        elif isinstance(message, ComputeFailed):
            asked = self._take(message.ticket)
            if asked is not None:
                asked.done(told_by(message))
        elif isinstance(message, Worn):
            self.on_worn(message)
        elif self._on_loaded is not None:
            told, self._on_loaded = self._on_loaded, None
            told(message)
        else:
            raise Internal("it says twice, or to a stranger, how loading went")

    def _take(self, ticket: int) -> _Asked | None:
        """The order of a ticket; None for a ticket of a feeder before us on the same channel."""
        if ticket >> 32 != self._session:
            return None
        asked = self._asked.pop(ticket, None)
        if asked is None:
            raise Internal(f"an answer to ticket {ticket & 0xFFFFFFFF}, which is not open")
        return asked

    def _on_computed(self, message: Computed) -> None:
        asked = self._asked.get(message.ticket)
        if asked is None:
            self._take(message.ticket)  # of a feeder before us, or nonsense
            return
        sound = self._sound_of(message.outputs)
        check_asked(sound.metas, asked.outputs, asked.compressed)
        if self._output_ranges:
            self._check_overlap(sound.ranges)
        self._output_ranges[message.ticket] = sound.ranges
        views = [self._memory[start:end] for start, end in sound.places]
        del self._asked[message.ticket]
        asked.done(OutputSet(message, sound.metas, views, partial(self._release, message.ticket)))

    def _sound_of(self, outputs: tuple[Placed, ...]) -> Sound:
        """What is known, or found now, of outputs by themselves. Raises Internal."""
        sound = self._sound.get(outputs)
        if sound is None:
            sound = sound_of(outputs, self._layout)
            if len(self._sound) >= SOUND_KEPT_MAX:
                del self._sound[next(iter(self._sound))]
            self._sound[outputs] = sound
        return sound

    def _check_overlap(self, ranges: Sequence[Range]) -> None:
        taken = [each for known in self._output_ranges.values() for each in known]
        check_apart(sorted([*taken, *ranges]))

    def _release(self, ticket: int) -> None:
        """Under load the next order carries it; a worker that is not used hears of it soon."""
        if self._output_ranges.pop(ticket, None) is None or not self.is_open:
            return
        self._unsent_releases.append(ticket)
        if len(self._unsent_releases) >= UNSENT_RELEASES_MAX:
            self._send_releases()
        elif not self._is_release_timed:
            self._time_releases()

    def _time_releases(self) -> None:
        self._is_release_timed = True
        self._loop.call_later(RELEASE_DELAY_S, self._on_release_time, self._counter)

    def _on_release_time(self, orders_before: int) -> None:
        self._is_release_timed = False
        if not self.is_open or not self._unsent_releases:
            return
        if self._counter != orders_before:
            self._time_releases()  # orders come and go and take them along
        else:
            self._send_releases()

    def _send_releases(self) -> None:
        while self._unsent_releases:
            self._send_small(Release(self._unsent_releases.pop(0)))

    def _send_small(self, message: WorkerMessage) -> None:
        data = _ENCODER.encode(message)
        if not self._pending:
            try:
                self._socket.send(data, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._socket.fileno(), self._on_writable)
            except OSError:
                return  # the end of file is on its way to the reader
            else:
                return
        if len(self._pending) >= PENDING_MAX:
            self._break("the worker does not read its channel")
            return
        self._pending.append(data)

    def _on_writable(self) -> None:
        while self._pending:
            try:
                self._socket.send(self._pending[0], socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._pending.clear()
                break
            self._pending.popleft()
        self._loop.remove_writer(self._socket.fileno())

    def _break(self, reason: str) -> None:
        self._shut(reason, is_told=True)

    def _shut(self, reason: str, *, is_told: bool) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._pending.clear()
        asked, self._asked = list(self._asked.values()), {}
        self.interrupted = shapes_of(asked[0].inputs if asked else ())
        for place, each in enumerate(asked):
            each.done(lost(reason, is_running=place == 0, is_told=is_told))
        self._memory.release()
        with suppress(BufferError):  # views that are still read keep the mapping
            self._mapping.close()
        if is_told:
            self._on_closed(reason)


def _decode(data: memoryview) -> WorkerAnswer:
    if len(data) > MESSAGE_BYTES_MAX:
        raise Internal(f"a message is over {MESSAGE_BYTES_MAX} bytes")
    return _DECODER.decode(data)
