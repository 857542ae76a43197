"""Deciding: no process, no socket. Fleet, slices and load are drawn from a fixed seed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from time import perf_counter_ns
from typing import Final

from msgspec.structs import replace

from din.agent.profile import look_for_accelerator, make_profile
from din.bench.row import Effort, Row, figure, median
from din.config import NodeConfig
from din.domain.model import Edge, Slice
from din.domain.node import FleetNode, NodeHealth, NodeId, NodeProfile
from din.domain.tensor import TensorSpec
from din.errors import CannotPlace, UsageError
from din.placement.layout import LINK_GUESS, penalties_of, units_of
from din.placement.planner import plan_deployment
from din.placement.policy import WEIGHTED_LEAST_LOAD
from din.placement.router import Candidate, choose_route
from din.placement.score import TimesOf, choose_node
from din.placement.table import FleetTable
from din.system.identity import claim_directory
from din.wire.registration import REGISTRATION_BYTES_MAX, encode_registration

SEED: Final = 20_260_101
DECISION_US_MAX: Final = {100: 25, 1_000: 30, 10_000: 80, 100_000: 500}
SMALL_NODES, SMALL_SLICES = 5, 4
TYPICAL_ADDRESSES: Final = ("unix:/run/user/1000/din/node.sock", "tcp:192.168.178.41:8080")

BOARD: Final = NodeProfile(
    node_id=NodeId("3f2a9c0d1e4b5a67"),
    session=3,
    name="edge-1",
    device_type="aarch64-ascend310p-cann6.3",
    cpu_model="Cortex-A55",
    cpu_isa=("neon", "asimddp"),
    cpu_cores=4,
    memory_mib=7900,
    accelerator="Ascend 310P",
    accelerator_memory_mib=21_527,
    backends=("onnxruntime",),
    versions={"din": "0.1.0", "onnxruntime": "1.32.0"},
    addresses=TYPICAL_ADDRESSES,
    fingerprint_sha256="00ff00ff00ff00ff",
)


def decisions(effort: Effort) -> Iterator[Row]:
    """Choosing the best node for one slice, with a heartbeat of some node before each choice."""
    for size, limit_us in DECISION_US_MAX.items():
        random = Random(SEED)
        table = FleetTable.of(_node(random, number) for number in range(size))
        part = _slice(0, random)
        times_us: list[float] = []
        for _ in range(max(2, effort.repeats * 100 // (100 + size // 100))):
            table.sample(_node_id(random.randrange(size)), _health(random), 1.0)
            times_us.append(
                _time_us(partial(choose_node, table, part, WEIGHTED_LEAST_LOAD, random))
            )
        how = f"p50 of {len(times_us)} choices, a heartbeat between any two, wall time"
        yield figure(f"decision, {size} nodes", median(times_us), "us", how, at_most=limit_us)


def placements(effort: Effort) -> Iterator[Row]:
    """Placing a model as a whole, and whether the answer is the best there is."""
    random = Random(SEED)
    rounds = max(2, effort.repeats // 5)
    times_ms: list[float] = []
    for _ in range(rounds):
        table = FleetTable.of(_node(random, number) for number in range(100))
        slices, edges = _chain(random, 5)
        seen = _seen(random)
        times_ms.append(
            _time_us(partial(plan_deployment, slices, edges, table, random=random, times=seen))
            / 1000
        )
    how = f"{rounds} fleets of 100 nodes, 5 slices timed on every second node, wall time"
    yield figure("placement, p50", median(times_ms), "ms", how, at_most=1)
    yield figure("placement, max", max(times_ms), "ms", how, at_most=20)
    tried = max(2, effort.repeats // 10)
    best = sum(_is_best(Random(SEED + number)) for number in range(tried))
    how = (
        f"{tried} instances of {SMALL_SLICES} slices on {SMALL_NODES} nodes, all assignments tried"
    )
    yield figure("placement, equal to the optimum", best / tried, "share", how, at_least=1)


def routes(effort: Effort) -> Iterator[Row]:
    """Choosing among ready replicas for one request."""
    random = Random(SEED)
    offered = [
        [
            Candidate(_node_id(number), random.randrange(3), random.uniform(5, 6))
            for number in range(2)
        ]
        for _ in range(3)
    ]
    times_us = [_time_us(lambda: choose_route(offered, random)) for _ in range(effort.repeats)]
    how = f"p50 of {len(times_us)} choices, 3 slices with 2 replicas each, wall time"
    yield figure("route of one request", median(times_us), "us", how)


def registrations(effort: Effort) -> Iterator[Row]:
    """Bytes of the body: this machine's, and the largest that the encoder lets through."""
    del effort
    with tempfile.TemporaryDirectory(prefix="din-bench-") as folder:
        with claim_directory(Path(folder), "din bench") as claim:
            identity = claim.next_identity()
        config = NodeConfig(name="edge-1", state_dir=folder)
        _, accelerator = look_for_accelerator(config)
        profile = make_profile(config, identity, accelerator, TYPICAL_ADDRESSES)
    how = f"{BOARD.device_type}, {BOARD.cpu_model}"
    size = len(encode_registration(BOARD, "default"))
    yield figure("registration body, an edge board", size, "bytes", how, at_most=220)
    size = len(encode_registration(profile, "default"))
    yield figure("registration body, this machine", size, "bytes", "no labels", at_most=379)
    largest = _largest(profile)
    how = f"labels added until the encoder refuses (limit {REGISTRATION_BYTES_MAX})"
    yield figure("registration body, largest", largest, "bytes", how, at_most=379)


