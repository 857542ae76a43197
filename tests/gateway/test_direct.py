"""Workers that an agent handed over, played by us at the other end of real sockets and arenas."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gateway_fakes import (
    EPOCH,
    NODE_A,
    NODE_B,
    PHOTO,
    PHOTO_BYTES,
    ended,
    in_virtual_time,
    outcome_of,
    settle,
)
from handed_over import KEY, OUT, OUTPUT, SLICE, WORKER_1, WORKER_2, Worker

from din.domain.tensor import TensorMeta
from din.errors import Busy, DinError, ExecutionFailed, Internal, TooLarge, Unavailable
from din.gateway.requests.direct import OFFERS_PER_NODE_MAX, WAITING_PER_REPLICA_MAX, DirectWorkers
from din.gateway.requests.direct_run import Order
from din.gateway.requests.failure import AttemptEnded
from din.transport.channel import OutputSet
from din.wire.worker import (
    Abort,
    Attach,
    Compute,
    Computed,
    ComputeFailed,
    Placed,
    Release,
)


class Play:
    """Handed-over workers and requests for them."""

    def __init__(self) -> None:
        self.direct = DirectWorkers(asyncio.get_running_loop())
        self.workers: list[Worker] = []

    def offer(self, worker_id: int = WORKER_1, node_id: str = NODE_A) -> Worker:
        worker = Worker(worker_id, node_id)
        self.workers.append(worker)
        self.direct.offered(node_id, worker.offer, worker.descriptors())
        return worker

    def ask(
        self, meta: TensorMeta = PHOTO, body: bytes = PHOTO_BYTES, patience_ms: float = 60_000.0
    ) -> asyncio.Task[OutputSet]:
        order = Order(KEY, (meta,), ((body,),), (), lambda: 1_000)
        run = self.direct.run(order, patience_ms)
        return asyncio.get_running_loop().create_task(run)


@asynccontextmanager
async def played() -> AsyncIterator[Play]:
    play = Play()
    try:
        yield play
    finally:
        play.direct.close()
        for worker in play.workers:
            worker.close()


def run(
    story: Callable[[Play], Coroutine[Any, Any, None]], in_time: Callable[..., None] = asyncio.run
) -> None:
    async def whole() -> None:
        async with played() as play:
            await story(play)

    in_time(whole())


def without_waiting(whole: Coroutine[Any, Any, None]) -> None:
    """On a clock that goes on only when nothing is left to do."""
    in_virtual_time(lambda: whole)


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


async def failure(task: asyncio.Task[OutputSet]) -> AttemptEnded:
    found = await outcome_of(task)
    assert isinstance(found, AttemptEnded), found
    return found


def test_a_request_lies_in_the_arena_and_its_outputs_until_they_are_released():
    async def story(play: Play) -> None:
        worker = play.offer()
        pieces = ((PHOTO_BYTES[:7], memoryview(PHOTO_BYTES)[7:]),)
        task = asyncio.create_task(
            play.direct.run(Order(KEY, (PHOTO,), pieces, ("out",), lambda: 700), 60_000.0)
        )
        await settle()
        attach, order = worker.heard()
        assert isinstance(attach, Attach)
        assert isinstance(order, Compute)
        assert (order.remaining_ms, order.outputs) == (700, ("out",))
        assert os.pread(worker.arena, 16, order.inputs[0].offset) == PHOTO_BYTES
        os.pwrite(worker.arena, b"o" * 16, OUT)
        await worker.answer(order)
        result = await task
        assert bytes(result.views[0]) == b"o" * 16
        assert result.compute_us == 250
        result.release()
        await asyncio.sleep(0.05)
        assert worker.heard() == [Release(order.ticket)]

    run(story)


def test_two_requests_sit_in_one_worker_and_the_third_waits():
    async def story(play: Play) -> None:
        worker = play.offer()
        tasks = [play.ask() for _ in range(3)]
        await settle()
        orders = worker.orders()
        assert len(orders) == 2
        assert play.direct.waiting == 1
        await worker.answer(orders[0])
        assert len(worker.orders()) == 1
        assert play.direct.waiting == 0
        (await tasks[0]).release()
        for task in tasks[1:]:
            await ended(task)

    run(story)


def test_the_least_loaded_worker_is_fed_first():
    async def story(play: Play) -> None:
        first, second = play.offer(WORKER_1), play.offer(WORKER_2)
        tasks = [play.ask() for _ in range(4)]
        await settle()
        assert (len(first.orders()), len(second.orders())) == (2, 2)
        for task in tasks:
            await ended(task)

    run(story)


def test_requests_are_served_in_the_order_of_arrival():
    async def story(play: Play) -> None:
        worker = play.offer()
        metas = [TensorMeta(f"photo{i}", "UINT8", (16,), 16) for i in range(6)]
        tasks = [play.ask(meta) for meta in metas]
        await settle()
        served, orders = [], worker.orders()
        latecomer = None
        while orders:
            order = orders.pop(0)
            served.append(order.inputs[0].meta.name)
            worker.socket.send(
                msgspec.msgpack.encode(Computed(order.ticket, (Placed(OUTPUT, OUT),), 1))
            )
            await asyncio.sleep(0.005)
            if latecomer is None:
                latecomer = play.ask(TensorMeta("late", "UINT8", (16,), 16))
            for task in (*tasks, latecomer):
                if task.done():
                    task.result().release()
            await settle()
            orders += worker.orders()
        assert served == [meta.name for meta in metas] + ["late"]

    run(story)


def test_an_input_larger_than_the_arena_is_too_large_at_once_also_behind_others():
    async def story(play: Play) -> None:
        worker = play.offer()
        running = play.ask()
        await settle()
        big = TensorMeta("photo", "UINT8", (8193,), 8193)
        found = await failure(play.ask(big, bytes(8193)))
        assert isinstance(found.error, TooLarge)
        assert found.error.http_status == 413
        assert not found.is_retryable
        assert len(worker.orders()) == 1
        await ended(running)

    run(story)


def test_an_impossible_input_does_not_wait_behind_the_possible_ones():
    async def story(play: Play) -> None:
        worker = play.offer()
        tasks = [play.ask() for _ in range(3)]
        await settle()
        impossible = play.ask(TensorMeta("photo", "UINT8", (8193,), 8193), bytes(8193))
        assert isinstance((await failure(impossible)).error, TooLarge)
        await worker.answer(worker.orders()[0])
        assert len(worker.orders()) == 1
        (await tasks[0]).release()
        for task in tasks[1:]:
            await ended(task)

    run(story)


def test_an_input_that_fits_later_waits_for_room_in_the_arena():
    large = TensorMeta("photo", "UINT8", (6000,), 6000)

    async def story(play: Play) -> None:
        worker = play.offer()
        first, second = play.ask(large, bytes(6000)), play.ask(large, bytes(6000))
        await settle()
        (order,) = worker.orders()
        await worker.answer(order)
        (await first).release()
        await settle()
        assert len(worker.orders()) == 1
        await ended(second)

    run(story)


def test_when_a_large_input_waits_no_more_the_small_ones_behind_it_are_sent_at_once():
    async def story(play: Play) -> None:
        worker = play.offer()
        large = TensorMeta("photo", "UINT8", (5000,), 5000)
        running = play.ask(large, bytes(5000))
        waiting, small = play.ask(large, bytes(5000)), play.ask()
        await settle()
        assert (len(worker.orders()), play.direct.waiting) == (1, 2)
        await ended(waiting)
        assert (len(worker.orders()), play.direct.waiting) == (1, 0)
        for task in (running, small):
            await ended(task)

    run(story)


def test_a_cancelled_waiter_leaves_the_queue():
    async def story(play: Play) -> None:
        worker = play.offer()
        tasks = [play.ask() for _ in range(4)]
        await settle()
        await ended(tasks[2])
        assert play.direct.waiting == 1
        await worker.answer(worker.orders()[0])
        assert len(worker.orders()) == 1
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result().release()
            else:
                await ended(task)

    run(story)


def test_a_run_that_is_sent_in_the_turn_of_its_cancellation_is_aborted():
    async def story(play: Play) -> None:
        worker = play.offer()
        tasks = [play.ask() for _ in range(3)]
        await settle()
        first, _ = worker.orders()
        run_of_third = play.direct._replicas[KEY].waiting[0]
        tasks[2].cancel()
        await worker.answer(first)
        await settle()
        assert tasks[2].cancelled()
        assert play.direct.waiting == 0
        heard = [each for each in worker.heard() if isinstance(each, Compute | Abort)]
        assert [type(each) for each in heard] in ([], [Compute, Abort])
        run_of_third.cancel()  # harmless
        (await tasks[0]).release()
        await ended(tasks[1])

    run(story)


def test_a_worker_that_dies_in_mid_run_ends_its_requests_as_retryable():
    async def story(play: Play) -> None:
        worker = play.offer()
        tasks = [play.ask() for _ in range(3)]
        await settle()
        worker.socket.close()
        await asyncio.sleep(0.02)
        running, _, waiting = [await failure(task) for task in tasks]
        assert isinstance(running.error, ExecutionFailed)
        assert (running.blamed, running.is_retryable) == ((NODE_A,), True)
        assert isinstance(waiting.error, Unavailable)
        assert (waiting.blamed, waiting.is_retryable) == ((), True)
        assert not play.direct.has(KEY)

    run(story)


def test_a_failure_of_the_models_own_is_not_retried():
    async def story(play: Play) -> None:
        worker = play.offer()
        task = play.ask()
        await settle()
        (order,) = worker.orders()
        await worker.say(ComputeFailed(order.ticket, "DIN-110", "wrong shape", False))
        found = await failure(task)
        assert (found.error.code, found.is_retryable, found.blamed) == ("DIN-110", False, ())

    run(story)


def test_revoking_waits_for_running_work_and_takes_no_more():
    async def story(play: Play) -> None:
        worker, told = play.offer(), []
        running = play.ask()
        await settle()
        (order,) = worker.orders()
        play.direct.revoke(NODE_A, WORKER_1, lambda: told.append(WORKER_1))
        assert not told
        assert not play.direct.has(KEY)
        assert isinstance((await failure(play.ask())).error, Unavailable)
        await worker.answer(order)
        assert told == [WORKER_1]
        assert not play.direct._replicas
        (await running).release()

    run(story)


def test_requests_that_wait_for_a_revoked_worker_are_sent_elsewhere_at_once():
    async def story(play: Play) -> None:
        play.offer()
        tasks = [play.ask() for _ in range(3)]
        await settle()
        play.direct.revoke(NODE_A, WORKER_1, lambda: None)
        assert (await failure(tasks[2])).is_retryable
        for task in tasks[:2]:
            await ended(task)

    run(story)


def test_revoking_what_is_idle_or_unknown_is_answered_at_once():
    async def story(play: Play) -> None:
        told: list[int] = []
        play.offer()
        play.direct.revoke(NODE_A, WORKER_1, lambda: told.append(1))
        play.direct.revoke(NODE_A, WORKER_1, lambda: told.append(2))
        play.direct.revoke(NODE_B, WORKER_1, lambda: told.append(3))
        assert told == [1, 2, 3]

    run(story)


def test_a_worker_that_dies_while_it_is_revoked_counts_as_free():
    async def story(play: Play) -> None:
        worker, told = play.offer(), []
        task = play.ask()
        await settle()
        play.direct.revoke(NODE_A, WORKER_1, lambda: told.append(1))
        worker.socket.close()
        await asyncio.sleep(0.02)
        assert told == [1]
        await failure(task)

    run(story)


def test_workers_come_and_go_without_end():
    async def story(play: Play) -> None:
        for number in range(OFFERS_PER_NODE_MAX + 2):
            play.offer(number)
            play.direct.revoke(NODE_A, number, lambda: None)
            play.workers.pop().close()
        assert not play.direct._replicas

    run(story)


def test_cancelling_aborts_the_run_and_frees_its_outputs_once():
    async def story(play: Play) -> None:
        worker = play.offer()
        task = play.ask()
        await settle()
        (order,) = worker.orders()
        await ended(task)
        assert worker.heard() == [Abort(order.ticket)]
        await worker.answer(order)
        await asyncio.sleep(0.05)
        assert worker.heard() == [Release(order.ticket)]

    run(story)


def test_a_run_that_outlasts_its_patience_is_aborted_and_its_outputs_freed_once():
    async def story(play: Play) -> None:
        worker = play.offer()
        task = play.ask(patience_ms=1.0)
        await settle()
        assert isinstance(await outcome_of(task), TimeoutError)
        _, order, abort = worker.heard()
        assert isinstance(order, Compute)
        assert abort == Abort(order.ticket)
        await worker.answer(order)
        await asyncio.sleep(0.05)
        assert worker.heard() == [Release(order.ticket)]

    run(story)


def test_a_waiter_whose_patience_ends_leaves_the_queue():
    async def story(play: Play) -> None:
        worker = play.offer()
        tasks = [play.ask(), play.ask(), play.ask(patience_ms=1.0)]
        await settle()
        assert play.direct.waiting == 1
        assert isinstance(await outcome_of(tasks[2]), TimeoutError)
        assert play.direct.waiting == 0
        assert len(worker.orders()) == 2
        for task in tasks[:2]:
            await ended(task)

    run(story, without_waiting)


def test_an_answer_in_the_same_turn_as_the_cancellation_is_freed_too():
    async def story(play: Play) -> None:
        worker = play.offer()
        task = play.ask()
        await settle()
        (order,) = worker.orders()
        (channel,) = play.direct._replicas[KEY].workers.values()
        worker.socket.send(
            msgspec.msgpack.encode(Computed(order.ticket, (Placed(OUTPUT, OUT),), 1))
        )
        channel._on_readable()  # the answer is here, the task has not run yet
        task.cancel()
        await settle()
        assert task.cancelled()
        await asyncio.sleep(0.05)
        assert worker.heard() == [Release(order.ticket)]

    run(story)


def test_losing_the_node_ends_everything_there_and_nothing_elsewhere():
    async def story(play: Play) -> None:
        play.offer(WORKER_1, NODE_A)
        play.offer(WORKER_1, NODE_B)
        task = play.ask()
        await settle()
        play.direct.drop_node(NODE_A)
        assert (await failure(task)).is_retryable
        assert not play.direct.has(KEY)
        assert play.direct.has((EPOCH, SLICE, NODE_B))

    run(story)


def test_too_many_waiters_are_refused_as_busy():
    async def story(play: Play) -> None:
        play.offer()
        tasks = [play.ask() for _ in range(2 + WAITING_PER_REPLICA_MAX)]
        await settle()
        assert play.direct.waiting == WAITING_PER_REPLICA_MAX
        found = await failure(play.ask())
        assert isinstance(found.error, Busy)
        assert found.is_busy
        for task in tasks:
            await ended(task)

    run(story)


def test_a_repeated_offer_replaces_the_worker():
    async def story(play: Play) -> None:
        old = play.offer()
        task = play.ask()
        await settle()
        assert old.orders()
        new = play.offer()
        assert (await failure(task)).is_retryable
        again = play.ask()
        await settle()
        assert len(new.orders()) == 1
        await ended(again)

    run(story)


@pytest.mark.parametrize("kind", ["one", "three", "no socket", "no arena", "no regions"])
def test_offers_that_are_no_use_are_refused_and_their_descriptors_closed(kind: str):
    async def story(play: Play) -> None:
        worker = Worker(WORKER_1)
        play.workers.append(worker)
        before = open_files()
        offer = worker.offer
        descriptors = [os.dup(worker.ours.fileno()), os.dup(worker.arena)]
        if kind == "one":
            os.close(descriptors.pop())
        elif kind == "three":
            descriptors.append(os.dup(worker.arena))
        elif kind == "no socket":
            descriptors.reverse()
        elif kind == "no arena":
            os.close(descriptors[1])
            descriptors[1] = os.open("/dev/null", os.O_RDONLY)
        else:
            offer = msgspec.structs.replace(offer, input_bytes=offer.arena_bytes)
        with pytest.raises(DinError) as refused:
            play.direct.offered(NODE_A, offer, descriptors)
        assert isinstance(refused.value, ExecutionFailed | Internal)
        assert open_files() == before
        assert not play.direct._replicas

    run(story)


def test_no_descriptor_outlives_its_worker():
    async def story(play: Play) -> None:
        before = open_files()
        for ending in ("revoke", "die", "drop", "close"):
            worker = play.offer()
            task = play.ask()
            await settle()
            await ended(task)
            if ending == "die":
                worker.socket.close()
                await asyncio.sleep(0.02)
            elif ending == "drop":
                play.direct.drop_node(NODE_A)
            elif ending == "close":
                play.direct.close()
            else:
                await worker.answer(worker.orders()[0])
                play.direct.revoke(NODE_A, WORKER_1, lambda: None)
            worker.close()
            play.workers.clear()
            del worker, task
            assert open_files() == before, ending

    run(story)
