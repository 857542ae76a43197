"""Tensors that cross between two nodes as UINT8, with real processes."""

from __future__ import annotations

import json
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


def enlarging(path: Path) -> Path:
    """A Resize between two nodes' operators."""
    value = helper.make_tensor_value_info
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    return small_models.save(
        path,
        [
            helper.make_node("Relu", ["x"], ["t"], name="first"),
            helper.make_node("Resize", ["t", "", "scales"], ["y"], name="grow", mode="linear"),
        ],
        [value("x", TensorProto.FLOAT, (1, 2, 32, 32))],
        [value("y", TensorProto.FLOAT, (1, 2, 64, 64))],
        [scales],
    )


def test_own_samples_calibrate_and_a_rewrite_is_measured(network: Network) -> None:
    network.start_gateway()
    network.start_node("edge-one")
    network.wait_ready("edge-one")
    enlarging(network.folder / "enlarging.onnx")
    samples = network.folder / "samples"
    samples.mkdir()
    draw = np.random.default_rng(3)
    for number in range(6):
        array = draw.normal(number, 20, (1, 2, 32, 32)).astype(np.float32)
        np.savez(samples / f"{number}.npz", x=array)
    config = network.folder / "enlarging.json"
    strategy = {
        "partition_points": ["first"],
        "precision": "uint8",
        "rewrite": ["resize_half_pixel_to_asymmetric"],
    }
    content = {
        "model_id": "enlarging",
        "onnx_path": "enlarging.onnx",
        "slicing_strategy": strategy,
        "calibration_inputs": "samples",
    }
    config.write_text(json.dumps(content))
    told = network.din("model", "register", "--config", str(config))
    assert told.returncode == 0, told.stderr
    assert "with 8 made-up samples on edge-one" in told.stderr
    with network.client() as client:
        view = client.model("enlarging")
    check, rewrite = view.precision, view.rewrite
    assert check is not None
    assert (check.kind, check.samples_from) == ("uint8", "given")
    assert (check.samples, check.samples_checked) == (3, 3)
    assert rewrite is not None
    assert rewrite.outputs[0].max_absolute
    shown = network.din("model", "inspect", "enlarging").stdout
    assert "calibrated on 3 given samples and checked on 3, on edge-one" in shown
    assert "rewrite resize_half_pixel_to_asymmetric against the model as it was given" in shown

    given = str(samples / "5.npz")
    again = network.din("model", "verify", "enlarging", "--input", given, "-o", "json")
    assert again.returncode == 0, again.stderr
    measured = json.loads(again.stdout)["rewrite"]
    assert (measured["samples"], measured["samples_from"]) == (1, "given")
    # Values of the user's samples are some twenty times those that are made up.
    assert measured["outputs"][0]["max_absolute"] > 5 * rewrite.outputs[0].max_absolute

    np.savez(samples / "0.npz", x=np.zeros((1, 2, 32, 33), np.float32))
    wrong = network.din("model", "register", "--config", str(config))
    assert wrong.returncode == 2
    assert "0.npz holds x float32 [1, 2, 32, 33]" in wrong.stderr or "1.npz" in wrong.stderr
    one = network.folder / "one.npz"
    np.savez(one, x=np.zeros((4, 1, 2, 32, 33), np.float32))
    wrong = network.din(
        "model", "register", "--config", str(config), "--calibration-inputs", str(one)
    )
    assert wrong.returncode == 2
    assert "calibration inputs: input 'x' has shape [1, 2, 32, 33]" in wrong.stderr
