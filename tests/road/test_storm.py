"""Everything at once: many clients, changing models, and every process killed, frozen, restarted.

What must hold: each answer is right, no client waits past its deadline, the network answers again
afterwards by itself, nothing has leaked, and at rest it uses no processor.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import numpy as np
import pytest
from onnx import helper

from din.errors import DeadlineExceeded, DinError
from tests.road.processes import Network, wait_for
from tests.road.storm import (
    MAY_FAIL,
    NODES,
    Facts,
    Faults,
    Reference,
    Storm,
    chain,
    facts_of,
    save,
)
from tests.road.test_road import register

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

GATEWAY_STAYS = ("worker", "zygote", "agent", "leave", "drain", "freeze", "change")


def prepare(network: Network, folder: Path) -> tuple[Storm, list[Path]]:
    """Three nodes; a model in one slice, one over several nodes, and one that changes."""
    network.start_gateway()
    for name in NODES:
        network.start_node(name)
    network.wait_ready(*NODES)
    direct, relay = chain(folder / "direct", 2, 16, 1), chain(folder / "relay", 6, 64, 2)
    versions = [chain(folder / f"changing-{number}", 3, 32, 10 + number) for number in range(3)]
    register(network, direct, "direct", workers=2)
    register(network, relay, "relay", partition_points=("t1", "t3"))
    register(network, versions[0], "changing", partition_points=("t0",))
    models = {
        "direct": ([Reference(direct)], 16),
        "relay": ([Reference(relay)], 64),
        "changing": ([Reference(path) for path in versions], 32),
    }
    return Storm(network, models), versions


def blow(storm: Storm, faults: Faults, kinds: tuple[str, ...], seconds: float) -> None:
    """Every kind of fault at least once, then at random."""
    end = time.monotonic() + seconds
    todo = list(kinds)
    while todo or time.monotonic() < end:
        time.sleep(faults.random.uniform(0.2, 1.0))
        faults.one(todo.pop() if todo else faults.random.choice(kinds))


WAKES_PER_S_MAX = 80
"""The storm's nodes beat often; 4 to 13 were seen. Polling each ten milliseconds makes 100."""


def settle(storm: Storm) -> None:
    """The network answers for every model by itself."""
    storm.network.wait_ready(*NODES)

    def answers() -> bool:
        for name, (versions, width) in storm.models.items():
            x = np.ones((2, width), np.float32)
            try:
                with storm.network.client(timeout_ms=5000) as client:
                    y = client.infer(name, {"x": x}).outputs["y"]
            except DinError:
                return False
            assert any(each.holds(x, y) for each in versions)
        return True

    wait_for("every model answers again", answers, 60)


def check_answers(storm: Storm) -> None:
    """Every answer was right, and every refusal one that a client can act on."""
    assert storm.wrong == []
    assert storm.hanging == []
    assert all(storm.good[name] > 0 for name in storm.models), storm.refused
    assert {kind for _, kind in storm.refused} <= MAY_FAIL, storm.refused


def check_rest(network: Network, seconds: float = 6.0) -> None:
    """A network that nobody asks sleeps: it neither spins nor looks many times a second whether
    there is something to do. What one wake-up costs is the machine's business, so wake-ups are
    counted and processor time only tells a spinning process from a sleeping one."""
    before, woken = facts_of(network), wakes_of(network)
    time.sleep(seconds)
    after, woken_after = facts_of(network), wakes_of(network)
    for name, facts in after.items():
        share = (facts.cpu_s - before[name].cpu_s) / seconds
        wakes = (woken_after[name] - woken[name]) / seconds
        assert share < 0.3, f"{name} uses {share:.0%} of a processor at rest"
        assert wakes < WAKES_PER_S_MAX, f"{name} wakes {wakes:.0f} times a second at rest"


def wakes_of(network: Network) -> dict[str, int]:
    """How often the main thread of each program has gone to sleep so far."""
    running = {"gateway": network.gateway, **network.nodes}
    return {
        name: int(
            Path(f"/proc/{process.pid}/status")
            .read_text()
            .partition("\nvoluntary_ctxt_switches:")[2]
            .split()[0]
        )
        for name, process in running.items()
        if process is not None
    }


def check_size(network: Network) -> None:
    """At rest a process has what its workers, links and listeners need, and no more."""
    found = facts_of(network)
    workers = sum(facts.workers for facts in found.values())
    for name, facts in found.items():
        needed = 80 + 2 * workers if name == "gateway" else 40 + 6 * facts.workers
        assert facts.descriptors < needed, (name, found)
        assert facts.private_mib < (500 if name == "gateway" else 60), (name, found)


def half_written(folder: Path) -> list[Path]:
    """Files that somebody began and nobody finished or took away."""
    return [each for each in folder.rglob("*") if each.suffix in (".new", ".part", ".sock")]


