"""A request from admission to its answer: routes, retries, deadlines, counters and traces."""

from __future__ import annotations

import asyncio

import pytest
from dispatch_play import OUTPUT, Play, error_of, fails, is_busy, is_silent, refuses, run, works
from gateway_fakes import (
    EPOCH,
    MODEL,
    NODE_A,
    NODE_B,
    NODE_C,
    chain_of,
    ended,
    in_virtual_time,
    serving_of,
    settle,
    timing,
)
from msgspec.structs import replace

from din.domain.deployment import Epoch
from din.domain.tensor import TensorMeta
from din.errors import (
    BadTensor,
    Busy,
    DeadlineExceeded,
    ExecutionFailed,
    NotFound,
    Unavailable,
)
from din.gateway.requests.dispatch import REQUESTS_INFLIGHT_MAX
from din.gateway.requests.failure import AttemptEnded
from din.gateway.requests.request_tools import (
    ATTEMPTS_MAX,
    RECORDS_KEPT_MAX,
    SILENCE_COLD_MS,
    SLICE_FAILURES_MAX,
)
from din.transport.channel import OutputSet
from din.wire.messages import Cancel, Failed, Result, Run
from din.wire.worker import Computed, Placed

# Answers.


def test_an_answer_names_model_version_and_request_and_carries_a_trace():
    async def story(play: Play) -> None:
        play.ready(NODE_A)
        answer = await play.ask(request_id="mine")
        assert (answer.request_id, answer.model_id, answer.version) == ("mine", MODEL, "1")
        assert answer.metas == (OUTPUT,)
        assert len(answer.views[0]) == 4
        assert [step.node for step in answer.steps] == ["node-a"]
        kept = play.traces.find("mine")
        assert (kept.path, kept.execution_trace) == ("relay", answer.steps)
        assert kept.spans
        assert play.counted() == {"ok": 1.0}
        assert play.serving.replicas(0)[NODE_A].inflight == 0
        assert play.serving.replicas(0)[NODE_A].mean_ms == pytest.approx(1.1)

    run(story)


def test_a_request_without_an_id_gets_one():
    async def story(play: Play) -> None:
        play.ready(NODE_A)
        answer = await play.ask()
        assert answer.request_id.startswith("req-")
        assert len(answer.request_id) == 12

    run(story)


def test_an_output_that_the_model_does_not_have_is_refused_naming_those_it_has():
    """T45."""

    async def story(play: Play) -> None:
        play.ready(NODE_A)
        error = await error_of(play.ask(outputs=("nope",)))
        assert isinstance(error, BadTensor)
        assert error.http_status == 400
        assert "t1" in error.hint
        assert not play.runs
        assert play.counted() == {"DIN-110": 1.0}

    run(story)


# Retries.


def test_a_retry_leaves_the_blamed_node_out():
    async def story(play: Play) -> None:
        play.ready(NODE_A, NODE_B)
        play.nodes[NODE_A] = fails
        for _ in range(8):
            answer = await play.ask()
            assert answer.steps[-1].node == "node-b"
        retried = [each for each in play.traces.newest(8) if len(each.attempts) == 2]
        assert retried
        assert retried[0].attempts[0].nodes == ("node-a",)
        assert "it broke" in retried[0].attempts[0].outcome
        assert set(play.slice_failures) == {NODE_A}
        assert not play.suspected

    run(story)


def test_what_no_node_can_compute_counts_against_none_of_them():
    async def story(play: Play) -> None:
        play.ready(NODE_A, NODE_B)
        play.nodes |= {NODE_A: fails, NODE_B: fails}
        assert isinstance(await error_of(play.ask()), ExecutionFailed)
        assert len(set(play.runs)) == 2
        assert not play.slice_failures

    run(story)


def test_the_only_node_is_tried_again_and_attempts_are_bounded():
    async def story(play: Play) -> None:
        play.ready(NODE_A)
        play.nodes[NODE_A] = fails
        error = await error_of(play.ask())
        assert isinstance(error, ExecutionFailed)
        assert len(play.runs) == SLICE_FAILURES_MAX
        assert play.counted() == {"DIN-330": 1.0}
        assert len(play.sender.of(Cancel)) == SLICE_FAILURES_MAX

    run(story)


