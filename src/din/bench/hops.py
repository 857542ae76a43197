"""From one process to the next: agent to worker through the arena, worker to worker through both
agents, and what a split over two nodes adds to a whole model."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final

import psutil

from din.agent.pool import WorkerPool
from din.agent.zygote import Zygote
from din.bench.load import Shot, load, shot_at
from din.bench.models import FP32_BYTES, SESSION, example_of, fetched, session_of, write_identity
from din.bench.network import Network, oip_request
from din.bench.row import Effort, Row, figure, median, percentile
from din.domain.model import Artifact, Slice
from din.domain.strategy import SliceSetting, Strategy
from din.domain.tensor import TensorMeta, TensorSpec
from din.errors import Denied, DinError, Internal, Unavailable
from din.transport.channel import InputSlot, OutputSet, WorkerChannel
from din.wire.worker import Placed

ARENA_BYTES: Final = 600 * 1024
ARENA_US_MAX: Final = 60
HOP_MS_MAX: Final = {8 * 1024: 0.25, 600 * 1024: 0.7}
SPLIT_SIDE: Final = 320
SPLIT_POINT: Final = "404"
SPLIT_SHARE_MAX, SPLIT_MS_MAX = 0.05, 1.0
ANSWER_S_MAX: Final = 30.0
PINNED: Final = (
    SliceSetting(name="first", labels={"slot": "a"}),
    SliceSetting(name="second", labels={"slot": "b"}),
)


def arena(effort: Effort) -> Iterator[Row]:
    """Round trip agent -> worker -> agent in a hot loop, without the engine's own time."""
    with tempfile.TemporaryDirectory(prefix="din-bench-") as folder:
        path = write_identity(Path(folder) / "identity.onnx", ARENA_BYTES)
        trips_us, engine_us = asyncio.run(_arena(path, effort.repeats))
    how = (
        f"p50 of {len(trips_us)} round trips of an Identity model, its own {engine_us:.0f} us "
        f"taken off; p99 {percentile(trips_us, 0.99):.0f} us"
    )
    yield figure("arena, 600 KB, round trip", median(trips_us), "us", how, at_most=ARENA_US_MAX)


