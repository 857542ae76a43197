"""Cutting models: how long it takes, and whether the slices together are still the model."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from random import Random
from time import process_time_ns
from typing import Any, Final

from din.bench.backend_cases import WAYS, cases, failure, is_cuttable, plainly
from din.bench.composed import Composed
from din.bench.examples import EXAMPLES, feeds_of, shapes_of
from din.bench.light_models import example, light_model, with_random_weights
from din.bench.models import fetched
from din.bench.row import Effort, Row, figure, median
from din.domain.model import MODEL_FILE
from din.slicing.emission import emit
from din.slicing.identity import slice_id_of
from din.slicing.parts import divide
from din.slicing.skeleton import Skeleton, skeleton_of
from din.slicing.slicer import Analysed, analyse, analyse_skeleton

SLICES: Final = 5
COLD_MS_MAX: Final = {450: 8.0, 700: 20.0}
"""By the largest number of operators that it holds for."""
SKELETON_MS_MAX: Final = 10.0
"""Of a model of 100 MB; what is smaller takes no longer."""
LIGHT: Final = ("shufflenet", "squeezenet", "resnet50", "densenet121")
WAYS_CUT: Final = (2, 3, 5)
SEED: Final = 1
ONE_FEWER: Final = 1
"""At operator level: chains of FP16 that the engine keeps in FP32 within one session."""


def cold(effort: Effort) -> Iterator[Row]:
    """A model that was never seen: from its bytes to a skeleton, and from that to five slices with
    their ids."""
    models = {name: fetched(name).read_bytes() for name in ("ppocr-det", "ppocr-rec")}
    for name in ("densenet121", "resnet50"):
        models[name] = with_random_weights(light_model(name), SEED).SerializeToString()
    count = max(2, effort.repeats * effort.rounds // 150)
    for name, data in models.items():
        files = {MODEL_FILE: memoryview(data)}
        skeleton = skeleton_of(files[MODEL_FILE])
        operators = len(analyse_skeleton(skeleton, files, {}).graph.dynamic)
        with _uncollected():
            taken_ms = median([_skeleton_ms(files) for _ in range(count)])
            spent_ms = median([_cold_ms(skeleton, files) for _ in range(count)])
        limit_ms = min(limit for size, limit in COLD_MS_MAX.items() if operators <= size)
        how = f"{len(data) / 2**20:.0f} MiB; median CPU time of {count} runs"
        yield figure(f"skeleton, {name}", taken_ms, "ms", how, at_most=SKELETON_MS_MAX)
        yield figure(f"cold slicing, {name}, {operators} operators", spent_ms, "ms",
                     f"{how}, from the skeleton to {SLICES} slices", at_most=limit_ms)  # fmt: skip


@contextmanager
def _uncollected() -> Generator[None]:
    """As the carver runs."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _skeleton_ms(files: dict[str, memoryview]) -> float:
    started = process_time_ns()
    skeleton_of(files[MODEL_FILE])
    return (process_time_ns() - started) / 1e6


def _cold_ms(skeleton: Skeleton, files: dict[str, memoryview]) -> float:
    started = process_time_ns()
    found = analyse_skeleton(skeleton, files, {})
    dynamic = found.graph.dynamic
    slice_of = {each.index: place * SLICES // len(dynamic) for place, each in enumerate(dynamic)}
    parts, _ = divide(found.graph, found.shapes, slice_of, SLICES)
    for part in parts:
        made = emit(found.model, found.graph, found.shapes, part)
        slice_id_of(made)
        made.SerializeToString(deterministic=True)
    return (process_time_ns() - started) / 1e6


def bitwise(effort: Effort) -> Iterator[Row]:
    """Random cuts of real models and topologies against the whole, without optimisations."""
    equal = total = 0
    for name, data, feeds in _models():
        found = analyse(data, shapes_of(name))
        expected = Composed(found, {each.index: 0 for each in found.graph.dynamic}, "off")
        answer = expected.run(feeds)
        draw = Random(f"{SEED}{name}")
        for ways in WAYS_CUT[: effort.rounds] * 2:
            total += 1
            equal += _is_same(Composed(found, _cut(found, ways, draw), "off").run(feeds), answer)
    how = (
        f"{equal} of {total} random cuts in {', '.join(map(str, WAYS_CUT))} slices of "
        f"{len(EXAMPLES)} fetched models and {len(LIGHT)} topologies with random weights; "
        "optimisations off, 1 thread each"
    )
    yield figure("sliced, bitwise as the whole", equal / total, "share", how, at_least=1)


def _models() -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    for name in EXAMPLES:
        yield name, fetched(name).read_bytes(), feeds_of(name)
    for name in LIGHT:
        model = with_random_weights(light_model(name), SEED)
        yield name, model.SerializeToString(), example(model)


def _cut(found: Analysed, ways: int, draw: Random) -> dict[int, int]:
    dynamic = found.graph.dynamic
    starts = draw.sample(range(1, len(dynamic)), ways - 1)
    return {
        each.index: sum(place >= start for start in starts) for place, each in enumerate(dynamic)
    }


def _is_same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].tobytes() == value.tobytes() for name, value in expected.items()
    )


def backend_suite(effort: Effort) -> Iterator[Row]:
    """ONNX's own test cases: how many pass plainly, and how many when cut."""
    chosen = cases()
    if effort.repeats < Effort().repeats:
        chosen = chosen[: effort.repeats * 10]
    passed = {each.name for each in chosen if not failure(each, plainly)}
    how = f"of {len(chosen)} cases of the onnx package"
    yield figure("backend cases, plain", len(passed), "cases", how)
    cuttable = {each.name for each in chosen if is_cuttable(each)}
    allowed = {"operator level": ONE_FEWER}
    for way, prepare in WAYS.items():
        # A case with one operator is the same program however it is cut.
        tried = [each for each in chosen if way == "whole" or each.name in cuttable]
        good = {each.name for each in tried if not failure(each, prepare)}
        if way != "whole":
            good |= passed - cuttable
        how = f"{len(passed - good)} fewer and {len(good - passed)} more than plain"
        goal = len(passed) - allowed.get(way, 0)
        yield figure(f"backend cases, {way}", len(good), "cases", how, at_least=goal)
