"""Whole agents as processes, against a gateway that only records."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import onnx_models
import pytest
from agent_gateway import EPOCH, GATEWAY_ID, FakeGateway, Node, make_slice
from msgspec.structs import replace

from din.domain.deployment import Epoch
from din.domain.model import GATEWAY, Edge
from din.domain.tensor import TensorMeta, TensorSpec
from din.wire.messages import (
    Accepted,
    BusyNode,
    Cancel,
    Failed,
    Lift,
    Offer,
    Prepared,
    PrepareFailed,
    Progress,
    Result,
    Revoke,
    Revoked,
    Unload,
    WorkerDied,
)

pytestmark = pytest.mark.system

IDLE_RESIDENT_KIB_MAX = 30 * 1024
FORBIDDEN = (
    "numpy", "onnx", "onnxruntime", "grpc", "flatbuffers", "click", "rich",
    "starlette", "zeroconf", "cryptography", "yaml",
)  # fmt: skip
X = TensorMeta("x", "FP32", (1, 4), 16)
ONES = struct.pack("<4f", 1, 2, 3, 4)
DOUBLE_EDGES = (Edge("x", GATEWAY, (0,)), Edge("y", 0, (GATEWAY,)))
CHAIN_EDGES = (Edge("x", GATEWAY, (0,)), Edge("y", 0, (1,)), Edge("z", 1, (GATEWAY,)))

Story = Callable[[FakeGateway, Path], Coroutine[Any, Any, None]]


def play(folder: Path, story: Story) -> None:
    async def whole() -> None:
        async with FakeGateway(folder) as gateway:
            await story(gateway, folder)

    asyncio.run(whole())


def chain_part() -> bytes:
    from onnx import TensorProto, helper

    node = helper.make_node("Add", ["y", "y"], ["z"])
    value = TensorProto.FLOAT, (1, 4)
    return onnx_models.model([node], [("y", *value)], [("z", *value)])


async def load(gateway: FakeGateway, node: Node, workers: int = 1) -> Prepared:
    slice_ = make_slice(0, gateway.artifact(onnx_models.double()))
    gateway.prepare(node.node_id, slice_, DOUBLE_EDGES, workers=workers)
    prepared, _, _ = await gateway.message(Prepared, node.node_id)
    return prepared


def test_a_node_joins_loads_a_slice_and_answers(tmp_path: Path) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "one", gateway) as node:
            prepared = await load(gateway, node)
            assert (prepared.epoch, prepared.slice_index, prepared.undialable) == (EPOCH, 0, ())
            gateway.run(node.node_id, (node.node_id,), {"x": (X, ONES)})
            result, body, _ = await gateway.message(Result)
            assert struct.unpack("<4f", body[:16]) == (2, 4, 6, 8)
            assert result.tensors == (TensorMeta("y", "FP32", (1, 4), 16),)
            assert [each.node_id for each in result.timings] == [node.node_id]
            await gateway.until(lambda: gateway.beats >= 2)
            assert await node.stop() == 0
        assert any(node.node_id in each for each in gateway.goodbyes)
        assert gateway.closed[-1][2], "the link was closed in an orderly way"

    play(tmp_path, story)


def test_preparing_again_answers_at_once_without_loading_or_fetching(tmp_path: Path) -> None:
    """T60: what is here already needs no download and no room."""

    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "one", gateway) as node:
            await load(gateway, node)
            await load(gateway, node)
            await gateway.message(Prepared, nth=1)
            assert len(gateway.artifact_starts) == 1
            await node.stop()
            await node.start()
            gateway.artifacts.clear()
            gateway.inbox.clear()
            data = onnx_models.double()
            artifact = make_slice(0, gateway.artifact(data))
            gateway.artifacts.clear()
            gateway.prepare(node.node_id, artifact, DOUBLE_EDGES)
            await gateway.message(Prepared)
            await node.stop()
            assert len(node.events("slice_loaded")) == 1

    play(tmp_path, story)


def test_a_restarted_node_loads_its_engine_before_it_is_asked(tmp_path: Path) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "one", gateway) as node:
            assert not _children(node.process.pid), "a node that never held a slice loads nothing"
            await load(gateway, node)
            await node.stop()
            await node.start()
            assert len(_children(node.process.pid)) == 1
            await node.stop()

    play(tmp_path, story)


def test_tensors_go_straight_from_node_to_node(tmp_path: Path) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as first, Node(folder, "b", gateway) as second:
            peers = {first.node_id: first.addresses, second.node_id: second.addresses}
            one = make_slice(0, gateway.artifact(onnx_models.double()))
            two = make_slice(1, gateway.artifact(chain_part()), ("y", "z"))
            gateway.prepare(first.node_id, one, CHAIN_EDGES, peers=peers)
            gateway.prepare(second.node_id, two, CHAIN_EDGES, peers=peers)
            for node in (first, second):
                prepared, _, _ = await gateway.message(Prepared, node.node_id)
                assert prepared.undialable == ()
            gateway.run(first.node_id, (first.node_id, second.node_id), {"x": (X, ONES)})
            result, body, _ = await gateway.message(Result)
            assert struct.unpack("<4f", body[:16]) == (4, 8, 12, 16)
            assert [each.slice_index for each in result.timings] == [0, 1]
            assert not [each for each in gateway.inbox if type(each[1]).__name__ == "Run"]

    play(tmp_path, story)


def test_a_node_that_cannot_be_dialled_is_named_and_fed_through_the_gateway(
    tmp_path: Path,
) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as first, Node(folder, "b", gateway) as second:
            hidden = {first.node_id: first.addresses, second.node_id: ("tcp:127.0.0.1:1",)}
            one = make_slice(0, gateway.artifact(onnx_models.double()))
            two = make_slice(1, gateway.artifact(chain_part()), ("y", "z"))
            gateway.prepare(first.node_id, one, CHAIN_EDGES, peers=hidden)
            gateway.prepare(second.node_id, two, CHAIN_EDGES)
            prepared, _, _ = await gateway.message(Prepared, first.node_id)
            assert prepared.undialable == (second.node_id,)
            await gateway.message(Prepared, second.node_id)
            gateway.run(first.node_id, (first.node_id, second.node_id), {"x": (X, ONES)})
            _, body, _ = await gateway.message(Result)
            assert struct.unpack("<4f", body[:16]) == (4, 8, 12, 16)

    play(tmp_path, story)


def test_a_peer_that_can_be_dialled_after_all_is_told_to_the_gateway(tmp_path: Path) -> None:
    """The plan says which edges are relayed: it must not say so for ever."""

    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as first, Node(folder, "b", gateway) as second:
            hidden = {first.node_id: first.addresses, second.node_id: ("tcp:127.0.0.1:1",)}
            one = make_slice(0, gateway.artifact(onnx_models.double()))
            two = make_slice(1, gateway.artifact(chain_part()), ("y", "z"))
            gateway.prepare(first.node_id, one, CHAIN_EDGES, peers=hidden)
            prepared, _, _ = await gateway.message(Prepared, first.node_id)
            assert prepared.undialable == (second.node_id,)
            known = {first.node_id: first.addresses, second.node_id: second.addresses}
            gateway.prepare(second.node_id, two, CHAIN_EDGES, peers=known)
            again, _, _ = await gateway.message(Prepared, first.node_id, nth=1)
            assert again.undialable == ()

    play(tmp_path, story)


def test_both_slices_on_one_node_hand_tensors_over_inside(tmp_path: Path) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as node:
            one = make_slice(0, gateway.artifact(onnx_models.double()))
            two = make_slice(1, gateway.artifact(chain_part()), ("y", "z"))
            for each in (one, two):
                gateway.prepare(node.node_id, each, CHAIN_EDGES)
            await gateway.message(Prepared, nth=1)
            gateway.run(node.node_id, (node.node_id, node.node_id), {"x": (X, ONES)})
            _, body, _ = await gateway.message(Result)
            assert struct.unpack("<4f", body[:16]) == (4, 8, 12, 16)

    play(tmp_path, story)


def test_wrong_tensors_and_unknown_epochs_fail_in_words(tmp_path: Path) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as node:
            await load(gateway, node)
            wide = TensorMeta("x", "FP64", (1, 4), 32)
            gateway.run(node.node_id, (node.node_id,), {"x": (wide, bytes(32))})
            failed, _, _ = await gateway.message(Failed)
            assert (failed.code, failed.is_retryable) == ("DIN-110", False)
            assert "is FP64 but the model takes FP32" in failed.message
            gateway.run(
                node.node_id, (node.node_id,), {"x": (X, ONES)}, request_id=2,
                epoch=type(EPOCH)(5, 5),
            )  # fmt: skip
            failed, _, _ = await gateway.message(Failed, nth=1)
            assert (failed.code, failed.is_retryable) == ("DIN-300", True)

    play(tmp_path, story)


def test_a_frame_over_the_arena_is_too_large_and_the_node_lives(tmp_path: Path) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as node:
            slice_ = make_slice(0, gateway.artifact(onnx_models.identity(1, ("N",))))
            free = (TensorSpec("x", "FP32", ("N",)),)
            slice_ = replace(slice_, inputs=free, outputs=(TensorSpec("y", "FP32", ("N",)),))
            gateway.prepare(node.node_id, slice_, DOUBLE_EDGES)
            await gateway.message(Prepared)
            count = 20 * 1024 * 1024
            big = TensorMeta("x", "FP32", (count,), count * 4)
            gateway.run(node.node_id, (node.node_id,), {"x": (big, bytes(count * 4))})
            failed, _, _ = await gateway.message(Failed)
            assert failed.code == "DIN-140"
            small = TensorMeta("x", "FP32", (4,), 16)
            gateway.run(node.node_id, (node.node_id,), {"x": (small, ONES)}, request_id=2)
            await gateway.message(Result)

    play(tmp_path, story)


def test_a_cancelled_attempt_is_stopped_while_it_runs_and_never_started_after(
    tmp_path: Path,
) -> None:
    """T49: the client has gone, so the work ends."""

    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as node:
            slice_ = make_slice(0, gateway.artifact(onnx_models.endless()))
            one = (TensorSpec("x", "FP32", (1,)),), (TensorSpec("y", "FP32", (1,)),)
            gateway.prepare(
                node.node_id, replace(slice_, inputs=one[0], outputs=one[1]), DOUBLE_EDGES
            )
            await gateway.message(Prepared)
            link, nodes = gateway.links[node.node_id], (node.node_id,)
            meta = TensorMeta("x", "FP32", (1,), 4)
            endless, quick = struct.pack("<f", 5), struct.pack("<f", 1)
            gateway.run(node.node_id, nodes, {"x": (meta, endless)})
            accepted, _, _ = await gateway.message(Accepted)
            assert accepted.marks == (Progress(1, 1, 0, "accepted"),)
            link.send(Cancel(1, 1, GATEWAY_ID, 5_000))
            gateway.run(node.node_id, nodes, {"x": (meta, endless)})
            gateway.run(node.node_id, nodes, {"x": (meta, quick)}, request_id=2)
            result, _, _ = await gateway.message(Result)
            assert result.request_id == 2
            assert not [each for each in gateway.inbox if isinstance(each[1], (Failed, BusyNode))]

    play(tmp_path, story)


def test_a_run_ends_at_its_deadline(tmp_path: Path) -> None:
    """T48: the time-out fires on time, for the one that runs and the one behind it."""

    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as node:
            slice_ = make_slice(0, gateway.artifact(onnx_models.endless()))
            one = (TensorSpec("x", "FP32", (1,)),), (TensorSpec("y", "FP32", (1,)),)
            gateway.prepare(
                node.node_id, replace(slice_, inputs=one[0], outputs=one[1]), DOUBLE_EDGES
            )
            await gateway.message(Prepared)
            meta, endless = TensorMeta("x", "FP32", (1,), 4), struct.pack("<f", 5)
            for number in range(1, 5):
                gateway.run(
                    node.node_id, (node.node_id,), {"x": (meta, endless)}, request_id=number,
                    remaining_ms=300,
                )  # fmt: skip
            await gateway.message(Failed, nth=3)
            failures = [each[1] for each in gateway.inbox if isinstance(each[1], Failed)]
            assert {each.request_id for each in failures} == {1, 2, 3, 4}
            assert {(each.code, each.is_retryable) for each in failures} == {("DIN-400", False)}

    play(tmp_path, story)


def test_a_killed_worker_is_replaced_and_offered_again(tmp_path: Path) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as node:
            await load(gateway, node)
            offer, _, fds = await gateway.message(Offer)
            assert (offer.epoch, offer.slice_index, len(fds)) == (EPOCH, 0, 2)
            os.kill(_worker_pid(node.process.pid), signal.SIGKILL)
            again, _, _ = await gateway.message(Offer, nth=1)
            assert again.worker_id != offer.worker_id
            gateway.run(node.node_id, (node.node_id,), {"x": (X, ONES)})
            await gateway.message(Result)
            await node.stop()
            assert "SIGKILL" in node.events("worker_died")[0]["reason"]

    play(tmp_path, story)


def test_a_slice_that_ends_its_worker_twice_is_kept_out_until_it_is_lifted(tmp_path: Path) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as node:
            await load(gateway, node)
            for number in range(2):
                await gateway.message(Offer, nth=number)
                os.kill(_worker_pid(node.process.pid), signal.SIGSEGV)
                died, _, _ = await gateway.message(WorkerDied, nth=number)
                assert (died.death.kind, died.slice_index) == ("crash", 0)
                assert "SIGSEGV" in died.death.reason
                assert died.death.memory_mib_peak > 0
            out, _, _ = await gateway.message(PrepareFailed)
            assert out.code == "DIN-340"
            assert "ended its workers here 2 times" in out.message
            slice_ = make_slice(0, gateway.artifact(onnx_models.double()))
            other = Epoch(2, 2)
            gateway.prepare(node.node_id, slice_, DOUBLE_EDGES, epoch=other)
            refused, _, _ = await gateway.message(PrepareFailed, nth=1)
            assert (refused.epoch, refused.code) == (other, "DIN-340")
            gateway.links[node.node_id].send(Lift())
            gateway.prepare(node.node_id, slice_, DOUBLE_EDGES, epoch=other)
            loaded, _, _ = await gateway.message(Prepared, nth=1)
            assert loaded.epoch == other

    play(tmp_path, story)


def test_a_worker_that_the_gateway_gave_up_is_ended_and_replaced(tmp_path: Path) -> None:
    """It may hang where it cannot even end itself: only who feeds it sees that."""

    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as node:
            await load(gateway, node)
            first, _, _ = await gateway.message(Offer)
            os.kill(_worker_pid(node.process.pid), signal.SIGSTOP)
            gateway.links[node.node_id].send(Revoked(first.worker_id))
            died, _, _ = await gateway.message(WorkerDied)
            assert died.death.kind == "stuck"
            assert "did not answer the gateway" in died.death.reason
            second, _, _ = await gateway.message(Offer, nth=1)
            assert second.worker_id != first.worker_id
            gateway.links[node.node_id].send(Revoked(first.worker_id))
            gateway.run(node.node_id, (node.node_id,), {"x": (X, ONES)})
            await gateway.message(Result)

    play(tmp_path, story)


def test_a_second_signal_ends_a_node_that_waits_for_its_work_at_once(tmp_path: Path) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as node:
            slice_ = make_slice(0, gateway.artifact(onnx_models.endless()))
            spec = (TensorSpec("x", "FP32", (1,)),)
            outs = (TensorSpec("y", "FP32", (1,)),)
            endless = replace(slice_, inputs=spec, outputs=outs)
            gateway.prepare(node.node_id, endless, DOUBLE_EDGES)
            await gateway.message(Prepared)
            meta = TensorMeta("x", "FP32", (1,), 4)
            gateway.run(node.node_id, (node.node_id,), {"x": (meta, struct.pack("<f", 5))})
            pidfd = os.pidfd_open(_worker_pid(node.process.pid))
            await gateway.message(Accepted)
            node.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(1.5)
            node.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(node.process.wait(), 5) == 1
            assert node.events("stopped") == []
            ended = select.poll()
            ended.register(pidfd, select.POLLIN)
            assert await asyncio.to_thread(ended.poll, 10_000)
            os.close(pidfd)

    play(tmp_path, story)


def test_a_worn_worker_is_revoked_once_its_successor_was_offered(tmp_path: Path) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway, worker_requests_max=3) as node:
            await load(gateway, node)
            first, _, _ = await gateway.message(Offer)
            for number in range(3):
                gateway.run(node.node_id, (node.node_id,), {"x": (X, ONES)}, request_id=number + 1)
            second, _, _ = await gateway.message(Offer, nth=1)
            assert second.worker_id != first.worker_id
            revoke, _, _ = await gateway.message(Revoke)
            assert revoke.worker_id == first.worker_id
            gateway.links[node.node_id].send(Revoked(first.worker_id))
            gateway.run(node.node_id, (node.node_id,), {"x": (X, ONES)}, request_id=4)
            await gateway.message(Result, nth=3)
            await node.stop()
            (replaced,) = node.events("worker_replaced")
            assert (replaced["worker"], replaced["requests"]) == (first.worker_id, 3)
            assert node.events("worker_died") == []

    play(tmp_path, story)


def test_a_killed_node_comes_back_under_its_id_with_a_newer_session(tmp_path: Path) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as node:
            await load(gateway, node)
            before, session = node.node_id, gateway.profiles["a"].session
            assert await node.stop(signal.SIGKILL) == -signal.SIGKILL
            await gateway.until(lambda: before not in gateway.links)
            gateway.inbox.clear()
            await node.start()
            assert node.node_id == before
            assert gateway.profiles["a"].session > session
            await load(gateway, node)
            assert len(gateway.artifact_starts) == 1

    play(tmp_path, story)


def test_a_node_that_is_stopped_finishes_what_it_accepted(tmp_path: Path) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as node:
            await load(gateway, node)
            for number in range(20):
                gateway.run(node.node_id, (node.node_id,), {"x": (X, ONES)}, request_id=number)
            await gateway.message(Result)
            assert await node.stop(signal.SIGINT) == 0
            done = {each[1].request_id for each in gateway.inbox if isinstance(each[1], Result)}
            assert done == set(range(20))
            await gateway.until(lambda: gateway.closed)
            assert gateway.closed[-1][1:] == ("the node stops", True)

    play(tmp_path, story)


def test_a_node_that_lost_its_link_keeps_its_slices_and_dials_again(tmp_path: Path) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as node:
            await load(gateway, node)
            await gateway.message(Offer)
            gateway.links[node.node_id].close("the cable was pulled")
            await gateway.until(lambda: gateway.closed)
            gateway.inbox = [each for each in gateway.inbox if each[3]]
            await gateway.joined(node.node_id)
            await gateway.message(Offer, nth=1)
            await load(gateway, node)
            gateway.run(node.node_id, (node.node_id,), {"x": (X, ONES)})
            await gateway.message(Result)
            await node.stop()
            assert len(node.events("slice_loaded")) == 1

    play(tmp_path, story)


def test_two_nodes_cannot_share_a_state_directory(tmp_path: Path) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway):
            twin = Node(folder, "a", gateway)
            starting = asyncio.create_task(twin.start())
            async with asyncio.timeout(20):
                while not hasattr(twin, "process") or twin.process.returncode is None:  # noqa: ASYNC110 (another process)
                    await asyncio.sleep(0.05)
            assert twin.process.returncode == 7
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await twin.stop()
            # Once, in words: nothing that reads it needs a second line for machines.
            told = [each["event"] for each in twin.lines if "in use by" in str(each)]
            assert len(told) == 1
            assert told[0].startswith("error: ")
            assert "in use by din node a" in told[0]
            twin.process._transport.close()

    play(tmp_path, story)


def test_a_broken_download_goes_on_where_it_ended(tmp_path: Path) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        gateway.cut_after = 40
        async with Node(folder, "a", gateway) as node:
            await load(gateway, node)
            assert gateway.artifact_starts == [0, 40]
            await node.stop()
            assert node.events("download_failed")

    play(tmp_path, story)


def test_bytes_with_another_hash_are_never_loaded(tmp_path: Path) -> None:
    """T59: right length, wrong bytes."""

    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as node:
            slice_ = make_slice(0, gateway.artifact(onnx_models.double()))
            sha256 = slice_.artifacts[0].sha256
            gateway.artifacts[sha256] = bytes(len(gateway.artifacts[sha256]))
            gateway.prepare(node.node_id, slice_, DOUBLE_EDGES)
            failed, _, _ = await gateway.message(PrepareFailed)
            assert "damaged" in failed.message
            assert not (node.folder / "slices" / sha256).exists()

    play(tmp_path, story)


def test_another_slice_under_the_same_epoch_is_refused(tmp_path: Path) -> None:
    """Whoever counted alike: the answers of the slice that is here would be wrong ones."""

    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "one", gateway) as node:
            await load(gateway, node)
            other = make_slice(0, gateway.artifact(b"other bytes"))
            gateway.prepare(node.node_id, other, DOUBLE_EDGES)
            failed, _, _ = await gateway.message(PrepareFailed)
            assert "another slice" in failed.message

    play(tmp_path, story)


def test_a_slice_that_needs_more_memory_than_is_free_is_refused_with_both_numbers(
    tmp_path: Path,
) -> None:
    """T61: an admission check names the memory, before the machine runs out of it."""

    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as node:
            slice_ = make_slice(0, gateway.artifact(onnx_models.double()))
            gateway.prepare(node.node_id, replace(slice_, memory_mib=10**7), DOUBLE_EDGES)
            failed, _, _ = await gateway.message(PrepareFailed)
            assert "needs 10000000 MiB" in failed.message
            assert "MiB are free" in failed.message
            assert gateway.artifact_starts == []

    play(tmp_path, story)


def test_an_unloaded_slice_is_revoked_before_its_worker_ends(tmp_path: Path) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as node:
            await load(gateway, node)
            offer, _, _ = await gateway.message(Offer)
            gateway.links[node.node_id].send(Unload(EPOCH))
            revoke, _, _ = await gateway.message(Revoke)
            assert revoke.worker_id == offer.worker_id
            assert not node.events("slice_unloaded")
            gateway.links[node.node_id].send(Revoked(offer.worker_id))
            async with asyncio.timeout(10):
                while not node.events("slice_unloaded"):  # noqa: ASYNC110 (lines of another process)
                    await asyncio.sleep(0.05)

    play(tmp_path, story)


def test_an_idle_node_fits_into_thirty_mebibytes(tmp_path: Path) -> None:
    async def story(gateway: FakeGateway, folder: Path) -> None:
        async with Node(folder, "a", gateway) as node:
            await gateway.until(lambda: gateway.beats >= 5)
            assert _resident_kib(node.process.pid) <= IDLE_RESIDENT_KIB_MAX

    play(tmp_path, story)


def test_the_agent_imports_no_heavy_library() -> None:
    code = (
        "import sys, din.agent.program, din.agent.__main__\n"
        f"print([each for each in {FORBIDDEN!r} if each in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_a_node_without_settings_says_what_is_missing() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "DIN_CONFIG_JSON"}
    done = subprocess.run(
        [sys.executable, "-m", "din.agent"], capture_output=True, text=True, timeout=60,
        env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "din node start" in done.stderr


def _resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def _worker_pid(agent_pid: int) -> int:
    (zygote,) = _children(agent_pid)
    (worker,) = _children(zygote)
    return worker


def _children(pid: int) -> list[int]:
    """Without those that ask an engine what it has, which are gone in a moment."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(each) for each in text.split() if not _asks(int(each))]


def _asks(pid: int) -> bool:
    """Or is one that has ended, or is about to become one."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return not words or b"din.backends" in words or b"din.agent" in words