def _largest(profile: NodeProfile) -> int:
    largest = 0
    for length in range(400):
        texts = [min(30, length - begin) for begin in range(0, length, 30)]
        labels = {f"k{number}": "v" * size for number, size in enumerate(texts)}
        try:
            body = encode_registration(replace(profile, labels=labels), "default")
        except UsageError:
            break
        largest = len(body)
    return largest


def _is_best(random: Random) -> bool:
    nodes = [
        _node(random, number, memory_mib=random.choice((150, 300))) for number in range(SMALL_NODES)
    ]
    slices, edges = _chain(random, SMALL_SLICES)
    costs = {
        (part.index, node.profile.node_id): random.uniform(1, 9)
        for part in slices
        for node in nodes
    }
    penalties = penalties_of(units_of(slices), edges, LINK_GUESS)

    def cost_of(chosen: tuple[FleetNode, ...]) -> float:
        return _cost(chosen, slices, penalties, lambda index, node: costs[index, node])

    best = min(cost_of(each) for each in product(nodes, repeat=len(slices)))
    try:
        plan = plan_deployment(
            slices,
            edges,
            nodes,
            random=random,
            times=lambda slice_id, node: costs[int(slice_id), node],
        )
    except CannotPlace:
        return best == float("inf")
    by_id = {node.profile.node_id: node for node in nodes}
    chosen = tuple(by_id[NodeId(each.node_id)] for each in plan.placements)
    return abs(cost_of(chosen) - best) <= 1e-5 * best


def _cost(
    chosen: tuple[FleetNode, ...],
    slices: tuple[Slice, ...],
    penalties: dict[tuple[int, int], float],
    time_ms: Callable[[int, NodeId], float],
) -> float:
    """What an assignment costs, written down a second time; infinite when memory is short."""
    total = 0.0
    used: dict[NodeId, int] = {}
    for part, node in zip(slices, chosen, strict=True):
        node_id, health = node.profile.node_id, node.health
        used[node_id] = used.get(node_id, 0) + part.memory_mib
        load = 1 + 0.5 * (0.5 if health.cpu_percent is None else health.cpu_percent / 100)
        sick = 1 + 0.5 * (1 - node.health_score)
        total += time_ms(part.index, node_id) * (health.queue_length + 1) * sick * load
        if used[node_id] > (health.memory_mib_free or 0):
            return float("inf")
    return total + sum(
        penalty
        for (earlier, later), penalty in penalties.items()
        if chosen[earlier].profile.node_id != chosen[later].profile.node_id
    )


def _seen(random: Random) -> TimesOf:
    """Measured times: of every second node, as after some days."""
    times_ms = {_node_id(number): random.uniform(3, 12) for number in range(0, 100, 2)}
    return lambda slice_id, node: times_ms.get(node)


def _time_us(work: Callable[[], object]) -> float:
    started = perf_counter_ns()
    work()
    return (perf_counter_ns() - started) / 1000


def _chain(random: Random, count: int) -> tuple[tuple[Slice, ...], tuple[Edge, ...]]:
    slices = tuple(_slice(index, random) for index in range(count))
    edges = tuple(Edge(f"t{index}", index, (index + 1,)) for index in range(count - 1))
    return slices, edges


def _slice(index: int, random: Random) -> Slice:
    return Slice(
        index=index,
        slice_id=str(index),
        name=f"part-{index}",
        inputs=(),
        outputs=(TensorSpec(f"t{index}", "FP32", (1, random.randrange(8, 256), 32, 32)),),
        memory_mib=random.randrange(40, 140),
        flops=random.randrange(10**7, 10**9),
    )


def _node_id(number: int) -> NodeId:
    return NodeId(f"{number:016x}")


def _health(random: Random, memory_mib: int = 4000) -> NodeHealth:
    return NodeHealth(
        cpu_percent=random.uniform(0, 100),
        memory_mib_free=memory_mib,
        temperature_c=random.uniform(30, 74),
        queue_length=random.randrange(4),
    )


def _node(random: Random, number: int, memory_mib: int = 0) -> FleetNode:
    memory_mib = memory_mib or random.randrange(200, 8000)
    return FleetNode(
        profile=NodeProfile(
            node_id=_node_id(number),
            session=1,
            name=f"node-{number}",
            device_type=random.choice(("x86_64", "aarch64-ascend310p-cann6.3", "aarch64")),
            cpu_model="any",
            cpu_isa=(),
            cpu_cores=4,
            memory_mib=memory_mib,
            backends=("onnxruntime",),
        ),
        health=_health(random, memory_mib),
        status="ready",
        health_score=random.uniform(0.6, 1.0),
    )
