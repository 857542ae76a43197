"""Workers of agents on this host that the gateway feeds itself, without a hop through the agent.

The agent hands over a second control socket and a second arena of each worker and keeps the
supervision: when a worker dies its socket closes, the requests inside end as retryable failures
while their inputs are still held by the caller, and the agent offers the worker's successor.
At most two requests sit in one worker (one running, one waiting): more only lengthens the tail.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from din.domain.deployment import Epoch
from din.domain.node import NodeId
from din.domain.tensor import TensorMeta, offsets_of
from din.errors import Busy, DinError, ExecutionFailed, TooLarge
from din.gateway.failure import AttemptEnded
from din.gateway.service import Buffer
from din.transport.channel import InputSlot, OutputSet, WorkerChannel
from din.wire.messages import Offer
from din.wire.worker import ArenaLayout, Placed

INFLIGHT_PER_WORKER_MAX: Final = 2
WAITING_PER_REPLICA_MAX: Final = 1_000
OFFERS_PER_NODE_MAX: Final = 256

Key = tuple[Epoch, int, NodeId]
"""Deployment epoch, slice index, node."""


class _Replica:
    """The handed-over workers of one slice on one node, and who waits for room in them."""

    def __init__(self) -> None:
        self.workers: dict[int, WorkerChannel] = {}
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.revoking: dict[int, Callable[[], None]] = {}

    def pick(self) -> WorkerChannel | None:
        """The least loaded worker with room, or None."""
        best: WorkerChannel | None = None
        for worker_id, channel in self.workers.items():
            if not channel.is_open or worker_id in self.revoking:
                continue
            if channel.inflight < INFLIGHT_PER_WORKER_MAX and (
                best is None or channel.inflight < best.inflight
            ):
                best = channel
        return best

    def wake(self) -> None:
        """Let the longest waiting request look again."""
        while self.waiting:
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        """Let everybody look again: the workers changed."""
        for future in self.waiting:
            if not future.done():
                future.set_result(None)
        self.waiting.clear()


class DirectWorkers:
    """All handed-over workers, by deployment, slice and node."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._replicas: dict[Key, _Replica] = {}

    @property
    def waiting(self) -> int:
        """Requests that wait for room in a worker."""
        return sum(len(replica.waiting) for replica in self._replicas.values())

    def has(self, key: Key) -> bool:
        """Whether at least one open worker is here."""
        replica = self._replicas.get(key)
        return replica is not None and any(
            channel.is_open and worker_id not in replica.revoking
            for worker_id, channel in replica.workers.items()
        )

    def offered(self, node_id: NodeId, offer: Offer, descriptors: Sequence[int]) -> None:
        """Take over one worker. Descriptors that are no use are closed. Raises DinError."""
        count = sum(len(r.workers) for key, r in self._replicas.items() if key[2] == node_id)
        is_sane = 0 < offer.input_bytes < offer.arena_bytes
        if len(descriptors) != 2 or count >= OFFERS_PER_NODE_MAX or not is_sane:
            for descriptor in descriptors:
                os.close(descriptor)
            raise ExecutionFailed(
                f"offer of worker {offer.worker_id} by node {node_id} with {len(descriptors)} "
                f"descriptors, arena {offer.arena_bytes} and {count} workers before it is refused"
            )
        key = (offer.epoch, offer.slice_index, node_id)
        replica = self._replicas.setdefault(key, _Replica())
        channel = WorkerChannel(
            self._loop,
            socket.socket(fileno=descriptors[0]),
            descriptors[1],
            ArenaLayout(offer.arena_bytes, offer.input_bytes),
            None,
            partial(self._closed, key, offer.worker_id),
        )
        replica.workers[offer.worker_id] = channel
        replica.wake_all()

    def revoke(self, node_id: NodeId, worker_id: int, done: Callable[[], None]) -> None:
        """Send nothing more to a worker and call `done` once nothing of ours runs in it."""
        for key, replica in self._replicas.items():
            if key[2] == node_id and worker_id in replica.workers:
                replica.revoking[worker_id] = done
                self._settle_revoked(key, worker_id)
                return
        done()

    def drop_node(self, node_id: NodeId) -> None:
        """The agent is gone: so are its workers, though their sockets may not say so yet."""
        for key in [key for key in self._replicas if key[2] == node_id]:
            replica = self._replicas.pop(key)
            for channel in list(replica.workers.values()):
                channel.close()
            replica.wake_all()

    def close(self) -> None:
        """Drop everything."""
        for node_id in {key[2] for key in self._replicas}:
            self.drop_node(node_id)

    async def run(
        self,
        key: Key,
        metas: Sequence[TensorMeta],
        chunks: Sequence[Sequence[Buffer]],
        outputs: tuple[str, ...],
        remaining_ms: Callable[[], int],
    ) -> OutputSet:
        """Run one request in one of the replica's workers. Raises AttemptEnded."""
        while True:
            replica = self._replicas.get(key)
            channel = replica.pick() if replica is not None else None
            if replica is None or (channel is None and not self.has(key)):
                raise AttemptEnded(ExecutionFailed(f"node {key[2]} has no worker left"))
            slot = _slot(channel, metas) if channel is not None else None
            if channel is not None and slot is not None:
                return await self._compute(
                    key, channel, slot, metas, chunks, outputs, remaining_ms()
                )
            await self._wait_for_room(replica)

    async def _wait_for_room(self, replica: _Replica) -> None:
        if len(replica.waiting) >= WAITING_PER_REPLICA_MAX:
            raise AttemptEnded(
                Busy(
                    f"{WAITING_PER_REPLICA_MAX} requests already wait for this model's workers",
                    hint="send fewer at once, or add workers or nodes",
                ),
                is_busy=True,
            )
        future: asyncio.Future[None] = self._loop.create_future()
        replica.waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                replica.wake()
            raise

    async def _compute(
        self,
        key: Key,
        channel: WorkerChannel,
        slot: InputSlot,
        metas: Sequence[TensorMeta],
        chunks: Sequence[Sequence[Buffer]],
        outputs: tuple[str, ...],
        remaining_ms: int,
    ) -> OutputSet:
        offsets, _ = offsets_of(tuple(metas))
        placed: list[Placed] = []
        for meta, offset, pieces in zip(metas, offsets, chunks, strict=True):
            end = offset
            for piece in pieces:
                slot.view[end : end + len(piece)] = piece
                end += len(piece)
            placed.append(Placed(meta, slot.offset + offset))
        future: asyncio.Future[OutputSet] = self._loop.create_future()

        def done(outcome: OutputSet | DinError) -> None:
            slot.free()
            if future.done():
                if isinstance(outcome, OutputSet):
                    outcome.release()
            elif isinstance(outcome, OutputSet):
                future.set_result(outcome)
            else:
                future.set_exception(_ended(outcome, key[2]))
            self._after(key)

        try:
            ticket = channel.compute(placed, outputs, remaining_ms, done)
        except DinError as error:
            slot.free()
            raise _ended(error, key[2]) from error
        try:
            return await future
        except asyncio.CancelledError:
            channel.abort(ticket)
            raise

    def _after(self, key: Key) -> None:
        replica = self._replicas.get(key)
        if replica is None:
            return
        replica.wake()
        for worker_id in list(replica.revoking):
            self._settle_revoked(key, worker_id)

    def _settle_revoked(self, key: Key, worker_id: int) -> None:
        replica = self._replicas[key]
        channel = replica.workers.get(worker_id)
        if channel is None or channel.inflight == 0:
            done = replica.revoking.pop(worker_id)
            if channel is not None:
                channel.close()
            done()

    def _closed(self, key: Key, worker_id: int, reason: str) -> None:
        replica = self._replicas.get(key)
        if replica is None:
            return
        replica.workers.pop(worker_id, None)
        done = replica.revoking.pop(worker_id, None)
        if done is not None:
            done()
        if not replica.workers:
            del self._replicas[key]
        replica.wake_all()


def _slot(channel: WorkerChannel, metas: Sequence[TensorMeta]) -> InputSlot | None:
    _, total = offsets_of(tuple(metas))
    slot = channel.allocate(total)
    if slot is None and channel.inflight == 0:
        raise AttemptEnded(
            TooLarge(
                f"inputs of {total} bytes do not fit the worker's arena",
                hint="send a smaller batch, or raise the arena size of the node",
            ),
            is_retryable=False,
        )
    return slot


def _ended(error: DinError, node_id: NodeId) -> AttemptEnded:
    is_worker_fault = isinstance(error, ExecutionFailed)
    return AttemptEnded(
        error,
        blamed=(node_id,) if is_worker_fault else (),
        is_retryable=is_worker_fault or isinstance(error, Busy),
        is_busy=isinstance(error, Busy),
    )