def test_attempts_that_end_with_suspects_are_bounded_too():
    async def story(play: Play) -> None:
        play.ready(NODE_A)
        play.sender.closed.add(NODE_A)
        play.keeps_suspects = True
        await error_of(play.ask(timeout_ms=600_000))
        (trace,) = play.traces.newest(1)
        assert len(trace.attempts) == ATTEMPTS_MAX

    run(story)


def test_each_attempt_has_its_own_number():
    async def story(play: Play) -> None:
        seen = []

        def fails_twice(order: Run, node_id: str) -> object:
            seen.append(order.attempt)
            return fails(order, node_id) if len(seen) < 3 else works(order, node_id)

        play.ready(NODE_A)
        play.nodes[NODE_A] = fails_twice
        await play.ask()
        assert seen == [1, 2, 3]

    run(story)


def test_only_the_slice_without_an_alternative_goes_back_to_a_blamed_node():
    """A failed, so did the only holder of the second slice: the first must not return to A."""

    async def story() -> None:
        play = Play(serving_of(chain_of(2)))
        play.ready(NODE_A, NODE_B, index=0)
        play.ready(NODE_C, index=1)
        firsts = []

        def first(order: Run, node_id: str) -> object:
            firsts.append(node_id)
            if node_id == NODE_A:
                return fails(order, node_id)
            blamed = NODE_C if len(firsts) < 5 and firsts.count(NODE_B) < 2 else None
            if blamed:
                return Failed(order.request_id, order.attempt, 1, NODE_C, "DIN-330", "it broke")
            meta = TensorMeta("t2", "UINT8", (4,), 4)
            return Result(order.request_id, order.attempt, 1, (meta,), (), 0)

        play.nodes[NODE_A] = play.nodes[NODE_B] = first
        for _ in range(6):
            firsts.clear()
            await play.ask()
            after_a = firsts[firsts.index(NODE_A) + 1 :] if NODE_A in firsts else []
            assert NODE_A not in after_a

    in_virtual_time(story)


def test_what_another_node_would_repeat_is_not_retried():
    async def story(play: Play) -> None:
        play.ready(NODE_A, NODE_B)
        play.nodes[NODE_A] = play.nodes[NODE_B] = refuses
        assert isinstance(await error_of(play.ask()), BadTensor)
        assert len(play.runs) == 1
        assert not play.slice_failures

    run(story)


def test_a_random_model_is_retried_only_when_that_is_allowed():
    async def story(play: Play) -> None:
        play.ready(NODE_A)
        play.nodes[NODE_A] = fails
        await error_of(play.ask())
        assert len(play.runs) == 1
        play.runs.clear()
        await error_of(play.ask(is_retry_of_random_allowed=True))
        assert len(play.runs) == SLICE_FAILURES_MAX

    run(story, is_random=True)


def test_a_random_model_may_wait_for_a_busy_node():
    async def story(play: Play) -> None:
        play.ready(NODE_A, NODE_B)
        play.nodes[NODE_A] = is_busy
        for _ in range(6):
            await play.ask()
        assert NODE_A in play.runs

    run(story, is_random=True)


def test_a_silent_node_is_suspect_and_the_request_goes_elsewhere():
    async def story(play: Play) -> None:
        play.ready(NODE_A)
        play.nodes[NODE_A] = is_silent
        task = play.ask()
        await settle()
        play.ready(NODE_B)
        started = play.loop.clock_ms()
        answer = await task
        assert answer.steps[0].node == "node-b"
        assert play.suspected == [NODE_A]
        assert play.loop.clock_ms() - started <= SILENCE_COLD_MS + 1

    run(story)


