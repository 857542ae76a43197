"""Real processes: zygote, workers, arenas."""

import asyncio
import gc
import importlib
import os
import resource
import signal
import struct
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from din.agent.pool import PoolSettings, WorkerPool
from din.agent.recipe import Allowance
from din.agent.zygote import Zygote
from din.domain.crash import Death
from din.domain.model import CONTEXT_TENSOR, AdapterSpec, Artifact, Slice
from din.domain.tensor import TensorMeta, TensorSpec, nbytes_of
from din.errors import (
    BadModel,
    BadTensor,
    Busy,
    DeadlineExceeded,
    DinError,
    ExecutionFailed,
    TooLarge,
    Unavailable,
    UsageError,
)
from din.system.arena import arena_layout
from din.transport.channel import InputSlot, OutputSet, WorkerChannel
from din.wire.worker import ArenaLayout, Placed, Worn

pytestmark = pytest.mark.system

SMALL = PoolSettings(layout=arena_layout(1 << 20, 1 << 20), drain_timeout_s=1.0)
X4 = TensorMeta("x", "FP32", (1, 4), 16)


@pytest.fixture(scope="module")
def models() -> ModuleType:
    sys.path.append(str(Path(__file__).parents[1] / "backends"))
    return importlib.import_module("onnx_models")


def a_slice(**changes: Any) -> Slice:
    fields: dict[str, Any] = {
        "index": 0,
        "slice_id": "0" * 64,
        "name": "test/0",
        "artifacts": (Artifact("0" * 64, 0),),
        "inputs": (),
        "outputs": (),
    }
    return Slice(**(fields | changes))


