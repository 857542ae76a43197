"""Tensors that cross between two nodes as UINT8, with real processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from din.errors import BadStrategy
from tests.road import small_models
from tests.road.processes import Network
from tests.road.test_cuts import node_traffic_bytes
from tests.road.test_relay import LEFT, RIGHT, gateway_takes_tcp_only, nodes_take_tcp_only
from tests.road.test_road import register

pytestmark = pytest.mark.system

SHAPE = (1, 16, 64, 64)
CROSSING_BYTES = 16 * 64 * 64 * 4
REQUESTS = 5
APART = ({"labels": {"side": LEFT}}, {"labels": {"side": RIGHT}})


def scaling(path: Path) -> Path:
    """Channels of very different sizes cross, and are made alike behind the cut."""
    sizes = np.logspace(-2, 2, SHAPE[1], dtype=np.float32).reshape(1, -1, 1, 1)
    value = helper.make_tensor_value_info
    return small_models.save(
        path,
        [
            helper.make_node("Mul", ["x", "sizes"], ["t"], name="spread"),
            helper.make_node("Div", ["t", "sizes"], ["y"], name="join"),
        ],
        [value("x", TensorProto.FLOAT, SHAPE)],
        [value("y", TensorProto.FLOAT, SHAPE)],
        [numpy_helper.from_array(sizes, "sizes")],
    )


@pytest.mark.skipif(shutil.which("ss") is None, reason="iproute2 is not installed")
def test_a_quarter_of_the_bytes_goes_between_nodes_and_the_answer_stays_within_its_tolerance(
    network: Network,
) -> None:
    network.start_gateway()
    gateway_takes_tcp_only(network)
    for name in (LEFT, RIGHT):
        network.start_node(name, labels={"side": name})
    network.wait_ready(LEFT, RIGHT)
    nodes_take_tcp_only(network, LEFT, RIGHT)
    path = scaling(network.folder / "scaling.onnx")
    x = np.random.default_rng(7).random(SHAPE, np.float32)
    order = {"partition_points": ("spread",), "slices": APART}
    spent = {}
    for precision in ("exact", "uint8"):
        view = register(network, path, precision, precision=precision, **order)
        assert view.state == "ready", view.reason
        with network.client() as client:
            answer = client.infer(precision, {"x": x}).outputs["y"]
            before = node_traffic_bytes(network)
            for _ in range(REQUESTS):
                client.infer(precision, {"x": x})
            spent[precision] = (node_traffic_bytes(network) - before) / REQUESTS
        assert np.abs(answer - x).max() <= (0.0025 if precision == "uint8" else 1e-6)
    assert spent["exact"] >= CROSSING_BYTES
    assert CROSSING_BYTES / 4 <= spent["uint8"] <= CROSSING_BYTES / 4 * 1.02 + 1024
    with network.client() as client:
        check = client.model("uint8").precision
    assert check is not None
    assert (check.kind, check.samples, check.samples_from) == ("uint8", 8, "made up")
    assert check.tensors[0].nbytes == CROSSING_BYTES // 4
    assert check.tensors[0].channels == SHAPE[1]
    loss = check.outputs[0].loss
    assert loss is not None
    assert 0 < loss < 0.0025
    shown = network.din("model", "inspect", "uint8").stdout
    assert "t crosses as uint8 by 16 channels, 64.0 KiB instead of 256.0 KiB" in shown

    with pytest.raises(BadStrategy, match=r"over the tolerance of 0\.01%"):
        register(network, path, "strict", precision="uint8", precision_tolerance=1e-4, **order)
