"""What confining workers costs, and a worker's cold start against a plain Python program's."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Final, NamedTuple

from din.agent.pool import WorkerPool
from din.agent.zygote import Zygote
from din.bench.models import SESSION, fetched
from din.bench.row import Effort, Row, figure, median
from din.domain.model import Artifact, Slice
from din.domain.tensor import TensorMeta, nbytes_of
from din.errors import DinError, Internal, Unavailable
from din.transport.channel import OutputSet
from din.wire.worker import Placed

SET_UP_MS_MAX: Final = 2.0
COLD_MAX: Final = 0.40
ANSWER_S_MAX: Final = 30.0
NATIVE: Final = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
shape = [int(size) for size in sys.argv[3].split("x")]
session.run(None, {sys.argv[2]: numpy.ones(shape, numpy.float32)})
"""


class _Case(NamedTuple):
    name: str
    tensor: str
    shape: tuple[int, ...]


CASES: Final = (
    _Case("ppocr-cls", "x", (1, 3, 48, 192)),
    _Case("ppocr-det", "x", (1, 3, 320, 320)),
)


def set_up(effort: Effort) -> Iterator[Row]:
    """What a worker, and once its zygote, gives up before it reads a model."""
    count = max(5, effort.repeats // 20)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "din.bench.confining", str(count)],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise Internal(f"nothing was confined: {done.stderr.decode(errors='replace')[-200:]}")
    found = json.loads(done.stdout)
    how = f"limits, Landlock and filter in a forked process, median of {count}, wall time"
    workers_ms = median([each / 1000 for each in found["workers"]])
    yield figure("sandbox set-up, a worker", workers_ms, "ms", how, at_most=SET_UP_MS_MAX)
    how = "namespaces and an empty root, once, wall time"
    yield figure("sandbox set-up, a zygote", found["zygote"] / 1000, "ms", how)


def cold_start(effort: Effort) -> Iterator[Row]:
    """From the wish for a worker to its first result, the zygote being warm, against a program that
    imports, loads and runs."""
    rounds = max(2, effort.repeats * effort.rounds // 400)
    for case in CASES:
        native_ms, worker_ms = asyncio.run(_measured(case, rounds))
        ratio = median([ours / theirs for ours, theirs in zip(worker_ms, native_ms, strict=True)])
        how = (
            f"median ratio of {rounds} rounds in turns: {median(worker_ms):.0f} ms from order to "
            f"first result in a confined worker, a warming run included, against "
            f"{median(native_ms):.0f} ms of `python` from start to end; 1 thread, all optimisations"
        )
        yield figure(f"cold start, {case.name}", ratio, "x native", how, at_most=COLD_MAX)


async def _measured(case: _Case, rounds: int) -> tuple[list[float], list[float]]:
    """Native and worker, in milliseconds."""
    native_ms: list[float] = []
    worker_ms: list[float] = []
    zygote = Zygote(asyncio.get_running_loop(), lambda _: None)
    try:
        await _worker_ms(zygote, case)  # starts the zygote
        for _ in range(rounds):
            native_ms.append(await asyncio.to_thread(_native_ms, case))
            worker_ms.append(await _worker_ms(zygote, case))
    finally:
        await zygote.stop()
    return native_ms, worker_ms


def _native_ms(case: _Case) -> float:
    words = [str(fetched(case.name)), case.tensor, "x".join(map(str, case.shape))]
    environment = os.environ | {"ORT_DISABLE_TELEMETRY": "1", "OPENBLAS_NUM_THREADS": "1"}
    started = perf_counter_ns()
    subprocess.run([sys.executable, "-c", NATIVE, *words], check=True, env=environment)
    return (perf_counter_ns() - started) / 1e6


async def _worker_ms(zygote: Zygote, case: _Case) -> float:
    pool = WorkerPool(
        zygote, on_worker_ready=lambda *_: None, on_worker_died=lambda _, reason: None
    )
    part = Slice(
        index=0,
        slice_id=case.name,
        name=case.name,
        artifacts=(Artifact("", 0),),
        inputs=(),
        outputs=(),
    )
    started = perf_counter_ns()
    try:
        await pool.start(part, [fetched(case.name)], 1, dict(SESSION), wants_direct=False)
        await _answered(pool, case)
        return (perf_counter_ns() - started) / 1e6
    finally:
        await pool.stop()


async def _answered(pool: WorkerPool, case: _Case) -> None:
    """One run. Raises what the worker says."""
    channel = pool.pick()
    nbytes = nbytes_of("FP32", case.shape)
    slot = channel.allocate(nbytes) if channel is not None else None
    if channel is None or slot is None:
        raise Unavailable("the worker takes no input")
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(outcome: OutputSet | DinError) -> None:
        if isinstance(outcome, DinError):
            answered.set_exception(outcome)
            return
        for view in outcome.views:
            view.release()
        outcome.release()
        answered.set_result(None)

    slot.view[:] = bytes(nbytes)
    placed = Placed(TensorMeta(case.tensor, "FP32", case.shape, nbytes), slot.offset)
    channel.compute([placed], (), 10_000, done)
    try:
        await asyncio.wait_for(answered, ANSWER_S_MAX)
    finally:
        slot.free()
        slot.view.release()
