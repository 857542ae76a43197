"""Clients, faults and a look at /proc: what the storm tests are made of."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import psutil
from onnx import TensorProto, helper, numpy_helper

from din.domain.strategy import Strategy
from din.domain.views import RegisterModel
from din.errors import DinError
from tests.road.processes import Network

NODES = ("edge-one", "edge-two", "edge-three")
TIMEOUT_MS = 8_000
HANG_S = TIMEOUT_MS / 1000 + 3.0
"""A client waits two seconds beyond its request's deadline; one more for a busy machine."""
MAY_FAIL = {"Unreachable", "Unavailable", "DeadlineExceeded", "NotFound", "Busy", "ExecutionFailed"}
"""What a client may be told while everything around it is killed. Never a wrong answer."""


def chain(path: Path, layers: int, width: int, seed: int) -> Path:
    """`layers` times MatMul and Tanh: t0, t1, ... are the places to cut."""
    random = np.random.default_rng(seed)
    nodes, weights, current = [], [], "x"
    for number in range(layers):
        values = random.standard_normal((width, width)) / np.sqrt(width)
        weights.append(numpy_helper.from_array(values.astype(np.float32), f"w{number}"))
        nodes.append(helper.make_node("MatMul", [current, f"w{number}"], [f"m{number}"]))
        nodes.append(helper.make_node("Tanh", [f"m{number}"], [f"t{number}"]))
        current = f"t{number}"
    nodes.append(helper.make_node("Identity", [current], ["y"]))
    return save(path, nodes, {"x": ["B", width]}, {"y": ["B", width]}, weights)


def save(
    path: Path,
    nodes: list[Any],
    inputs: dict[str, list[Any]],
    outputs: dict[str, list[Any]],
    weights: list[Any] | None = None,
) -> Path:
    """A model of FP32 tensors."""

    def infos(shapes: dict[str, list[Any]]) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in shapes.items()
        ]

    graph = helper.make_graph(nodes, "g", infos(inputs), infos(outputs), weights or [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))
    return path


