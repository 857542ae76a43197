"""Models of servers of others: placed, asked, traced, lost and found again as any other.

The server is MLServer, or DIN itself; a stand-in takes a part where two servers are needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from din.config_forms import ForeignSetting
from din.domain.views import ModelView, RegisterModel
from din.errors import BadTensor, DeadlineExceeded, NotFound, Unavailable
from tests.foreign.stand_in import as_json, stand_in, tensor
from tests.road import small_models
from tests.road.asking import asking
from tests.road.mlservers import MlServer, mlserver
from tests.road.processes import Network, post_json, wait_for
from tests.road.test_cases import X, chain_is_right, register_chain

pytestmark = pytest.mark.system

QUICK = {"node_heartbeat_interval_ms": 300, "node_heartbeat_jitter_ms": 45}
ADD_SIX = {"addend": 6, "takes": "x", "gives": "y"}
MIDDLE = {"addend": 2, "takes": "t0", "gives": "t1"}
SLOW = {**ADD_SIX, "seconds": 20}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlServer]:
    folder = tmp_path_factory.mktemp("mlserver") / "models"
    with mlserver(folder, six=ADD_SIX, middle=MIDDLE, slow=SLOW) as made:
        yield made


def start(network: Network, **servers: str) -> None:
    network.start_gateway(**QUICK)
    for name, url in servers.items():
        network.start_node(name, foreign=(url,) if url else ())
    network.wait_ready(*servers)
    wait_for("the servers were found", lambda: all_up(network, *servers))


def all_up(network: Network, *names: str) -> bool:
    views = {each.name: each for each in network.node_views()}
    return all(each.is_up for name in names for each in views[name].foreign)


def register(network: Network, foreign: str, model_id: str, **order: Any) -> ModelView:
    with network.client() as client:
        client.register(RegisterModel(model_id=model_id, foreign=foreign, **order))

        def settled() -> ModelView | None:
            view = client.model(model_id)
            return view if view.state == "ready" else None

        return wait_for(f"{model_id} is ready", settled, 30)


def state_of(network: Network, model_id: str) -> ModelView:
    with network.client() as client:
        return client.model(model_id)


def test_a_model_of_mlserver_is_a_model_of_din(network: Network, server: MlServer) -> None:
    start(network, one=server.url)
    done = network.din("model", "register", "--foreign", "six@one", "--model-id", "adds")
    assert done.returncode == 0, done.stderr
    assert "oip:six" in done.stderr
    with network.client() as client:
        answer = client.infer("adds", {"x": X})
        assert chain_is_right(answer.outputs)
        (step,) = client.traces(1).items[0].execution_trace
        assert (step.node, step.phase) == ("one", "whole")
        with pytest.raises(BadTensor, match="HTTP 400: thirteen is not wanted here"):
            client.infer("adds", {"x": np.full((1, 8), 13, np.float32)})
        with pytest.raises(BadTensor, match="NaN or infinite"):
            client.infer("adds", {"x": np.full((1, 8), np.nan, np.float32)})
    content = {"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [0.5] * 8}
    status, said = post_json(network.url, "/v2/models/adds/infer", {"inputs": [content]})
    assert (status, said["outputs"][0]["data"]) == (200, [6.5] * 8)
    shown = network.din("node", "inspect", "one").stdout
    assert f"{server.url}, mlserver" in shown
    assert "six" in shown
    missing = network.din("model", "register", "--foreign", "seven")
    assert missing.returncode == NotFound.exit_code
    assert "no server behind a node has a model 'seven'" in missing.stderr


def test_a_deadline_ends_the_wait_and_the_server_answers_the_next(
    network: Network, server: MlServer
) -> None:
    start(network, one=server.url)
    register(network, "slow", "slow")
    register(network, "six", "six")
    with network.client() as client:
        with pytest.raises(DeadlineExceeded):
            client.infer("slow", {"x": X}, timeout_ms=1500)
        assert chain_is_right(client.infer("six", {"x": X}).outputs)


def test_a_slice_of_a_chain_may_lie_at_a_server(network: Network, server: MlServer) -> None:
    start(network, one=server.url, two="")
    slices = ({"nodes": ("two",)}, {"backend": "oip:middle"}, {"nodes": ("two",)})
    register_chain(network, slices=slices)
    with network.client() as client:
        assert chain_is_right(client.infer("chain", {"x": X}).outputs)
        steps = client.traces(1).items[0].execution_trace
    assert [step.node for step in steps] == ["two", "one", "two"]


def test_requests_go_to_the_other_server_while_one_is_gone_and_it_comes_back(
    network: Network, tmp_path: Path
) -> None:
    with mlserver(tmp_path / "models", six=ADD_SIX) as first, stand_in() as second:
        second.models = {"six": {"inputs": [tensor("x", "FP32", -1, 8)],
                                 "outputs": [tensor("y", "FP32", -1, 8)]}}  # fmt: skip

        def add(_: Any, body: bytes) -> Any:
            (x,) = json.loads(body)["inputs"]
            data = [each + 6 for each in x["data"]]
            return as_json({"outputs": [{**x, "name": "y", "data": data}]})

        second.infer = add
        start(network, one=first.url, two=second.url)
        register(network, "six", "six")
        wait_for("two replicas", lambda: ready_nodes(network) == {"one", "two"})
        is_right = chain_is_right
        with asking(network, "six", {"x": X}, is_right, clients=2, timeout_ms=20_000) as clients:
            clients.wait_more(20)
            first.kill()
            wait_for("one is left", lambda: ready_nodes(network) == {"two"})
            clients.wait_more(20)
            first.start()
            wait_for("both are back", lambda: ready_nodes(network) == {"one", "two"})
            clients.wait_more(20)
        assert not clients.bad


def ready_nodes(network: Network) -> set[str]:
    (part,) = state_of(network, "six").slices
    return {each.node for each in part.replicas if each.state == "ready"}


def test_a_server_that_is_gone_is_named_in_plan_list_and_answer(network: Network) -> None:
    with stand_in() as server:
        port = int(server.url.rpartition(":")[2])
        start(network, one=server.url)
        register(network, "m", "m")
    view = wait_for("it is missed", lambda: not all_up(network, "one") and state_of(network, "m"))
    view = wait_for("the model is not ready", lambda: unready(network))
    assert f"{server.url}: " in view.reason
    with network.client(timeout_ms=1000) as client, pytest.raises(Unavailable, match="m"):
        client.infer("m", {"x": np.zeros((1, 3), np.float32)})
    assert f"server {server.url} is down" in network.din("node", "list").stderr
    with stand_in(port):
        wait_for("it is ready again", lambda: state_of(network, "m").state == "ready")


def unready(network: Network) -> ModelView | None:
    view = state_of(network, "m")
    return view if view.state != "ready" else None


def test_din_is_a_server_for_din_and_no_bit_is_lost(network: Network, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    inner = Network(tmp_path / "inner")
    try:
        inner.start_gateway(**QUICK)
        inner.start_node("deep")
        inner.wait_ready("deep")
        register_chain(inner)
        network.start_gateway(**QUICK)
        network.start_node("one", foreign=(ForeignSetting(url=inner.url, models=("chain",)),))
        network.wait_ready("one")
        wait_for("the server was found", lambda: all_up(network, "one"))
        register(network, "chain", "chain")
        strange = np.array([[np.nan, np.inf, -np.inf, 1e-45, -0.0, 1, 2, 3]], np.float32)
        with network.client() as client:
            found = client.infer("chain", {"x": strange}).outputs["y"]
        assert np.array_equal(found, small_models.chain_answer(strange), equal_nan=True)
        with inner.client() as client:
            assert client.traces(1).items[0].model_id == "chain"
    finally:
        inner.stop()
