"""Models looked at on nodes, with real processes: slices compared with the whole, operators timed,
and what was measured deciding cuts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from din.cli.cuts import cuts_answer
from tests.road.conftest import MODEL
from tests.road.processes import Network
from tests.road.test_road import register

pytestmark = pytest.mark.system
BLAZEFACE = MODEL.with_name("blazeface.onnx")
LAYERS = "StatefulPartitionedCall/functional_1/"
POINTS = (f"{LAYERS}add_3/add", f"{LAYERS}conv2d_8/BiasAdd")


def read(network: Network, *words: str) -> Any:
    found = network.din("model", *words, "-o", "json")
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_a_model_in_three_slices_is_compared_with_the_whole_and_timed(network: Network) -> None:
    assert BLAZEFACE.exists(), "run scripts/fetch_models.py first (make test does)"
    network.start_gateway()
    network.start_node("edge-one")
    network.wait_ready("edge-one")
    view = register(network, BLAZEFACE, "blazeface", partition_points=POINTS)
    assert len(view.slices) == 3
    assert view.verification is not None
    assert view.verification.state == "right", view.verification.summary
    with network.client() as client:
        assert client.traces().items == ()
        assumed = json.loads(cuts_answer(client, "blazeface").body)

    compared = read(network, "verify", "blazeface")["verification"]
    assert compared["state"] == "right"
    off, own = compared["report"]["levels"]
    assert (off["optimisation"], off["is_exact"]) == ("off", True)
    assert all(each["is_equal"] for each in off["tensors"])
    assert all(each["is_within"] for each in own["tensors"])
    assert {each["after_slice"] for each in off["tensors"]} == {0, 1, 2}

    (item,) = read(network, "profile", "blazeface")["items"]
    report = item["profile"]["report"]
    times = [each["ms"] for each in report["operators"]]
    assert sum(times) == pytest.approx(report["whole_ms"])
    (again,) = read(network, "profile", "blazeface")["items"]
    assert (again["is_stored"], again["profile"]) == (True, item["profile"])

    with network.client() as client:
        measured = json.loads(cuts_answer(client, "blazeface").body)
    by_name = {each["name"]: each["ms"] for each in report["operators"]}
    names = [each[0] for each in measured["table"]["operators"]]
    assert measured["operator_ms"] == pytest.approx([by_name[name] for name in names], abs=1e-5)
    assert measured["operator_ms"] != assumed["operator_ms"]
