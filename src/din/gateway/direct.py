"""Workers of agents on this host that the gateway feeds itself, without a hop through the agent.

The agent hands over a second control socket and a second arena of each worker and keeps the
supervision: when a worker dies its socket closes, the requests inside end as retryable failures
while their inputs are still held by the caller, and the agent offers the worker's successor.
At most two requests sit in one worker (one running, one waiting): more only lengthens the tail.
"""

from __future__ import annotations

import asyncio
import socket
from bisect import insort
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Final

from din.domain.node import NodeId
from din.errors import Busy, DinError, ExecutionFailed, TooLarge, Unavailable
from din.gateway.direct_run import DirectRun, Done, Key, Order, awaited, ended_of, settle
from din.gateway.failure import AttemptEnded
from din.gateway.patience import Patience
from din.system.descriptors import close_all
from din.transport.channel import OutputSet, WorkerChannel
from din.wire.messages import Offer
from din.wire.worker import ArenaLayout

INFLIGHT_PER_WORKER_MAX: Final = 2
WAITING_PER_REPLICA_MAX: Final = 1_000
OFFERS_PER_NODE_MAX: Final = 256


class _Replica:
    """The handed-over workers of one slice on one node, and who waits for room in them."""

    def __init__(self) -> None:
        self.workers: dict[int, WorkerChannel] = {}
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []
        """By number of arrival: whoever came first is served first, also when it looks twice."""
        self.revoking: dict[int, Callable[[], None]] = {}

    def is_usable(self) -> bool:
        """Whether a worker may be fed."""
        return any(
            channel.is_open and worker_id not in self.revoking
            for worker_id, channel in self.workers.items()
        )

    def usable(self) -> list[WorkerChannel]:
        """Workers that may be fed, the least loaded first."""
        found = [
            channel
            for worker_id, channel in self.workers.items()
            if channel.is_open and worker_id not in self.revoking
        ]
        return sorted(found, key=lambda each: each.inflight) if len(found) > 1 else found

    def wake(self) -> None:
        """Let the longest waiting request look again."""
        while self.waiting:
            _, future = self.waiting.pop(0)
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        """Let everybody look again: the workers changed."""
        while self.waiting:
            self.wake()


