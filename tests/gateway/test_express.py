"""Requests without a task: over real sockets and arenas to workers that are played here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from dispatch_play import INPUT, Play, is_silent
from gateway_fakes import (
    MODEL,
    NODE_A,
    NODE_B,
    chain_of,
    ended,
    in_virtual_time,
    serving_of,
    settle,
)
from handed_over import OUT, OUTPUT, SLICE, WORKER_1, WORKER_2, Worker
from msgspec.structs import replace

from din.domain.deployment import Epoch
from din.errors import DeadlineExceeded, DinError, ExecutionFailed, Unavailable
from din.gateway.requests.direct import DirectWorkers
from din.gateway.requests.express import Express
from din.gateway.requests.request import Request
from din.gateway.service import InferenceAnswer, InferenceCall
from din.wire.messages import Cancel
from din.wire.worker import Abort, Compute, Computed, ComputeFailed, Placed, Release

BODY = b"abcd"


class Road:
    """Dispatch with handed-over workers, and what came of each request."""

    def __init__(self, count: int = 1) -> None:
        self.direct = DirectWorkers(asyncio.get_running_loop())
        self.play = Play(serving_of(chain_of(count)), self.direct)
        self.workers: list[Worker] = []
        self.told: list[InferenceAnswer | BaseException] = []

    def offer(self, worker_id: int = WORKER_1) -> Worker:
        worker = Worker(worker_id)
        self.workers.append(worker)
        self.direct.offered(NODE_A, worker.offer, worker.descriptors())
        return worker

    def call(self, **more: Any) -> InferenceCall:
        facts: dict[str, Any] = {"model_id": MODEL, "timeout_ms": 10_000} | more
        return InferenceCall(metas=(INPUT,), chunks=((BODY,),), is_adapted=False, **facts)

    def start(self, **more: Any) -> Express | None:
        return self.play.dispatch.start(self.call(**more), self.told.append)

    def started(self, **more: Any) -> Express:
        express = self.start(**more)
        assert express is not None
        return express

    def is_untouched(self) -> bool:
        replica = self.play.serving.replicas(SLICE).get(NODE_A)
        return not self.play.dispatch.inflight and (replica is None or not replica.inflight)


def run(story: Callable[[Road], Coroutine[Any, Any, None]], count: int = 1) -> None:
    async def whole() -> None:
        road = Road(count)
        try:
            await story(road)
        finally:
            road.direct.close()
            for worker in road.workers:
                worker.close()

    in_virtual_time(whole)


def ready(road: Road) -> Worker:
    road.play.ready(NODE_A)
    return road.offer()


def test_an_answer_comes_without_a_task_and_is_traced_and_counted():
    async def story(road: Road) -> None:
        worker = ready(road)
        tasks = asyncio.all_tasks()
        road.started(request_id="mine")
        assert asyncio.all_tasks() == tasks
        (order,) = worker.orders()
        assert os.pread(worker.arena, 4, order.inputs[0].offset) == BODY
        assert road.play.dispatch.inflight == 1
        await worker.answer(order)
        (answer,) = road.told
        assert isinstance(answer, InferenceAnswer)
        assert (answer.request_id, answer.metas) == ("mine", (OUTPUT,))
        trace = road.play.traces.find("mine")
        assert (trace.path, trace.status, len(trace.attempts)) == ("direct", "completed", 1)
        assert trace.execution_trace == answer.steps
        assert road.play.counted() == {"ok": 1.0}
        assert road.is_untouched()
        answer.release()
        await asyncio.sleep(0.05)
        assert worker.heard() == [Release(order.ticket)]

    run(story)


@pytest.mark.parametrize("is_broken", [False, True])
def test_the_books_are_written_once_the_caller_has_its_answer(*, is_broken: bool):
    async def story(road: Road) -> None:
        worker = ready(road)
        counted: list[dict[str, float]] = []

        def done(outcome: InferenceAnswer | BaseException) -> None:
            assert isinstance(outcome, InferenceAnswer)
            outcome.release()
            counted.append(road.play.counted())
            if is_broken:
                raise RuntimeError("the front failed")

        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        assert road.play.dispatch.start(road.call(), done) is not None
        (order,) = worker.orders()
        await worker.answer(order)
        assert counted == [{}]
        assert road.play.counted() == {"ok": 1.0}
        assert road.is_untouched()

    run(story)


@pytest.mark.parametrize(
    "case",
    ["not ready", "not routable", "no worker", "revoked", "unknown model", "no output", "stopping"],
)
def test_what_is_not_plain_is_left_alone(case: str):
    async def story(road: Road) -> None:
        more: dict[str, Any] = {}
        if case != "not ready":
            road.play.ready(NODE_A)
        if case != "no worker":
            road.offer()
        if case == "not routable":
            del road.play.health[NODE_A]
        elif case == "revoked":
            road.direct.revoke(NODE_A, WORKER_1, lambda: None)
        elif case == "unknown model":
            more = {"model_id": "nobody"}
        elif case == "no output":
            more = {"outputs": ("nothing",)}
        elif case == "stopping":
            road.play.dispatch.is_stopping = True
        assert road.start(**more) is None
        assert road.is_untouched()
        assert not any(worker.orders() for worker in road.workers)

    run(story)


def test_several_slices_take_the_long_way():
    async def story(road: Road) -> None:
        road.play.ready(NODE_A)
        road.play.ready(NODE_A, index=1)
        road.offer()
        assert road.start() is None
        assert road.is_untouched()

    run(story, count=2)


def test_who_finds_no_room_stands_in_line_without_a_task_and_is_served_in_turn():
    async def story(road: Road) -> None:
        worker = ready(road)
        tasks = asyncio.all_tasks()
        for number in range(4):
            road.started(request_id=f"number-{number}")
        assert asyncio.all_tasks() == tasks
        slow_way = road.play.ask()
        await settle()
        orders = worker.orders()
        assert (len(orders), road.direct.waiting) == (2, 3)
        for place, left in enumerate((2, 1, 0, 0)):
            await worker.answer(orders.pop(0), place)
            orders += worker.orders()
            assert road.direct.waiting == left
        told = [each.request_id for each in road.told if isinstance(each, InferenceAnswer)]
        assert told == [f"number-{number}" for number in range(4)]
        assert not slow_way.done()
        await ended(slow_way)

    run(story)


def test_a_caller_that_goes_while_in_line_leaves_it_and_the_next_moves_up():
    async def story(road: Road) -> None:
        worker = ready(road)
        for _ in range(2):
            road.started()
        goes = road.started(request_id="goes")
        road.started(request_id="stays")
        orders = worker.orders()
        goes.cancel()
        assert (road.direct.waiting, road.play.traces.find("goes").status) == (1, "cancelled")
        await worker.answer(orders[0])
        assert [type(each) for each in worker.heard()] == [Compute]
        assert (road.direct.waiting, road.play.dispatch.inflight) == (0, 2)

    run(story)


def test_those_in_line_of_a_worker_that_dies_are_served_by_its_successor():
    async def story(road: Road) -> None:
        first = ready(road)
        for number in range(3):
            road.started(request_id=f"number-{number}")
        orders = first.orders()
        second = road.offer(WORKER_2)
        (from_line,) = second.orders()
        road.started(request_id="number-3")
        road.started(request_id="number-4")
        assert road.direct.waiting == 1
        first.close()
        await settle()
        asked = [from_line, *second.orders()]
        for place in range(5):
            await second.answer(asked[place], place)
            asked += second.orders()
        assert (len(orders), len(asked)) == (2, 5)
        told = {each.request_id for each in road.told if isinstance(each, InferenceAnswer)}
        assert told == {f"number-{number}" for number in range(5)}

    run(story)


def test_a_worker_that_dies_is_followed_by_another_with_the_same_input():
    async def story(road: Road) -> None:
        first = ready(road)
        road.started(request_id="mine")
        first.socket.close()
        await settle()
        second = road.offer(WORKER_2)
        await settle()
        orders = second.orders()
        if orders:
            assert os.pread(second.arena, 4, orders[0].inputs[0].offset) == BODY
            await second.answer(orders[0])
        (answer,) = road.told
        assert isinstance(answer, InferenceAnswer)
        attempts = road.play.traces.find("mine").attempts
        assert attempts[0].outcome == "the worker died"
        assert attempts[-1].outcome == "completed"
        assert road.play.counted() == {"ok": 1.0}
        assert road.is_untouched()

    run(story)


def test_the_models_own_failure_is_told_and_not_repeated():
    async def story(road: Road) -> None:
        worker = ready(road)
        road.started()
        (order,) = worker.orders()
        await worker.say(ComputeFailed(order.ticket, "DIN-110", "wrong shape", False))
        (error,) = road.told
        assert isinstance(error, DinError)
        assert (error.code, error.message) == ("DIN-110", "wrong shape")
        assert not worker.orders()
        assert road.play.counted() == {"DIN-110": 1.0}
        assert road.is_untouched()

    run(story)


def test_silence_until_the_deadline_is_a_504_and_ends_the_run():
    async def story(road: Road) -> None:
        worker = ready(road)
        road.started(timeout_ms=500)
        await asyncio.sleep(1.0)
        (error,) = road.told
        assert isinstance(error, DeadlineExceeded)
        assert [type(each) for each in worker.heard()[-2:]] == [Compute, Abort]
        assert road.is_untouched()

    run(story)


def test_a_short_deadline_never_makes_a_node_suspect():
    """The timer may have been set by a clock that was read a little earlier than the deadline's."""

    async def story(road: Road) -> None:
        worker = ready(road)
        loop, dispatch = road.play.loop, road.play.dispatch
        call = road.call(timeout_ms=50)
        request = Request(dispatch._tools, road.play.serving, call, loop.clock_ms())
        express = Express(dispatch, request, road.told.append)
        assert express.begin(loop.time() - 0.002)
        await asyncio.sleep(0.049)
        assert worker.orders()
        (error,) = road.told
        assert isinstance(error, DeadlineExceeded)
        assert not road.play.suspected

    run(story)


def test_a_silent_worker_is_suspect_where_another_node_can_be_asked():
    async def story(road: Road) -> None:
        ready(road)
        road.play.serving.add(SLICE, NODE_B, is_local=False)
        road.play.serving.replicas(SLICE)[NODE_A].observe(1.0, road.play.loop.clock_ms())
        road.play.serving.replicas(SLICE)[NODE_B].observe(9.0, road.play.loop.clock_ms())
        road.started()
        await asyncio.sleep(5.0)
        (answer,) = road.told
        assert isinstance(answer, InferenceAnswer)
        assert road.play.suspected == [NODE_A]
        assert answer.steps[0].node == "node-b"

    run(story)


def test_a_caller_that_goes_ends_the_run_and_its_outputs_are_taken_back():
    async def story(road: Road) -> None:
        worker = ready(road)
        express = road.started(request_id="mine")
        (order,) = worker.orders()
        express.cancel()
        express.cancel()
        assert worker.heard() == [Abort(order.ticket)]
        assert road.play.traces.find("mine").status == "cancelled"
        assert road.play.counted() == {"cancelled": 1.0}
        assert road.is_untouched()
        await worker.answer(order)
        await asyncio.sleep(0.05)
        assert worker.heard() == [Release(order.ticket)]
        assert not road.told

    run(story)


