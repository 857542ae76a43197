"""The line before handed-over workers under random arrivals, answers, failures, cancellations,
impatience, deaths, hand-overs and revocations.

Always: each run hears its end once, or was cancelled and hears nothing; whoever came first is sent
first; at most two runs sit in a worker, and nobody waits while one could be sent; what a worker
reads stays as it was sent until the worker has answered; a revoked worker gets nothing more and is
free once. In the end no slot, no output, no timer and no descriptor is left.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import Any

import msgspec
import pytest
from gateway_fakes import NODE_A, VirtualLoop, finish, settle
from handed_over import KEY, LAYOUT, OUT, Worker
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from din.domain.tensor import TensorMeta
from din.errors import TooLarge, Unavailable
from din.gateway.requests.direct import INFLIGHT_PER_WORKER_MAX, DirectWorkers
from din.gateway.requests.direct_run import DirectRun, Ended, Order
from din.gateway.requests.failure import AttemptEnded
from din.transport.channel import ABORT_TIMEOUT_S, OutputSet, WorkerChannel
from din.wire.worker import Abort, Compute, Computed, ComputeFailed, Placed, Release

SIZES = (16, 3000, 5000, 8000, LAYOUT.input_bytes, LAYOUT.input_bytes + 1)
WORKERS_MAX = 4
OUTPUT_BYTES = 64


class Asked:
    """One run as its caller sees it."""

    def __init__(self, number: int, nbytes: int, sent: list[int]) -> None:
        self.number = number
        self.sent = sent
        self.body = number.to_bytes(8, "little") * (-(-nbytes // 8))
        self.body = self.body[:nbytes]
        self.run: DirectRun | None = None
        self.heard: list[Ended] = []
        self.is_cancelled = False
        self.until_s = 0.0

    def hear(self, outcome: Ended) -> None:
        self.heard.append(outcome)

    def remaining_ms(self) -> int:
        """It is asked for when the run is sent."""
        self.sent.append(self.number)
        return 1_000

    @property
    def is_open(self) -> bool:
        return self.run is not None and not self.heard and not self.is_cancelled


class Played:
    """One worker as it sees itself."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.orders: list[tuple[Compute, Asked]] = []
        self.outputs: dict[int, int] = {}
        """Places that hold outputs, by ticket."""
        self.is_revoked = False
        self.freed = 0
        self.channel: WorkerChannel | None = None


