"""Attempts whose tensors travel through agents: who is under way, and what arrives for them.

Inputs go out as RUN frames, outputs come back as RESULT frames; everything between runs from node
to node without the gateway, unless one cannot dial the other: then RUN frames with a `target` pass
through here (`gateway.links`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from din.domain.node import NodeId
from din.domain.tensor import TensorMeta, is_sized, offsets_of
from din.errors import (
    Busy,
    DeadlineExceeded,
    DinError,
    ExecutionFailed,
    Unreachable,
    error_of_code,
)
from din.gateway.requests.attempt import Attempt
from din.gateway.requests.failure import AttemptEnded
from din.gateway.service import Buffer
from din.wire.messages import Accepted, AnyMessage, BusyNode, Cancel, Failed, Result, Run

TOMBSTONE_MS_MIN: Final = 1_000
"""A cancelled attempt is remembered by nodes at least this long: frames may still be on the way."""

TRAVEL_BYTES_PER_MS: Final = 4096
"""Four MiB a second: a tensor under way on a link no faster than that is no silence."""


class Sender(Protocol):
    """What the relay needs of the links."""

    def send(
        self, node_id: str, message: AnyMessage, body: Sequence[memoryview | bytes] = ()
    ) -> bool:
        """False when the node has no open link or its queue is full. Raises TooLarge."""
        ...

    def is_open(self, node_id: str) -> bool:
        """Whether there is an open link."""
        ...


HasOther = Callable[[int, NodeId], bool]
"""Whether a slice has a ready replica besides this node's."""


class _Flight:
    __slots__ = ("attempt", "future", "has_other", "remaining_ms", "timer")

    def __init__(
        self,
        attempt: Attempt,
        future: asyncio.Future[None],
        remaining_ms: Callable[[], int],
        has_other: HasOther,
    ) -> None:
        self.attempt = attempt
        self.future = future
        self.remaining_ms = remaining_ms
        self.has_other = has_other
        self.timer: asyncio.TimerHandle | None = None


