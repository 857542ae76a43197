"""The feeder's end against a worker that we play ourselves, honest or hostile."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from din.domain.tensor import TensorMeta
from din.errors import (
    BadTensor,
    Busy,
    DinError,
    ExecutionFailed,
    Internal,
    SpoiledTensor,
    TooLarge,
    WorkerLost,
)
from din.system.arena import arena_layout, create_arena
from din.system.descriptors import control_pair
from din.transport import channel as channel_module
from din.transport.channel import WORKER_DIED, OutputSet, WorkerChannel
from din.wire.worker import (
    Abort,
    Attach,
    Compute,
    Computed,
    ComputeFailed,
    FeederMessage,
    Loaded,
    LoadFailed,
    Placed,
    Release,
)

LAYOUT = arena_layout(8192, 8192)
OUT = LAYOUT.input_bytes
Y = TensorMeta("y", "FP32", (4,), 16)


class Played:
    """A channel, the worker's end of its socket, and all that was told."""

    def __init__(self) -> None:
        ours, self.worker = control_pair()
        self.worker.settimeout(10)
        self.arena = create_arena(LAYOUT)
        self.told: list[OutputSet | DinError] = []
        self.loaded: list[Loaded | LoadFailed] = []
        self.closed: list[str] = []
        self.channel = WorkerChannel(
            asyncio.get_running_loop(),
            ours,
            os.dup(self.arena),
            LAYOUT,
            self.loaded.append,
            self.closed.append,
        )
        attach = self.heard()
        assert isinstance(attach, Attach)
        self.session = attach.session

    def heard(self) -> FeederMessage:
        return msgspec.msgpack.decode(self.worker.recv(70_000), type=FeederMessage)

    async def say(self, message: object) -> None:
        data = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        self.worker.send(data)
        for _ in range(5):
            await asyncio.sleep(0)

    def ask(self, outputs: tuple[str, ...] = ("y",)) -> int:
        ticket = self.channel.compute((), outputs, 1000, self.told.append)
        order = self.heard()
        assert isinstance(order, Compute)
        assert order.ticket == ticket
        return ticket

    def failure(self) -> DinError:
        (told,) = self.told
        assert isinstance(told, DinError)
        return told

    def result(self) -> OutputSet:
        (told,) = self.told
        assert isinstance(told, OutputSet)
        return told


@asynccontextmanager
async def played() -> AsyncIterator[Played]:
    found = Played()
    try:
        yield found
    finally:
        found.channel.close()
        found.worker.close()
        os.close(found.arena)


def test_an_answer_gives_views_into_the_arena_and_release_tells_the_worker():
    async def story() -> None:
        async with played() as it:
            ticket = it.ask()
            os.pwrite(it.arena, bytes(range(16)), OUT + 64)
            await it.say(Computed(ticket, (Placed(Y, OUT + 64),), 123, 50.0))
            result = it.result()
            assert (result.metas, result.compute_us, result.accelerator_percent) == (
                (Y,),
                123,
                50.0,
            )
            assert bytes(result.views[0]) == bytes(range(16))
            assert it.channel.inflight == 0
            result.release()
            result.release()
            await asyncio.sleep(0.05)
            assert it.heard() == Release(ticket)
            it.worker.setblocking(False)
            with pytest.raises(BlockingIOError):
                it.worker.recv(10)

    asyncio.run(story())


def test_the_next_order_carries_what_was_released():
    async def story() -> None:
        async with played() as it:
            ticket = it.ask()
            await it.say(Computed(ticket, (Placed(Y, OUT),), 1))
            it.result().release()
            it.channel.compute((), ("y",), 1000, it.told.append)
            order = it.heard()
            assert isinstance(order, Compute)
            assert order.released == (ticket,)
            await asyncio.sleep(0.05)
            it.worker.setblocking(False)
            with pytest.raises(BlockingIOError):
                it.worker.recv(10)

    asyncio.run(story())


