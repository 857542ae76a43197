"""A zygote for each engine: started with its first slice, ended after its last."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from din.agent.pool import PoolSettings, WorkerPool
from din.agent.zygotes import ENGINES_AT_ONCE_MAX, Zygotes, words_for
from din.domain.model import AdapterSpec, Artifact, Slice
from din.errors import BadModel, Unavailable, UsageError
from din.system.arena import arena_layout
from din.wire.worker import Fork

SMALL = PoolSettings(layout=arena_layout(1 << 20, 1 << 20), drain_timeout_s=1.0)


@pytest.fixture(scope="module")
def models() -> ModuleType:
    sys.path.append(str(Path(__file__).parents[1] / "backends"))
    return importlib.import_module("onnx_models")


def order(backend: str, **changes: Any) -> Fork:
    fields: dict[str, Any] = {
        "worker_id": 1,
        "backend": backend,
        "backend_options": {},
        "inputs": (),
        "outputs": (),
        "artifacts": (),
        "channels": (),
    }
    return Fork(**(fields | changes))


def test_what_every_node_needs_comes_from_the_main_one() -> None:
    assert words_for(order("onnxruntime")) == ()
    assert words_for(order("probe")) == ()
    assert words_for(order("openvino", adapter=AdapterSpec("image", {}))) == ()


def test_another_engine_has_a_zygote_that_imports_it_alone() -> None:
    assert words_for(order("openvino")) == ("--engine=openvino",)
    probe = order("probe", backend_options={"engines": "openvino"})
    assert words_for(probe) == ("--engine=openvino", "--probe")


def test_no_word_of_a_stranger_becomes_a_word_of_a_command() -> None:
    for name in ("--insecure", "os", "", "openvino --probe"):
        with pytest.raises(UsageError, match="no backend is called"):
            words_for(order(name))
    with pytest.raises(UsageError, match="no backend is called"):
        words_for(order("probe", backend_options={"engines": "openvino,evil"}))


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log: list[str] = []
        self.died: list[tuple[int, str]] = []
        self.zygotes = Zygotes(asyncio.get_running_loop(), self.log.append, linger_s=0.05)

    def pool(self) -> WorkerPool:
        return WorkerPool(
            self.zygotes,
            on_worker_ready=lambda *_: None,
            on_worker_died=lambda *told: self.died.append(told),
            settings=SMALL,
        )

    async def load(self, backend: str, data: bytes, **options: str) -> tuple[WorkerPool, str]:
        path = self.folder / "model.onnx"
        path.write_bytes(data)
        part = Slice(
            index=0,
            slice_id="0" * 64,
            name="test/0",
            artifacts=(Artifact("0" * 64, 0),),
            inputs=(),
            outputs=(),
            backend=backend,
        )
        pool = self.pool()
        try:
            loaded = await pool.start(part, [path], 1, options, wants_direct=False)
        except BaseException:
            await pool.stop()
            raise
        return pool, loaded.engine


def play(folder: Path, story: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        bench = Bench(folder)
        try:
            await story(bench)
        finally:
            await bench.zygotes.stop()

    asyncio.run(whole())


@pytest.mark.system
def test_a_zygote_of_an_engine_comes_with_its_first_slice_and_goes_after_its_last(
    tmp_path: Path, models: ModuleType
) -> None:
    async def story(bench: Bench) -> None:
        pool, engine = await bench.load("openvino", models.double())
        assert engine.startswith("openvino 20")
        assert bench.zygotes.pid is None, "nobody asked for ONNX Runtime"
        assert bench.zygotes.pid_of("openvino") is not None
        other, engine = await bench.load("onnxruntime", models.double())
        assert engine.startswith("onnxruntime 1.")
        assert bench.zygotes.pid is not None
        await pool.stop()
        while bench.zygotes.pid_of("openvino") is not None:  # noqa: ASYNC110 (a process)
            await asyncio.sleep(0.01)
        await other.stop()
        again, _ = await bench.load("openvino", models.double())
        await again.stop()
        assert bench.died == []

    play(tmp_path, story)


@pytest.mark.system
def test_what_an_engine_refuses_reaches_who_asked_for_it(
    tmp_path: Path, models: ModuleType
) -> None:
    async def story(bench: Bench) -> None:
        with pytest.raises(BadModel, match="the model file is damaged"):
            await bench.load("openvino", b"\x08\x07garbage")
        with pytest.raises(Unavailable, match="finds no GPU on this node"):
            await bench.load("openvino", models.double(), device="GPU")

    play(tmp_path, story)


def test_engines_in_memory_are_limited(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        for number in range(ENGINES_AT_ONCE_MAX):
            bench.zygotes._further_of((f"--engine={number}",))
        with pytest.raises(UsageError, match="engines are in memory already"):
            bench.zygotes._further_of(("--engine=openvino",))

    play(tmp_path, story)
