"""The execution core against named frames: no socket, no clock, no process."""

from __future__ import annotations

import pytest
from execution_play import (
    ALL_HERE,
    BOXES,
    EPOCH,
    FEATURES,
    GATEWAY_ID,
    HEADS,
    HERE,
    PHOTO,
    SCORES,
    THERE,
    WORKER,
    Player,
    cancel,
    frame,
    loaded,
)

from din.domain.deployment import Epoch, Route
from din.domain.model import GATEWAY, Edge
from din.domain.node import NodeId
from din.domain.request import SliceTiming
from din.domain.tensor import TensorMeta
from din.errors import BadTensor, Busy, ExecutionFailed, SpoiledTensor
from din.execution.events import (
    CancelArrived,
    Delivered,
    Forward,
    FrameRefused,
    Outputs,
    Return,
    RunEnded,
    SliceUnloaded,
    Woke,
    WorkerDown,
    WorkerLeaving,
    WorkerUp,
)
from din.execution.limits import (
    DRAIN_QUIET_MS,
    INFLIGHT_PER_WORKER_MAX,
    MARK_DELAY_MS,
    MEMORIES_MAX,
    QUEUE_MAX,
)
from din.execution.loaded import way_of
from din.wire.messages import Accepted, BusyNode, Failed, Progress

JOIN_NODES = (THERE, THERE, HERE)
ELSEWHERE = NodeId("00000000000000cc")


@pytest.fixture
def player() -> Player:
    return Player(0, 2)


def only_failure(player: Player) -> Failed:
    (message,) = player.messages()
    assert isinstance(message, Failed)
    return message


def heads(**changes: object) -> object:
    return frame(2, tensors=(HEADS,), producer=0, nodes=JOIN_NODES, **changes)


def scores(**changes: object) -> object:
    return frame(2, tensors=(SCORES,), producer=1, nodes=JOIN_NODES, **changes)


def test_a_frame_with_all_inputs_runs_and_its_outputs_go_to_their_consumers(player: Player) -> None:
    assert player.offer(frame()) == WORKER
    player.land(frame(), WORKER)
    (order,) = player.running.values()
    assert (order.outputs, order.remaining_ms) == (("heads", "features"), 1000)
    player.now_ms += 2
    player.finish_run(order.task)
    assert not player.slots
    to_one, to_two = player.deliver(), player.deliver()
    assert {to_one.run.slice_index, to_two.run.slice_index} == {1, 2}
    assert isinstance(to_one, Forward)
    assert to_one.node_id == THERE
    assert to_one.run.producer == 0
    assert to_one.run.remaining_ms == 998
    assert to_one.run.timings == (SliceTiming(0, HERE, 0, 1300, 700),)
    assert not player.outputs
    assert player.core.is_idle


def test_what_goes_to_slices_alone_may_cross_compressed_and_its_sizes_are_noted() -> None:
    player = Player()
    player.give(loaded(0, compression="zstd"))
    player.give(WorkerUp((EPOCH, 0), WORKER))
    player.arrive(frame(nodes=(HERE, THERE, HERE)))
    (order,) = player.running.values()
    assert order.compressible == {"features": {THERE}, "heads": {HERE}}
    packed = TensorMeta("features", "FP32", (1, 4), 11, "zstd")
    player.now_ms += 2
    player.running.clear()
    player.outputs.add(order.task)
    player.give(RunEnded(order.task, Outputs((HEADS, packed), 700, None, 300)))
    there = next(each for each in player.deliveries if each.node_id == THERE)
    assert there.run.tensors == (packed,)
    assert there.run.timings == (SliceTiming(0, HERE, 0, 1000, 700, 300, None, 11, 16),)


def test_nothing_may_cross_compressed_where_nobody_asked_for_it(player: Player) -> None:
    player.arrive(frame())
    (order,) = player.running.values()
    assert order.compressible == {}