def hostile(ticket: int) -> list[tuple[str, object]]:
    def done(*placed: Placed, of: int = ticket) -> Computed:
        return Computed(of, placed, 1)

    return [
        ("a ticket never given", done(Placed(Y, OUT), of=ticket + 1)),
        ("in the input region", done(Placed(Y, 0))),
        ("before the region", done(Placed(Y, -64))),
        ("over the end", done(Placed(Y, LAYOUT.arena_bytes))),
        (
            "crossing the end",
            done(Placed(TensorMeta("y", "UINT8", (128,), 128), LAYOUT.arena_bytes - 64)),
        ),
        ("not aligned", done(Placed(Y, OUT + 4))),
        ("size not of shape", done(Placed(TensorMeta("y", "FP32", (4,), 12), OUT))),
        ("negative size", done(Placed(TensorMeta("y", "BYTES", (1,), -1), OUT))),
        ("negative dims", done(Placed(TensorMeta("y", "FP32", (-1, -4), 16), OUT))),
        ("unknown dtype", done(Placed(TensorMeta("y", "FP31", (4,), 16), OUT))),
        ("too many dims", done(Placed(TensorMeta("y", "FP32", (1,) * 30 + (4,), 16), OUT))),
        ("compressed unasked", done(Placed(TensorMeta("y", "FP32", (4,), 12, "zstd"), OUT))),
        ("another name", done(Placed(TensorMeta("z", "FP32", (4,), 16), OUT))),
        ("one output too many", done(Placed(Y, OUT), Placed(Y, OUT + 64))),
        ("nothing", done()),
        ("failure of a ticket never given", ComputeFailed(ticket + 7, "DIN-330", "x", True)),
        ("garbage", b"\xc1garbage"),
        ("garbage without end", b"\x99\xa4fail\x01\xa1x\xa1x\xc3\xa1x" + b"\x91" * 50_000),
        ("a feeder's message", Release(ticket)),
        ("over the limit", bytes(65 * 1024)),
    ]


@pytest.mark.parametrize("position", range(len(hostile(0))))
def test_a_worker_that_lies_is_cut_off(position: int):
    async def story() -> None:
        async with played() as it:
            ticket = it.ask()
            what, message = hostile(ticket)[position]
            await it.say(message)
            assert not it.channel.is_open, what
            assert isinstance(it.failure(), ExecutionFailed)
            assert "protocol" in it.closed[0]
            assert it.channel.allocate(1) is None
            with pytest.raises(ExecutionFailed):
                it.channel.compute((), (), 1, it.told.append)

    asyncio.run(story())


def test_outputs_come_compressed_where_that_was_asked():
    async def story(meta: TensorMeta, is_fine: bool) -> None:
        async with played() as it:
            ticket = it.channel.compute((), ("y",), 1000, it.told.append, ("y",))
            order = it.heard()
            assert isinstance(order, Compute)
            assert order.compressed == ("y",)
            await it.say(Computed(ticket, (Placed(meta, OUT),), 5, encode_us=7))
            assert it.channel.is_open == is_fine
            if is_fine:
                assert (it.result().metas, it.result().encode_us) == ((meta,), 7)
                assert len(it.result().views[0]) == meta.nbytes

    asyncio.run(story(TensorMeta("y", "FP32", (4,), 12, "zstd"), True))
    asyncio.run(story(TensorMeta("y", "FP32", (4,), 16), True))
    for wrong in (
        TensorMeta("y", "FP32", (4,), 16, "zstd"),
        TensorMeta("y", "FP32", (4,), 0, "zstd"),
        TensorMeta("y", "FP32", (4,), 12, "gzip"),
        TensorMeta("y", "FP32", (4,), 12, ""),
        TensorMeta("y", "BYTES", (1,), 12, "zstd"),
    ):
        asyncio.run(story(wrong, False))


def test_outputs_that_overlap_are_a_lie():
    async def story(second: Callable[[Played], Computed]) -> None:
        async with played() as it:
            first = it.ask(("a", "b"))
            big = TensorMeta("a", "UINT8", (100,), 100)
            await it.say(Computed(first, (Placed(big, OUT), Placed(other, OUT + 128)), 1))
            assert it.channel.is_open
            await it.say(second(it))
            assert not it.channel.is_open

    other = TensorMeta("b", "FP32", (4,), 16)
    asyncio.run(story(lambda it: Computed(it.ask(), (Placed(Y, OUT + 64),), 1)))
    both = (Placed(TensorMeta("a", "UINT8", (100,), 100), OUT + 256), Placed(other, OUT + 320))
    asyncio.run(story(lambda it: Computed(it.ask(("a", "b")), both, 1)))


def test_empty_outputs_may_share_a_place():
    async def story() -> None:
        async with played() as it:
            ticket = it.ask(("a", "b"))
            empty = [TensorMeta(name, "FP32", (0, 3), 0) for name in "ab"]
            await it.say(Computed(ticket, tuple(Placed(each, OUT) for each in empty), 1))
            assert [len(view) for view in it.result().views] == [0, 0]

    asyncio.run(story())


def test_a_failed_run_keeps_its_class_its_hint_and_the_worker():
    async def story() -> None:
        async with played() as it:
            await it.say(ComputeFailed(it.ask(), "DIN-110", "input 'x' is bad", False, "turn it"))
            failure = it.failure()
            assert isinstance(failure, BadTensor)
            assert failure.hint == "turn it"
            assert it.channel.is_open
            await it.say(ComputeFailed(it.ask(), "DIN-332", "it cannot be read", True, "", "x"))
            spoiled = it.told[1]
            assert isinstance(spoiled, SpoiledTensor)
            assert spoiled.tensor == "x"

    asyncio.run(story())


