"""Slices against the whole, in one process: what cutting costs the engine itself."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from time import process_time_ns
from typing import Any, Final

from din.bench.models import fetched, session_of
from din.bench.row import Effort, Row, figure, median
from din.domain.model import CarveAnswer, CarveRequest
from din.slicing.slicer import slice_model

SIDE: Final = 320
POINTS: Final = ("377", "387", "404", "474")
CPU_MAX: Final = 1.06
SEED: Final = 1


def slices(effort: Effort) -> Iterator[Row]:
    """CenterFace in five slices, one ONNX Runtime session each, against one session for all."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import numpy as np

    data = fetched("centerface").read_bytes()
    example = np.random.default_rng(SEED).random((1, 3, SIDE, SIDE), np.float32) * 255
    run_whole = _runner(data, (), example)
    run_parts = _runner(data, POINTS, example)
    spent: dict[str, list[float]] = {"whole": [], "parts": []}
    order = random.Random(SEED)
    for _ in range(max(2, effort.repeats * effort.rounds // 50)):
        turns: list[tuple[str, Callable[[], object]]] = [("whole", run_whole), ("parts", run_parts)]
        order.shuffle(turns)
        for name, work in turns:
            started = process_time_ns()
            work()
            spent[name].append((process_time_ns() - started) / 1e6)
    whole_ms = median(spent["whole"])
    how = (
        f"CenterFace {SIDE}x{SIDE} cut at {', '.join(POINTS)}; median CPU time of "
        f"{len(spent['whole'])} runs each, interleaved, over {whole_ms:.1f} ms whole; 1 thread, "
        "all optimisations"
    )
    ratio = median(spent["parts"]) / whole_ms
    yield figure("5 slices against whole, CPU", ratio, "x whole", how, at_most=CPU_MAX)


def _runner(data: bytes, points: tuple[str, ...], example: Any) -> Callable[[], dict[str, Any]]:
    """Runs the model cut at these points, in sessions of this process."""
    shape: tuple[int | str, ...] = (1, 3, SIDE, SIDE)
    request = CarveRequest(
        model_path="",
        output_path="",
        partition_points=points,
        input_shapes={"input.1": shape},
    )
    sliced = slice_model(data, request, "bench")
    sessions = _sessions(sliced.answer, sliced.files)

    def run() -> dict[str, Any]:
        known: dict[str, Any] = {"input.1": example}
        for session, inputs, outputs in sessions:
            results = session.run(outputs, {name: known[name] for name in inputs})
            known.update(zip(outputs, results, strict=True))
        return known

    for _ in range(2):
        run()
    return run


def _sessions(
    answer: CarveAnswer, files: dict[str, bytes]
) -> list[tuple[Any, list[str], list[str]]]:
    return [
        (
            session_of(files[part.artifacts[0].sha256]),
            [spec.name for spec in part.inputs],
            [spec.name for spec in part.outputs],
        )
        for part in answer.slices
    ]