class Bench:
    """A zygote and its pools, with everything that they told."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.zygote = Zygote(asyncio.get_running_loop(), self.log.append)
        self.ready: list[tuple[int, int, int, ArenaLayout]] = []
        self.died: list[tuple[int, Death]] = []
        self.pools: list[WorkerPool] = []

    def pool(self, settings: PoolSettings = SMALL) -> WorkerPool:
        made = WorkerPool(
            self.zygote,
            on_worker_ready=lambda *told: self.ready.append(told),
            on_worker_died=lambda *told: self.died.append(told),
            settings=settings,
        )
        self.pools.append(made)
        return made

    async def load(
        self, path: Path, data: bytes, workers: int = 1, *, wants_direct: bool = False
    ) -> WorkerPool:
        file = path / "model.onnx"
        file.write_bytes(data)
        pool = self.pool()
        await pool.start(a_slice(), [file], workers, {"threads": "1"}, wants_direct=wants_direct)
        return pool


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    try:
        yield made
    finally:
        for pool in made.pools:
            await pool.stop()
        await made.zygote.stop()


def play(story: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with bench() as it:
            await story(it)

    asyncio.run(whole())


def put(channel: WorkerChannel, meta: TensorMeta, data: bytes) -> tuple[Placed, InputSlot]:
    slot = channel.allocate(len(data))
    assert slot is not None
    slot.view[:] = data
    return Placed(meta, slot.offset), slot


def ask(
    channel: WorkerChannel,
    *tensors: tuple[TensorMeta, bytes],
    outputs: tuple[str, ...] = (),
    remaining_ms: int = 10_000,
) -> tuple[int, asyncio.Future[OutputSet]]:
    future: asyncio.Future[OutputSet] = asyncio.get_running_loop().create_future()
    placed = [put(channel, *each) for each in tensors]

    def done(result: OutputSet | DinError) -> None:
        for _, slot in placed:
            slot.free()
        if future.cancelled():
            return
        if isinstance(result, DinError):
            future.set_exception(result)
        else:
            future.set_result(result)

    ticket = channel.compute([each for each, _ in placed], outputs, remaining_ms, done)
    return ticket, future


async def run(
    channel: WorkerChannel | None, *tensors: tuple[TensorMeta, bytes], **more: Any
) -> list[tuple[TensorMeta, bytes]]:
    assert channel is not None
    result = await ask(channel, *tensors, **more)[1]
    found = [(meta, bytes(view)) for meta, view in zip(result.metas, result.views, strict=True)]
    result.release()
    return found


def floats(*values: float) -> tuple[TensorMeta, bytes]:
    return TensorMeta("x", "FP32", (1, len(values)), 4 * len(values)), struct.pack(
        f"<{len(values)}f", *values
    )


async def until(is_true: Callable[[], bool], limit_s: float = 30.0) -> None:
    async with asyncio.timeout(limit_s):
        while not is_true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def open_files() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir() if each.is_symlink()}


def pids(pool: WorkerPool) -> list[int]:
    return [each.process.pid for each in pool._workers.values() if each.process is not None]


def test_a_slice_is_loaded_warmed_and_run(tmp_path: Path, models: ModuleType):
    async def story(it: Bench) -> None:
        file = tmp_path / "模型 100%.onnx"
        file.write_bytes(models.double())
        pool = it.pool()
        loaded = await pool.start(a_slice(), [file], 1, {}, wants_direct=False)
        assert loaded.inputs == (TensorSpec("x", "FP32", (1, 4)),)
        assert loaded.load_ms > 0
        assert loaded.warm_ms is not None
        assert loaded.memory_mib > 10
        assert pool.ready == 1
        ((meta, data),) = await run(pool.pick(), floats(1, 2, 3, 4))
        assert meta == TensorMeta("y", "FP32", (1, 4), 16)
        assert struct.unpack("<4f", data) == (2, 4, 6, 8)
        ((worker_id, *descriptors, layout),) = it.ready
        assert (descriptors, layout) == ([-1, -1], SMALL.layout)
        assert pool.channel(worker_id) is pool.pick()
        assert pool.channel(worker_id + 1) is None

    play(story)


def test_nothing_is_left_after_stop(tmp_path: Path, models: ModuleType):
    async def story() -> list[int]:
        async with bench() as it:
            pool = await it.load(tmp_path, models.double(), 2, wants_direct=True)
            await run(pool.pick(), floats(1, 2, 3, 4))
            found = [*pids(pool), it.zygote.pid or 0]
            assert all(is_alive(each) for each in found)
        assert it.died == []
        return found

    gc.collect()
    before = open_files()
    found = asyncio.run(story())
    gc.collect()
    assert open_files() == before
    assert not any(is_alive(each) for each in found)


@pytest.mark.parametrize(
    ("dtype", "kind", "data"),
    [
        ("INT8", 3, bytes([0, 1, 127, 128, 255])),
        ("BOOL", 9, bytes([0, 1, 1, 0, 1])),
        ("FP16", 10, struct.pack("<5e", 0, 1, -2, 0.5, 1000)),
        ("BF16", 16, bytes.fromhex("803f00408041")),
        ("INT64", 7, struct.pack("<3q", -1, 0, 1 << 40)),
        ("BYTES", 8, b"\x00\x00\x00\x00\x02\x00\x00\x00ab\x06\x00\x00\x00\xe8\x84\xb8\xe8\x84\xb8"),
        ("FP32", 1, b""),
        ("BYTES", 8, b""),
    ],
)
def test_each_dtype_passes_unchanged(
    tmp_path: Path, models: ModuleType, dtype: str, kind: int, data: bytes
):
    """T36, T38, T39."""

    async def story(it: Bench) -> None:
        pool = await it.load(tmp_path, models.identity(kind))
        count = 3 if data and dtype == "BYTES" else 0
        if dtype != "BYTES":
            count = len(data) // nbytes_of(dtype, (1,))
        meta = TensorMeta("x", dtype, (count,), len(data))
        ((found, output),) = await run(pool.pick(), (meta, data))
        assert (found.dtype, found.shape, output) == (dtype, (count,), data)

    play(story)


def test_an_output_whose_shape_nobody_knows_before_comes_back(tmp_path: Path, models: ModuleType):
    async def story(it: Bench) -> None:
        pool = await it.load(tmp_path, models.non_zero())
        for values in ((0, 5, 0, 7), (0, 0), (1,)):
            meta = TensorMeta("x", "FP32", (len(values),), 4 * len(values))
            ((found, data),) = await run(
                pool.pick(), (meta, struct.pack(f"<{len(values)}f", *values))
            )
            wanted = [position for position, value in enumerate(values) if value]
            assert found.shape == (1, len(wanted))
            assert list(struct.unpack(f"<{len(wanted)}q", data)) == wanted

    play(story)


def test_bad_requests_fail_alone(tmp_path: Path, models: ModuleType):
    """T44, T45, T46."""

    async def story(it: Bench) -> None:
        pool = await it.load(tmp_path, models.double())
        channel = pool.pick()
        assert channel is not None
        good = floats(1, 2, 3, 4)[1]
        for meta, data, words in (
            (TensorMeta("x", "FP64", (1, 4), 32), bytes(32), "FP64"),
            (TensorMeta("x", "FP32", (1, 4), 32), bytes(32), "needs 16 bytes, got 32"),
            (TensorMeta("x", "FP32", (2, 2), 16), good, "shape"),
            (TensorMeta("z", "FP32", (1, 4), 16), good, "inputs are z, but x"),
        ):
            with pytest.raises(BadTensor, match=words):
                await run(channel, (meta, data))
        with pytest.raises(BadTensor, match="no output 'boxes'"):
            await run(channel, (X4, good), outputs=("boxes",))
        with pytest.raises(BadTensor, match="twice"):
            await run(channel, (X4, good), outputs=("y", "y"))
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        for offset in (-64, 8, 1 << 20, (1 << 20) - 8, 1 << 40):
            future = asyncio.get_running_loop().create_future()
            channel.compute([Placed(X4, offset)], (), 1000, future.set_result)
            assert isinstance(await future, BadTensor)
        assert len(await run(channel, (X4, good))) == 1

    play(story)


def test_an_output_over_the_region_is_too_large_and_a_full_one_is_busy(
    tmp_path: Path, models: ModuleType
):
    async def story(it: Bench) -> None:
        file = tmp_path / "model.onnx"
        file.write_bytes(models.identity(1, ("N",)))
        pool = it.pool(PoolSettings(layout=arena_layout(1 << 20, 1 << 16)))
        await pool.start(a_slice(), [file], 1, {}, wants_direct=False)
        channel = pool.pick()
        assert channel is not None
        big = TensorMeta("x", "FP32", (20_000,), 80_000), bytes(80_000)
        with pytest.raises(TooLarge, match="80000"):
            await run(channel, big)
        half = TensorMeta("x", "FP32", (10_000,), 40_000), bytes(40_000)
        held = await ask(channel, half)[1]
        with pytest.raises(Busy):
            await run(channel, half)
        held.release()
        await run(channel, half)
        assert channel.allocate((1 << 20) + 1) is None

    play(story)


def test_a_request_without_time_is_not_computed(tmp_path: Path, models: ModuleType):
    async def story(it: Bench) -> None:
        pool = await it.load(tmp_path, models.double())
        with pytest.raises(DeadlineExceeded):
            await run(pool.pick(), floats(1, 2, 3, 4), remaining_ms=0)
        await run(pool.pick(), floats(1, 2, 3, 4))

    play(story)


def test_an_endless_run_ends_with_its_deadline_and_so_does_the_one_behind_it(
    tmp_path: Path, models: ModuleType
):
    """T48: waiting behind another run counts."""

    async def story(it: Bench) -> None:
        pool = await it.load(tmp_path, models.endless())
        channel = pool.pick()
        assert channel is not None
        endless = TensorMeta("x", "FP32", (1,), 4), struct.pack("<f", 5)
        quick = TensorMeta("x", "FP32", (1,), 4), struct.pack("<f", 1)
        _, first = ask(channel, endless, remaining_ms=400)
        _, second = ask(channel, quick, remaining_ms=100)
        with pytest.raises(DeadlineExceeded):
            await first
        with pytest.raises(DeadlineExceeded):
            await second
        assert len(await run(channel, quick)) == 1
        assert it.died == []

    play(story)


def test_an_abort_ends_a_run_even_behind_a_waiting_request(tmp_path: Path, models: ModuleType):
    """T49."""

    async def story(it: Bench) -> None:
        pool = await it.load(tmp_path, models.endless())
        channel = pool.pick()
        assert channel is not None
        endless = TensorMeta("x", "FP32", (1,), 4), struct.pack("<f", 5)
        quick = TensorMeta("x", "FP32", (1,), 4), struct.pack("<f", 1)
        ticket, first = ask(channel, endless)
        _, second = ask(channel, quick)
        await asyncio.sleep(0.05)
        channel.abort(ticket)
        with pytest.raises(Unavailable, match="aborted"):
            await first
        (await second).release()
        ticket, first = ask(channel, endless)
        waiting, second = ask(channel, endless)
        channel.abort(waiting)
        channel.abort(ticket)
        for future in (first, second):
            with pytest.raises(Unavailable, match="aborted"):
                await future
        await run(channel, quick)
        assert pool.restarts == 0

    play(story)


def test_two_workers_run_side_by_side_and_the_idle_one_is_picked(
    tmp_path: Path, models: ModuleType
):
    async def story(it: Bench) -> None:
        pool = await it.load(tmp_path, models.endless(), 2)
        endless = TensorMeta("x", "FP32", (1,), 4), struct.pack("<f", 5)
        quick = TensorMeta("x", "FP32", (1,), 4), struct.pack("<f", 1)
        first = pool.pick()
        assert first is not None
        _, running = ask(first, endless, remaining_ms=1000)
        other = pool.pick()
        assert other is not None
        assert other is not first
        await run(other, quick)
        assert not running.done()
        asked = [ask(first, endless, remaining_ms=1000)[1]]
        asked += [ask(other, quick)[1] for _ in range(2)]
        assert pool.pick() is None
        assert pool.inflight == 4
        for each in (running, *asked):
            try:
                (await each).release()
            except DeadlineExceeded:
                continue

    play(story)


def test_a_killed_worker_fails_its_run_and_is_replaced(tmp_path: Path, models: ModuleType):
    """T62."""

    async def story(it: Bench) -> None:
        pool = await it.load(tmp_path, models.endless())
        channel = pool.pick()
        assert channel is not None
        _, future = ask(channel, (TensorMeta("x", "FP32", (1,), 4), struct.pack("<f", 5)))
        await asyncio.sleep(0.1)
        (old,) = pids(pool)
        os.kill(old, signal.SIGKILL)
        with pytest.raises(ExecutionFailed, match="died"):
            await future
        assert pool.pick() is None
        await until(lambda: pool.ready == 1)
        assert pids(pool) != [old]
        assert pool.restarts == 1
        assert len(it.died) == 1
        death = it.died[0][1]
        assert (death.kind, death.reason) == ("killed", "killed by signal 9 (SIGKILL)")
        assert death.memory_mib_peak > 0
        assert death.running == "x FP32[1]"
        await run(pool.pick(), (TensorMeta("x", "FP32", (1,), 4), struct.pack("<f", 1)))

    play(story)


def test_a_killed_zygote_takes_its_workers_and_all_come_back(tmp_path: Path, models: ModuleType):
    async def story(it: Bench) -> None:
        pool = await it.load(tmp_path, models.double(), 2)
        old = pids(pool)
        assert it.zygote.pid is not None
        os.kill(it.zygote.pid, signal.SIGKILL)
        await until(lambda: len(it.died) == 2)
        await until(lambda: not any(is_alive(each) for each in old))
        assert "the zygote died: killed by signal 9" in it.log[0]
        await until(lambda: pool.ready == 2)
        await run(pool.pick(), floats(1, 2, 3, 4))

    play(story)


def test_a_dead_worker_is_replaced_although_its_zygote_stands_still(
    tmp_path: Path, models: ModuleType
):
    async def story(it: Bench) -> None:
        it.zygote = Zygote(asyncio.get_running_loop(), it.log.append, told_timeout_s=0.1)
        pool = await it.load(tmp_path, models.double())
        (old,), zygote = pids(pool), it.zygote.pid
        assert zygote is not None
        os.kill(zygote, signal.SIGSTOP)
        os.kill(old, signal.SIGKILL)
        await until(lambda: len(it.died) == 1)
        ((_, death),) = it.died
        assert death.kind == "zygote"
        assert "stood still and was killed: it told no end of a worker" in death.reason
        assert it.log == [death.reason]
        await until(lambda: pool.ready == 1)
        assert not is_alive(zygote)
        await run(pool.pick(), floats(1, 2, 3, 4))

    play(story)


def test_a_worker_that_could_not_be_replaced_for_want_of_files_is_replaced_later(
    tmp_path: Path, models: ModuleType
):
    async def story(it: Bench) -> None:
        pool = await it.load(tmp_path, models.double(), wants_direct=True)
        before = open_files()
        with numbers_left(0):  # those of the dead one are not enough for the next
            os.kill(pids(pool)[0], signal.SIGKILL)
            await until(lambda: len(it.died) == 3)
        (_, death), *others = it.died
        assert death.kind == "killed"
        assert {worker_id for worker_id, _ in others} == {0}
        assert all(why.reason.startswith("no new worker: ") for _, why in others), others
        assert all("Too many open files" in why.reason for _, why in others)
        await until(lambda: pool.ready == 1)
        assert len(open_files()) == len(before)
        await run(pool.pick(), floats(1, 2, 3, 4))

    play(story)


@contextmanager
def numbers_left(count: int) -> Iterator[None]:
    """This process may open so many more files and no others."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free: list[int] = []
    try:
        held = os.open("/dev/null", os.O_RDONLY)
        highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
        os.close(held)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
        while True:
            try:
                free.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        for _ in range(count):
            os.close(free.pop())
        yield
    finally:
        for each in free:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_bad_model_is_told_in_clean_words_and_leaves_no_worker(
    tmp_path: Path, models: ModuleType
):
    async def story(it: Bench) -> None:
        for data in (b"", b"junk", models.double()[:30]):
            with pytest.raises(BadModel) as caught:
                await it.load(tmp_path, data, 2)
            assert "\n" not in caught.value.message
            assert caught.value.hint
        for pool in it.pools:
            assert pool.ready == 0
            assert pids(pool) == []
        assert it.died == []
        await it.load(tmp_path, models.double())

    play(story)