def test_an_answer_is_never_compressed() -> None:
    edges = (Edge("photo", GATEWAY, (0,)), Edge("heads", 0, (1, GATEWAY)), Edge("more", 0, (1,)))
    way = way_of(0, edges, Route(EPOCH, False, (HERE, THERE)), "zstd")
    assert way.compressible == {"more": {THERE}}
    assert way_of(0, edges, Route(EPOCH, False, (HERE, THERE))).compressible == {}


@pytest.mark.parametrize(
    "meta",
    [
        TensorMeta("scores", "FP32", (1, 4), 16, "zstd"),
        TensorMeta("scores", "FP32", (1, 4), 0, "zstd"),
        TensorMeta("scores", "FP32", (1, 4), 17, "zstd"),
        TensorMeta("scores", "FP32", (1, 4), 9, "gzip"),
        TensorMeta("scores", "FP32", (1, 4), 9),
    ],
)
def test_an_input_in_as_many_bytes_as_cannot_be_is_its_producers_fault(
    player: Player, meta
) -> None:
    run = frame(2, tensors=(meta,), producer=1, nodes=JOIN_NODES)
    assert player.offer(run) is None
    failed = only_failure(player)
    assert (failed.code, failed.is_retryable) == (SpoiledTensor.code, True)
    assert (failed.slice_index, failed.node_id) == (1, THERE)


def test_what_the_gateway_sends_in_as_many_bytes_as_cannot_be_is_the_callers_fault(
    player: Player,
) -> None:
    for meta in (
        TensorMeta("photo", "FP32", (1, 4), 17, "zstd"),
        TensorMeta("photo", "FP32", (1, 4), 9),
    ):
        assert player.offer(frame(tensors=(meta,), request_id=meta.nbytes)) is None
    for failed in player.messages():
        assert (failed.code, failed.is_retryable) == (BadTensor.code, False)
        assert (failed.slice_index, failed.node_id) == (0, HERE)


@pytest.mark.parametrize(
    ("spoiled", "blamed"),
    [("heads", (0, THERE)), ("scores", (1, ELSEWHERE)), ("made up", (2, HERE))],
)
def test_an_input_that_cannot_be_read_is_told_of_who_made_it(
    player: Player, spoiled: str, blamed: tuple[int, str]
) -> None:
    nodes = (THERE, ELSEWHERE, HERE)
    player.arrive(frame(2, tensors=(HEADS,), producer=0, nodes=nodes))
    player.arrive(frame(2, tensors=(SCORES,), producer=1, nodes=nodes))
    (order,) = player.running.values()
    player.running.clear()
    player.give(RunEnded(order.task, SpoiledTensor("it cannot be read", tensor=spoiled)))
    failed = only_failure(player)
    assert (failed.code, failed.is_retryable) == (SpoiledTensor.code, True)
    assert (failed.slice_index, failed.node_id) == blamed
    assert not player.slots
    assert player.core.is_idle


def test_an_input_that_came_compressed_takes_the_room_that_it_came_in(player: Player) -> None:
    packed = TensorMeta("scores", "FP32", (1, 4), 9, "zstd")
    player.arrive(heads())
    player.arrive(frame(2, tensors=(packed,), producer=1, nodes=JOIN_NODES))
    (order,) = player.running.values()
    assert packed in {each.meta for each in order.inputs}


def test_a_join_runs_once_all_producers_have_sent_and_merges_their_timings(player: Player) -> None:
    early = SliceTiming(0, THERE, 0, 1, 2)
    late = SliceTiming(1, THERE, 0, 3, 4)
    first = frame(2, tensors=(HEADS,), producer=0, nodes=JOIN_NODES)
    second = frame(2, tensors=(SCORES,), producer=1, nodes=JOIN_NODES)
    player.arrive(_with(first, timings=(early,)))
    assert not player.running
    player.now_ms += 5
    player.arrive(_with(second, timings=(early, late)))
    (order,) = player.running.values()
    assert {each.meta.name for each in order.inputs} == {"heads", "scores"}
    player.finish_run(order.task)
    returned = player.deliver()
    assert isinstance(returned, Return)
    assert returned.origin == GATEWAY_ID
    assert returned.result.tensors == (BOXES,)
    assert set(returned.result.timings[:2]) == {early, late}
    assert returned.result.timings[2].wait_us == 5000
    assert returned.result.queue_depth == 0


