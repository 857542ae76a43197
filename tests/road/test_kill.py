"""kill -9 under load: every accepted request is answered, and rightly."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest

from din.errors import DinError
from tests.road import small_models
from tests.road.conftest import pixels, whole_model
from tests.road.processes import Network, wait_for
from tests.road.test_road import register

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

NODES = ("edge-one", "edge-two", "edge-three")
CLIENTS = 4
REQUESTS_EACH = 500
KILLS = 10


class Load:
    """Clients that ask until each has its answers."""

    def __init__(self, network: Network, wanted: dict[str, np.ndarray], tensor: np.ndarray) -> None:
        self.network = network
        self.wanted = wanted
        self.tensor = tensor
        self.good = 0
        self.bad: list[str] = []
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]

    def _ask(self) -> None:
        with self.network.client(timeout_ms=60_000) as client:
            for _ in range(REQUESTS_EACH):
                try:
                    given = client.infer("free", {"input.1": self.tensor}).outputs
                    is_right = all(
                        np.allclose(given[name], array, rtol=1e-4, atol=1e-6)
                        for name, array in self.wanted.items()
                    )
                    text = "" if is_right else "wrong numbers"
                except DinError as error:
                    text = error.story()
                with self.lock:
                    self.good += not text
                    if text:
                        self.bad.append(text)

    @property
    def is_running(self) -> bool:
        return any(thread.is_alive() for thread in self.threads)


def test_two_thousand_answers_survive_ten_killed_nodes(network: Network, centerface: Path) -> None:
    random = Random(20251)
    network.start_gateway()
    for name in NODES:
        network.start_node(name)
    network.wait_ready(*NODES)
    register(
        network,
        centerface,
        "free",
        partition_points=("404", "474"),
        inputs={"input.1": (1, 3, 160, 160)},
        backend_options={"threads": "1"},
    )
    ids = {node.name: node.node_id for node in network.node_views()}
    tensor = pixels(160)
    load = Load(network, whole_model(centerface, tensor, is_optimised=True), tensor)
    for thread in load.threads:
        thread.start()
    kills = 0
    for number in range(KILLS):
        # Moments are spread over the answers, not over time, so that the load outlasts the kills.
        moment = int((number + random.random() * 0.8) * CLIENTS * REQUESTS_EACH / (KILLS + 1))
        wait_for("the load moves on", lambda m=moment: load.good + len(load.bad) >= m, 120)
        victim = random.choice(NODES)
        network.kill_node(victim)
        kills += 1
        time.sleep(random.uniform(0.0, 0.5))
        network.restart_node(victim)
        network.wait_ready(*NODES)
    for thread in load.threads:
        thread.join(300)
    assert not load.is_running
    assert load.bad == []
    assert load.good == CLIENTS * REQUESTS_EACH
    assert kills == KILLS
    assert {node.name: node.node_id for node in network.node_views()} == ids
    with network.client() as client:
        for _ in range(30):
            client.infer("free", {"input.1": tensor})
        used = {s.node for t in client.traces(30).items for s in t.execution_trace}
    assert used <= set(NODES)


def test_a_killed_worker_costs_no_request(network: Network, centerface: Path) -> None:
    """The direct path: shared memory, no agent between."""
    import os
    import signal

    import psutil

    network.start_gateway()
    network.start_node(NODES[0])
    network.wait_ready(NODES[0])
    register(network, centerface, "free", inputs={"input.1": (1, 3, 160, 160)}, workers=2)
    tensor = pixels(160)
    load = Load(network, whole_model(centerface, tensor, is_optimised=True), tensor)
    for thread in load.threads:
        thread.start()
    agent = psutil.Process(network.nodes[NODES[0]].pid)
    for number in range(5):
        wait_for("the load moves on", lambda n=number: load.good > (n + 1) * 200, 120)
        zygote = agent.children()[0]
        workers = [each for each in zygote.children() if each.status() != psutil.STATUS_ZOMBIE]
        if workers:
            os.kill(workers[number % len(workers)].pid, signal.SIGKILL)
    for thread in load.threads:
        thread.join(300)
    assert load.bad == []
    assert load.good == CLIENTS * REQUESTS_EACH


@pytest.mark.parametrize("points", [(), ("add.0", "add.1")])
def test_the_only_worker_is_waited_for_when_it_was_killed(
    network: Network, points: tuple[str, ...]
) -> None:
    """Fed by the gateway or by the agent: the next worker takes longer to load than all attempts
    together take to fail."""
    import os
    import signal

    import psutil

    network.start_gateway()
    network.start_node(NODES[0])
    network.wait_ready(NODES[0])
    path = small_models.chain(network.folder / "chain.onnx")
    register(network, path, "chain", partition_points=points)
    agent = psutil.Process(network.nodes[NODES[0]].pid)
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    with network.client() as client:
        for number in range(len(points) + 1):
            title = f"din worker slice-{number}" if points else "din worker"
            found = agent.children(recursive=True)
            worker = next(each for each in found if title in each.cmdline()[0])
            os.kill(worker.pid, signal.SIGKILL)
            answer = client.infer("chain", {"x": x}).outputs["y"]
            np.testing.assert_array_equal(answer, small_models.chain_answer(x))
