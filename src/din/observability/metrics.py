"""Names, help texts and labels of every metric that DIN shows, as data. Knows no library.

Base units: seconds, bytes, celsius, ratio 0..1; `_total` on counters; no ids in labels. A value
that was not measured is not shown; it is never 0.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

MetricKind = Literal["counter", "gauge", "histogram", "info"]

SECONDS_BUCKETS: Final = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Of request and slice durations."""
SCHEDULING_BUCKETS: Final = (
    0.000005, 0.00001, 0.00002, 0.00005, 0.0001, 0.0005, 0.001, 0.005, 0.02, 0.1,
)  # fmt: skip
"""Of decisions, which take microseconds."""


class Metric(Struct, frozen=True, kw_only=True):
    """One metric."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


REQUESTS: Final = Metric(
    name="din_requests_total",
    kind="counter",
    help="Inference requests answered, errors of parsing included, by HTTP status.",
    labels=("model", "code"),
)
REQUEST_DURATION: Final = Metric(
    name="din_request_duration_seconds",
    kind="histogram",
    help="From the arrival of a request at the gateway to its answer.",
    labels=("model",),
    buckets=SECONDS_BUCKETS,
)
SCHEDULING_DURATION: Final = Metric(
    name="din_scheduling_duration_seconds",
    kind="histogram",
    help="Choosing the route of one attempt.",
    buckets=SCHEDULING_BUCKETS,
)
SLICE_DURATION: Final = Metric(
    name="din_slice_duration_seconds",
    kind="histogram",
    help="One slice inside its backend, as its node measured it.",
    labels=("model", "slice", "node"),
    buckets=SECONDS_BUCKETS,
)
QUEUE_LENGTH: Final = Metric(
    name="din_queue_length",
    kind="gauge",
    help="Requests accepted and not finished on a node, as it last said.",
    labels=("node",),
)
INFLIGHT_REQUESTS: Final = Metric(
    name="din_inflight_requests", kind="gauge", help="Requests under way at this gateway."
)
RETRIES: Final = Metric(
    name="din_retries_total",
    kind="counter",
    help="Attempts after the first, by why the one before ended.",
    labels=("model", "cause"),
)
NODE_UP: Final = Metric(
    name="din_node_up",
    kind="gauge",
    help="1 while the node is ready, 0 while it is a member in any other state.",
    labels=("node",),
)
NODE_TEMPERATURE: Final = Metric(
    name="din_node_temperature_celsius",
    kind="gauge",
    help="Temperature of the node, where it has a sensor.",
    labels=("node",),
)
NODE_CPU: Final = Metric(
    name="din_node_cpu_utilization_ratio",
    kind="gauge",
    help="CPU load of the node, where it is measured.",
    labels=("node",),
)
NODE_GPU: Final = Metric(
    name="din_node_gpu_utilization_ratio",
    kind="gauge",
    help="Load of the node's accelerator, where it is measured.",
    labels=("node",),
)
NODE_MEMORY_FREE: Final = Metric(
    name="din_node_memory_free_bytes",
    kind="gauge",
    help="Memory free on the node, where it is measured.",
    labels=("node",),
)
HEARTBEATS: Final = Metric(
    name="din_heartbeats_total",
    kind="counter",
    help="Heartbeats taken, by what was answered.",
    labels=("answer",),
)
HEARTBEAT_AGE: Final = Metric(
    name="din_heartbeat_age_seconds",
    kind="gauge",
    help="Time since the last heartbeat of a member, by the gateway's own clock.",
    labels=("node",),
)
DISCOVERY_MODE: Final = Metric(
    name="din_discovery_mode_info",
    kind="info",
    help="How nodes find this gateway now.",
    labels=("mode",),
)
TRANSFER_BYTES: Final = Metric(
    name="din_transfer_bytes_total",
    kind="counter",
    help="Tensor bytes that this gateway sent to and received from nodes.",
    labels=("direction",),
)
BUILD_INFO: Final = Metric(
    name="din_build_info", kind="info", help="Version of this program.", labels=("version",)
)

METRICS: Final = (
    REQUESTS, REQUEST_DURATION, SCHEDULING_DURATION, SLICE_DURATION, QUEUE_LENGTH,
    INFLIGHT_REQUESTS, RETRIES, NODE_UP, NODE_TEMPERATURE, NODE_CPU, NODE_GPU, NODE_MEMORY_FREE,
    HEARTBEATS, HEARTBEAT_AGE, DISCOVERY_MODE, TRANSFER_BYTES, BUILD_INFO,
)  # fmt: skip
"""All of them."""
