"""Workers of agents on this host that the gateway feeds itself, without a hop through the agent.

The agent hands over a second control socket and a second arena of each worker and keeps the
supervision: when a worker dies its socket closes, the requests inside end as retryable failures
while their inputs are still held by the caller, and the agent offers the worker's successor.
At most two requests sit in one worker (one running, one waiting): more only lengthens the tail.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from din.domain.node import NodeId
from din.errors import Busy, ExecutionFailed, TooLarge, Unavailable
from din.gateway.requests.direct_run import DirectRun, Done, Key, Order, awaited, settle
from din.gateway.requests.failure import AttemptEnded
from din.gateway.requests.patience import Patience
from din.system.descriptors import close_all
from din.transport.channel import WORKER_DIED, OutputSet, WorkerChannel
from din.wire.messages import Offer
from din.wire.worker import ArenaLayout

INFLIGHT_PER_WORKER_MAX: Final = 2
WAITING_PER_REPLICA_MAX: Final = 1_000
OFFERS_PER_NODE_MAX: Final = 256


class _Replica:
    """The handed-over workers of one slice on one node, and the runs that wait for room in them."""

    def __init__(self) -> None:
        self.workers: dict[int, WorkerChannel] = {}
        self.waiting: deque[DirectRun] = deque()
        """In the order of arrival."""
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

    def begin(self, run: DirectRun, *, is_next: bool = True) -> bool:
        """Send a run to a worker; False when none has room now, or when it is not its turn yet.
        Raises AttemptEnded when none can ever take it, or when the one that was to cannot."""
        workers = self.usable()
        if not workers:
            raise AttemptEnded(Unavailable(f"node {run.order.key[2]} has no worker left"))
        if all(run.order.nbytes > channel.input_bytes for channel in workers):
            error = _too_large(run.order.nbytes, workers[0].input_bytes)
            raise AttemptEnded(error, is_retryable=False)
        return is_next and any(
            channel.inflight < INFLIGHT_PER_WORKER_MAX and run.send(channel) for channel in workers
        )

    def feed(self) -> None:
        """Something changed: send those who waited longest, tell those who wait in vain."""
        while self.waiting:
            run = self.waiting.popleft()
            try:
                if not self.begin(run):
                    self.waiting.appendleft(run)
                    return
            except AttemptEnded as ended:
                run.fail(ended)

    def leave(self, run: DirectRun) -> None:
        """It waits no more. There may be room for those whom it held up."""
        with suppress(ValueError):  # it is being sent this instant
            self.waiting.remove(run)
            self.feed()


class DirectWorkers:
    """All handed-over workers, by deployment, slice and node."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._replicas: dict[Key, _Replica] = {}
        self._patience = Patience(loop)
        self.on_stuck: Callable[[NodeId, int], None] = lambda node_id, worker_id: None
        """Told of a worker that lives and does not answer as it should: its agent is to end it."""
        self.on_cut_off: Callable[[Key, str], None] = lambda key, running: None
        """Told what a worker computed that broke off."""

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
        replica.feed()

    def revoke(self, node_id: NodeId, worker_id: int, done: Callable[[], None]) -> None:
        """Send nothing more to a worker and call `done` once nothing of ours runs in it."""
        for key, replica in self._replicas.items():
            if key[2] == node_id and worker_id in replica.workers:
                replica.revoking[worker_id] = done
                self._settle_revoked(key, worker_id)
                if not replica.usable():
                    replica.feed()
                return
        done()

    def drop_node(self, node_id: NodeId) -> None:
        """The agent is gone: so are its workers, though their sockets may not say so yet."""
        for key in [key for key in self._replicas if key[2] == node_id]:
            replica = self._replicas.pop(key)
            for channel in list(replica.workers.values()):
                channel.close()
            replica.feed()

    def close(self) -> None:
        """Drop everything."""
        for node_id in {key[2] for key in self._replicas}:
            self.drop_node(node_id)

    def start(self, order: Order, until_s: float, done: Done) -> DirectRun:
        """Run it in one of the replica's workers, in the order of arrival.

        `done` is called once, and not before this returns, unless the run is cancelled. After
        `until_s` on the loop's clock it is told TimeoutError. Raises AttemptEnded.
        """
        replica = self._replicas.get(order.key)
        if replica is None:
            raise AttemptEnded(Unavailable(f"node {order.key[2]} has no worker left"))
        run = DirectRun(order, self._patience, replica.leave, partial(self._after, order.key), done)
        # Those who wait go first, but what can never run is told so at once.
        if not replica.begin(run, is_next=not replica.waiting):
            if len(replica.waiting) >= WAITING_PER_REPLICA_MAX:
                raise AttemptEnded(_crowded(), is_busy=True)
            replica.waiting.append(run)
        self._patience.begin(run, until_s)
        return run

    async def run(self, order: Order, patience_ms: float) -> OutputSet:
        """`start` for whoever awaits it. Raises AttemptEnded, TimeoutError when `patience_ms` are
        over."""
        future: asyncio.Future[OutputSet] = self._loop.create_future()
        until_s = self._loop.time() + patience_ms / 1000
        return await awaited(self.start(order, until_s, partial(settle, future)), future)

    def _after(self, key: Key) -> None:
        replica = self._replicas.get(key)
        if replica is None:
            return
        replica.feed()
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
        channel = replica.workers.pop(worker_id, None)
        if reason != WORKER_DIED:
            self.on_stuck(key[2], worker_id)
        if channel is not None:
            self.on_cut_off(key, channel.interrupted)
        done = replica.revoking.pop(worker_id, None)
        if done is not None:
            done()
        self._drop_if_empty(key, replica)

    def _drop_if_empty(self, key: Key, replica: _Replica) -> None:
        if not replica.workers and self._replicas.get(key) is replica:
            del self._replicas[key]
        if not replica.usable():
            replica.feed()


def _crowded() -> Busy:
    return Busy(
        f"{WAITING_PER_REPLICA_MAX} requests already wait for this model's workers",
        hint="send fewer at once, or add workers or nodes",
    )


def _too_large(nbytes: int, input_bytes: int) -> TooLarge:
    return TooLarge(
        f"inputs of {nbytes} bytes do not fit the worker's arena of {input_bytes}",
        hint="send a smaller batch, or raise the arena size of the node",
    )