def test_a_slice_that_is_not_what_it_was_registered_as_is_refused(
    tmp_path: Path, models: ModuleType
):
    async def story(it: Bench) -> None:
        file = tmp_path / "model.onnx"
        file.write_bytes(models.double())
        wrong = a_slice(inputs=(TensorSpec("x", "INT8", (1, 4)),))
        with pytest.raises(BadModel, match="x FP32, but the slice has x INT8"):
            await it.pool().start(wrong, [file], 1, {}, wants_direct=False)
        with pytest.raises(UsageError, match="optimisation='warp'"):
            await it.pool().start(
                a_slice(), [file], 1, {"optimisation": "warp"}, wants_direct=False
            )
        with pytest.raises(UsageError, match="'tpu'"):
            await it.pool().start(a_slice(backend="tpu"), [file], 1, {}, wants_direct=False)
        with pytest.raises(Unavailable, match="cannot be opened"):
            await it.pool().start(a_slice(), [tmp_path / "gone"], 1, {}, wants_direct=False)
        with pytest.raises(UsageError, match="0 workers"):
            await it.pool().start(a_slice(), [file], 0, {}, wants_direct=False)

    play(story)


def test_weights_in_a_file_of_their_own_are_loaded_with_the_model(
    tmp_path: Path, models: ModuleType
):
    async def story(it: Bench) -> None:
        model, weights, empty = (tmp_path / each for each in ("model", "weights", "empty"))
        model.write_bytes(models.plus_weight("ab" * 32, offset=64))
        weights.write_bytes(bytes(64) + struct.pack("<4f", 10, 20, 30, 40))
        empty.touch()
        files = (Artifact("cd" * 32, 0), Artifact("ab" * 32, 0, "weights"))
        pool = it.pool()
        await pool.start(a_slice(artifacts=files), [model, weights], 1, {}, wants_direct=False)
        found = await run(pool.pick(), (X4, struct.pack("<4f", 1, 2, 3, 4)))
        assert struct.unpack("<4f", found[0][1]) == (11, 22, 33, 44)
        for artifacts, paths, error, says in (
            (files, [model, empty], Unavailable, "cannot be mapped"),
            (files[:1], [model], BadModel, "External data path"),
            (files[1:], [weights], BadModel, "the files given are: weights"),
            (files[:1] * 2, [model, model], BadModel, "the files given are: model, model"),
        ):
            part = a_slice(artifacts=artifacts)
            with pytest.raises(error, match=says):
                await it.pool().start(part, paths, 1, {}, wants_direct=False)

    play(story)


