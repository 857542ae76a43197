"""One order in one handed-over worker: its way into the arena, and its one end.

A run ends once: answered, failed, given up or cancelled. Whoever started it hears of the first
three through one callback; a worker that answers afterwards only has its outputs taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from din.domain.deployment import Epoch
from din.domain.node import NodeId
from din.domain.tensor import TensorMeta, offsets_of
from din.errors import Busy, DinError, ExecutionFailed
from din.gateway.requests.failure import AttemptEnded
from din.gateway.requests.patience import Patience
from din.gateway.service import Buffer
from din.transport.channel import InputSlot, OutputSet, WorkerChannel
from din.wire.worker import Placed

Key = tuple[Epoch, int, NodeId]
"""Deployment epoch, slice index, node."""


class Order:
    """What is to run where."""

    __slots__ = ("chunks", "key", "metas", "nbytes", "offsets", "outputs", "remaining_ms")

    def __init__(
        self,
        key: Key,
        metas: tuple[TensorMeta, ...],
        chunks: Sequence[Sequence[Buffer]],
        outputs: tuple[str, ...],
        remaining_ms: Callable[[], int],
    ) -> None:
        self.key = key
        self.metas = metas
        self.chunks = chunks
        self.outputs = outputs
        self.remaining_ms = remaining_ms
        self.offsets, self.nbytes = offsets_of(metas)

    def placed(self, slot: InputSlot) -> list[Placed]:
        """Copy the inputs into their slot."""
        view, begin = slot.view, slot.offset
        placed: list[Placed] = []
        for meta, offset, pieces in zip(self.metas, self.offsets, self.chunks, strict=True):
            end = offset
            for piece in pieces:
                start, end = end, end + len(piece)
                view[start:end] = piece
            placed.append(Placed(meta, begin + offset))
        return placed


Ended = OutputSet | AttemptEnded | TimeoutError
Done = Callable[[Ended], None]


class DirectRun:
    """One order from its arrival on: waiting for room, then in one worker, until it is answered,
    given up or cancelled."""

    __slots__ = ("_after", "_channel", "_done", "_leave", "_patience", "_slot", "_ticket", "order")

    def __init__(
        self,
        order: Order,
        patience: Patience,
        leave: Callable[[DirectRun], None],
        after: Callable[[], None],
        done: Done,
    ) -> None:
        self.order = order
        self._patience = patience
        self._leave = leave
        """Take it from those who wait."""
        self._after = after
        """Its worker has room again."""
        self._done: Done | None = done
        self._channel: WorkerChannel | None = None
        self._slot: InputSlot | None = None
        self._ticket = 0

    def send(self, channel: WorkerChannel) -> bool:
        """Into this worker; False when its arena has no room now. Raises AttemptEnded when the
        worker cannot take it."""
        order = self.order
        slot = self._slot = channel.allocate(order.nbytes)
        if slot is None:
            return False
        try:
            self._ticket = channel.compute(
                order.placed(slot), order.outputs, order.remaining_ms(), self.ended
            )
        except DinError as error:
            self._give_back()
            raise self._ended_of(error) from error
        self._channel = channel
        return True

    def ended(self, outcome: OutputSet | DinError) -> None:
        """What the channel says of it, once. Nobody may want to hear it any more."""
        self._give_back()
        self._after()
        if self._done is None:
            if isinstance(outcome, OutputSet):
                outcome.release()
            return
        self._tell(outcome if isinstance(outcome, OutputSet) else self._ended_of(outcome))

    def fail(self, ended: AttemptEnded) -> None:
        """It waited in vain."""
        if self._done is not None:
            self._tell(ended)

    def give_up(self) -> None:
        """Its time is over: the worker shall stop, and whoever waits hears it now."""
        if self._done is not None:
            self._stop()
            self._tell(TimeoutError())

    def cancel(self) -> None:
        """Nobody waits any more; without effect on a run that is over."""
        if self._done is not None:
            self._done = None
            self._patience.end(self)
            self._stop()

    def _tell(self, outcome: Ended) -> None:
        done, self._done = self._done, None
        self._patience.end(self)
        if done is not None:
            done(outcome)

    def _stop(self) -> None:
        if self._channel is None:
            self._leave(self)
        else:
            self._channel.abort(self._ticket)

    def _give_back(self) -> None:
        if self._slot is not None:
            self._slot.free()
            self._slot.view.release()  # so that a broken channel can let go of the arena at once
            self._slot = None

    def _ended_of(self, error: DinError) -> AttemptEnded:
        """What a worker's or a channel's error means for the attempt."""
        is_worker_fault = isinstance(error, ExecutionFailed)
        return AttemptEnded(
            error,
            blamed=(self.order.key[2],) if is_worker_fault else (),
            is_retryable=is_worker_fault or isinstance(error, Busy),
            is_busy=isinstance(error, Busy),
        )


def settle(future: asyncio.Future[OutputSet], outcome: Ended) -> None:
    """Hand an end to whoever awaits it."""
    if future.done():  # cancelled, which its awaiter has not noticed yet
        if isinstance(outcome, OutputSet):
            outcome.release()
    elif isinstance(outcome, OutputSet):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


async def awaited(run: DirectRun, future: asyncio.Future[OutputSet]) -> OutputSet:
    """What `settle` puts into the future; a cancellation ends the run. Raises AttemptEnded,
    TimeoutError."""
    try:
        return await future
    except asyncio.CancelledError:
        if not future.cancelled() and future.exception() is None:
            future.result().release()  # it came in the same turn as the cancellation
        run.cancel()
        raise
