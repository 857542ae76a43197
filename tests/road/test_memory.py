"""What a node that loads and unloads models all day keeps of their memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from din.system.affinity import descendants
from tests.road.processes import Network, get, wait_for
from tests.road.test_road import register

pytestmark = pytest.mark.system
CYCLES = 10
GROWTH_MAX = 1.10
MODEL = Path(__file__).resolve().parents[2] / ".cache" / "models" / "ppocr-det.onnx"
MODEL_KIB_MIN = 20 * 1024
"""Less than its worker takes: else nothing would have been measured."""
LOOKS = 10
STILL_KIB = 64
"""Between so many looks."""


def resident_kib(agent: int) -> dict[int, int]:
    """Of a node's processes, by pid."""
    found: dict[int, int] = {}
    for pid in (agent, *descendants(agent)):
        try:
            text = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended since
        if "VmRSS:" in text:
            found[pid] = int(text.split("VmRSS:")[1].split()[0])
    return found


def settled_kib(agent: int, processes: int) -> int:
    """Resident set of them all, once there are so many and it stands still."""
    seen: list[dict[int, int]] = []

    def is_settled() -> bool:
        seen.append(resident_kib(agent))
        last = seen[-LOOKS:]
        sums = [sum(each.values()) for each in last]
        return (
            len(last) == LOOKS
            and all(len(each) == processes for each in last)
            and max(sums) - min(sums) < STILL_KIB
        )

    try:
        wait_for(f"{processes} processes stand still", is_settled, 60)
    except AssertionError as fault:
        raise AssertionError(f"{fault}; KiB by pid were {seen[-3:]}") from None
    return sum(seen[-1].values())


def test_ten_loads_and_unloads_leave_a_node_as_large_as_it_was(network: Network) -> None:
    network.start_gateway(encrypt_models="never")
    network.start_node("edge-1")
    network.wait_ready("edge-1")
    agent = network.nodes["edge-1"].pid
    tensor = np.random.default_rng(7).random((1, 3, 160, 160), dtype=np.float32)

    def cycle() -> int:
        """What stays when a model came, answered and went: agent and zygote."""
        with network.client() as client:
            view = register(network, MODEL, "det", verify=False)
            assert view.state == "ready", view.reason
            for _ in range(3):
                assert client.infer("det", {view.inputs[0].name: tensor}).outputs
            loaded_kib = sum(resident_kib(agent).values())
            client.remove("det")
        left_kib = settled_kib(agent, processes=2)
        assert loaded_kib > left_kib + MODEL_KIB_MIN
        return left_kib

    start_kib = cycle()  # the zygote comes with the first model, and stays
    after_kib = [cycle() for _ in range(CYCLES)]
    assert after_kib[-1] <= start_kib * GROWTH_MAX, (start_kib, after_kib)


def test_an_idle_model_gives_its_memory_back_and_answers_all_who_ask_later(
    network: Network,
) -> None:
    network.start_gateway(encrypt_models="never", idle_unload_s=2)
    network.start_node("edge-1")
    network.wait_ready("edge-1")
    agent = network.nodes["edge-1"].pid
    tensor = np.random.default_rng(7).random((1, 3, 160, 160), dtype=np.float32)
    view = register(network, MODEL, "det", verify=False)
    inputs, output = {view.inputs[0].name: tensor}, view.outputs[0].name

    def ask(_: int = 0) -> np.ndarray:
        with network.client() as client:
            return np.asarray(client.infer("det", inputs).outputs[output])

    def state() -> str:
        with network.client() as client:
            return client.model("det").state

    first = ask()
    for _ in range(2):
        wait_for("nobody asked", lambda: state() == "idle")
        settled_kib(agent, processes=2)  # the worker is gone
        assert get(network.url, "/v2/models/det/ready")[0] == 200
        with ThreadPoolExecutor(4) as several:
            answers = list(several.map(ask, range(4)))
        assert all((each == first).all() for each in answers)
        assert state() == "ready"
    shown = network.din("model", "list")
    assert "ready" in shown.stdout