def test_a_worn_worker_is_followed_before_it_goes_and_no_request_fails(
    tmp_path: Path, models: ModuleType
):
    async def story(it: Bench) -> None:
        file = tmp_path / "model.onnx"
        file.write_bytes(models.double())
        pool = it.pool()
        left: list[int] = []

        async def leaving(worker_id: int, channel: WorkerChannel, worn: Worn) -> None:
            assert pool.ready == 2
            assert (worn.requests, channel.is_open) == (5, True)
            left.append(worker_id)
            await until(lambda: channel.inflight == 0)

        pool._on_worker_leaving = leaving
        allowance = Allowance(requests_max=5)
        options = {"threads": "1"}
        await pool.start(a_slice(), [file], 1, options, wants_direct=True, allowance=allowance)
        first = pids(pool)
        for _ in range(12):
            await until(lambda: pool.pick() is not None)
            await run(pool.pick(), floats(1, 2, 3, 4))
        await until(lambda: bool(left) and pool.ready == 1)
        assert pids(pool) != first
        assert it.died == []
        assert pool.restarts == 0
        await until(lambda: not any(is_alive(each) for each in first))

    play(story)


def test_a_worker_that_grows_beyond_its_limit_fails_that_run_in_words_and_lives(
    tmp_path: Path, models: ModuleType
):
    """T61: no run of one slice may take the memory of the whole board."""

    async def story(it: Bench) -> None:
        from onnx import TensorProto, helper

        shape = helper.make_tensor("shape", TensorProto.INT64, [2], [1 << 14, 1 << 14])
        nodes = [
            helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
            helper.make_node("Expand", ["m", "shape"], ["wide"]),  # 1 GiB
            helper.make_node("Gather", ["wide", "index"], ["row"], axis=0),
        ]
        index = helper.make_tensor("index", TensorProto.INT64, [1], [0])
        data = models.model(
            nodes, [("x", TensorProto.FLOAT, (1, 4))], [("row", TensorProto.FLOAT, None)],
            initializer=[shape, index],
        )  # fmt: skip
        file = tmp_path / "model.onnx"
        file.write_bytes(data)
        pool = it.pool()
        options = {"optimisation": "off", "threads": "1"}
        await pool.start(
            a_slice(), [file], 1, options, wants_direct=False, allowance=Allowance(300)
        )
        channel = pool.pick()
        assert channel is not None
        for _ in range(2):
            with pytest.raises(ExecutionFailed, match="more than the 300 MiB that its worker"):
                await ask(channel, (X4, struct.pack("<4f", 1, 1, 1, 1)))[1]
        assert pool.restarts == 0

    play(story)


