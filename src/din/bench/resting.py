"""What DIN takes when nobody asks it anything, how fast it starts, and how it takes a blow."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from din.bench.load import BUCKET_MS, Loaded, finish_load, shot_at, start_load
from din.bench.models import SESSION, example_of, fetched, session_of
from din.bench.network import (
    Network,
    answers_now,
    cpu_s,
    free_port,
    installed,
    oip_request,
    wait_for,
)
from din.bench.row import Effort, Row, figure, median
from din.errors import Denied, Unavailable

MIB: Final = 1024 * 1024
SETTLE_S: Final = 6.0
"""By then an agent has given back what starting up needed."""
SET_MIB_MAX, AGENT_MIB_MAX, START_S_MAX = 125, 30, 0.45
HELP_RATIO_MAX: Final = 4.0
WORKERS: Final = 2
MODEL_ID: Final = "model"
KILL_AT_S, KILL_LOAD_S, BACK_S_MAX = 2.0, 6.0, 1.0
FULL_RATE: Final = 0.9
CLIENTS: Final = 8


def idle(effort: Effort) -> Iterator[Row]:
    """Memory of gateway, agent, zygote and two workers at rest; then the same set from exec on."""
    path = fetched("blazeface")
    with Network(port=free_port()) as network:
        request = _serve(network, path)
        time.sleep(SETTLE_S if effort.window_s >= 1 else 0)
        processes = network.processes()
        sizes = {name: _pss_mib(process) for name, process in processes.items()}
        parts = ", ".join(f"{name} {size:.0f}" for name, size in sizes.items())
        how = f"proportional set size, {WORKERS} workers with BlazeFace: {parts} MiB"
        yield figure("idle set", sum(sizes.values()), "MiB", how, at_most=SET_MIB_MAX)
        agent_mib = processes["node-a"].memory_info().rss / MIB
        how = "resident set size, its zygote and workers not counted"
        yield figure("idle agent", agent_mib, "MiB", how, at_most=AGENT_MIB_MAX)
        times_s = [_start_s(network, request) for _ in range(effort.rounds)]
    how = (
        f"gateway and agent started at once with a known model until the first good answer, "
        f"median of {len(times_s)} starts"
    )
    yield figure("start to first answer", median(times_s), "s", how, at_most=START_S_MAX)


def _serve(network: Network, path: Path) -> bytes:
    network.start_gateway()
    network.start_node("node-a")
    network.wait_nodes()
    network.register(path, MODEL_ID, workers=WORKERS, replicas=1, backend_options=SESSION)
    session = session_of(path)
    return oip_request(MODEL_ID, session.get_inputs()[0].name, example_of(session))


def _start_s(network: Network, request: bytes) -> float:
    network.stop()
    started = time.monotonic()
    network.launch_gateway()
    network.launch_node("node-a")
    wait_for("a good answer", lambda: answers_now(network.url, request) or None)
    return time.monotonic() - started


def _pss_mib(process: psutil.Process) -> float:
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except PermissionError:
        raise Denied(
            f"only root may see how process {process.pid} shares its memory",
            hint="run the benchmark as root",
        ) from None
    return int(text.split("Pss:")[1].split()[0]) / 1024


def kill(effort: Effort) -> Iterator[Row]:
    """kill -9 of the busiest worker under load."""
    path = fetched("blazeface")
    short = min(1.0, effort.window_s)
    with Network() as network:
        request = _serve(network, path)
        shot = shot_at(network.url, network.folder, "kill", [request])
        before = {name: cpu_s(each) for name, each in network.processes().items()}
        loading = start_load(shot, CLIENTS, KILL_LOAD_S * short)
        time.sleep(KILL_AT_S * short)
        workers = {
            name: each
            for name, each in network.processes().items()
            if name.startswith("node-a/") and name != "node-a/0"
        }
        busiest = max(workers, key=lambda name: cpu_s(workers[name]) - before.get(name, 0.0))
        workers[busiest].kill()
        killed_ns = time.monotonic_ns()
        seen = finish_load(loading)
    lost = sum(seen.failed.values())
    how = (
        f"{seen.answered} answered, {CLIENTS} clients, kill -9 of the busiest of {WORKERS} workers"
    )
    if seen.failed:
        how += f", lost by {seen.failed}"
    yield figure("worker killed, requests lost", lost, "requests", how, at_most=0)
    how = f"until {FULL_RATE:.0%} of the rate before holds for half a second"
    back_s = _back_s(seen, (killed_ns - seen.began_ns) / 1e9)
    yield figure("worker killed, back to full rate", back_s, "s", how, at_most=BACK_S_MAX)


def _back_s(seen: Loaded, killed_s: float) -> float:
    """Seconds from the kill until the rate is back. Raises Unavailable when it never was."""
    at = int(killed_s * 1000 / BUCKET_MS)
    begin, window = max(0, at - 20), 10
    before = sum(seen.by_bucket[begin:at]) / max(1, at - begin)
    for number in range(at, len(seen.by_bucket) - window):
        if sum(seen.by_bucket[number : number + window]) / window >= FULL_RATE * before:
            return (number - at) * BUCKET_MS / 1000
    raise Unavailable("the rate did not come back while the load lasted")


def start_up(effort: Effort) -> Iterator[Row]:
    """`din --help` against an interpreter that does nothing."""
    bare = [sys.executable, "-c", "pass"]
    helped = [sys.executable, "-c", "from din.cli import main; main()", "--help"]
    times: dict[str, list[float]] = {"bare": [], "help": []}
    for _ in range(effort.rounds * 5):
        times["bare"].append(_cpu_of(bare))
        times["help"].append(_cpu_of(helped))
    bare_s = median(times["bare"])
    how = (
        f"median CPU time of {effort.rounds * 5} interleaved starts, over {bare_s * 1000:.0f} ms "
        "of a bare interpreter"
    )
    ratio = median(times["help"]) / bare_s
    yield figure("din --help", ratio, "x Python", how, at_most=HELP_RATIO_MAX)


def _cpu_of(command: list[str]) -> float:
    process = subprocess.Popen(
        command, env=installed(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise Unavailable(f"{' '.join(command[1:])} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime
