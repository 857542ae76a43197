"""Attempts through agents: what goes out, what may come back, and how each ends."""

import asyncio
from collections.abc import Callable

import pytest
from gateway_fakes import (
    BOXES,
    GATEWAY_ID,
    LABELS,
    NODE_A,
    NODE_B,
    NODE_C,
    PHOTO,
    PHOTO_BYTES,
    SKIP_ROUTE,
    SKIP_SHAPE,
    SLICE_FIRST,
    SLICE_LAST,
    SLICE_MIDDLE,
    FakeSender,
    ended,
    in_virtual_time,
    outcome_of,
    part_of,
    settle,
    timing,
)
from msgspec.structs import replace

from din.domain.deployment import Route
from din.domain.model import GATEWAY, Edge, Partition
from din.domain.tensor import TensorMeta
from din.errors import Busy, DeadlineExceeded, ExecutionFailed, TooLarge, Unreachable
from din.gateway.requests.attempt import Attempt
from din.gateway.requests.failure import AttemptEnded
from din.gateway.requests.relay import TOMBSTONE_MS_MIN, Relay
from din.gateway.routes.shape import RouteShape
from din.wire.messages import Accepted, BusyNode, Cancel, Failed, Progress, Result, Run

REQUEST, NUMBER = 5, 1
REMAINING_MS = 20_000
SILENCE_MS = 3_000.0
RESULT_BYTES_MAX = 1_000