def test_the_same_tensor_twice_is_taken_once(player: Player) -> None:
    first = frame(2, tensors=(HEADS,), producer=0, nodes=JOIN_NODES)
    player.arrive(first)
    player.arrive(first)
    assert len(player.slots) == 1
    player.arrive(frame(2, tensors=(SCORES,), producer=1, nodes=JOIN_NODES))
    (order,) = player.running.values()
    assert len(order.inputs) == 2


def test_a_frame_of_an_older_attempt_is_thrown_away_in_silence(player: Player) -> None:
    player.arrive(frame(attempt=2))
    assert player.offer(frame(attempt=1)) is None
    assert player.told == []


def test_a_newer_attempt_ends_the_older_one(player: Player) -> None:
    player.arrive(frame(attempt=1))
    (old,) = player.running
    player.arrive(frame(attempt=2))
    assert player.aborted == {old}
    player.finish_run(old)
    assert player.deliveries == []
    assert len(player.running) == 1
    assert player.told == []


def test_a_frame_for_an_unknown_epoch_fails_in_words_and_may_be_tried_elsewhere(
    player: Player,
) -> None:
    assert not player.arrive(frame(epoch=Epoch(9, 9)))
    failure = only_failure(player)
    assert (failure.code, failure.is_retryable, failure.node_id) == ("DIN-300", True, HERE)
    assert failure.message == "slice 0 of deployment 9.9 is not loaded here"


def test_a_frame_for_another_node_is_refused_by_name(player: Player) -> None:
    assert not player.arrive(frame(nodes=(THERE, THERE, THERE)))
    assert (
        only_failure(player).message == f"this is node {HERE}, but the route has slice 0 on {THERE}"
    )


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        (TensorMeta("photo", "FP64", (1, 4), 32), "is FP64 but the model takes FP32"),
        (TensorMeta("photo", "FP32", (1, 5), 20), "has shape [1, 5] but the model takes"),
        (TensorMeta("photo", "FP32", (1, 4), 12), "needs 16 bytes, got 12"),
        (TensorMeta("other", "FP32", (1, 4), 16), "takes no tensor 'other' from the gateway"),
        (TensorMeta("photo", "FP32", (1,) * 17, 4), "17 dims"),
        (TensorMeta("photo", "FP32", (1, 4), -16), "-16 bytes"),
    ],
)
def test_a_wrong_tensor_is_nobodys_fault_but_the_senders(
    player: Player, meta: TensorMeta, words: str
) -> None:
    assert player.offer(frame(tensors=(meta,))) is None
    failure = only_failure(player)
    assert (failure.code, failure.is_retryable) == ("DIN-110", False)
    assert words in failure.message


def test_a_body_of_another_length_than_announced_is_refused(player: Player) -> None:
    admission = player.core.admit(player.now_ms, frame(), 65)
    assert admission.worker is None
    player.perform(admission.instructions)
    assert "65 bytes" in only_failure(player).message


def test_free_dims_must_agree_between_frames_of_one_join(player: Player) -> None:
    player.arrive(frame(2, tensors=(HEADS,), producer=0, nodes=JOIN_NODES))
    wide = TensorMeta("scores", "FP32", (2, 4), 32)
    player.arrive(frame(2, tensors=(wide,), producer=1, nodes=JOIN_NODES))
    assert only_failure(player).code == "DIN-110"
    assert not player.slots


@pytest.mark.parametrize("shape", [(), (-1,), (0,)])
def test_a_route_that_does_not_fit_is_refused(player: Player, shape: tuple[int, ...]) -> None:
    run = _with(frame(), slice_index=shape[0] if shape else 5)
    if run.slice_index == 0:
        run = frame(nodes=(HERE,))
    assert player.offer(run) is None
    assert only_failure(player).code == "DIN-110"