class Relay:
    """All attempts under way through agents, by request id."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        origin: str,
        sender: Sender,
        name_of: Callable[[str], str],
        result_bytes_max: int,
    ) -> None:
        self._loop = loop
        self._origin = origin
        self._sender = sender
        self._name_of = name_of
        self._result_bytes_max = result_bytes_max
        self._flights: dict[int, _Flight] = {}

    async def run(
        self,
        attempt: Attempt,
        metas: Sequence[TensorMeta],
        chunks: Sequence[Sequence[Buffer]],
        remaining_ms: Callable[[], int],
        silence_ms: float,
        has_other: HasOther,
    ) -> None:
        """Send the inputs and wait until the attempt is complete. Raises AttemptEnded; when this
        is cancelled or fails, every node of the attempt is told to stop."""
        future: asyncio.Future[None] = self._loop.create_future()
        flight = _Flight(attempt, future, remaining_ms, has_other)
        self._flights[attempt.request_id] = flight
        is_done = False
        self._wait(flight, silence_ms + _travel_ms(attempt, metas))
        try:
            self._send_inputs(attempt, metas, chunks, remaining_ms())
            await future
            is_done = True
        finally:
            if flight.timer is not None:
                flight.timer.cancel()
            del self._flights[attempt.request_id]
            if not is_done:
                self._cancel(attempt, remaining_ms())

    def _send_inputs(
        self,
        attempt: Attempt,
        metas: Sequence[TensorMeta],
        chunks: Sequence[Sequence[Buffer]],
        remaining_ms: int,
    ) -> None:
        place = {meta.name: number for number, meta in enumerate(metas)}
        for index in attempt.shape.slices:
            names = attempt.shape.inputs[index]
            if not names and attempt.shape.upstream[index]:
                continue
            numbers = [place[name] for name in names]
            message = Run(
                attempt.request_id,
                attempt.number,
                index,
                attempt.route,
                remaining_ms,
                tuple(metas[number] for number in numbers),
                self._origin,
            )
            self._send(attempt.node_of(index), message, [_whole(chunks[n]) for n in numbers])

    def _send(self, node_id: NodeId, message: Run, body: list[memoryview | bytes]) -> None:
        try:
            is_taken = self._sender.send(node_id, message, body)
        except DinError as error:
            raise AttemptEnded(error, is_retryable=False) from error
        if is_taken:
            return
        name = self._name_of(node_id)
        if self._sender.is_open(node_id):
            hint = "send fewer or smaller requests at once, or add nodes"
            full = Busy(f"the link to node {name} has its queue full", hint=hint)
            raise AttemptEnded(full, blamed=(node_id,), is_busy=True)
        raise AttemptEnded(
            Unreachable(f"node {name} has no link to this gateway"),
            blamed=(node_id,),
            is_node_suspect=True,
        )

    def _cancel(self, attempt: Attempt, remaining_ms: int) -> None:
        message = Cancel(
            attempt.request_id,
            attempt.number,
            self._origin,
            max(remaining_ms, TOMBSTONE_MS_MIN),
        )
        for node_id in {attempt.node_of(index) for index in attempt.shape.slices}:
            self._sender.send(node_id, message)

    # What arrives.

    def is_party(self, node_id: str, request_id: int) -> bool:
        """Whether a node has a part in a request that is under way; one that is not, harms none."""
        flight = self._flights.get(request_id)
        return flight is None or flight.attempt.uses(node_id)

    def is_under_way(self, message: Run) -> bool:
        """Whether somebody still waits for the attempt of this frame."""
        flight = self._flights.get(message.request_id)
        return flight is not None and flight.attempt.number == message.attempt

    def is_edge(self, source: str, message: Run) -> bool:
        """Whether a frame for another node comes from its producer in an attempt under way."""
        flight = self._flights.get(message.request_id)
        if flight is None or message.route != flight.attempt.route:
            return False
        nodes = message.route.nodes
        return (
            0 <= message.producer < len(nodes)
            and 0 <= message.slice_index < len(nodes)
            and nodes[message.producer] == source
            and nodes[message.slice_index] == message.target
        )

    def place_result(self, message: Result, nbytes: int) -> memoryview | None:
        """Memory for a result that somebody waits for; None = throw the body away."""
        flight = self._flights.get(message.request_id)
        if flight is None or not flight.attempt.expects(message):
            return None
        if not all(map(_is_sound, message.tensors)):
            return None
        _, total = offsets_of(message.tensors)
        if nbytes > self._result_bytes_max or nbytes != total:
            return None
        return memoryview(bytearray(nbytes))

    def on_result(self, message: Result, body: memoryview | None) -> None:
        """Outputs of one slice."""
        flight = self._flights.get(message.request_id)
        if flight is None or flight.future.done() or not flight.attempt.expects(message):
            return
        if unsound := next((each for each in message.tensors if not _is_sound(each)), None):
            node_id = flight.attempt.node_of(message.slice_index)
            self._end(
                flight,
                ExecutionFailed(
                    f"node {self._name_of(node_id)} sent output {unsound.name!r} {unsound.dtype} "
                    f"{list(unsound.shape)} of {unsound.nbytes} bytes, which cannot be"
                ),
                blamed=(node_id,),
            )
            return
        _, total = offsets_of(message.tensors)
        if total and (body is None or len(body) != total):
            node_id = flight.attempt.node_of(message.slice_index)
            self._end(
                flight,
                ExecutionFailed(
                    f"node {self._name_of(node_id)} sent a result of {total} bytes, over the "
                    f"limit of {self._result_bytes_max} or not as announced"
                ),
                is_retryable=False,
            )
            return
        flight.attempt.take(message, body if body is not None else memoryview(b""))
        if flight.attempt.is_complete:
            flight.future.set_result(None)

    def on_accepted(self, message: Accepted) -> None:
        """Marks of progress."""
        for mark in message.marks:
            flight = self._flights.get(mark.request_id)
            if flight is not None:
                flight.attempt.mark(mark)

    def on_failed(self, message: Failed) -> None:
        """A node says that the attempt cannot go on."""
        flight = self._flights.get(message.request_id)
        if flight is None or message.attempt != flight.attempt.number:
            return
        error = error_of_code(
            message.code,
            f"slice {flight.attempt.name_of(message.slice_index)} on node "
            f"{self._name_of(message.node_id)}: "
            f"{message.message}",
            message.hint,
        )
        self._end(
            flight,
            error,
            blamed=(message.node_id,)
            if message.is_retryable and flight.attempt.uses(message.node_id)
            else (),
            is_retryable=message.is_retryable,
            is_busy=isinstance(error, Busy),
            is_node_suspect=isinstance(error, Unreachable),
        )

    def on_busy(self, message: BusyNode) -> None:
        """A node's queue is full. It is not blamed."""
        flight = self._flights.get(message.request_id)
        if flight is None or message.attempt != flight.attempt.number:
            return
        depth = message.queue_depth
        why = f"{depth} requests waiting" if depth else "no live worker for it now"
        self._end(
            flight,
            Busy(
                f"slice {flight.attempt.name_of(message.slice_index)} on node "
                f"{self._name_of(message.node_id)} has {why}",
                hint=f"try again in {message.retry_after_ms} ms",
            ),
            blamed=(message.node_id,) if flight.attempt.uses(message.node_id) else (),
            is_busy=True,
        )

    def node_down(self, node_id: NodeId, reason: str) -> None:
        """A node's link closed: every attempt that uses it starts again elsewhere, at once."""
        for flight in list(self._flights.values()):
            if flight.attempt.uses(node_id):
                self._end(
                    flight,
                    ExecutionFailed(f"node {self._name_of(node_id)} was lost: {reason}"),
                    blamed=(node_id,),
                    is_node_suspect=True,
                )

    def _wait(self, flight: _Flight, patience_ms: float) -> None:
        patience_ms = min(patience_ms, max(float(flight.remaining_ms()), 0.0))
        flight.timer = self._loop.call_later(patience_ms / 1000, self._silent, flight, patience_ms)

    def _silent(self, flight: _Flight, silence_ms: float) -> None:
        if flight.future.done():
            return
        suspects = flight.attempt.suspects()
        who = "; ".join(
            f"slice {flight.attempt.name_of(index)} on node {self._name_of(node_id)} {why}"
            for index, node_id, why in suspects
        )
        if flight.remaining_ms() <= 0:
            error = DeadlineExceeded(
                f"the deadline passed before an answer came: {who}",
                hint="give it more time: timeout_ms in the request, --timeout-ms of the commands",
            )
            self._end(flight, error, is_retryable=False)
            return
        if not all(flight.has_other(index, node_id) for index, node_id, _ in suspects):
            # Another try would queue behind this one on the very same node. Links that die are
            # noticed by themselves, so there is nothing to do but to wait.
            self._wait(flight, silence_ms)
            return
        self._end(
            flight,
            ExecutionFailed(f"no answer within {silence_ms:.0f} ms: {who}"),
            blamed=tuple(node_id for _, node_id, _ in suspects),
            is_node_suspect=True,
        )

    @staticmethod
    def _end(
        flight: _Flight,
        error: DinError,
        *,
        blamed: tuple[str, ...] = (),
        is_retryable: bool = True,
        is_busy: bool = False,
        is_node_suspect: bool = False,
    ) -> None:
        if not flight.future.done():
            flight.future.set_exception(
                AttemptEnded(
                    error,
                    blamed=blamed,
                    is_retryable=is_retryable,
                    is_busy=is_busy,
                    is_node_suspect=is_node_suspect,
                )
            )


def _travel_ms(attempt: Attempt, metas: Sequence[TensorMeta]) -> float:
    """How long tensors of the size of the inputs may travel: in, from slice to slice, and out."""
    nbytes = sum(meta.nbytes for meta in metas)
    return nbytes * (len(attempt.shape.slices) + 1) / TRAVEL_BYTES_PER_MS


def _is_sound(meta: TensorMeta) -> bool:
    """Sizes cross the wire: whoever reads the outputs counts on dtype, shape and bytes agreeing."""
    has_shape = all(size >= 0 for size in meta.shape)
    return has_shape and not meta.compression and is_sized(meta)


def _whole(pieces: Sequence[Buffer]) -> memoryview | bytes:
    if len(pieces) == 1:
        return memoryview(pieces[0])
    return b"".join(pieces)
