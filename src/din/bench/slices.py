"""Slices against the whole, in one process: what cutting costs the engine itself.

Both run as workers run them, with outputs bound to memory that stays: an engine that allocates its
outputs anew pays for fresh pages at each cut, which no worker does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from random import Random
from time import process_time_ns
from typing import Any, Final

from din.bench.carved import carved
from din.bench.models import SESSION, fetched
from din.bench.row import Effort, Row, figure, median
from din.domain.model import CarveAnswer, CarveRequest
from din.domain.strategy import Strategy
from din.domain.tensor import TENSOR_ALIGNMENT_BYTES, TensorSpec, nbytes_of

SIDES: Final = (320, 640)
POINTS: Final = ("377", "387", "404", "474")
LONG_MS, CPU_MAX, SLICE_US_MAX = 20, 1.06, 60
SEED: Final = 1


def slices(effort: Effort) -> Iterator[Row]:
    """CenterFace in five slices, one session each, against one session for all."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    data = fetched("centerface").read_bytes()
    for side in SIDES:
        count = max(2, effort.repeats * effort.rounds * SIDES[0] // side // 100)
        whole_ms, parts_ms = _medians(data, side, count)
        how = (
            f"CenterFace {side}x{side} cut at {', '.join(POINTS)}; median CPU time of {count} runs "
            f"each, interleaved; {whole_ms:.1f} ms whole, {parts_ms / whole_ms:.3f}x in slices; "
            "1 thread, all optimisations"
        )
        if whole_ms > LONG_MS:
            name = f"5 slices against whole, {side}, CPU"
            yield figure(name, parts_ms / whole_ms, "x whole", how, at_most=CPU_MAX)
        else:
            name = f"5 slices against whole, {side}, added a slice"
            added_us = (parts_ms - whole_ms) * 1000 / (len(POINTS) + 1)
            yield figure(name, added_us, "us", how, at_most=SLICE_US_MAX)


def _medians(data: bytes, side: int, count: int) -> tuple[float, float]:
    import numpy as np

    example = np.random.default_rng(SEED).random((1, 3, side, side), np.float32) * 255
    works = [_runner(data, (), example), _runner(data, POINTS, example)]
    spent_ms: list[list[float]] = [[], []]
    order = Random(SEED)
    for _ in range(count):
        for which in order.sample((0, 1), 2):
            started = process_time_ns()
            works[which]()
            spent_ms[which].append((process_time_ns() - started) / 1e6)
    return median(spent_ms[0]), median(spent_ms[1])


def _runner(data: bytes, points: tuple[str, ...], example: Any) -> Callable[[], dict[str, Any]]:
    """Runs the model cut at these points as a worker does: outputs go into memory that stays."""
    shape: tuple[int | str, ...] = tuple(example.shape)
    request = CarveRequest(
        model_path="",
        output_path="",
        strategy=Strategy(partition_points=points),
        input_shapes={"input.1": shape},
    )
    sliced = carved(data, request)
    known: dict[str, Any] = {"input.1": example}
    sessions = _sessions(sliced.answer, sliced.files, known)

    def run() -> dict[str, Any]:
        for session, inputs, outputs in sessions:
            session.run(inputs, tuple(outputs), outputs)
        return known

    for _ in range(2):
        run()
    return run


def _sessions(
    answer: CarveAnswer, files: dict[str, bytes], known: dict[str, Any]
) -> list[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """(session, inputs, outputs) of each slice; what slices make is added to `known`."""
    from din.backends.onnxruntime_backend import load

    found: list[tuple[Any, dict[str, Any], dict[str, Any]]] = []
    for part in answer.slices:
        outputs = {spec.name: _aligned(spec) for spec in part.outputs}
        inputs = {spec.name: known[spec.name] for spec in part.inputs}
        known.update(outputs)
        model, *weights = (each.sha256 for each in part.artifacts)
        session = load(files[model], SESSION, {each: memoryview(files[each]) for each in weights})
        found.append((session, inputs, outputs))
    return found


def _aligned(spec: TensorSpec) -> Any:
    """An array that starts where a tensor in an arena would."""
    import numpy as np

    shape = [size for size in spec.shape or () if isinstance(size, int)]
    nbytes = nbytes_of(spec.dtype, tuple(shape))
    memory = np.empty(nbytes + TENSOR_ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % TENSOR_ALIGNMENT_BYTES
    return memory[start : start + nbytes].view(np.float32).reshape(shape)
