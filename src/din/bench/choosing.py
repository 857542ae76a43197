"""Choosing where to cut: a decision with the analysis kept, and the dynamic programmes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Final

from din.bench.models import fetched
from din.bench.row import Effort, Row, figure, median
from din.domain.node import NodeId
from din.domain.strategy import Objective
from din.placement.partitioning import choose_cuts, prepare
from din.placement.places import CutWishes, Device
from din.placement.ways import Ways

MODEL: Final = "ppocr-rec"
SPEEDS: Final = (5.0, 12.0, 19.0, 26.0)
"""Assumed GFLOP/s of the kinds of nodes, in turn."""
AMPLE_MIB: Final = 4000.0
TIGHT_MIB: Final = 170.0
"""Less than the whole model needs, so that it has to be split."""


def choices(effort: Effort) -> Iterator[Row]:
    """Cuts of a model of 425 operators, whose analysis is kept, for nodes of four kinds."""
    from din.slicing.slicer import table_of

    table = table_of(fetched(MODEL).read_bytes(), {})
    blocks = prepare(table)
    rounds = max(5, effort.repeats // 20)
    about = f"{MODEL}, {len(table.operators)} operators in {len(blocks)} blocks"

    def timed(nodes: int, objective: Objective, room_mib: float) -> float:
        devices, wishes = _devices(nodes, room_mib), CutWishes(objective=objective)
        return _p50_ms(lambda: choose_cuts(blocks, devices, wishes, Ways()), rounds)

    how = f"p50 of {rounds} choices, {about}, nodes of {len(SPEEDS)} kinds, wall time"
    value = timed(10, "latency", AMPLE_MIB)
    yield figure("slicing decision, cached plan, 10 nodes", value, "ms", how, at_most=1)
    value = timed(100, "latency", AMPLE_MIB)
    yield figure("slicing decision, cached plan, 100 nodes", value, "ms", how, at_most=1)
    value = timed(6, "throughput", AMPLE_MIB)
    yield figure("slicing decision, throughput, 6 nodes, exact", value, "ms", how)
    value = timed(10, "latency", TIGHT_MIB)
    name = "slicing decision, memory forces a split, 10 nodes"
    yield figure(name, value, "ms", how, at_most=10)
    value = _p50_ms(lambda: prepare(table), rounds)
    how = f"p50 of {rounds}: boundaries, blocks and heads of {about}, wall time"
    yield figure("plan from an analysis", value, "ms", how)


def _devices(count: int, room_mib: float) -> tuple[Device, ...]:
    return tuple(
        Device(
            node_id=NodeId(f"{number:016x}"),
            name=f"n{number}",
            device_class=f"kind-{number % len(SPEEDS)}",
            gflops=SPEEDS[number % len(SPEEDS)],
            room_mib=room_mib,
        )
        for number in range(count)
    )


def _p50_ms(work: Callable[[], object], rounds: int) -> float:
    times: list[float] = []
    for _ in range(rounds):
        start_ns = perf_counter_ns()
        work()
        times.append((perf_counter_ns() - start_ns) / 1e6)
    return median(times)