def test_a_worker_has_two_runs_and_the_rest_wait(player: Player) -> None:
    for number in range(INFLIGHT_PER_WORKER_MAX + 1):
        player.arrive(frame(request_id=number))
    assert len(player.running) == INFLIGHT_PER_WORKER_MAX
    player.finish_run(next(iter(player.running)))
    assert len(player.running) == INFLIGHT_PER_WORKER_MAX


def test_the_worker_with_the_fewest_tasks_gets_the_next(player: Player) -> None:
    player = Player(0, workers=2)
    workers = [player.offer(frame(request_id=number)) for number in range(4)]
    assert sorted(workers) == [WORKER, WORKER, WORKER + 1, WORKER + 1]


def test_one_request_over_the_queue_is_busy_and_told_when_to_come_back(player: Player) -> None:
    for number in range(QUEUE_MAX):
        assert player.arrive(frame(request_id=number))
    assert not player.arrive(frame(request_id=QUEUE_MAX))
    (busy,) = player.messages()
    assert isinstance(busy, BusyNode)
    assert (busy.queue_depth, busy.request_id) == (QUEUE_MAX, QUEUE_MAX)
    assert busy.retry_after_ms > 0


def test_no_room_in_the_arena_is_busy_and_ends_the_attempt_here(player: Player) -> None:
    run = frame()
    assert player.offer(run) == WORKER
    player.give(FrameRefused(run, Busy("the arena is full")))
    assert isinstance(player.messages()[0], BusyNode)
    assert player.offer(run) is None
    assert len(player.told) == 1
    assert player.core.is_idle


def test_a_queued_request_times_out_at_its_deadline_not_after_the_run_before_it(
    player: Player,
) -> None:
    """T48: the queue time-out fires on time."""
    for number in range(INFLIGHT_PER_WORKER_MAX):
        player.arrive(frame(request_id=number, remaining_ms=60_000))
    player.arrive(frame(request_id=9, remaining_ms=50))
    player.now_ms += 50
    player.give(Woke())
    late = [each for each in player.messages() if isinstance(each, Failed)]
    assert [(each.request_id, each.code, each.is_retryable) for each in late] == [
        (9, "DIN-400", False)
    ]
    assert "in the queue" in late[0].message
    assert len(player.slots) == INFLIGHT_PER_WORKER_MAX


def test_a_run_past_its_deadline_is_aborted_and_its_slot_kept_until_the_worker_answers(
    player: Player,
) -> None:
    player.arrive(frame(remaining_ms=50))
    (task,) = player.running
    player.now_ms += 51
    player.give(Woke())
    assert player.aborted == {task}
    assert player.slots
    player.finish_run(task)
    assert not player.slots
    assert player.deliveries == []
    assert [type(each) for each in player.messages()].count(Failed) == 1


def test_a_join_that_stays_incomplete_names_what_is_missing(player: Player) -> None:
    player.arrive(frame(2, tensors=(HEADS,), producer=0, nodes=JOIN_NODES))
    player.now_ms += 1000
    player.give(Woke())
    assert "inputs were missing: 'scores'" in only_failure(player).message


def test_a_frame_without_time_left_is_refused(player: Player) -> None:
    assert not player.arrive(frame(remaining_ms=0))
    assert only_failure(player).code == "DIN-400"


def test_a_cancelled_attempt_is_not_run_and_late_frames_are_thrown_away(player: Player) -> None:
    """T49: cancelled before the next slice."""
    player.give(CancelArrived(cancel()))
    assert player.offer(frame()) is None
    assert player.told == []
    assert player.offer(frame(attempt=2)) == WORKER


def test_cancel_frees_what_gathers_and_waits_and_aborts_what_runs(player: Player) -> None:
    """T49."""
    for number in range(3):
        player.arrive(frame(request_id=number))
    player.arrive(frame(2, request_id=4, tensors=(HEADS,), producer=0, nodes=JOIN_NODES))
    for number in (0, 1, 2, 4):
        player.give(CancelArrived(cancel(number)))
    assert len(player.slots) == len(player.running) == len(player.aborted) == 2
    for task in list(player.running):
        player.finish_run(task)
    assert player.core.is_idle
    assert player.told == []
    assert not player.slots


