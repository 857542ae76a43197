"""What a request costs on top of ONNX Runtime called in a loop: through gateway, agent and worker,
and through a server written by hand.

Each window of a contender comes right after a window of the floor, and the contenders take turns
in shuffled order, so that a disturbance of the machine hits all of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

import psutil
from msgspec import Struct

from din.bench.floor import Floor
from din.bench.load import Shot, load, shot_at
from din.bench.models import SESSION, example_of, fetched, session_of, write_identity
from din.bench.network import Network, answers_now, cpu_s, oip_request, wait_for
from din.bench.row import Effort, Row, figure, median, missing
from din.bench.yardstick import request_of, running
from din.errors import DinError, ExecutionFailed, Unavailable

WORKERS: Final = 2
CLIENTS: Final = 8
TRIVIAL_BYTES: Final = 600 * 1024
MODEL_ID: Final = "model"


class Goals(Struct, frozen=True, kw_only=True):
    """Of one contender; None = shown for comparison."""

    added_ms: float | None = None
    throughput: float | None = None
    cpu: float | None = None


class Contender(Struct, kw_only=True):
    """A server that runs, and what was seen of it, by round."""

    name: str
    goals: Goals
    shot: Shot
    cpu_s: Callable[[], float]
    added_ms: list[float] = []
    slower: list[float] = []
    throughput: list[float] = []
    cpu: list[float] = []
    p99_ms: list[float] = []


def blazeface(effort: Effort) -> Iterator[Row]:
    """A real small model: 192 KB in, 1.4 ms of work."""
    path = fetched("blazeface")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="din-bench-")))
        contenders = [
            _din(stack, path, "direct", Goals(added_ms=0.40, throughput=0.75, cpu=1.22)),
            _din(stack, path, "relay", Goals(added_ms=0.50, throughput=0.69, cpu=1.32)),
        ]
        try:
            contenders.append(_by_hand(stack, path, folder))
        except DinError as error:
            yield missing("BlazeFace, FastAPI by hand", error.story())
        floor = stack.enter_context(Floor(path))
        _compare(contenders, floor, effort)
        for contender in contenders:
            yield from _rows("BlazeFace", contender, effort)


def trivial(effort: Effort) -> Iterator[Row]:
    """600 KB in and out, nothing to compute: the price of bytes."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="din-bench-")))
        path = write_identity(folder / "identity.onnx", TRIVIAL_BYTES)
        contenders = [
            _din(stack, path, "direct", Goals(added_ms=1.0)),
            _din(stack, path, "relay", Goals(added_ms=1.0)),
        ]
        floor = stack.enter_context(Floor(path))
        for number in range(effort.rounds):
            for contender in _shuffled(contenders, number):
                _one_client(contender, floor, effort)
        for contender in contenders:
            yield _added_row("600 KB trivial model", contender, effort)


def _din(stack: ExitStack, path: Path, way: str, goals: Goals) -> Contender:
    network = stack.enter_context(Network(direct=way == "direct"))
    network.start_gateway()
    network.start_node("node-a")
    network.wait_nodes()
    network.register(path, MODEL_ID, workers=WORKERS, replicas=1, backend_options=SESSION)
    session = session_of(path)
    example = example_of(session)
    name = session.get_inputs()[0].name
    _check_answer(network, session, name, example, way)
    shot = shot_at(network.url, network.folder, way, [oip_request(MODEL_ID, name, example)])
    load(shot, CLIENTS, 0.3)
    return Contender(name=f"DIN {way}", goals=goals, shot=shot, cpu_s=network.cpu_s)


def _check_answer(network: Network, session: Any, name: str, example: Any, way: str) -> None:
    import numpy as np

    with network.client() as client:
        given = client.infer(MODEL_ID, {name: example})
        path = client.traces(1).items[0].path
    names = [each.name for each in session.get_outputs()]
    for output, wanted in zip(names, session.run(None, {name: example}), strict=True):
        if not np.allclose(given.outputs[output], wanted, rtol=1e-4, atol=1e-6):
            raise ExecutionFailed(f"output {output} differs from that of ONNX Runtime")
    if path != way:
        raise Unavailable(f"requests went {path}, not {way}")


def _by_hand(stack: ExitStack, path: Path, folder: Path) -> Contender:
    process, url = stack.enter_context(running(path, WORKERS))
    request = request_of(example_of(session_of(path)))
    wait_for("the hand-written server's start", lambda: answers_now(url, request) or None)
    shot = shot_at(url, folder, "by-hand", [request])
    load(shot, CLIENTS, 0.3)
    top = psutil.Process(process.pid)
    return Contender(
        name="FastAPI by hand",
        goals=Goals(),
        shot=shot,
        cpu_s=lambda: sum(map(cpu_s, (top, *top.children(recursive=True)))),
    )


def _compare(contenders: list[Contender], floor: Floor, effort: Effort) -> None:
    for number in range(effort.rounds):
        for contender in _shuffled(contenders, number):
            _one_client(contender, floor, effort)
            _many_clients(contender, floor, effort)


def _shuffled(contenders: list[Contender], seed: int) -> list[Contender]:
    return Random(seed).sample(contenders, len(contenders))


def _one_client(contender: Contender, floor: Floor, effort: Effort) -> None:
    bare = floor.window(1, effort.window_s / 2)
    seen = _load(contender, 1, effort.window_s)[0]
    contender.added_ms.append(seen.p50_ms - bare.p50_ms)
    contender.slower.append(seen.p50_ms / bare.p50_ms)


def _many_clients(contender: Contender, floor: Floor, effort: Effort) -> None:
    bare = floor.window(2, effort.window_s)
    seen, spent_s = _load(contender, CLIENTS, effort.window_s * 1.5)
    contender.throughput.append(seen.rate / bare.rate)
    contender.cpu.append(spent_s / seen.answered * 1e6 / bare.cpu_us)
    contender.p99_ms.append(seen.p99_ms)


def _load(contender: Contender, clients: int, seconds: float) -> tuple[Any, float]:
    before_s = contender.cpu_s()
    seen = load(contender.shot, clients, seconds)
    if seen.failed:
        raise ExecutionFailed(f"{contender.name} failed requests: {seen.failed}")
    return seen, contender.cpu_s() - before_s


def _rows(model: str, contender: Contender, effort: Effort) -> Iterator[Row]:
    yield _added_row(model, contender, effort)
    name = f"{model}, {contender.name}"
    goals = contender.goals
    window = f"median of {effort.rounds} rounds of {effort.window_s * 1.5:g} s, {CLIENTS} clients"
    how = (
        f"{window}, {WORKERS} workers of 1 thread, over 2 threads of ONNX Runtime in one process "
        f"just before; p99 {median(contender.p99_ms):.1f} ms"
    )
    yield figure(
        f"{name}, throughput", median(contender.throughput), "x floor", how,
        at_least=goals.throughput,
    )  # fmt: skip
    how = f"{window}, CPU time of all its processes for a request, over that of a call"
    yield figure(f"{name}, CPU", median(contender.cpu), "x floor", how, at_most=goals.cpu)


def _added_row(model: str, contender: Contender, effort: Effort) -> Row:
    how = (
        f"p50 of 1 client minus p50 of ONNX Runtime in one process just before "
        f"({median(contender.slower):.2f}x), median of {effort.rounds} rounds of "
        f"{effort.window_s:g} s"
    )
    return figure(
        f"{model}, {contender.name}, added", median(contender.added_ms), "ms", how,
        at_most=contender.goals.added_ms,
    )  # fmt: skip