@pytest.mark.parametrize("turns", [0, 1, 20])
def test_a_caller_that_goes_after_a_failure_ends_what_goes_on(turns: int):
    async def story(road: Road) -> None:
        worker = ready(road)
        road.play.nodes[NODE_A] = is_silent
        express = road.started(request_id="mine")
        worker.socket.close()
        (channel,) = road.direct._replicas[worker.offer.epoch, SLICE, NODE_A].workers.values()
        channel._on_readable()  # the failure is here, nobody has acted on it yet
        await settle(turns)
        express.cancel()
        await settle()
        assert road.play.traces.find("mine").status == "cancelled"
        assert road.play.counted() == {"cancelled": 1.0}
        assert len(road.play.sender.of(Cancel)) == len(road.play.runs)
        assert road.is_untouched()
        assert not road.told

    run(story)


def test_a_version_that_is_retired_meanwhile_hands_on_its_request():
    async def story(road: Road) -> None:
        worker = ready(road)
        road.started()
        successor = serving_of(chain_of(1), Epoch(4, 8), version="2")
        successor.add(SLICE, NODE_B, is_local=False)
        road.play.serving.drop(SLICE, NODE_A)
        serving = road.play.serving
        serving.deployment = replace(serving.deployment, state="failed", reason="removed")
        serving.is_retired = True
        road.play.book.now = successor
        worker.socket.close()
        await settle()
        (answer,) = road.told
        assert isinstance(answer, InferenceAnswer)
        assert answer.version == "2"

    run(story)


def test_a_broken_description_of_outputs_breaks_the_worker_and_not_the_request():
    async def story(road: Road) -> None:
        worker = ready(road)
        road.started()
        (order,) = worker.orders()
        outside = Placed(OUTPUT, OUT - 64)
        await worker.say(Computed(order.ticket, (outside,), 1))
        await settle()
        (answer,) = road.told
        assert isinstance(answer, InferenceAnswer | ExecutionFailed | Unavailable)
        assert not road.direct.has((worker.offer.epoch, SLICE, NODE_A))
        assert road.is_untouched()

    run(story)
