"""Slices against the whole, in one process: what cutting costs the engine itself.

Both run as workers run them, with outputs bound to memory that stays: an engine that allocates its
outputs anew pays for fresh pages at each cut, which no worker does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from time import process_time_ns
from typing import Any, Final, NamedTuple

import numpy as np

from din.bench.carved import carved
from din.bench.light_models import light_model, with_random_weights
from din.bench.models import SESSION, fetched
from din.bench.row import Effort, Row, figure, median
from din.domain.model import CarveRequest
from din.domain.tensor import TENSOR_ALIGNMENT_BYTES
from din.placement.boundaries import blocks_of, boundaries_of
from din.slicing.slicer import table_of

Work = Callable[[], object]


class _Case(NamedTuple):
    name: str
    tensor: str
    shape: tuple[int, ...]
    is_topology: bool = False
    """Of the onnx package, with random weights."""

    def model(self) -> bytes:
        if self.is_topology:
            made = with_random_weights(light_model(self.name), SEED)
            return bytes(made.SerializeToString(deterministic=True))
        return fetched(self.name).read_bytes()


SLICES: Final = 5
LONG_MS, CPU_MAX, SLICE_US_MAX = 20, 1.06, 60
IN_A_ROW: Final = 5
SEED: Final = 1
CASES: Final = (
    _Case("resnet50", "gpu_0/data_0", (1, 3, 224, 224), is_topology=True),
    _Case("densenet121", "data_0", (1, 3, 224, 224), is_topology=True),
    _Case("ppocr-det", "x", (1, 3, 320, 320)),
    _Case("ppocr-rec", "x", (1, 3, 48, 320)),
    _Case("centerface", "input.1", (1, 3, 640, 640)),
    _Case("centerface", "input.1", (1, 3, 320, 320)),
    _Case("ppocr-cls", "x", (1, 3, 48, 192)),
)


def slices(effort: Effort) -> Iterator[Row]:
    """Models in five slices, one session each, against one session for all: in turns, where each
    finds the caches full of the others' memory, and each over and over, as on a node of its own."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    rounds = max(3, effort.repeats * effort.rounds // 300)
    for case in CASES:
        data = case.model()
        assignment, cuts = _cuts(data, {case.tensor: case.shape})
        example = np.random.default_rng(SEED).random(case.shape, np.float32)
        works = [*_works(data, case, (), example), *_works(data, case, assignment, example)]
        how = (
            f"{'x'.join(map(str, case.shape))}, cut where DIN would place blocks "
            f"({', '.join(cuts)}); 1 thread, all optimisations; CPU time, medians of "
        )
        name = f"{SLICES} slices against whole, {case.name} {case.shape[-1]}"
        yield _row(f"{name}, in turns", *_in_turns(works, rounds), f"{how}{rounds} runs each")
        own = _by_themselves(works, rounds)
        yield _row(f"{name}, on their own", *own, f"{how}{rounds * IN_A_ROW} runs each, {IN_A_ROW} "
                   "in a row, added up")  # fmt: skip


def _row(name: str, whole_ms: float, parts_ms: float, how: str) -> Row:
    how = f"{how}; {whole_ms:.2f} ms whole, {parts_ms / whole_ms:.3f}x in slices"
    if whole_ms > LONG_MS:
        return figure(name, parts_ms / whole_ms, "x whole", how, at_most=CPU_MAX)
    added_us = (parts_ms - whole_ms) * 1000 / (SLICES - 1)
    return figure(f"{name}, added a slice", added_us, "us", how, at_most=SLICE_US_MAX)


def _in_turns(works: Sequence[Work], rounds: int) -> tuple[float, float]:
    """Medians of the whole, which is the first, and of all slices one after the other, in ms."""
    whole, *parts = works
    spent_ms: list[list[float]] = [[], []]
    order = Random(SEED)
    for _ in range(rounds):
        for which in order.sample((0, 1), 2):
            spent_ms[which].append(sum(map(_timed_ms, parts if which else [whole])))
    return median(spent_ms[0]), median(spent_ms[1])


def _by_themselves(works: Sequence[Work], rounds: int) -> tuple[float, float]:
    """Median of the whole and the sum of the slices' medians, in ms."""
    spent_ms: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, spent in zip(works, spent_ms, strict=True):
            work()
            spent += [_timed_ms(work) for _ in range(IN_A_ROW)]
    whole_ms, *parts_ms = map(median, spent_ms)
    return whole_ms, sum(parts_ms)


def _timed_ms(work: Work) -> float:
    started = process_time_ns()
    work()
    return (process_time_ns() - started) / 1e6


def _cuts(
    data: bytes, shapes: dict[str, tuple[int | str, ...]]
) -> tuple[tuple[int, ...], list[str]]:
    """The slice of each operator, and what crosses the cuts, in words."""
    table = table_of(data, shapes)
    blocks = blocks_of(boundaries_of(table), blocks_max=SLICES)
    assignment = tuple(blocks.block_of(place) for place in range(len(table.operators)))
    return assignment, [f"{nbytes / 1024:.0f} KiB" for nbytes in blocks.crossing]


def _works(data: bytes, case: _Case, assignment: tuple[int, ...], example: Any) -> Sequence[Work]:
    """One run of each slice, in order, on what the slices before it made."""
    from din.backends.onnxruntime_backend import load

    request = CarveRequest(
        model_path="", output_path="", assignment=assignment, input_shapes={case.tensor: case.shape}
    )
    sliced = carved(data, request)
    known = {case.tensor: example}
    works: list[Work] = []
    for part in sliced.answer.slices:
        model, *packs = (each.sha256 for each in part.artifacts)
        weights = {each: memoryview(sliced.files[each]) for each in packs}
        session = load(sliced.files[model], SESSION, weights)
        inputs = {spec.name: known[spec.name] for spec in part.inputs}
        names = tuple(spec.name for spec in part.outputs)
        outputs = {name: _aligned(made) for name, made in session.run(inputs, names, {}).items()}
        known.update(outputs)
        works.append(partial(session.run, inputs, names, outputs))
    for work in works:
        work()
    return works


def _aligned(made: Any) -> Any:
    """A copy of an array that starts where a tensor in an arena would."""
    memory = np.empty(made.nbytes + TENSOR_ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % TENSOR_ALIGNMENT_BYTES
    found = memory[start : start + made.nbytes].view(made.dtype).reshape(made.shape)
    found[...] = made
    return found
