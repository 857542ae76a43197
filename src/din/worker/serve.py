"""The worker's loop: take an order, compute, answer. One run at a time, one more waits per feeder
in its socket."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, runtime_checkable

import numpy as np

from din.backends.contract import Array, Lasting, Session
from din.domain.tensor import BYTES, ZSTD, TensorMeta, TensorSpec
from din.errors import (
    BadTensor,
    DeadlineExceeded,
    DinError,
    ExecutionFailed,
    Internal,
    Unavailable,
)
from din.wire.worker import Abort, Compute, Computed, FeederMessage, Placed, Worn
from din.worker.compression import Compressor
from din.worker.feed import Feed
from din.worker.known import Known, KnownOrders, may_last, sized_outputs
from din.worker.memory import is_out_of_memory
from din.worker.tensors import array_at, check_output, encode_bytes_tensor
from din.worker.watchdog import StopReason, Watchdog, monotonic_ms

EXIT_OWNER_GONE: Final = 0


@runtime_checkable
class Timed(Protocol):
    """A session that passes on how long a run is waited for."""

    def until(self, deadline_ms: int) -> None:
        """The next run is wanted by then, of the monotonic clock."""
        ...


class Server:
    """Serves feeds with one session; the first feed is the owner's: when it closes, so do we."""

    def __init__(
        self,
        session: Session,
        feeds: Sequence[Feed],
        watchdog: Watchdog,
        memory_mib_max: int = 0,
        after_request: Callable[[], Worn | None] = lambda: None,
    ) -> None:
        """`memory_mib_max`: what this process may take beside what it was born with, for words;
        `after_request`: asked after each answer whether the owner is to be told that it is worn."""
        self._after_request = after_request
        self._session = session
        self._memory_mib_max = memory_mib_max
        self._timed = session if isinstance(session, Timed) else None
        self._feeds = list(feeds)
        self._watchdog = watchdog
        self._compressor = Compressor()
        self._known = KnownOrders()
        self._inputs = {spec.name: spec for spec in session.inputs}
        self._outputs = {spec.name: spec for spec in session.outputs}
        self._poll = select.poll()
        self._by_descriptor = {feed.sock.fileno(): feed for feed in feeds}
        for descriptor in self._by_descriptor:
            self._poll.register(descriptor, select.POLLIN)

    def serve_forever(self) -> None:
        """Until the owner has gone."""
        while True:
            inbox = self._watchdog.inbox
            if inbox:
                self._handle(*inbox.popleft())
            else:
                self._wait()
            self._drop_closed()

    def _wait(self) -> None:
        if len(self._feeds) == 1:
            self._receive(self._feeds[0])
            return
        for descriptor, _ in self._poll.poll():
            feed = self._by_descriptor.get(descriptor)
            # A run for the first ready feed may have read the second one's message already.
            if feed is not None and feed.is_open and not self._watchdog.inbox:
                self._receive(feed, socket.MSG_DONTWAIT)

    def _receive(self, feed: Feed, flags: int = 0) -> None:
        message = feed.receive(flags)
        if message is not None:
            self._handle(feed, message)

    def _drop_closed(self) -> None:
        if all(feed.is_open for feed in self._feeds):
            return
        if not self._feeds[0].is_open:
            os._exit(EXIT_OWNER_GONE)
        for descriptor, feed in list(self._by_descriptor.items()):
            if not feed.is_open:
                del self._by_descriptor[descriptor]
                self._poll.unregister(descriptor)
        self._feeds = [feed for feed in self._feeds if feed.is_open]
        self._known.drop_closed()

    def _handle(self, feed: Feed, message: FeederMessage) -> None:
        if isinstance(message, Compute):
            self._compute(feed, message)
        elif not isinstance(message, Abort):  # an Abort that comes after its run is too late
            feed.handle(message)

    def _compute(self, feed: Feed, order: Compute) -> None:
        for ticket in order.released:
            feed.release(ticket)
        deadline_ms = (order.sent_at_ms or monotonic_ms()) + order.remaining_ms
        try:
            self._check_wanted_still(feed, order, deadline_ms)
            feed.send(self._run(feed, order, deadline_ms))
        except DinError as error:
            is_full = isinstance(error, ExecutionFailed) and is_out_of_memory(error.message)
            feed.fail(order.ticket, self._no_memory() if is_full else error)
        except MemoryError:
            feed.fail(order.ticket, self._no_memory())
        except Exception as error:
            # Not the caller's fault and not expected: say so to the feeder, then start afresh.
            feed.fail(order.ticket, Internal(f"worker: {type(error).__name__}: {error}"))
            raise
        worn = self._after_request()
        if worn is not None:
            self._feeds[0].send(worn)

    def _no_memory(self) -> DinError:
        limit = self._memory_mib_max
        allowed = f"the {limit} MiB that its worker may take" if limit else "the machine has left"
        return ExecutionFailed(
            f"the worker has no memory left for this run: it needs more than {allowed}",
            hint="send less at once, cut the model smaller, or raise worker_memory_factor of the "
            "node",
        )

    def _check_wanted_still(self, feed: Feed, order: Compute, deadline_ms: int) -> None:
        if self._watchdog.take_abort(feed, order.ticket):
            raise _stopped("abort")
        if order.remaining_ms <= 0 or deadline_ms <= monotonic_ms():
            raise _stopped("deadline")

    def _run(self, feed: Feed, order: Compute, deadline_ms: int) -> Computed:
        self._compressor.take_spent_us()  # of a run that failed
        known = self._known.find(feed, order) or self._look(feed, order)
        offsets = tuple([feed.allocate(order.ticket, meta.nbytes) for meta in known.sized])
        targets, there = known.laid(feed.memory, offsets)
        if self._timed is not None:
            self._timed.until(deadline_ms)
        started_ns = time.perf_counter_ns()
        with self._watched(feed, order.ticket, deadline_ms):
            results = self._session.run(known.inputs, known.names, targets)
            compute_us = (time.perf_counter_ns() - started_ns) // 1000
            placed = tuple(
                [
                    there[name]
                    if name in targets and results[name] is targets[name]
                    else self._place(feed, order, self._outputs[name], results[name])
                    for name in known.names
                ]
            )
        encode_us = self._compressor.take_spent_us()
        return Computed(order.ticket, placed, compute_us, encode_us=encode_us)

    def _look(self, feed: Feed, order: Compute) -> Known:
        """Check an order and make its arrays."""
        symbols: dict[str, int] = {}
        feed.check_inputs(order, self._inputs, symbols)
        names = self._wanted(order)
        inputs = {
            placed.meta.name: self._array_at(feed.memory, placed.meta, placed.offset)
            for placed in order.inputs
        }
        specs = [self._outputs[name] for name in names]
        sized = sized_outputs(specs, symbols, order.compressed)
        known = Known(Lasting(inputs) if may_last(order) else inputs, names, sized)
        self._known.keep(feed, order, known)
        return known

    def _array_at(self, memory: memoryview, meta: TensorMeta, offset: int) -> Array:
        if meta.compression:
            return self._compressor.decompress(memory[offset : offset + meta.nbytes], meta)
        return array_at(memory, meta, offset)

    @contextmanager
    def _watched(self, feed: Feed, ticket: int, deadline_ms: int) -> Generator[None]:
        """A failure of a run that was stopped is told as what it was stopped for."""
        self._watchdog.begin(feed, ticket, deadline_ms)
        try:
            yield
        except DinError as error:
            reason = self._watchdog.end()
            raise (_stopped(reason) if reason else error) from error
        except BaseException:
            self._watchdog.end()
            raise
        if self._watchdog.end() == "abort":
            raise _stopped("abort")

    def _check_stopped(self) -> None:
        reason = self._watchdog.reason
        if reason:
            raise _stopped(reason)

    def _wanted(self, order: Compute) -> tuple[str, ...]:
        if not order.outputs:
            return tuple(self._outputs)
        for name in order.outputs:
            if name not in self._outputs:
                raise BadTensor(
                    f"there is no output {name!r}",
                    hint=f"outputs are {', '.join(self._outputs)}",
                )
        if len(set(order.outputs)) != len(order.outputs):
            raise BadTensor(f"an output is asked for twice: {', '.join(order.outputs)}")
        return order.outputs

    def _place(self, feed: Feed, order: Compute, spec: TensorSpec, array: Array) -> Placed:
        check_output(spec, array)
        ticket = order.ticket
        if spec.dtype == BYTES:
            data = encode_bytes_tensor(array)
            return _placed(feed, ticket, TensorMeta(spec.name, BYTES, array.shape, len(data)), data)
        may_compress = spec.name in order.compressed
        frame = self._compressor.compress(array, self._check_stopped) if may_compress else None
        if frame is not None:
            meta = TensorMeta(spec.name, spec.dtype, array.shape, len(frame), ZSTD)
            return _placed(feed, ticket, meta, frame)
        offset = feed.allocate(ticket, array.nbytes)
        if array.nbytes:
            # Also makes transposed or strided arrays row-major.
            np.copyto(np.ndarray(array.shape, array.dtype, feed.memory, offset), array)
        return Placed(_meta(spec, array), offset)


def _placed(feed: Feed, ticket: int, meta: TensorMeta, data: bytes | bytearray) -> Placed:
    offset = feed.allocate(ticket, len(data))
    feed.memory[offset : offset + len(data)] = data
    return Placed(meta, offset)


def _meta(spec: TensorSpec, array: Array) -> TensorMeta:
    return TensorMeta(spec.name, spec.dtype, array.shape, array.nbytes)


def _stopped(reason: StopReason) -> DinError:
    if reason == "deadline":
        return DeadlineExceeded("the deadline passed before the run ended")
    return Unavailable("the run was aborted on request")