def test_a_failure_makes_the_node_look_slower():
    async def story(play: Play) -> None:
        play.ready(NODE_A, NODE_B)
        await play.ask()
        slow = play.serving.replicas(0)[NODE_A]
        before = slow.mean_ms
        assert before is not None
        play.nodes[NODE_A] = fails
        play.serving.drop(0, NODE_B)
        task = play.ask()
        await settle(3)
        await error_of(task)
        assert slow.mean_ms > before

    run(story)


# Busy.


def test_busy_is_not_blamed_and_waits_no_longer_than_the_deadline():
    """T51."""

    async def story(play: Play) -> None:
        play.ready(NODE_A)
        play.nodes[NODE_A] = is_busy
        started = play.loop.clock_ms()
        error = await error_of(play.ask(timeout_ms=30_000))
        assert isinstance(error, Busy)
        assert not play.suspected
        assert not play.slice_failures
        assert play.serving.replicas(0)[NODE_A].mean_ms is None
        assert play.loop.clock_ms() - started <= 30_000 * 1.05
        (trace,) = play.traces.newest(1)
        assert RECORDS_KEPT_MAX >= len(trace.attempts) > 16
        assert len(play.runs) <= 200
        numbers = [each.attempt for each in trace.attempts]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))

    run(story)


def test_a_request_that_waited_for_busy_nodes_still_survives_a_failure():
    async def story(play: Play) -> None:
        play.ready(NODE_A)

        def later(order: Run, node_id: str) -> object:
            if order.attempt <= ATTEMPTS_MAX + 2:
                return is_busy(order, node_id)
            return fails(order, node_id) if order.attempt == 19 else works(order, node_id)

        play.nodes[NODE_A] = later
        await play.ask()
        assert len(play.runs) == 20

    run(story)


def has_no_worker(order: Run, node_id: str) -> Failed:
    text = "slice 's0' has no live worker now"
    about = (order.request_id, order.attempt, order.slice_index, node_id)
    return Failed(*about, Unavailable.code, text, is_retryable=True)


def test_a_request_waits_while_a_worker_is_started_anew():
    async def story(play: Play) -> None:
        play.ready(NODE_A)
        up_ms = play.loop.clock_ms() + 5_000

        def later(order: Run, node_id: str) -> object:
            is_up = play.loop.clock_ms() >= up_ms
            return works(order, node_id) if is_up else has_no_worker(order, node_id)

        play.nodes[NODE_A] = later
        await play.ask()
        assert ATTEMPTS_MAX < len(play.runs) <= 100

    run(story)


def test_a_worker_that_never_comes_is_told_at_the_deadline():
    async def story(play: Play) -> None:
        play.ready(NODE_A)
        play.nodes[NODE_A] = has_no_worker
        started = play.loop.clock_ms()
        error = await error_of(play.ask(timeout_ms=10_000))
        assert "has no live worker now" in error.message
        assert 9_000 <= play.loop.clock_ms() - started <= 10_500
        assert play.serving.replicas(0)[NODE_A].mean_ms is None

    run(story)


# Readiness and deadlines.


def test_a_request_waits_until_the_model_is_ready():
    async def story(play: Play) -> None:
        task = play.ask()
        await asyncio.sleep(5)
        assert not task.done()
        play.ready(NODE_A)
        await task
        assert play.counted() == {"ok": 1.0}

    run(story)


def test_a_model_that_is_never_ready_is_a_503_naming_the_slice():
    async def story(play: Play) -> None:
        error = await error_of(play.ask(timeout_ms=2_000))
        assert isinstance(error, Unavailable)
        assert error.http_status == 503
        assert "part0" in error.message
        assert play.counted() == {"DIN-300": 1.0}

    run(story)


def test_a_failed_deployment_answers_at_once():
    async def story(play: Play) -> None:
        play.serving.deployment = replace(
            play.serving.deployment, state="failed", reason="not a usable model"
        )
        started = play.loop.clock_ms()
        error = await error_of(play.ask())
        assert "not a usable model" in error.message
        assert play.loop.clock_ms() == started

    run(story)