def test_loading_has_a_time_limit(tmp_path: Path, models: ModuleType):
    async def story(it: Bench) -> None:
        file = tmp_path / "model.onnx"
        file.write_bytes(models.double())
        await it.zygote.start()
        pool = it.pool(PoolSettings(layout=SMALL.layout, load_timeout_s=0.0))
        with pytest.raises(DeadlineExceeded, match="not loaded within"):
            await pool.start(a_slice(), [file], 1, {}, wants_direct=False)
        assert pids(pool) == []

    play(story)


def direct_channel(told: tuple[int, int, int, ArenaLayout], closed: list[str]) -> WorkerChannel:
    """What a gateway does with the two descriptors that it was sent."""
    import socket

    _, descriptor, arena, layout = told
    sock = socket.socket(fileno=os.dup(descriptor))
    return WorkerChannel(
        asyncio.get_running_loop(), sock, os.dup(arena), layout, None, closed.append
    )


def test_agent_and_gateway_feed_one_worker_in_turns(tmp_path: Path, models: ModuleType):
    async def story(it: Bench) -> None:
        pool = await it.load(tmp_path, models.double(), wants_direct=True)
        closed: list[str] = []
        direct = direct_channel(it.ready[0], closed)
        for value in range(20):
            for channel in (pool.pick(), direct):
                ((_, data),) = await run(channel, floats(value, 0, 0, 1))
                assert struct.unpack("<4f", data) == (2 * value, 0, 0, 2)
        both = [ask(each, floats(1, 2, 3, 4))[1] for each in (pool.pick(), direct, direct) if each]
        for each in both:
            (await each).release()
        (pid,) = pids(pool)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: bool(closed))
        assert closed == ["the worker died"]
        await until(lambda: len(it.ready) == 2)
        again = direct_channel(it.ready[1], closed)
        await run(again, floats(1, 2, 3, 4))
        again.close()

    play(story)