@pytest.mark.parametrize("seed", [7])
def test_a_storm_gives_no_wrong_answer_and_leaves_nothing_behind(
    network: Network, tmp_path: Path, seed: int
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    storm, versions = prepare(network, folder)
    storm.start(16)
    faults = Faults(network, Random(seed), versions)
    try:
        blow(storm, faults, (*GATEWAY_STAYS, "gateway"), 12)
    finally:
        storm.stop()
    check_answers(storm)
    assert faults.unexpected == []
    ensure_changing(storm, versions[0])
    settle(storm)
    check_rest(network)
    check_size(network)
    pids = [process.pid for process in (network.gateway, *network.nodes.values()) if process]
    network.stop()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert half_written(network.folder) == []


def ensure_changing(storm: Storm, path: Path) -> None:
    """The last fault may have removed it."""
    register(storm.network, path, "changing")


@pytest.mark.slow
def test_minutes_of_storm_do_not_make_processes_grow(network: Network, tmp_path: Path) -> None:
    """The same processes before and after, while workers die and models come and go."""
    folder = tmp_path / "models"
    folder.mkdir()
    storm, versions = prepare(network, folder)
    found: list[dict[str, Facts]] = []
    faults = Faults(network, Random(3), versions)
    storm.start(32)
    try:
        for _ in range(3):
            blow(storm, faults, ("worker", "zygote", "freeze", "change"), 60)
            found.append(facts_of(network))
    finally:
        storm.stop()
    check_answers(storm)
    assert faults.unexpected == []
    ensure_changing(storm, versions[0])
    settle(storm)
    check_rest(network)
    check_size(network)
    first, last = found[0], found[-1]
    for name, facts in last.items():
        assert facts.threads <= first[name].threads + 4, (name, first[name], facts)
        assert facts.private_mib < first[name].private_mib * 1.3 + 60, (name, first[name], facts)


def test_a_model_without_end_costs_its_own_requests_only(network: Network, tmp_path: Path) -> None:
    """A Loop that never ends: its deadline stops it, others are served meanwhile and afterwards."""
    import onnx
    from onnx import TensorProto, numpy_helper

    network.start_gateway()
    network.start_node(NODES[0])
    network.wait_ready(NODES[0])
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Add", ["v", "v"], ["w"])],
        "body",
        [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []),
         info("v", TensorProto.FLOAT, [2])],
        [info("d", TensorProto.BOOL, []), info("w", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "yes", "x"], ["y"], body=body)],
        "g",
        [info("x", TensorProto.FLOAT, [2]), info("n", TensorProto.INT64, [])],
        [info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.array(True), "yes")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(tmp_path / "endless"))
    register(network, tmp_path / "endless", "endless")
    register(network, chain(tmp_path / "other", 2, 16, 1), "other")
    ones = np.ones(2, np.float32)
    with network.client() as client, network.client() as neighbour:
        forever = {"x": ones, "n": np.array(2**62)}
        for _ in range(2):
            with pytest.raises(DeadlineExceeded):
                client.infer("endless", forever, timeout_ms=1000)
            neighbour.infer("other", {"x": np.ones((1, 16), np.float32)}, timeout_ms=5000)
        answer = client.infer("endless", {"x": ones, "n": np.array(3)}, timeout_ms=20_000)
    assert answer.outputs["y"].tolist() == [8.0, 8.0]


def test_as_many_slices_as_a_model_may_have_run_on_one_node(
    network: Network, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Sin", ["x" if i == 0 else f"a{i - 1}"], [f"a{i}"]) for i in range(99)
    ]
    nodes.append(helper.make_node("Cos", ["a98"], ["y"]))
    path = save(tmp_path / "deep", nodes, {"x": ["N", 4]}, {"y": ["N", 4]})
    network.start_gateway()
    network.start_node(NODES[0])
    network.wait_ready(NODES[0])
    view = register(
        network, path, "deep", partition_points=tuple(f"a{i}" for i in range(99)), replicas=1
    )
    assert (view.state, len(view.slices)) == ("ready", 100), view.reason
    x = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    with network.client() as client:
        y = client.infer("deep", {"x": x}).outputs["y"]
    assert Reference(path).holds(x, y)


def test_an_input_that_no_operator_reads_is_taken_and_left_out(
    network: Network, tmp_path: Path
) -> None:
    network.start_gateway()
    network.start_node(NODES[0])
    network.wait_ready(NODES[0])
    path = save(
        tmp_path / "unread",
        [helper.make_node("Relu", ["x"], ["y"])],
        {"unread": [3], "x": [2]},
        {"y": [2]},
    )
    register(network, path, "unread")
    x = np.array([-1, 2], np.float32)
    with network.client() as client:
        answer = client.infer("unread", {"x": x, "unread": np.zeros(3, np.float32)})
    assert answer.outputs["y"].tolist() == [0.0, 2.0]
