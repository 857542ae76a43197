"""An attempt that the gateway makes itself, in a handed-over worker: what is sent, what it means.

Asked for by a coroutine (`Request`) or by callbacks (`Express`): both find their words here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from din.domain.request import SliceTiming
from din.domain.tensor import TensorMeta
from din.errors import DeadlineExceeded, ExecutionFailed
from din.gateway.requests.direct_run import Order
from din.gateway.requests.failure import AttemptEnded
from din.gateway.routes.serving import LiveReplica
from din.gateway.service import Buffer, InferenceAnswer
from din.transport.channel import OutputSet

if TYPE_CHECKING:
    from din.gateway.requests.request import Request


class DirectAttempt:
    """One attempt over one replica whose workers were handed over; `of` makes it."""

    __slots__ = (
        "_index",
        "_is_until_deadline",
        "_replica",
        "_request",
        "_started_ms",
        "_timings",
        "order",
        "patience_ms",
    )

    def __init__(self, request: Request, index: int, replica: LiveReplica, order: Order) -> None:
        self._request = request
        self._index = index
        self._replica = replica
        self._started_ms = request.tools.clock()
        self._timings: dict[int, SliceTiming] = {}
        self.order = order
        remaining_ms = float(max(request.remaining_ms(), 0))
        self.patience_ms = min(self._silence_ms(), remaining_ms)
        # Whoever gives up may look at another clock: what for was decided here.
        self._is_until_deadline = self.patience_ms == remaining_ms

    @staticmethod
    def of(request: Request, replicas: Mapping[int, LiveReplica]) -> DirectAttempt | None:
        """None when several slices run, or when no open worker of this one was handed over."""
        index = request.shape.single_slice
        if index is None:
            return None
        replica = replicas[index]
        key = (request.serving.deployment.epoch, index, replica.node_id)
        if not request.tools.direct.has(key):
            return None
        metas, chunks = _consumed(request, index)
        order = Order(key, metas, chunks, request.awaited_outputs(), request.remaining_ms)
        return DirectAttempt(request, index, replica, order)

    def _silence_ms(self) -> float:
        """For as long as it should take where another node may be asked, else without end: a worker
        that computes on and one that is stuck look alike."""
        if not self._request.has_other(self._index, self._replica.node_id):
            return inf
        return self._request.silence_ms((self._replica,))

    def answer(self, result: OutputSet) -> InferenceAnswer:
        """The answer of the request; `learn` follows, which its caller need not wait for."""
        request, node_id = self._request, self._replica.node_id
        elapsed_us = int((request.tools.clock() - self._started_ms) * 1000)
        timing = SliceTiming(
            self._index,
            node_id,
            0,
            max(elapsed_us - result.compute_us, 0),
            result.compute_us,
            0,
            result.accelerator_percent,
        )
        timings = self._timings = {self._index: timing}
        return request.answer(result.metas, result.views, result.release, timings, "direct")

    def learn(self) -> None:
        """What the answer says of the replica, once it is given."""
        self._request.observe({self._index: self._replica}, self._timings)

    def silent(self) -> AttemptEnded:
        """It was given up."""
        request, node_id = self._request, self._replica.node_id
        node = request.tools.name_of(node_id)
        if self._is_until_deadline:
            error = DeadlineExceeded(
                f"the deadline passed while node {node} computed or queued it",
                hint="give it more time: timeout_ms in the request, --timeout-ms of the commands",
            )
            return AttemptEnded(error, is_retryable=False)
        return AttemptEnded(
            ExecutionFailed(f"node {node} did not answer within {self.patience_ms:.0f} ms"),
            blamed=(node_id,),
            is_node_suspect=True,
        )


def _consumed(
    request: Request, index: int
) -> tuple[tuple[TensorMeta, ...], Sequence[Sequence[Buffer]]]:
    """The inputs without those that the model declares and no operator reads."""
    call, names = request.call, request.shape.inputs[index]
    if len(names) == len(call.metas):
        return call.metas, call.chunks
    kept = [number for number, meta in enumerate(call.metas) if meta.name in names]
    return tuple(call.metas[each] for each in kept), [call.chunks[each] for each in kept]