def test_death_fails_what_runs_and_is_told_once():
    async def story() -> None:
        async with played() as it:
            it.ask()
            it.ask()
            slot = it.channel.allocate(100)
            assert slot is not None
            slot.view[:3] = b"abc"
            it.worker.close()
            await asyncio.sleep(0.02)
            assert [type(each) for each in it.told] == [WorkerLost, Busy]
            assert it.closed == [WORKER_DIED]
            assert bytes(slot.view[:3]) == b"abc"  # the input is there for another try
            slot.free()
            it.channel.close()
            assert it.closed == [WORKER_DIED]

    asyncio.run(story())


def test_closing_on_purpose_fails_what_runs_and_is_not_told():
    async def story() -> None:
        async with played() as it:
            it.ask()
            it.channel.close()
            it.channel.close()
            assert isinstance(it.failure(), ExecutionFailed)
            assert it.closed == []

    asyncio.run(story())


def test_a_third_request_is_busy():
    async def story() -> None:
        async with played() as it:
            it.ask()
            it.ask()
            assert it.channel.inflight == 2
            with pytest.raises(Busy):
                it.channel.compute((), (), 1000, it.told.append)

    asyncio.run(story())


def test_a_header_over_the_limit_is_too_large():
    async def story() -> None:
        async with played() as it:
            with pytest.raises(TooLarge):
                it.channel.compute((), ("n" * 70_000,), 1000, it.told.append)
            assert it.channel.inflight == 0

    asyncio.run(story())


def test_a_full_socket_delays_small_messages_and_loses_none():
    async def story() -> None:
        async with played() as it:
            tickets = []
            for _ in range(40):
                ticket = it.channel.compute((), ("y",), 1000, it.told.append)
                tickets.append(ticket)
                order = it.heard()
                assert isinstance(order, Compute)
                await it.say(Computed(ticket, (Placed(Y, OUT + 64 * len(tickets)),), 1))
            for each in it.told:
                assert isinstance(each, OutputSet)
                each.release()
            heard = []
            for _ in tickets:
                await asyncio.sleep(0.002)
                message = it.heard()
                assert isinstance(message, Release)
                heard.append(message.ticket)
            assert heard == tickets

    asyncio.run(story())


def test_slots_of_the_input_region_run_out_and_come_back():
    async def story() -> None:
        async with played() as it:
            slots = [it.channel.allocate(4096) for _ in range(2)]
            assert it.channel.allocate(1) is None
            for slot in slots:
                assert slot is not None
                assert slot.generation > 0
                slot.free()
                slot.free()
                assert slot.generation == 0
            assert it.channel.allocate(8192) is not None
            assert it.channel.allocate(it.channel.input_bytes + 1) is None

    asyncio.run(story())


def test_loading_is_told_once():
    async def story() -> None:
        async with played() as it:
            message = LoadFailed("DIN-120", "no", "")
            await it.say(message)
            assert it.loaded == [message]
            await it.say(message)
            assert not it.channel.is_open

    asyncio.run(story())


def test_answers_to_an_earlier_feeder_on_the_same_socket_are_ignored():
    async def story() -> None:
        async with played() as it:
            stranger = it.session + 1 << 32 | 1
            await it.say(Computed(stranger, (Placed(Y, 0),), 1))
            await it.say(ComputeFailed(stranger, "DIN-330", "x", True))
            assert it.channel.is_open
            assert it.told == []

    asyncio.run(story())


def test_a_worker_that_ignores_an_abort_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(channel_module, "ABORT_TIMEOUT_S", 0.01)

    async def story() -> None:
        async with played() as it:
            ticket = it.ask()
            it.channel.abort(ticket)
            it.channel.abort(ticket + 1)
            assert it.heard() == Abort(ticket)
            await asyncio.sleep(0.05)
            assert "aborted" in it.closed[0]

    asyncio.run(story())


def test_an_arena_that_could_shrink_is_refused():
    async def story() -> None:
        plain = os.memfd_create("plain")
        os.ftruncate(plain, LAYOUT.arena_bytes)
        no_file, other = socket.socketpair()
        for descriptor in (plain, no_file.detach()):
            ours, theirs = socket.socketpair()
            with theirs, pytest.raises(Internal, match="sealed"):
                WorkerChannel(asyncio.get_running_loop(), ours, descriptor, LAYOUT, None, print)
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
        other.close()

    asyncio.run(story())


def test_an_arena_that_is_smaller_than_said_is_refused():
    async def story() -> None:
        ours, theirs = socket.socketpair()
        small = create_arena(arena_layout(4096, 4096))
        with theirs, pytest.raises(Internal, match="cannot be mapped"):
            WorkerChannel(asyncio.get_running_loop(), ours, small, LAYOUT, None, print)

    asyncio.run(story())