def test_cancel_between_head_and_body_throws_the_body_away(player: Player) -> None:
    run = frame()
    worker = player.offer(run)
    player.give(CancelArrived(cancel()))
    assert worker is not None
    player.land(run, worker)
    assert not player.slots
    assert not player.running


def test_a_tombstone_ends_with_its_deadline(player: Player) -> None:
    player.give(CancelArrived(cancel(remaining_ms=100)))
    player.now_ms += 101
    assert player.offer(frame()) == WORKER


def test_a_cancel_of_an_older_attempt_changes_nothing(player: Player) -> None:
    player.arrive(frame(attempt=2))
    player.give(CancelArrived(cancel(attempt=1)))
    assert player.aborted == set()


def test_memories_are_bounded(player: Player) -> None:
    for number in range(MEMORIES_MAX + 50):
        player.give(CancelArrived(cancel(number)))
    assert player.core._books.attempts.memories == MEMORIES_MAX
    assert player.offer(frame(request_id=MEMORIES_MAX + 49)) is None
    assert player.offer(frame(request_id=0)) == WORKER


def test_a_finished_slice_does_not_run_again(player: Player) -> None:
    player.arrive(frame())
    player.finish_run(next(iter(player.running)))
    player.deliver()
    player.deliver()
    assert player.offer(frame()) is None
    assert player.told == []


def test_a_dead_worker_fails_its_tasks_retryably_with_the_reason(player: Player) -> None:
    for number in range(3):
        player.arrive(frame(request_id=number))
    player.give(WorkerDown(WORKER, "killed by signal 9"))
    failures = [each for each in player.messages() if isinstance(each, Failed)]
    assert len(failures) == 3
    assert all(each.is_retryable and "killed by signal 9" in each.message for each in failures)
    for task in list(player.running):
        player.running.pop(task)
        player.give(RunEnded(task, ExecutionFailed("the worker died")))
    assert not player.slots
    assert player.core.is_idle
    assert not player.arrive(frame(request_id=7))
    busy = player.messages()[-1]
    assert isinstance(busy, BusyNode)  # the next worker is on its way: nobody is blamed
    assert busy.queue_depth == 0


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (BadTensor("the tensor is wrong", hint="turn it"), False),
        (ExecutionFailed("the engine gave up"), True),
    ],
)
def test_a_failed_run_is_told_with_its_code_and_what_to_do(
    player: Player, error: BadTensor | ExecutionFailed, *, retryable: bool
) -> None:
    player.arrive(frame())
    (task,) = player.running
    player.running.pop(task)
    player.give(RunEnded(task, error))
    failure = only_failure(player)
    assert (failure.code, failure.is_retryable) == (error.code, retryable)
    assert (failure.message, failure.hint) == (error.message, error.hint)
    assert not player.slots


def test_a_peer_that_takes_no_frames_is_blamed_by_name_once(player: Player) -> None:
    player.arrive(frame())
    player.finish_run(next(iter(player.running)))
    player.deliver("the link closed")
    player.deliver("the link closed")
    failure = only_failure(player)
    assert (failure.node_id, failure.is_retryable) == (THERE, True)
    assert not player.outputs


def test_results_for_a_lost_gateway_are_dropped_and_the_worker_goes_on(player: Player) -> None:
    player.arrive(frame(2, tensors=(HEADS,), producer=0, nodes=JOIN_NODES))
    player.arrive(frame(2, tensors=(SCORES,), producer=1, nodes=JOIN_NODES))
    player.finish_run(next(iter(player.running)))
    player.deliver("no link")
    assert player.told == []
    assert player.core.is_idle
    assert not player.outputs


def test_outputs_stay_until_every_copy_has_left(player: Player) -> None:
    player.arrive(frame())
    player.finish_run(next(iter(player.running)))
    player.deliver()
    assert player.outputs
    player.deliver()
    assert not player.outputs


