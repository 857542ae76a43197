"""The small books: traces, live replicas, what nodes still hold."""

from __future__ import annotations

import asyncio

import pytest
from gateway_fakes import (
    EPOCH,
    NODE_A,
    NODE_B,
    FakeSender,
    chain_of,
    in_virtual_time,
    manifest_of,
    serving_of,
    settle,
    timing,
)
from msgspec.structs import replace

from din.domain.deployment import Deployment, Epoch
from din.domain.tensor import TensorMeta, TensorSpec
from din.errors import Conflict, NotFound
from din.flow.recent import AGE_MS_MAX
from din.flow.timeout import Timeouts
from din.gateway.deployment.leftovers import EPOCHS_MAX, NODES_MAX, Leftovers
from din.gateway.routes.serving import (
    COMPUTE_EVERY_MS,
    COMPUTES_MIN,
    SHAPES_MAX,
    STALE_MS,
    LiveReplica,
    Serving,
    shapes_in,
)
from din.gateway.telemetry.traces import TRACES_KEPT_MAX, Outcome, TraceBook
from din.wire.messages import Unload

OLD, OLDER = Epoch(1, 2), Epoch(1, 1)


def filled(*ids: str) -> TraceBook:
    async def made() -> TraceBook:
        book = TraceBook(lambda each: f"name-{each[-2:]}", lambda: "now")
        serving = serving_of(chain_of(1))
        for request_id in ids:
            book.keep(
                Outcome(
                    request_id=request_id,
                    manifest=serving.deployment.manifest,
                    shape=serving.raw,
                    status="completed",
                    duration_ms=12.3456,
                    timings={0: timing(0, NODE_A)},
                    records=(),
                    path="relay",
                )
            )
        return book

    return in_virtual_time(made)


# Traces.


def test_a_trace_names_nodes_and_slices_for_people():
    trace = filled("req-1").find("req-1")
    assert trace.execution_trace[0].node == "name-aa"
    assert trace.execution_trace[0].phase == "part0"
    assert (trace.duration_ms, trace.started_at) == (12.346, "now")


def test_only_the_newest_traces_are_kept():
    book = filled(*(f"req-{number:05}" for number in range(TRACES_KEPT_MAX + 5)))
    assert len(book.newest(10_000)) == TRACES_KEPT_MAX
    with pytest.raises(NotFound):
        book.find("req-00004")
    assert book.find("req-00005").request_id == "req-00005"


def test_newest_traces_come_first_and_a_limit_below_one_gives_none():
    book = filled("a", "b", "c")
    assert [each.request_id for each in book.newest(2)] == ["c", "b"]
    assert book.newest(0) == book.newest(-3) == ()


def test_a_trace_is_found_by_a_unique_beginning_and_as_the_last():
    book = filled("req-aa11", "req-aa22", "req-bb33")
    assert book.find("req-b").request_id == "req-bb33"
    assert book.find("last").request_id == "req-bb33"
    with pytest.raises(Conflict) as ambiguous:
        book.find("req-aa")
    assert "req-aa11" in ambiguous.value.hint


def test_an_id_that_begins_another_is_exact():
    book = filled("req", "req-1")
    assert book.find("req").request_id == "req"


def test_a_request_id_used_twice_shows_the_newer_as_the_last():
    book = filled("a", "b", "a")
    assert len(book.newest(9)) == 2
    assert book.find("last").request_id == "a"


def test_nothing_is_found_in_an_empty_book():
    book = filled()
    for wanted in ("last", "x", ""):
        with pytest.raises(NotFound):
            book.find(wanted)


# Live replicas.


def test_the_mean_of_a_replica_follows_slowly():
    replica = LiveReplica("slice", NODE_A, is_local=False, timeouts=Timeouts())
    replica.observe(8.0, 0.0)
    assert replica.mean_ms == 8.0
    replica.observe(16.0, 0.0)
    assert replica.mean_ms == 9.0


def test_an_old_mean_does_not_choose_any_more():
    replica = LiveReplica("slice", NODE_A, is_local=False, timeouts=Timeouts())
    replica.observe(8.0, 1_000.0)
    assert replica.fresh_mean_ms(1_000.0 + STALE_MS - 1) == 8.0
    assert replica.fresh_mean_ms(1_000.0 + STALE_MS) is None
    assert replica.mean_ms == 8.0


def test_a_failure_before_the_first_success_is_no_mean():
    replica = LiveReplica("slice", NODE_A, is_local=False, timeouts=Timeouts())
    replica.observe_failure(0.0)
    assert replica.mean_ms is None
    replica.observe(8.0, 0.0)
    replica.observe_failure(0.0)
    assert replica.mean_ms > 8.0


def test_what_a_slice_computes_is_kept_by_the_shapes_of_the_inputs():
    replica = LiveReplica("slice", NODE_A, is_local=False, timeouts=Timeouts())
    small, large = (shapes_in((TensorMeta("x", "FP32", (n, 4), 16 * n),)) for n in (1, 8))
    for compute_ms in (90.0, 2.0, 2.1, 1.9, 2.0):  # the first was cold
        assert replica.compute_ms(small, 0.0) is None
        replica.observe_compute(small, compute_ms, 0.0)
    assert replica.compute_ms(small, 0.0) == 2.0
    assert replica.compute_ms(large, 0.0) is None
    assert replica.compute_ms(small, AGE_MS_MAX + 1) is None