class Reference:
    """A model's answers by one plain ONNX Runtime session."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.path = path
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def holds(self, x: np.ndarray, y: np.ndarray) -> bool:
        (wanted,) = self._session.run(None, {"x": x})
        return wanted.shape == y.shape and bool(np.allclose(y, wanted, rtol=1e-4, atol=1e-5))


class Storm:
    """Clients that ask and check until `stop`."""

    def __init__(self, network: Network, models: dict[str, tuple[list[Reference], int]]) -> None:
        """Per model: the versions any of which may answer, and the width of its input."""
        self.network = network
        self.models = models
        self.good: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []
        self.hanging: list[str] = []
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, clients: int) -> None:
        for number in range(clients):
            self._threads.append(threading.Thread(target=self._ask_on, args=(number,)))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """No client may hang: each ends within its deadline."""
        self.stopping.set()
        end = time.monotonic() + HANG_S + 10
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        assert not any(thread.is_alive() for thread in self._threads), "a client hangs"

    def _ask_on(self, number: int) -> None:
        random = Random(number)
        numbers = np.random.default_rng(number)
        with self.network.client(timeout_ms=TIMEOUT_MS) as client:
            while not self.stopping.is_set():
                name = random.choice(list(self.models))
                versions, width = self.models[name]
                rows = random.choice([1, 3, 20, 4000 if number % 8 == 0 else 40])
                x = numbers.standard_normal((rows, width)).astype(np.float32)
                began = time.monotonic()
                outcome = self._ask(client, name, versions, x)
                with self._lock:
                    if outcome:
                        self.refused[name, outcome] += 1
                    if time.monotonic() - began > HANG_S:
                        self.hanging.append(f"{name}: {time.monotonic() - began:.1f} s")
                if outcome:
                    self.stopping.wait(0.05)

    def _ask(self, client: Any, name: str, versions: list[Reference], x: np.ndarray) -> str:
        try:
            y = client.infer(name, {"x": x}).outputs["y"]
        except DinError as error:
            return type(error).__name__
        is_right = any(each.holds(x, y) for each in versions)
        with self._lock:
            self.good[name] += 1
            if not is_right:
                self.wrong.append(f"{name} {x.shape} -> {y.shape}")
        return ""


class Faults:
    """Everything that may happen to a network, one thing at a time."""

    def __init__(self, network: Network, random: Random, versions: list[Path]) -> None:
        self.network = network
        self.random = random
        self.versions = versions
        self.port = int(network.url.rpartition(":")[2])
        self.done: Counter[str] = Counter()
        self.unexpected: list[str] = []

    def one(self, kind: str) -> None:
        """Let one of them happen."""
        name = self.random.choice(NODES)
        getattr(self, f"_{kind}")(name)
        self.done[kind] += 1

    def _worker(self, name: str) -> None:
        agent = self.network.nodes[name].pid
        workers = [each for each in living(agent) if each.ppid() != agent]
        if workers:
            self.random.choice(workers).kill()

    def _zygote(self, name: str) -> None:
        agent = self.network.nodes[name].pid
        for each in living(agent):
            if each.ppid() == agent:
                each.kill()

    def _agent(self, name: str) -> None:
        self.network.kill_node(name)
        self.network.restart_node(name)

    def _gateway(self, _: str) -> None:
        assert self.network.gateway is not None
        self.network.gateway.kill()
        self.network.gateway.wait()
        self.network.start_gateway(port=self.port)

    def _leave(self, name: str) -> None:
        self.network.nodes[name].terminate()
        self.network.nodes[name].wait(20)
        self.network.restart_node(name)

    def _drain(self, name: str) -> None:
        try:
            with self.network.client() as client:
                client.drain(name)
        except DinError:
            return  # it is not back yet
        self._leave(name)
        with self.network.client() as client:
            client.undrain(name)

    def _freeze(self, name: str) -> None:
        gateway = self.network.gateway
        assert gateway is not None
        agent = self.network.nodes[name].pid
        victim = self.random.choice([gateway.pid, agent, *(each.pid for each in living(agent))])
        try:
            os.kill(victim, signal.SIGSTOP)
            time.sleep(self.random.uniform(0.2, 1.5))
        finally:
            with suppress(ProcessLookupError):  # DIN ended it, for it did not answer
                os.kill(victim, signal.SIGCONT)

    def _change(self, _: str) -> None:
        """Register the model that changes once more, sometimes after removing it."""
        path = self.random.choice(self.versions)
        points = self.random.choice([(), ("t0",), ("t0", "t1")])
        try:
            with self.network.client() as client:
                if self.random.random() < 0.3:
                    client.remove("changing")
                order = RegisterModel(
                    model_id="changing",
                    source_sha256=client.upload(path),
                    slicing_strategy=Strategy(partition_points=points),
                )
                client.register(order)
        except DinError as error:
            if type(error).__name__ not in {*MAY_FAIL, "Conflict"}:
                self.unexpected.append(error.story())


def living(pid: int) -> list[psutil.Process]:
    """All processes below one, without the dead."""
    try:
        below = psutil.Process(pid).children(recursive=True)
        return [each for each in below if each.status() != psutil.STATUS_ZOMBIE]
    except psutil.NoSuchProcess:
        return []


class Facts:
    """Of one process: what must not grow."""

    def __init__(self, pid: int) -> None:
        process = psutil.Process(pid)
        self.descriptors = process.num_fds()
        self.threads = process.num_threads()
        self.workers = len(living(pid))
        times = process.cpu_times()
        self.cpu_s = times.user + times.system
        self.private_mib = private_mib(pid)

    def __repr__(self) -> str:
        return str(vars(self))


def private_mib(pid: int) -> int:
    """Memory that is not shared: arenas are, and lie in it once they were used."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) // 1024
    return 0


def facts_of(network: Network) -> dict[str, Facts]:
    """Of the gateway and every agent."""
    assert network.gateway is not None
    processes = {"gateway": network.gateway, **network.nodes}
    return {name: Facts(process.pid) for name, process in processes.items()}
