"""What /metrics says, and what it does not say."""

import re

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from din.domain.gateway_view import SlicingCacheView
from din.domain.node import FleetNode, NodeHealth, NodeId, NodeProfile
from din.domain.request import SliceTiming
from din.gateway.telemetry.metrics import OK, SLICE_SERIES_MAX, GatewayMetrics


def node(name: str, **health: float) -> FleetNode:
    profile = NodeProfile(
        node_id=NodeId("a" * 16),
        session=1,
        name=name,
        device_type="x86_64",
        cpu_model="cpu",
        cpu_isa=(),
        cpu_cores=2,
        memory_mib=1000,
    )
    return FleetNode(profile=profile, health=NodeHealth(**health), status="ready", seen_ms=1000)


def samples(metrics: GatewayMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for each in family.samples:
            found[each.name, tuple(sorted(each.labels.items()))] = each.value
    return found


def test_requests_count_by_model_and_outcome():
    metrics = GatewayMetrics()
    metrics.know_models(["faces"])
    metrics.count_request("faces", OK, 0.01)
    metrics.count_request("faces", "DIN-110", None)
    found = samples(metrics)
    assert found["din_requests_total", (("code", OK), ("model", "faces"))] == 1
    assert found["din_requests_total", (("code", "DIN-110"), ("model", "faces"))] == 1
    assert found["din_request_duration_seconds_count", (("model", "faces"),)] == 1


def test_models_that_nobody_registered_share_one_label():
    metrics = GatewayMetrics()
    for number in range(100):
        metrics.count_request(f"guess-{number}", "DIN-500", None)
    found = samples(metrics)
    assert found["din_requests_total", (("code", "DIN-500"), ("model", "unknown"))] == 100
    assert b"guess" not in metrics.text()


def test_series_of_a_removed_model_go():
    metrics = GatewayMetrics()
    metrics.know_models(["old"])
    metrics.count_request("old", OK, 0.1)
    metrics.observe_slices("old", ["whole"], ["edge-1"], [SliceTiming(0, "a", 0, 0, 1500)])
    assert b'model="old"' in metrics.text()
    metrics.know_models(["new"])
    assert b'model="old"' not in metrics.text()


def test_slice_series_are_bounded():
    metrics = GatewayMetrics()
    for number in range(SLICE_SERIES_MAX + 5):
        metrics.observe_slice("faces", "whole", f"n{number}", 0.1)
    series = re.findall(rb"^din_slice_duration_seconds_count", metrics.text(), re.MULTILINE)
    assert len(series) == SLICE_SERIES_MAX + 1


def test_what_a_node_did_not_measure_has_no_sample():
    metrics = GatewayMetrics()
    nodes = [
        node("warm", temperature_c=41.5, accelerator_percent=50.0, capacity_percent=40,
             limits=("undervoltage", "governor"), swap_mib_used=1),
        node("mute"),
    ]  # fmt: skip
    metrics.watch_fleet(lambda: nodes, lambda: 3500, "unicast")
    found = samples(metrics)
    assert found["din_node_temperature_celsius", (("node", "warm"),)] == 41.5
    assert found["din_node_gpu_utilization_ratio", (("node", "warm"),)] == 0.5
    assert ("din_node_temperature_celsius", (("node", "mute"),)) not in found
    assert ("din_node_power_watts", (("node", "warm"),)) not in found
    assert found["din_node_capacity_ratio", (("node", "warm"),)] == 0.4
    assert ("din_node_capacity_ratio", (("node", "mute"),)) not in found
    assert found["din_node_swap_used_bytes", (("node", "warm"),)] == 1024 * 1024
    limits = [dict(labels)["reason"] for name, labels in found if "speed_limited" in name]
    assert sorted(limits) == ["governor", "undervoltage"]
    assert found["din_node_up", (("node", "mute"),)] == 1
    assert found["din_heartbeat_age_seconds", (("node", "mute"),)] == 2.5
    assert found["din_discovery_mode_info", (("mode", "unicast"),)] == 1


def test_a_forgotten_node_disappears():
    metrics = GatewayMetrics()
    nodes = [node("gone")]
    metrics.watch_fleet(lambda: nodes, lambda: 0, "multicast")
    metrics.observe_slice("faces", "whole", "gone", 0.1)
    metrics.count_restart("gone")
    assert b"gone" in metrics.text()
    nodes.clear()
    metrics.forget_node("gone")
    metrics.forget_node("never-there")
    assert b"gone" not in metrics.text()


def test_load_and_events_are_counted():
    metrics = GatewayMetrics()
    metrics.watch_load(lambda: 3, lambda: 2)
    metrics.count_retry()
    metrics.heartbeats["datagram"] += 1
    metrics.count_transfer("relay", "in", 100)
    metrics.count_transfer("relay", "in", 50)
    metrics.observe_scheduling(0.00003)
    found = samples(metrics)
    assert found["din_queue_length", ()] == 3
    assert found["din_inflight_requests", ()] == 2
    assert found["din_retries_total", ()] == 1
    assert found["din_heartbeats_total", (("way", "datagram"),)] == 1
    assert found["din_heartbeats_total", (("way", "http"),)] == 0
    assert found["din_transfer_bytes_total", (("direction", "in"), ("path", "relay"))] == 150
    assert found["din_scheduling_duration_seconds_count", ()] == 1


def test_the_slicing_cache_has_no_ratio_before_its_first_look_up():
    metrics = GatewayMetrics()
    assert b"slicing_cache" not in metrics.text()
    view = SlicingCacheView(
        hits=0, misses=0, hit_ratio=None, evictions=0, entries=0, nbytes=0, nbytes_max=10
    )
    views = [view]
    metrics.watch_slicing_cache(lambda: views[-1])
    found = samples(metrics)
    assert found["din_slicing_cache_hits_total", ()] == 0
    assert ("din_slicing_cache_hit_ratio", ()) not in found
    views.append(replace(view, hits=3, misses=1, hit_ratio=0.75))
    found = samples(metrics)
    assert found["din_slicing_cache_hit_ratio", ()] == 0.75
    assert found["din_slicing_cache_hits_total", ()] == 3
    assert found["din_slicing_cache_misses_total", ()] == 1