def test_of_many_runs_one_in_fifty_milliseconds_is_looked_at():
    replica = LiveReplica("slice", NODE_A, is_local=False, timeouts=Timeouts())
    assert replica.is_compute_due(0.0)
    replica.observe_compute(None, 2.0, 0.0)
    assert not replica.is_compute_due(COMPUTE_EVERY_MS - 1)
    assert replica.is_compute_due(COMPUTE_EVERY_MS)


def test_a_replica_keeps_times_for_few_shapes():
    replica = LiveReplica("slice", NODE_A, is_local=False, timeouts=Timeouts())
    kinds = [frozenset({("x", (number,))}) for number in range(SHAPES_MAX + 1)]
    for shapes in kinds:
        for _ in range(COMPUTES_MIN):
            replica.observe_compute(shapes, 3.0, 0.0)
    assert [replica.compute_ms(shapes, 0.0) for shapes in kinds] == [None] + [3.0] * SHAPES_MAX


def test_shapes_behind_an_adapter_are_known_only_when_they_are_fixed():
    """What an adapter makes of a photo is not in the request."""

    async def story() -> None:
        meta = TensorMeta("photo", "BYTES", (1,), 10)
        for dims, found in (((1, 3), frozenset({("t0", (1, 3))})), (("N", 3), None)):
            partition = replace(chain_of(1), adapted_edges=chain_of(1).edges)
            inputs = (TensorSpec("t0", "FP32", dims),)
            manifest = replace(manifest_of(partition), inputs=inputs)
            deployment = Deployment(epoch=EPOCH, manifest=manifest, partition=partition)
            serving = Serving(deployment, Timeouts())
            assert serving.adapted is not None
            assert serving.shapes_of(serving.adapted, (meta,)) == found
            raw = serving.shapes_of(serving.raw, (meta,))
            assert raw == (found if found is not None else shapes_in((meta,)))

    in_virtual_time(story)


def test_a_replica_that_is_added_again_keeps_its_counters():
    async def story() -> None:
        serving = serving_of(chain_of(1))
        serving.add(0, NODE_A, is_local=False)
        serving.replicas(0)[NODE_A].observe(5.0, 0.0)
        serving.add(0, NODE_A, is_local=False)
        assert serving.replicas(0)[NODE_A].mean_ms == 5.0

    in_virtual_time(story)


def test_a_model_without_adapters_has_one_shape():
    async def story() -> None:
        serving = serving_of(chain_of(1))
        assert serving.shape(is_adapted=True) is serving.shape(is_adapted=False)

    in_virtual_time(story)


def test_waiting_ends_with_the_change_or_with_the_time():
    async def story() -> None:
        serving = serving_of(chain_of(1))
        loop = asyncio.get_running_loop()
        started = loop.time()
        await serving.wait_for_change(3.0)
        assert loop.time() - started == pytest.approx(3.0)
        task = asyncio.create_task(serving.wait_for_change(1_000.0))
        await settle()
        serving.notify()
        await task
        assert loop.time() - started == pytest.approx(3.0)

    in_virtual_time(story)


def test_a_cancellation_that_comes_with_a_change_is_not_lost():
    async def story() -> None:
        serving = serving_of(chain_of(1))
        task = asyncio.create_task(serving.wait_for_change(1_000.0))
        await settle()
        serving.notify()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        other = asyncio.create_task(serving.wait_for_change(1_000.0))
        await settle()
        serving.notify()
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        assert other.cancelled()

    in_virtual_time(story)


# What nodes still hold.


def test_a_node_with_a_link_unloads_at_once():
    sender = FakeSender()
    Leftovers(sender).unload(NODE_A, OLD)
    assert [(each.node_id, each.message) for each in sender.sent] == [(NODE_A, Unload(OLD))]


def test_an_absent_node_unloads_when_it_returns_unless_it_holds_it_again():
    sender = FakeSender()
    sender.closed.add(NODE_A)
    left = Leftovers(sender)
    left.unload(NODE_A, OLD)
    left.unload(NODE_A, EPOCH)
    sender.closed.clear()
    left.node_connected(NODE_A, (), lambda epoch: epoch == EPOCH)
    assert [each.message for each in sender.sent] == [Unload(OLD)]
    sender.sent.clear()
    left.node_connected(NODE_A, (), lambda _: False)
    assert not sender.sent


def test_every_node_hears_once_of_what_earlier_sessions_left():
    sender = FakeSender()
    left = Leftovers(sender)
    for _ in range(2):
        left.node_connected(NODE_A, (OLD, OLDER), lambda _: False)
    left.node_connected(NODE_B, (OLD,), lambda _: False)
    heard = [(each.node_id, each.message.epoch) for each in sender.sent]
    assert heard == [(NODE_A, OLDER), (NODE_A, OLD), (NODE_B, OLD)]


def test_what_is_remembered_of_absent_nodes_is_bounded():
    sender = FakeSender()
    left = Leftovers(sender)
    sender.closed = {f"{number:016x}" for number in range(NODES_MAX + 10)}
    for node_id in sorted(sender.closed):
        left.unload(node_id, OLD)
    for number in range(EPOCHS_MAX + 10):
        left.unload(max(sender.closed), Epoch(9, number))
    assert len(left._left) == NODES_MAX
    assert len(left._left[max(sender.closed)]) == EPOCHS_MAX