async def _arena(path: Path, repeats: int) -> tuple[list[float], float]:
    deaths: list[str] = []
    zygote = Zygote(asyncio.get_running_loop(), deaths.append)
    pool = WorkerPool(
        zygote,
        on_worker_ready=lambda *_: None,
        on_worker_died=lambda _, death: deaths.append(death.story()),
    )
    spec = TensorSpec("x", "FP32", (1, ARENA_BYTES // FP32_BYTES))
    part = Slice(
        index=0,
        slice_id="identity",
        name="identity",
        artifacts=(Artifact("", 0),),
        inputs=(spec,),
        outputs=(TensorSpec("t1", "FP32", spec.shape),),
    )
    try:
        await pool.start(part, [path], 1, dict(SESSION), wants_direct=False)
        channel = pool.pick()
        if channel is None:
            raise Unavailable("the worker died", hint="; ".join(deaths))
        trips = [await _trip(channel) for _ in range(repeats + repeats // 10)][repeats // 10 :]
    finally:
        await pool.stop()
        await zygote.stop()
    return [total - engine for total, engine in trips], median([engine for _, engine in trips])


async def _trip(channel: WorkerChannel) -> tuple[float, float]:
    """(whole, in the engine) in microseconds, up to the callback in which an agent goes on."""
    answered: asyncio.Future[tuple[float, float]] = asyncio.get_running_loop().create_future()
    meta = TensorMeta("x", "FP32", (1, ARENA_BYTES // FP32_BYTES), ARENA_BYTES)

    def done(outcome: OutputSet | DinError) -> None:
        if isinstance(outcome, DinError):
            answered.set_exception(outcome)
            return
        slot.free()
        slot.view.release()
        for view in outcome.views:
            view.release()
        outcome.release()
        answered.set_result(((perf_counter_ns() - started) / 1000, float(outcome.compute_us)))

    started = perf_counter_ns()
    slot = _slot(channel)
    channel.compute([Placed(meta, slot.offset)], (), 10_000, done)
    return await asyncio.wait_for(answered, ANSWER_S_MAX)


def _slot(channel: WorkerChannel) -> InputSlot:
    slot = channel.allocate(ARENA_BYTES)
    if slot is None:
        raise Internal("the arena has no room for one tensor")
    return slot


def hops(effort: Effort) -> Iterator[Row]:
    """One more hop: a route of two slices on two nodes against a route of one slice."""
    with Network(direct=False) as network:
        kind = _start_pair(network)
        for nbytes, limit_ms in HOP_MS_MAX.items():
            yield _hop(network, nbytes, limit_ms, kind, effort)


def _hop(network: Network, nbytes: int, limit_ms: float, kind: str, effort: Effort) -> Row:
    shots: dict[str, Shot] = {}
    for name, operators in (("one", 1), ("two", 2)):
        model_id = f"{name}-{nbytes}"
        path = write_identity(network.folder / f"{model_id}.onnx", nbytes, operators)
        cuts = (
            Strategy(partition_points=("t1",), slices=PINNED) if operators == 2
            else Strategy(slices=PINNED[:1])
        )  # fmt: skip
        network.register(path, model_id, slicing_strategy=cuts, replicas=1, backend_options=SESSION)
        request = oip_request(model_id, "x", example_of(session_of(path)))
        shots[name] = shot_at(network.url, network.folder, model_id, [request])
    if _is_tcp(network, "node-b"):
        kind = "TCP"
    seen = _in_turn(shots, effort)
    engine_ms = _engine_ms(network, f"two-{nbytes}")
    added = [two - one - engine_ms for one, two in zip(seen["one"], seen["two"], strict=True)]
    how = (
        f"p50 of a route of two slices minus p50 of a route of one, and minus the {engine_ms:.3f} "
        f"ms of the second Identity; 1 client, {kind} between the agents, median of "
        f"{effort.rounds} interleaved rounds of {effort.window_s:g} s"
    )
    return figure(
        f"worker to worker, {kind}, {nbytes // 1024} KB", median(added), "ms", how, at_most=limit_ms
    )


def _start_pair(network: Network) -> str:
    """Two nodes that dial each other by TCP: the other's Unix socket is taken away. Returns what
    they would use otherwise."""
    network.start_gateway()
    for slot in ("a", "b"):
        network.start_node(f"node-{slot}", labels={"slot": slot})
    network.wait_nodes()
    for path in network.folder.glob("node-*/node.sock"):
        path.unlink()
    return "Unix socket"


def _is_tcp(network: Network, name: str) -> bool:
    """Whether a peer is connected to a node's TCP port."""
    process = psutil.Process(network.nodes[name].pid)
    try:
        connections = process.net_connections(kind="tcp")
    except psutil.AccessDenied:
        raise Denied(
            f"only root may see the connections of process {process.pid}",
            hint="run the benchmark as root",
        ) from None
    ports = {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}
    return any(
        each.status == psutil.CONN_ESTABLISHED and each.laddr.port in ports for each in connections
    )


def _in_turn(shots: dict[str, Shot], effort: Effort) -> dict[str, list[float]]:
    """p50 in milliseconds of one client, by name and round."""
    for shot in shots.values():
        load(shot, 1, min(0.3, effort.window_s))
    seen: dict[str, list[float]] = {name: [] for name in shots}
    for _ in range(effort.rounds):
        for name, shot in shots.items():
            answer = load(shot, 1, effort.window_s)
            if answer.failed:
                raise Unavailable(f"requests failed: {answer.failed}")
            seen[name].append(answer.p50_ms)
    return seen


def _engine_ms(network: Network, model_id: str) -> float:
    """Time of the last slice inside its engine, from the newest traces."""
    with network.client() as client:
        traces = [each for each in client.traces(100).items if each.model_id == model_id]
    times = [
        span.duration_ms
        for trace in traces
        for span in trace.spans
        if span.kind == "compute" and span.phase == "second"
    ]
    if not times:
        raise Unavailable(f"no trace of {model_id} names the time of its second slice")
    return median(times)


def two_nodes(effort: Effort) -> Iterator[Row]:
    """CenterFace as two slices on two nodes against CenterFace whole, both through agents."""
    path = fetched("centerface")
    with ExitStack() as stack:
        network = stack.enter_context(Network(direct=False))
        _start_pair(network)
        shots: dict[str, Shot] = {}
        for name, points in (("whole", ()), ("split", (SPLIT_POINT,))):
            network.register(
                path,
                name,
                slicing_strategy=Strategy(
                    partition_points=points, slices=PINNED[: 1 + len(points)]
                ),
                inputs={"input.1": (1, 3, SPLIT_SIDE, SPLIT_SIDE)},
                replicas=1,
                backend_options=SESSION,
            )
            request = oip_request(name, "input.1", _picture())
            shots[name] = shot_at(network.url, network.folder, name, [request])
        seen = _in_turn(shots, effort)
    added = [split - whole for split, whole in zip(seen["split"], seen["whole"], strict=True)]
    whole_ms = median(seen["whole"])
    limit_ms = round(whole_ms * SPLIT_SHARE_MAX + SPLIT_MS_MAX, 2)
    how = (
        f"CenterFace {SPLIT_SIDE}x{SPLIT_SIDE} cut at {SPLIT_POINT}, p50 of 1 client, over "
        f"{whole_ms:.1f} ms whole through one agent; goal is 5 % + 1 ms; median of "
        f"{effort.rounds} interleaved rounds of {effort.window_s:g} s"
    )
    yield figure("two slices on two nodes, added", median(added), "ms", how, at_most=limit_ms)


def _picture() -> Any:
    import numpy as np

    shape = (1, 3, SPLIT_SIDE, SPLIT_SIDE)
    return (np.random.default_rng(0).random(shape, np.float32) * 255).astype(np.float32)
