"""A hot node, with real processes: it holds cores back, says so, and tells how its cores run."""

from __future__ import annotations

import json
import os

import psutil
import pytest

from din.domain.views import NodeView
from tests.road import small_models
from tests.road.processes import Network, get, wait_for
from tests.road.test_road import register

pytestmark = pytest.mark.system
CORES = sorted(os.sched_getaffinity(0))


FAST = {"node_heartbeat_interval_ms": 300, "node_heartbeat_jitter_ms": 45}


def test_a_hot_node_holds_cores_back_and_tells_everybody(network: Network) -> None:
    network.start_gateway(**FAST)
    sensor = network.folder / "temp1_input"
    sensor.write_text("41000\n")
    network.start_node("hot", temp_sensor=str(sensor), temp_poll_interval_ms=100, temp_limit_c=80)
    network.wait_ready("hot")
    model = small_models.chain(network.folder / "chain.onnx")
    assert register(network, model, "chain").state == "ready"

    def view() -> NodeView:
        (found,) = network.node_views()
        return found

    def workers() -> list[list[int]]:
        found = psutil.Process(network.nodes["hot"].pid).children(recursive=True)
        return [sorted(each.cpu_affinity()) for each in found]

    wait_for("it is measured", lambda: view().health.capacity_percent == 100)
    assert view().warnings == ()
    sensor.write_text("90000\n")
    wait_for("the governor acts", lambda: "governor" in view().health.limits)
    capacity = view().health.capacity_percent
    assert capacity is not None
    assert capacity <= 50
    assert f"runs at {capacity} %" in view().warnings[0]
    if len(CORES) > 1:
        kept = CORES[: max(1, len(CORES) // 2)]
        wait_for("workers have fewer cores", lambda: any(each == kept for each in workers()))
    _, text = get(network.url, "/metrics")
    assert f'din_node_capacity_ratio{{node="hot"}} {capacity / 100}'.encode() in text
    assert b'din_node_speed_limited_info{node="hot",reason="governor"} 1.0' in text

    told = network.din("node", "heat", "hot", "--window-ms", "200", "-o", "json")
    heat = json.loads(told.stdout)
    assert (heat["schema"], heat["node"], heat["core_mask"]) == ("din.heat/1", "hot", "all")
    assert heat["window_ms"] >= 200
    measured = {core["core"]: core["percent"] for core in heat["cores"] if core["kind"] == "cpu"}
    assert set(measured) >= set(CORES)
    assert all(percent is None or 0 <= percent <= 100 for percent in measured.values())
    assert "bandwidth_percent" in heat["unknown"]
    (temperature,) = (each for each in heat["sensors"] if each["name"] == "temperature")
    assert (temperature["source"], temperature["value"]) == (str(sensor), 90.0)