class Play:
    """A relay with one attempt under way."""

    def __init__(
        self,
        shape: RouteShape = SKIP_SHAPE,
        route: Route = SKIP_ROUTE,
        remaining_ms: Callable[[], int] = lambda: REMAINING_MS,
        alone: tuple[int, ...] = (),
    ) -> None:
        self.sender = FakeSender()
        loop = asyncio.get_running_loop()
        self.relay = Relay(loop, GATEWAY_ID, self.sender, lambda each: each[-2:], RESULT_BYTES_MAX)
        self.attempt = Attempt(REQUEST, NUMBER, route, shape, (), 0.0)
        self.remaining_ms = remaining_ms
        self.alone = set(alone)
        """Slices that no other node has."""

    def start(self, metas=(PHOTO,), chunks=((PHOTO_BYTES,),)) -> asyncio.Task:
        run = self.relay.run(
            self.attempt,
            metas,
            chunks,
            self.remaining_ms,
            SILENCE_MS,
            lambda index, _: index not in self.alone,
        )
        return asyncio.get_running_loop().create_task(run)

    def result(self, index: int, *metas: TensorMeta, number: int = NUMBER, timings=()) -> None:
        message = Result(REQUEST, number, index, metas, timings, 0)
        nbytes = sum(-(-meta.nbytes // 64) * 64 for meta in metas)
        body = self.relay.place_result(message, nbytes) if nbytes else None
        self.relay.on_result(message, body)

    def cancelled(self) -> set[str]:
        return {each.node_id for each in self.sender.of(Cancel)}


async def failure(task: asyncio.Task) -> AttemptEnded:
    found = await outcome_of(task)
    assert isinstance(found, AttemptEnded), found
    return found


def test_inputs_go_to_the_slices_that_read_them_and_to_no_other():
    async def story() -> None:
        play = Play()
        task = play.start(chunks=((PHOTO_BYTES[:5], PHOTO_BYTES[5:]),))
        await settle()
        (sent,) = play.sender.of(Run)
        assert (sent.node_id, sent.message.slice_index) == (NODE_A, SLICE_FIRST)
        assert (sent.message.request_id, sent.message.attempt) == (REQUEST, NUMBER)
        assert sent.message.route == SKIP_ROUTE
        assert sent.message.remaining_ms == REMAINING_MS
        assert (sent.message.origin, sent.message.target) == (GATEWAY_ID, "")
        assert sent.message.tensors == (PHOTO,)
        assert sent.body == PHOTO_BYTES
        await ended(task)

    in_virtual_time(story)


def test_each_slice_gets_its_own_inputs_and_a_slice_without_any_is_started_too():
    edges = (
        Edge("x", GATEWAY, (0, 2)),
        Edge("y", GATEWAY, (2,)),
        Edge("c", 1, (2,)),
        Edge("out", 2, (GATEWAY,)),
        Edge("early", 0, (GATEWAY,)),
    )
    shape = RouteShape(
        Partition(slices=tuple(part_of(i, edges) for i in range(3)), edges=edges), is_adapted=False
    )
    x, y = TensorMeta("x", "UINT8", (2,), 2), TensorMeta("y", "UINT8", (3,), 3)

    async def story() -> None:
        play = Play(shape)
        task = play.start((y, x), ((b"yyy",), (b"xx",)))
        await settle()
        bodies = {each.message.slice_index: each.body for each in play.sender.of(Run)}
        assert bodies == {0: b"xx", 1: b"", 2: b"xxyyy"}
        await ended(task)

    in_virtual_time(story)


def test_it_is_complete_when_every_producer_has_sent_its_outputs():
    async def story() -> None:
        play = Play()
        task = play.start()
        await settle()
        play.result(SLICE_MIDDLE, LABELS, timings=(timing(SLICE_FIRST, NODE_A),))
        await settle()
        assert not task.done()
        play.result(SLICE_LAST, BOXES, timings=(timing(SLICE_LAST, NODE_C),))
        await task
        assert [meta for meta, _ in play.attempt.outputs()] == [LABELS, BOXES]
        assert sorted(play.attempt.timings) == [SLICE_FIRST, SLICE_LAST]
        assert play.cancelled() == set()
        assert not play.relay._flights

    in_virtual_time(story)


def test_stale_results_failures_and_busy_answers_change_nothing():
    async def story() -> None:
        play = Play()
        task = play.start()
        await settle()
        play.result(SLICE_LAST, BOXES, number=NUMBER + 1)
        play.relay.on_failed(Failed(REQUEST, NUMBER + 1, 0, NODE_A, "DIN-330", "old"))
        play.relay.on_busy(BusyNode(REQUEST, NUMBER + 1, 0, NODE_A, 9, 5))
        play.relay.on_failed(Failed(REQUEST + 1, NUMBER, 0, NODE_A, "DIN-330", "unknown"))
        stale = Progress(REQUEST, NUMBER + 1, SLICE_FIRST, "forwarded")
        play.relay.on_accepted(Accepted((stale,)))
        await settle()
        assert not task.done()
        assert not play.attempt.received
        assert play.attempt.suspects()[0][0] == SLICE_FIRST
        await ended(task)

    in_virtual_time(story)


def test_a_result_with_a_tensor_that_its_slice_may_not_send_is_dropped():
    async def story() -> None:
        play = Play()
        task = play.start()
        await settle()
        play.result(SLICE_FIRST, BOXES)
        play.result(SLICE_LAST, BOXES, LABELS)
        play.result(99)
        assert not play.attempt.received
        assert play.relay.place_result(Result(REQUEST, NUMBER, 0, (BOXES,), (), 0), 64) is None
        await ended(task)

    in_virtual_time(story)


def test_a_result_that_nobody_waits_for_gets_no_memory():
    async def story() -> None:
        play = Play()
        assert play.relay.place_result(Result(77, NUMBER, 2, (BOXES,), (), 0), 64) is None

    in_virtual_time(story)


def test_a_body_over_the_limit_or_not_as_announced_ends_the_attempt_for_good():
    big = TensorMeta("boxes", "UINT8", (RESULT_BYTES_MAX + 1,), RESULT_BYTES_MAX + 1)
    for meta, nbytes in ((big, 1024), (BOXES, 128)):

        async def story(meta: TensorMeta = meta, nbytes: int = nbytes) -> AttemptEnded:
            play = Play()
            task = play.start()
            await settle()
            message = Result(REQUEST, NUMBER, SLICE_LAST, (meta,), (), 0)
            body = play.relay.place_result(message, nbytes)
            assert body is None
            play.relay.on_result(message, body)
            return await failure(task)

        found = in_virtual_time(story)
        assert isinstance(found.error, ExecutionFailed)
        assert "cc" in found.error.message
        assert not found.is_retryable


@pytest.mark.parametrize(
    "meta",
    [
        TensorMeta("boxes", "FP32", (4,), 3),
        TensorMeta("boxes", "FP32", (4,), -16),
        TensorMeta("boxes", "FP32", (-4,), 16),
        TensorMeta("boxes", "WHAT", (4,), 16),
        TensorMeta("boxes", "FP32", (4,), 12, "zstd"),
    ],
)
def test_a_tensor_whose_size_cannot_be_blames_its_sender(meta: TensorMeta):
    async def story() -> None:
        play = Play()
        task = play.start()
        await settle()
        message = Result(REQUEST, NUMBER, SLICE_LAST, (meta,), (), 0)
        assert play.relay.place_result(message, 64) is None
        play.relay.on_result(message, None)
        found = await failure(task)
        assert found.blamed == (NODE_C,)
        assert found.is_retryable
        assert "which cannot be" in found.error.message

    in_virtual_time(story)


def test_busy_blames_nobody_but_names_who_to_leave_out():
    async def story() -> None:
        play = Play()
        task = play.start()
        await settle()
        play.relay.on_busy(BusyNode(REQUEST, NUMBER, SLICE_MIDDLE, NODE_B, 12, 50))
        found = await failure(task)
        assert isinstance(found.error, Busy)
        assert found.is_busy
        assert not found.is_node_suspect
        assert found.blamed == (NODE_B,)
        assert play.cancelled() == {NODE_A, NODE_B, NODE_C}

    in_virtual_time(story)


def test_a_failure_carries_code_node_and_slice_and_cancels_everywhere():
    async def story() -> None:
        play = Play()
        task = play.start()
        await settle()
        play.relay.on_failed(Failed(REQUEST, NUMBER, SLICE_MIDDLE, NODE_B, "DIN-330", "it broke"))
        found = await failure(task)
        assert found.error.message == "slice part1 on node bb: it broke"
        assert (found.blamed, found.is_retryable, found.is_node_suspect) == ((NODE_B,), True, False)
        assert play.cancelled() == {NODE_A, NODE_B, NODE_C}
        assert not play.relay._flights

    in_virtual_time(story)


def test_a_failure_that_another_node_would_repeat_blames_nobody():
    async def story() -> None:
        play = Play()
        task = play.start()
        await settle()
        failed = Failed(REQUEST, NUMBER, 0, NODE_A, "DIN-110", "wrong", is_retryable=False)
        play.relay.on_failed(failed)
        found = await failure(task)
        assert (found.error.code, found.blamed, found.is_retryable) == ("DIN-110", (), False)

    in_virtual_time(story)


def test_a_node_that_could_not_be_reached_by_its_peer_is_suspect():
    async def story() -> None:
        play = Play()
        task = play.start()
        await settle()
        play.relay.on_failed(Failed(REQUEST, NUMBER, SLICE_LAST, NODE_C, "DIN-310", "no link"))
        found = await failure(task)
        assert found.is_node_suspect
        assert found.blamed == (NODE_C,)

    in_virtual_time(story)


def test_a_failure_cannot_blame_a_node_that_takes_no_part():
    async def story() -> None:
        play = Play()
        task = play.start()
        await settle()
        play.relay.on_failed(Failed(REQUEST, NUMBER, 0, "0" * 16, "DIN-310", "it was them"))
        assert (await failure(task)).blamed == ()

    in_virtual_time(story)


def test_a_lost_link_ends_the_attempts_that_use_the_node_and_no_other():
    async def story() -> None:
        play = Play()
        task = play.start()
        await settle()
        play.relay.node_down("0" * 16, "gone")
        await settle()
        assert not task.done()
        play.relay.node_down(NODE_B, "link closed: reset")
        found = await failure(task)
        assert found.is_node_suspect
        assert found.blamed == (NODE_B,)
        assert "link closed: reset" in found.error.message

    in_virtual_time(story)


def test_only_the_producer_on_the_route_may_send_through_the_gateway():
    async def story() -> None:
        play = Play()
        task = play.start()
        await settle()
        route = play.attempt.route
        first, second = route.nodes[:2]
        frame = Run(
            play.attempt.request_id, NUMBER, 1, route, 1000, (), GATEWAY_ID, second, producer=0
        )
        assert play.relay.is_party(first, frame.request_id)
        assert not play.relay.is_party("0" * 16, frame.request_id)
        assert play.relay.is_edge(first, frame)
        for wrong in (
            replace(frame, producer=1),
            replace(frame, producer=-1),
            replace(frame, producer=99),
            replace(frame, slice_index=99),
            replace(frame, target=first),
            replace(frame, route=replace(route, nodes=("0" * 16, *route.nodes[1:]))),
            replace(frame, request_id=99),
        ):
            assert not play.relay.is_edge(first, wrong)
        assert not play.relay.is_edge(second, frame)
        assert play.relay.is_under_way(frame)
        assert not play.relay.is_under_way(replace(frame, attempt=NUMBER + 1))
        await ended(task)
        assert not play.relay.is_under_way(frame)

    in_virtual_time(story)


def test_silence_blames_whoever_holds_the_attempt_up():
    async def story() -> None:
        play = Play()
        task = play.start()
        await settle()
        play.relay.on_accepted(Accepted((Progress(REQUEST, NUMBER, SLICE_MIDDLE, "accepted"),)))
        found = await failure(task)
        assert found.blamed == (NODE_B,)
        assert found.is_node_suspect
        assert found.is_retryable
        assert "slice part1 on node bb accepted the inputs and fell silent" in found.error.message
        assert play.cancelled() == {NODE_A, NODE_B, NODE_C}

    in_virtual_time(story)


def test_a_silent_slice_that_nobody_else_has_is_waited_for():
    """Another try would only queue behind the first one on the same node."""

    async def story() -> None:
        play = Play(alone=(SLICE_MIDDLE,))
        task = play.start()
        await settle()
        play.relay.on_accepted(Accepted((Progress(REQUEST, NUMBER, SLICE_MIDDLE, "accepted"),)))
        await asyncio.sleep(SILENCE_MS / 1000 * 2.5)
        assert not task.done()
        play.alone.clear()  # another replica became ready
        found = await failure(task)
        assert found.blamed == (NODE_B,)

    in_virtual_time(story)


def test_tensors_that_are_still_travelling_are_no_silence():
    """16 MiB on a link of 4 MiB a second: no node is suspected after the few seconds that a small
    request may take."""
    side = 2048

    async def story() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        large = TensorMeta(PHOTO.name, "FP32", (side, side), side * side * 4)
        play = Play()
        found = await failure(play.start((large,), ((bytes(large.nbytes),),)))
        assert found.is_node_suspect
        crossings = len(play.attempt.shape.slices) + 1
        assert loop.time() - began >= SILENCE_MS / 1000 + crossings * 4 - 0.01

    in_virtual_time(story)


def test_silence_until_the_deadline_is_the_deadline():
    async def story() -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + SILENCE_MS / 1000
        play = Play(remaining_ms=lambda: int((end - loop.time()) * 1000))
        found = await failure(play.start())
        assert isinstance(found.error, DeadlineExceeded)
        assert "slice part0 on node aa never confirmed its inputs" in found.error.message
        assert not found.is_retryable

    in_virtual_time(story)


def test_cancelling_the_task_cancels_on_every_node_and_leaves_nothing():
    async def story() -> None:
        play = Play(remaining_ms=lambda: 5)
        task = play.start()
        await settle()
        await ended(task)
        assert task.cancelled()
        assert play.cancelled() == {NODE_A, NODE_B, NODE_C}
        (message, *_) = [each.message for each in play.sender.of(Cancel)]
        assert message.remaining_ms == TOMBSTONE_MS_MIN
        assert (message.request_id, message.attempt) == (REQUEST, NUMBER)
        assert not play.relay._flights
        play.result(SLICE_LAST, BOXES)  # comes late and finds nobody

    in_virtual_time(story)


def test_a_node_without_a_link_is_unreachable_and_suspect():
    async def story() -> None:
        play = Play()
        play.sender.closed.add(NODE_A)
        found = await failure(play.start())
        assert isinstance(found.error, Unreachable)
        assert (found.blamed, found.is_node_suspect) == ((NODE_A,), True)
        assert play.cancelled() == {NODE_B, NODE_C}
        assert not play.relay._flights

    in_virtual_time(story)


def test_a_link_whose_queue_is_full_is_busy_and_not_suspect():
    async def story() -> None:
        play = Play()
        play.sender.full.add(NODE_A)
        found = await failure(play.start())
        assert isinstance(found.error, Busy)
        assert (found.is_busy, found.is_node_suspect) == (True, False)

    in_virtual_time(story)


def test_inputs_over_the_frame_limit_end_it_with_that_error():
    async def story() -> None:
        play = Play()
        play.sender.error = TooLarge("too many bytes")
        found = await failure(play.start())
        assert isinstance(found.error, TooLarge)
        assert not found.is_retryable
        assert not play.relay._flights

    in_virtual_time(story)


def test_an_output_without_bytes_needs_no_body():
    empty = TensorMeta("boxes", "FP32", (0, 4), 0)

    async def story() -> None:
        play = Play()
        task = play.start()
        await settle()
        play.result(SLICE_MIDDLE, LABELS)
        play.result(SLICE_LAST, empty)
        await task
        assert play.attempt.outputs()[1][0] == empty

    in_virtual_time(story)