def test_replicas_on_unroutable_nodes_are_not_used():
    async def story(play: Play) -> None:
        play.ready(NODE_A)
        del play.health[NODE_A]
        error = await error_of(play.ask(timeout_ms=1_000))
        assert isinstance(error, Unavailable)
        assert "all suspect" in error.message
        assert not play.runs

    run(story)


def test_the_deadline_is_a_504():
    async def story(play: Play) -> None:
        play.ready(NODE_A)
        play.nodes[NODE_A] = is_silent
        started = play.loop.clock_ms()
        error = await error_of(play.ask(timeout_ms=700))
        assert isinstance(error, DeadlineExceeded)
        assert error.http_status == 504
        assert play.loop.clock_ms() - started <= 702
        assert play.counted() == {"DIN-400": 1.0}

    run(story)


def test_a_failure_before_the_deadline_with_nobody_left_is_a_504_with_the_cause():
    async def story(play: Play) -> None:
        play.ready(NODE_A, NODE_B)
        play.nodes[NODE_A] = play.nodes[NODE_B] = is_silent
        task = play.ask(timeout_ms=20_000)
        await settle()
        play.serving.drop(0, NODE_B if play.runs == [NODE_B] else NODE_A)
        play.serving.drop(0, NODE_A if play.runs == [NODE_B] else NODE_B)
        play.relay.node_down(play.runs[0], "the link broke")
        error = await error_of(task)
        assert isinstance(error, DeadlineExceeded)
        assert "the link broke" in error.message
        assert "20000 ms" in error.message

    run(story)


def test_a_silent_only_replica_gets_one_attempt_and_is_not_suspect():
    """It may compute for long; a second attempt there would queue behind the first."""

    async def story(play: Play) -> None:
        play.ready(NODE_A)
        play.nodes[NODE_A] = is_silent
        error = await error_of(play.ask(timeout_ms=20_000))
        assert isinstance(error, DeadlineExceeded)
        assert "slice part0 on node node-a never confirmed its inputs" in error.message
        assert play.runs == [NODE_A]
        assert not play.suspected

    run(story)


def test_no_second_attempt_goes_to_a_replica_that_may_still_run_the_first():
    """Both are silent: the second is waited for, since the first may still be at it."""

    async def story(play: Play) -> None:
        play.keeps_suspects = True
        play.ready(NODE_A, NODE_B)
        play.nodes[NODE_A] = play.nodes[NODE_B] = is_silent
        error = await error_of(play.ask(timeout_ms=60_000))
        assert isinstance(error, DeadlineExceeded)
        assert sorted(play.runs) == [NODE_A, NODE_B]

    run(story)


def test_a_slow_only_replica_answers_after_many_times_its_mean():
    async def story(play: Play) -> None:
        play.ready(NODE_A)
        await play.ask()
        play.nodes[NODE_A] = is_silent
        task = play.ask()
        await asyncio.sleep(30)
        play.relay.on_result(
            Result(2, 1, 0, (OUTPUT,), (timing(0, NODE_A),), 0),
            play.relay.place_result(Result(2, 1, 0, (OUTPUT,), (), 0), 64),
        )
        answer = await task
        assert len(play.traces.find(answer.request_id).attempts) == 1

    run(story)


def test_waiters_of_a_retired_version_go_over_to_its_successor():
    """T53."""

    async def story(play: Play) -> None:
        task = play.ask()
        await settle()
        old, new = play.serving, serving_of(chain_of(1), Epoch(4, 9), version="2")
        new.add(0, NODE_B, is_local=False)
        play.book.now = new
        old.is_retired = True
        old.deployment = replace(old.deployment, state="failed", reason="it was removed")
        old.notify()
        answer = await task
        assert answer.version == "2"

    run(story)


# Admission, counting, cancelling.


def test_unknown_models_are_counted_without_their_name():
    async def story(play: Play) -> None:
        assert isinstance(await error_of(play.ask(model_id="guess")), NotFound)
        assert play.counted() == {"DIN-500": 1.0}
        assert b"guess" not in play.metrics.text()

    run(story)