def test_a_gateway_that_left_unreleased_outputs_does_not_block_the_next(
    tmp_path: Path, models: ModuleType
):
    async def story(it: Bench) -> None:
        file = tmp_path / "model.onnx"
        file.write_bytes(models.identity(1, ("N",)))
        pool = it.pool(PoolSettings(layout=arena_layout(1 << 17, 1 << 16)))
        await pool.start(a_slice(), [file], 1, {}, wants_direct=True)
        most = TensorMeta("x", "FP32", (15_000,), 60_000), bytes(60_000)
        for _ in range(3):
            gateway = direct_channel(it.ready[0], [])
            await ask(gateway, most)[1]  # never released
            ask(gateway, most)  # its answer meets the next gateway
            gateway.close()
        assert pool.ready == 1

    play(story)


def test_adapters_run_in_workers_like_slices():
    async def story(it: Bench) -> None:
        from din.adapters.catalogue import after_specs, before_specs

        image = AdapterSpec("image", {"size": [8, 8]})
        inputs, outputs = before_specs(image, (TensorSpec("in", "FP32", (1, 3, "H", "W")),))
        pool = it.pool()
        loaded = await pool.start(
            a_slice(kind="before", artifacts=(), adapter=image, inputs=inputs, outputs=outputs),
            (),
            1,
            {},
            wants_direct=False,
        )
        assert (loaded.inputs, loaded.outputs) == (inputs, outputs)
        data = struct.pack("<I", 4) + b"fake"
        with pytest.raises(BadTensor, match="not a JPEG, PNG or WebP"):
            await run(pool.pick(), (TensorMeta("image", "BYTES", (1,), 8), data))
        from io import BytesIO

        from PIL import Image

        buffer = BytesIO()
        Image.new("RGB", (16, 16), (10, 20, 30)).save(buffer, "PNG")
        data = struct.pack("<I", buffer.tell()) + buffer.getvalue()
        found = await run(pool.pick(), (TensorMeta("image", "BYTES", (1,), len(data)), data))
        assert found[0][0] == TensorMeta("in", "FP32", (1, 3, 8, 8), 768)
        assert struct.unpack("<f", found[0][1][:4]) == (10,)
        assert found[1][0].name == CONTEXT_TENSOR

        after = AdapterSpec("classify", {"labels": ["cat", "dog"], "top_k": 1})
        inputs, outputs = after_specs(after, (TensorSpec("p", "FP32", (1, 2)),))
        second = it.pool()
        await second.start(
            a_slice(kind="after", artifacts=(), adapter=after, inputs=inputs, outputs=outputs),
            (),
            1,
            {},
            wants_direct=False,
        )
        meta = TensorMeta("p", "FP32", (1, 2), 8)
        answer = await run(second.pick(), (meta, struct.pack("<2f", 1, 3)))
        assert answer[1][1] == b"\x03\x00\x00\x00dog"

    play(story)


def look_at(pid: int) -> tuple[dict[str, str], str, bytes, list[str] | None]:
    """Status, limits, title and open files of a process; files are None when nobody may look."""
    proc = Path(f"/proc/{pid}")
    lines = (proc / "status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines)
    try:
        files = sorted(str(each.readlink()).partition(":")[0] for each in (proc / "fd").iterdir())
    except PermissionError:
        files = None  # not root: the worker is not dumpable
    return status, (proc / "limits").read_text(), (proc / "cmdline").read_bytes(), files


def test_a_worker_gave_up_what_it_does_not_need(tmp_path: Path, models: ModuleType):
    async def story(it: Bench) -> None:
        pool = await it.load(tmp_path, models.double(), wants_direct=True)
        (pid,) = pids(pool)
        status, limits, title, files = look_at(pid)
        assert status["Name"] == "din worker"
        assert status["NoNewPrivs"] == "1"
        assert "Max core file size        0" in limits
        assert title.startswith(b"din worker test/0")
        own_memory = f"/proc/{pid}/statm"  # how far it has grown
        expected = ["/dev/null"] * 3 + ["/memfd"] * 2 + [own_memory, "anon_inode"] + ["socket"] * 2
        assert files in (None, expected)

    play(story)