class DirectWorkers:
    """All handed-over workers, by deployment, slice and node."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._replicas: dict[Key, _Replica] = {}
        self._arrivals = count()
        self._patience = Patience(loop)

    @property
    def waiting(self) -> int:
        """Requests that wait for room in a worker."""
        return sum(len(replica.waiting) for replica in self._replicas.values())

    def has(self, key: Key) -> bool:
        """Whether at least one open worker is here."""
        replica = self._replicas.get(key)
        return replica is not None and replica.is_usable()

    def offered(self, node_id: NodeId, offer: Offer, descriptors: Sequence[int]) -> None:
        """Take over one worker. Descriptors that are no use are closed. Raises DinError."""
        held = sum(len(r.workers) for key, r in self._replicas.items() if key[2] == node_id)
        is_sane = 0 < offer.input_bytes < offer.arena_bytes
        if len(descriptors) != 2 or held >= OFFERS_PER_NODE_MAX or not is_sane:
            close_all(descriptors)
            raise ExecutionFailed(
                f"offer of worker {offer.worker_id} by node {node_id} with {len(descriptors)} "
                f"descriptors, arena {offer.arena_bytes} and {held} workers before it is refused"
            )
        try:
            control = socket.socket(fileno=descriptors[0])
        except OSError as fault:
            close_all(descriptors)
            raise ExecutionFailed(
                f"offer of worker {offer.worker_id} by node {node_id} has no socket: "
                f"{fault.strerror}"
            ) from fault
        key = (offer.epoch, offer.slice_index, node_id)
        channel = WorkerChannel(
            self._loop,
            control,
            descriptors[1],
            ArenaLayout(offer.arena_bytes, offer.input_bytes),
            None,
            partial(self._closed, key, offer.worker_id),
        )
        replica = self._replicas.setdefault(key, _Replica())
        before = replica.workers.get(offer.worker_id)
        replica.workers[offer.worker_id] = channel
        if before is not None:
            before.close()
        replica.wake_all()

    def revoke(self, node_id: NodeId, worker_id: int, done: Callable[[], None]) -> None:
        """Send nothing more to a worker and call `done` once nothing of ours runs in it."""
        for key, replica in self._replicas.items():
            if key[2] == node_id and worker_id in replica.workers:
                replica.revoking[worker_id] = done
                self._settle_revoked(key, worker_id)
                if not replica.usable():
                    replica.wake_all()
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

    def start(self, order: Order, until_s: float, done: Done) -> DirectRun | None:
        """Run it in a worker that has room now; None when none has, or others wait already.

        `done` is called once, and not before this returns, unless the run is cancelled. After
        `until_s` on the loop's clock it is told TimeoutError.
        """
        replica = self._replicas.get(order.key)
        if replica is None or replica.waiting:
            return None
        return self._start(order, replica.usable(), until_s, done)

    async def run(self, order: Order, patience_ms: float) -> OutputSet:
        """Run one request in one of the replica's workers, in the order of arrival. Raises
        AttemptEnded, TimeoutError when `patience_ms` are over."""
        arrival = next(self._arrivals)
        until_s = self._loop.time() + patience_ms / 1000
        has_waited = False
        while True:
            replica = self._replicas.get(order.key)
            workers = replica.usable() if replica is not None else []
            if replica is None or not workers:
                raise AttemptEnded(Unavailable(f"node {order.key[2]} has no worker left"))
            if all(order.nbytes > channel.input_bytes for channel in workers):
                replica.wake()  # if this was our turn, it was not used
                raise AttemptEnded(
                    _too_large(order.nbytes, workers[0].input_bytes), is_retryable=False
                )
            if has_waited or not replica.waiting:
                future: asyncio.Future[OutputSet] = self._loop.create_future()
                run = self._start(order, workers, until_s, partial(settle, future))
                if run is not None:
                    return await awaited(run, future)
            await self._wait_for_room(replica, arrival, until_s)
            has_waited = True

    def _start(
        self, order: Order, workers: Sequence[WorkerChannel], until_s: float, done: Done
    ) -> DirectRun | None:
        """Raises AttemptEnded when the worker that was to take it cannot."""
        for channel in workers:
            if channel.inflight >= INFLIGHT_PER_WORKER_MAX:
                continue
            slot = channel.allocate(order.nbytes)
            if slot is None:
                continue
            run = DirectRun(self._patience, partial(self._after, order.key), channel, slot, done)
            try:
                run.ticket = channel.compute(
                    order.placed(slot), order.outputs, order.remaining_ms(), run.ended
                )
            except DinError as error:
                slot.free()
                self._after(order.key)
                raise ended_of(error, order.key[2]) from error
            run.node_id = order.key[2]
            self._patience.begin(run, until_s)
            return run
        return None

    async def _wait_for_room(self, replica: _Replica, arrival: int, until_s: float) -> None:
        if len(replica.waiting) >= WAITING_PER_REPLICA_MAX:
            raise AttemptEnded(
                Busy(
                    f"{WAITING_PER_REPLICA_MAX} requests already wait for this model's workers",
                    hint="send fewer at once, or add workers or nodes",
                ),
                is_busy=True,
            )
        future: asyncio.Future[None] = self._loop.create_future()
        place = (arrival, future)
        insort(replica.waiting, place)
        try:
            await self._patience.wait(future, until_s)
        except (asyncio.CancelledError, TimeoutError):
            is_our_turn = not future.cancelled() and future.exception() is None
            if place in replica.waiting:
                replica.waiting.remove(place)
            elif is_our_turn:
                replica.wake()  # it was not used
            raise

    def _after(self, key: Key) -> None:
        replica = self._replicas.get(key)
        if replica is None:
            return
        if replica.waiting:
            replica.wake()
        if replica.revoking:
            for worker_id in list(replica.revoking):
                self._settle_revoked(key, worker_id)

    def _settle_revoked(self, key: Key, worker_id: int) -> None:
        replica = self._replicas.get(key)
        if replica is None or worker_id not in replica.revoking:
            return
        channel = replica.workers.get(worker_id)
        if channel is not None and channel.inflight:
            return
        done = replica.revoking.pop(worker_id)
        replica.workers.pop(worker_id, None)
        if channel is not None:
            channel.close()
        self._drop_if_empty(key, replica)
        done()

    def _closed(self, key: Key, worker_id: int, reason: str) -> None:
        replica = self._replicas.get(key)
        if replica is None:
            return
        replica.workers.pop(worker_id, None)
        done = replica.revoking.pop(worker_id, None)
        if done is not None:
            done()
        self._drop_if_empty(key, replica)

    def _drop_if_empty(self, key: Key, replica: _Replica) -> None:
        if not replica.workers and self._replicas.get(key) is replica:
            del self._replicas[key]
        if not replica.usable():
            replica.wake_all()


def _too_large(nbytes: int, input_bytes: int) -> TooLarge:
    return TooLarge(
        f"inputs of {nbytes} bytes do not fit the worker's arena of {input_bytes}",
        hint="send a smaller batch, or raise the arena size of the node",
    )
