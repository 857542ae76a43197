"""One answer from nodes with different engines: a slice on ONNX Runtime, the next on OpenVINO."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.models import path_of
from tests.road import small_models
from tests.road.processes import Network, wait_for

pytestmark = pytest.mark.system


@pytest.fixture
def unlike(network: Network) -> Network:
    """One node that offers ONNX Runtime alone, one that offers OpenVINO alone."""
    network.start_gateway()
    network.start_node("plain", backends=("onnxruntime",))
    network.start_node("vino", backends=("openvino",))
    network.wait_ready("plain", "vino")
    wait_for("OpenVINO was asked", lambda: offers(network, "vino") == ("openvino",))
    return network


def offers(network: Network, name: str) -> tuple[str, ...]:
    with network.client() as client:
        profile = client.node(name).profile
    return profile.backends if profile is not None else ()


def register(network: Network, model_id: str, path: Path, **strategy: object) -> str:
    file = network.folder / f"{model_id}.json"
    content = {"model_id": model_id, "onnx_path": path.name, "slicing_strategy": strategy}
    file.write_text(json.dumps(content))
    done = network.din("model", "register", "--config", str(file))
    assert done.returncode == 0, done.stderr + network.logs()
    return done.stderr


def test_two_engines_make_one_answer(unlike: Network) -> None:
    path = small_models.chain(unlike.folder / "chain.onnx", steps=6)
    ranges = {"add.0:add.2": "onnxruntime", "add.3:add.5": "openvino"}
    register(unlike, "mixed", path, backend_map=ranges)
    x = np.arange(3 * small_models.WIDTH, dtype=np.float32).reshape(3, -1) / 7
    with unlike.client() as client:
        answer = client.infer("mixed", x)
    assert np.allclose(answer.outputs["y"], small_models.chain_answer(x, 6), rtol=1e-5)
    assert [step.node for step in answer.execution_trace] == ["plain", "vino"]
    assert "openvino 20" in unlike.log_of("vino")
    # What the engine said of itself comes with a beat, later than the registration.
    wait_for(
        "the node told of its engine",
        lambda: "CPU: " in unlike.din("node", "inspect", "vino").stdout,
    )


def test_a_node_with_both_engines_holds_one_to_the_other_before_a_model_serves(
    network: Network,
) -> None:
    network.start_gateway()
    network.start_node("both", backends=("onnxruntime", "openvino"))
    network.wait_ready("both")
    wait_for("OpenVINO was asked", lambda: "openvino" in offers(network, "both"))
    path = small_models.chain(network.folder / "chain.onnx", steps=4)
    register(network, "checked", path, backend_map={"add.0:add.3": "openvino"})
    shown = network.din("model", "inspect", "checked").stdout
    assert "by the engines of their slices at most" in shown
    assert "(on both)" in shown


def test_a_slice_goes_only_to_a_node_that_has_its_engine(unlike: Network) -> None:
    path = small_models.chain(unlike.folder / "chain.onnx", steps=2)
    register(unlike, "whole", path, backend_map={"add.0:add.1": "openvino"})
    refused = unlike.din("plan", "whole", "-o", "wide").stdout
    assert "plain" in refused
    assert "openvino" in refused
    with unlike.client() as client:
        (part,) = client.model("whole").slices
    assert [each.node for each in part.replicas] == ["vino"]


def test_a_slice_is_converted_and_run_by_mnn_in_a_confined_worker(network: Network) -> None:
    network.start_gateway()
    network.start_node("plain", backends=("onnxruntime",))
    network.start_node("phone", backends=("mnn",))
    network.wait_ready("plain", "phone")
    wait_for("MNN was asked", lambda: offers(network, "phone") == ("mnn",))
    path = small_models.chain(network.folder / "chain.onnx", steps=6)
    register(
        network, "mixed", path, backend_map={"add.0:add.2": "onnxruntime", "add.3:add.5": "mnn"}
    )
    x = np.arange(3 * small_models.WIDTH, dtype=np.float32).reshape(3, -1) / 7
    with network.client() as client:
        answer = client.infer("mixed", x)
    assert np.allclose(answer.outputs["y"], small_models.chain_answer(x, 6), rtol=1e-5)
    assert [step.node for step in answer.execution_trace] == ["plain", "phone"]
    assert "mnn 3" in network.log_of("phone")


def test_an_engine_that_computes_a_model_wrongly_is_refused_for_it(network: Network) -> None:
    """MNN 3.6.1 is a tenth off for this model, and says nothing."""
    network.start_gateway()
    network.start_node("both", backends=("onnxruntime", "mnn"))
    network.wait_ready("both")
    wait_for("MNN was asked", lambda: "mnn" in offers(network, "both"))
    file = network.folder / "magika.json"
    strategy = {"slices": [{"backend": "mnn"}]}
    content = {
        "model_id": "magika",
        "onnx_path": str(path_of("magika")),
        "slicing_strategy": strategy,
    }
    file.write_text(json.dumps(content))
    done = network.din("model", "register", "--config", str(file))
    assert done.returncode != 0, done.stdout
    assert "an engine is refused for its slice" in done.stderr
    assert "target_label" in done.stderr