def test_a_consumer_on_the_same_node_gets_its_tensors_by_hand_over(player: Player) -> None:
    player.arrive(frame(nodes=ALL_HERE))
    player.finish_run(next(iter(player.running)))
    assert {each.node_id for each in player.deliveries if isinstance(each, Forward)} == {HERE}


def test_slices_that_are_not_on_the_way_get_nothing(player: Player) -> None:
    player.arrive(frame(nodes=(HERE, THERE, "")))
    (order,) = player.running.values()
    assert order.outputs == ("features",)
    player.finish_run(order.task)
    assert len(player.deliveries) == 1


def test_marks_are_sent_only_for_slices_that_have_not_answered_in_time(player: Player) -> None:
    player.arrive(frame(request_id=1))
    player.arrive(frame(request_id=2))
    player.finish_run(next(iter(player.running)))
    player.deliver()
    player.deliver()
    assert player.core.next_wakeup_ms() == player.now_ms + MARK_DELAY_MS
    player.now_ms += MARK_DELAY_MS
    player.give(Woke())
    (accepted,) = player.messages()
    assert accepted == Accepted((Progress(1, 1, 0, "forwarded"), Progress(2, 1, 0, "accepted")))
    player.give(Woke())
    assert len(player.told) == 1


def test_a_slice_that_answered_the_gateway_is_never_mentioned(player: Player) -> None:
    player.arrive(frame(2, tensors=(HEADS,), producer=0, nodes=JOIN_NODES))
    player.arrive(frame(2, tensors=(SCORES,), producer=1, nodes=JOIN_NODES))
    player.finish_run(next(iter(player.running)))
    player.deliver()
    player.now_ms += MARK_DELAY_MS
    player.give(Woke())
    assert player.told == []


def test_an_unloaded_slice_serves_its_epoch_until_it_is_quiet(player: Player) -> None:
    player.give(SliceUnloaded((EPOCH, 0)))
    player.arrive(frame())
    player.now_ms += DRAIN_QUIET_MS
    player.give(Woke())
    assert player.dropped == []
    player.finish_run(next(iter(player.running)))
    player.deliver()
    player.deliver()
    player.now_ms += DRAIN_QUIET_MS
    player.give(Woke())
    assert [each.key for each in player.dropped] == [(EPOCH, 0)]
    assert not player.arrive(frame(request_id=5))
    assert "not loaded here" in player.messages()[-1].message


def test_loading_a_slice_again_keeps_it(player: Player) -> None:
    player.give(SliceUnloaded((EPOCH, 0)))
    player.give(loaded(0))
    player.now_ms += DRAIN_QUIET_MS
    player.give(Woke())
    assert player.dropped == []
    assert player.arrive(frame())


def test_a_delivery_after_the_gateway_cancelled_still_frees_the_outputs(player: Player) -> None:
    player.arrive(frame())
    player.finish_run(next(iter(player.running)))
    player.give(CancelArrived(cancel()))
    player.deliver()
    player.give(Delivered(player.deliveries.pop().task, THERE, "gone"))
    assert not player.outputs
    assert player.core.is_idle
    assert player.told == []


def test_inputs_of_one_frame_lie_in_one_slot_at_aligned_places() -> None:
    player = Player(2)
    both = frame(2, tensors=(HEADS, SCORES), producer=0, nodes=JOIN_NODES)
    assert not player.arrive(both)
    assert "takes no tensor 'scores' from slice 0" in only_failure(player).message
    assert PHOTO.nbytes == FEATURES.nbytes


def _with(run: object, **changes: object):
    from msgspec.structs import replace

    return replace(run, **changes)


def test_a_worker_that_leaves_gets_nothing_new_and_finishes_what_it_has(player: Player) -> None:
    player.arrive(frame(request_id=1))
    player.give(WorkerUp((EPOCH, 0), 99))
    player.give(WorkerLeaving(WORKER))
    assert not player.core.is_free(WORKER)
    assert player.offer(frame(request_id=2)) == 99
    (order,) = player.running.values()
    player.finish_run(order.task)
    assert player.core.is_free(WORKER)
    assert player.deliver() is not None