class LineMachine(RuleBasedStateMachine):
    """One replica with a few workers."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.direct = DirectWorkers(self.loop)
        self.workers: list[Played] = []
        self.revoked: list[Played] = []
        self.asked: list[Asked] = []
        self.sent: list[int] = []
        self.worker_ids = 0
        self.channels: list[WorkerChannel] = []

    def turn(self, seconds: float = 0.0) -> None:
        """Let the loop do what is ready, and read what the workers were told."""

        async def whole() -> None:
            if seconds:
                await asyncio.sleep(seconds)
            await settle()

        self.loop.run_until_complete(whole())
        for played in list(self.workers):
            self.read(played)
            if played.channel is not None and not played.channel.is_open:
                self.workers.remove(played)  # it was revoked, or did not end what was aborted
                played.worker.close()

    def call(self, work: Any, *arguments: Any) -> Any:
        async def called() -> Any:
            return work(*arguments)

        found = self.loop.run_until_complete(called())
        self.turn()
        return found

    def read(self, played: Played) -> None:
        for message in played.worker.heard():
            if isinstance(message, Compute):
                for ticket in message.released:
                    played.outputs.pop(ticket, None)
                assert not played.is_revoked, "a revoked worker got an order"
                placed = message.inputs[0]
                start = os.pread(played.worker.arena, 8, placed.offset)
                asked = self.asked[int.from_bytes(start, "little")]
                played.orders.append((message, asked))
            elif isinstance(message, Release):
                played.outputs.pop(message.ticket, None)
            elif isinstance(message, Abort):
                pass  # it may be too late; `answer` and `fail` play both

    def check_input(self, played: Played, order: Compute, asked: Asked) -> None:
        placed = order.inputs[0]
        found = os.pread(played.worker.arena, placed.meta.nbytes, placed.offset)
        assert found == asked.body, f"run {asked.number} was written over while it ran"

    def say(self, played: Played, message: Any) -> None:
        played.worker.socket.send(msgspec.msgpack.encode(message))
        self.turn()

    def busy(self) -> list[Played]:
        return [each for each in self.workers if each.orders]

    def open_runs(self) -> list[Asked]:
        return [each for each in self.asked if each.is_open]

    def gone(self, played: Played) -> None:
        """Its end of the channel is closed."""
        if played in self.workers:
            self.workers.remove(played)
        played.worker.close()
        self.turn()

    # What callers do.

    @rule(size=st.sampled_from(SIZES), patience_s=st.sampled_from([0.5, 2.0, 60.0]))
    def ask(self, size: int, patience_s: float) -> None:
        asked = Asked(len(self.asked), size, self.sent)
        self.asked.append(asked)
        meta = TensorMeta("photo", "UINT8", (size,), size)
        order = Order(KEY, (meta,), ((asked.body,),), (), asked.remaining_ms)
        asked.until_s = self.loop.time() + patience_s
        has_worker = self.direct.has(KEY)
        if has_worker and size <= LAYOUT.input_bytes:
            asked.run = self.call(self.direct.start, order, asked.until_s, asked.hear)
            return
        with pytest.raises(AttemptEnded) as ended:
            self.call(self.direct.start, order, asked.until_s, asked.hear)
        assert isinstance(ended.value.error, TooLarge if has_worker else Unavailable)
        assert ended.value.is_retryable == (not has_worker)

    @precondition(lambda self: self.open_runs())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from(self.open_runs()))
        assert asked.run is not None
        asked.is_cancelled = True
        self.call(asked.run.cancel)
        self.call(asked.run.cancel)

    @rule(seconds=st.sampled_from([0.02, 0.6, 2.5, ABORT_TIMEOUT_S + 0.1]))
    def wait(self, seconds: float) -> None:
        self.turn(seconds)

    @precondition(lambda self: any(self.kept()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from(self.kept()))
        result = asked.heard[0]
        assert isinstance(result, OutputSet)
        self.call(result.release)
        self.call(result.release)
        asked.heard[0] = TimeoutError()  # it is not looked at again

    def kept(self) -> list[Asked]:
        return [each for each in self.asked if each.heard and isinstance(each.heard[0], OutputSet)]

    # What workers do.

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        self.answer_one(data.draw(st.sampled_from(self.busy())))

    def answer_one(self, played: Played) -> None:
        order, asked = played.orders.pop(0)
        self.check_input(played, order, asked)
        taken = set(played.outputs.values())
        place = next(each for each in range(128) if each not in taken)
        played.outputs[order.ticket] = place
        output = TensorMeta("out", "UINT8", (OUTPUT_BYTES,), OUTPUT_BYTES)
        was_open = asked.is_open
        answer = Computed(order.ticket, (Placed(output, OUT + OUTPUT_BYTES * place),), 250)
        self.say(played, answer)
        assert not was_open or isinstance(asked.heard[0], OutputSet)

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), code=st.sampled_from(["DIN-110", "DIN-330", "DIN-320", "DIN-400"]))
    def fail(self, data: st.DataObject, code: str) -> None:
        played = data.draw(st.sampled_from(self.busy()))
        order, asked = played.orders.pop(0)
        self.check_input(played, order, asked)
        was_open = asked.is_open
        self.say(played, ComputeFailed(order.ticket, code, "it failed", False))
        if was_open:
            (ended,) = asked.heard
            assert isinstance(ended, AttemptEnded)
            assert ended.error.code == code
            assert ended.blamed == ((NODE_A,) if code == "DIN-330" else ())

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.gone(data.draw(st.sampled_from(self.workers)))

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def talk_nonsense(self, data: st.DataObject) -> None:
        played = data.draw(st.sampled_from(self.workers))
        assert played.channel is not None
        ticket = (played.channel._session << 32) + 77_777
        self.say(played, ComputeFailed(ticket, "DIN-110", "never asked for", False))
        assert not played.channel.is_open

    # What agents do.

    @precondition(lambda self: len(self.workers) < WORKERS_MAX)
    @rule()
    def offer(self) -> None:
        self.worker_ids += 1
        self.take(Worker(self.worker_ids))

    @precondition(lambda self: any(not each.is_revoked for each in self.workers))
    @rule(data=st.data())
    def offer_again(self, data: st.DataObject) -> None:
        """A new channel to the same worker; the old one is not used any more."""
        old = data.draw(st.sampled_from([each for each in self.workers if not each.is_revoked]))
        self.workers.remove(old)
        self.take(Worker(old.worker.worker_id))
        old.worker.close()

    def take(self, worker: Worker) -> None:
        played = Played(worker)
        self.workers.append(played)
        self.call(self.direct.offered, NODE_A, worker.offer, worker.descriptors())
        played.channel = self.direct._replicas[KEY].workers[worker.worker_id]
        self.channels.append(played.channel)

    @precondition(lambda self: any(not each.is_revoked for each in self.workers))
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        played = data.draw(st.sampled_from([each for each in self.workers if not each.is_revoked]))

        def freed() -> None:
            played.freed += 1

        played.is_revoked = True
        self.revoked.append(played)
        has_work = bool(played.orders)
        self.call(self.direct.revoke, NODE_A, played.worker.worker_id, freed)
        assert played.freed == (not has_work)

    @rule()
    def lose_the_node(self) -> None:
        self.revoked.clear()  # nobody is left who would hear that they are free
        self.call(self.direct.drop_node, NODE_A)
        assert not self.workers
        assert not self.open_runs()

    # What always holds.

    @invariant()
    def each_run_hears_its_end_once(self) -> None:
        for asked in self.asked:
            assert len(asked.heard) <= 1, asked.heard
            assert not (asked.heard and asked.is_cancelled)
            assert not (asked.is_open and asked.until_s < self.loop.time()), "it waits for ever"
            if asked.run is None:
                assert not asked.heard

    @invariant()
    def the_order_of_arrival_is_kept(self) -> None:
        replica = self.direct._replicas.get(KEY)
        waiting = list(replica.waiting) if replica else []
        in_line = [asked.number for asked in self.asked if asked.run in waiting]
        assert [self.asked[number].run for number in in_line] == waiting
        assert [*self.sent, *in_line] == sorted({*self.sent, *in_line})

    @invariant()
    def workers_hold_two_and_nobody_waits_without_need(self) -> None:
        for played in self.workers:
            assert len(played.orders) <= INFLIGHT_PER_WORKER_MAX
        replica = self.direct._replicas.get(KEY)
        if replica is None:
            assert self.direct.waiting == 0
            return
        assert replica.usable() or not replica.waiting
        if replica.waiting:
            needed = replica.waiting[0].order.nbytes
            for channel in replica.usable():
                assert (
                    channel.inflight == INFLIGHT_PER_WORKER_MAX
                    or max(channel._allocator._gap_bytes, default=0) < needed
                )

    @invariant()
    def the_line_and_the_patience_know_the_open_runs_only(self) -> None:
        is_open = Counter(asked.run for asked in self.open_runs())
        replica = self.direct._replicas.get(KEY)
        assert all(run in is_open for run in (replica.waiting if replica else ()))
        assert set(self.direct._patience._until_s) == set(is_open)

    @invariant()
    def revoked_workers_are_free_once_they_are_empty(self) -> None:
        for played in self.revoked:
            assert played.channel is not None
            assert played.freed == (0 if played.channel.inflight else 1)

    @invariant()
    def slots_are_those_of_what_runs(self) -> None:
        for channel in self.channels:
            if channel.is_open:
                assert len(channel._allocator) == channel.inflight

    def teardown(self) -> None:
        while self.busy():
            self.answer_one(self.busy()[0])
        for asked in self.open_runs():
            assert asked.run is not None
            asked.is_cancelled = True
            self.call(asked.run.cancel)
        for asked in self.kept():
            result = asked.heard[0]
            assert isinstance(result, OutputSet)
            self.call(result.release)
        self.turn(1.0)
        assert self.direct.waiting == 0
        assert len(self.direct._patience) == 0
        assert all(not each._output_ranges for each in self.channels if each.is_open)
        assert not any(played.outputs for played in self.workers), "outputs were not given back"
        self.call(self.direct.close)
        assert not self.workers
        assert all(not each._asked for each in self.channels)
        finish(self.loop)


LineMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLine = LineMachine.TestCase