def test_more_requests_than_the_limit_are_refused_as_busy():
    async def story(play: Play) -> None:
        tasks = [play.ask() for _ in range(REQUESTS_INFLIGHT_MAX)]
        await settle()
        assert play.dispatch.inflight == REQUESTS_INFLIGHT_MAX
        assert isinstance(await error_of(play.ask()), Busy)
        play.ready(NODE_A)
        await asyncio.gather(*tasks)
        assert play.dispatch.inflight == 0
        assert play.counted() == {"ok": float(REQUESTS_INFLIGHT_MAX), "DIN-320": 1.0}

    run(story)


def test_a_stopping_gateway_takes_nothing_new():
    async def story(play: Play) -> None:
        play.dispatch.is_stopping = True
        assert isinstance(await error_of(play.ask()), Unavailable)

    run(story)


def test_cancelling_a_request_cancels_it_on_the_node_and_is_counted():
    """T49."""

    async def story(play: Play) -> None:
        play.ready(NODE_A)
        play.nodes[NODE_A] = is_silent
        task = play.ask(request_id="gone")
        await settle()
        await ended(task)
        assert [each.node_id for each in play.sender.of(Cancel)] == [NODE_A]
        assert play.counted() == {"cancelled": 1.0}
        assert play.traces.find("gone").status == "cancelled"
        assert play.dispatch.inflight == 0
        assert play.serving.replicas(0)[NODE_A].inflight == 0
        assert not play.suspected

    run(story)


def test_failures_leave_a_trace_with_every_attempt():
    """T47."""

    async def story(play: Play) -> None:
        play.ready(NODE_A)
        play.nodes[NODE_A] = refuses
        await error_of(play.ask(request_id="bad"))
        trace = play.traces.find("bad")
        assert (trace.status, trace.path) == ("failed", "none")
        assert trace.error == "DIN-110: slice part0 on node node-a: bad"
        assert len(trace.attempts) == 1

    run(story)


# Direct.


def outputs(released: list[int]) -> OutputSet:
    return OutputSet(
        Computed(1, (Placed(OUTPUT, 0),), 300),
        (OUTPUT,),
        [memoryview(b"wxyz")],
        lambda: released.append(1),
    )


def test_one_slice_on_a_handed_over_worker_goes_direct():
    async def story(play: Play) -> None:
        released: list[int] = []
        play.ready(NODE_A)
        play.direct.keys.add((EPOCH, 0, NODE_A))
        play.direct.answers.append(outputs(released))
        answer = await play.ask()
        assert (play.traces.find("last").path, bytes(answer.views[0])) == ("direct", b"wxyz")
        assert not play.runs
        assert not released
        answer.release()
        assert released == [1]

    run(story)


def test_a_direct_worker_that_failed_is_followed_by_another_try():
    async def story(play: Play) -> None:
        play.ready(NODE_A)
        play.direct.keys.add((EPOCH, 0, NODE_A))
        play.direct.answers += [
            AttemptEnded(ExecutionFailed("the worker died"), blamed=(NODE_A,)),
            outputs([]),
        ]
        answer = await play.ask()
        assert play.traces.find(answer.request_id).attempts[0].outcome == "the worker died"

    run(story)


def test_a_direct_run_ends_at_the_deadline():
    """T48."""

    async def story(play: Play) -> None:
        play.ready(NODE_A)
        play.direct.keys.add((EPOCH, 0, NODE_A))
        play.direct.answers.append(1_000.0)
        started = play.loop.clock_ms()
        error = await error_of(play.ask(timeout_ms=500))
        assert isinstance(error, DeadlineExceeded)
        assert play.loop.clock_ms() - started <= 501

    run(story)


def test_an_unknown_code_of_a_node_is_shown_as_our_fault_with_the_code():
    async def story(play: Play) -> None:
        play.ready(NODE_A)
        play.nodes[NODE_A] = lambda order, node_id: Failed(
            order.request_id, order.attempt, 0, node_id, "NO-SUCH-CODE", "odd", is_retryable=False
        )
        error = await error_of(play.ask())
        assert error.code == "DIN-900"
        assert "NO-SUCH-CODE" in error.message

    run(story)
