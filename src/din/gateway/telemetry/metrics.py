"""Prometheus metrics of the gateway: names and labels in one place, cheap to count.

Labels are bounded: a model id that nobody registered counts under `unknown`, and gauges of nodes
are read from the fleet when somebody scrapes, so a node that is forgotten disappears. What was not
measured has no sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from din.domain.gateway_view import SlicingCacheView
from din.domain.node import FleetNode
from din.domain.request import SliceTiming
from din.gateway.telemetry.run_watch import RunWatch
from din.gateway.telemetry.tallies import CounterFamily, HistogramFamily, TallyCollector
from din.version import __version__

UNKNOWN: Final = "unknown"
MODELS_MAX: Final = 1000
"""Models with label values of their own; later ones count under `unknown`."""
SLICE_SERIES_MAX: Final = 5000
"""Model, slice and node combinations with a histogram of their own."""
REQUEST_BUCKETS_S: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip
DECISION_BUCKETS_S: Final = (
    0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05,
)  # fmt: skip
OK: Final = "ok"
"""Label `code` of a request that was answered; others carry the DIN error code."""


class GatewayMetrics:
    """Counts requests in plain numbers. Not for use by several threads."""

    def __init__(self) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry(auto_describe=True)
        self._define_requests()
        self._define_events()
        self.runs = RunWatch()
        """For the heat of nodes."""
        self._models: set[str] = set()
        self._restarted: set[str] = set()

    def _define_requests(self) -> None:
        requests = CounterFamily(
            "din_requests", "Inference requests by outcome.", ["model", "code"]
        )
        durations = HistogramFamily(
            "din_request_duration_seconds",
            "From the whole request to the answer.",
            ["model"],
            REQUEST_BUCKETS_S,
        )
        scheduling = HistogramFamily(
            "din_scheduling_duration_seconds",
            "Time to choose the nodes of one request.",
            [],
            DECISION_BUCKETS_S,
        )
        slices = HistogramFamily(
            "din_slice_duration_seconds",
            "Compute time of one slice on one node.",
            ["model", "slice", "node"],
            REQUEST_BUCKETS_S,
        )
        self._answered = requests.values
        self._durations = durations
        self._slices = slices
        self._scheduling = scheduling.add(())
        families = (requests, durations, scheduling, slices)
        self.registry.register(TallyCollector([family.collect for family in families]))

    def _define_events(self) -> None:
        own = self.registry
        self._retries = Counter("din_retries", "Attempts after the first.", registry=own)
        self.heartbeats: dict[str, int] = {"http": 0, "datagram": 0}
        """How many were taken, by the way they came. Whoever takes one counts it."""
        own.register(_Counts("din_heartbeats", "Heartbeats taken.", "way", self.heartbeats))
        self._transfer = Counter(
            "din_transfer_bytes", "Tensor bytes by path.", ["path", "direction"], registry=own
        )
        self._transfers: dict[tuple[str, str], Counter] = {}
        self._restarts = Counter(
            "din_workers_restarted",
            "Workers started again after they died.",
            ["node"],
            registry=own,
        )
        self._refused = Counter(
            "din_auth_failures", "Callers refused, by reason.", ["reason"], registry=own
        )
        build = Gauge(
            "din_build_info", "Always 1; the version is a label.", ["version"], registry=own
        )
        build.labels(__version__).set(1)

    def know_models(self, model_ids: Iterable[str]) -> None:
        """The registered models; only these get label values. Series of removed ones go."""
        wanted = set(sorted(model_ids)[:MODELS_MAX])
        for gone in self._models - wanted:
            self._forget_model(gone)
        self._models = wanted

    def _forget_model(self, model_id: str) -> None:
        for series in (self._answered, self._durations.tallies, self._slices.tallies):
            for key in [key for key in series if key[0] == model_id]:
                del series[key]

    def count_request(self, model_id: str, code: str, duration_s: float | None) -> None:
        """One request is over; `duration_s` None = it never started (parse errors)."""
        model = model_id if model_id in self._models else UNKNOWN
        key = (model, code)
        self._answered[key] = self._answered.get(key, 0) + 1
        if duration_s is not None:
            tally = self._durations.tallies.get((model,)) or self._durations.add((model,))
            tally.observe(duration_s)

    def observe_scheduling(self, duration_s: float) -> None:
        """One decision was made."""
        self._scheduling.observe(duration_s)

    def observe_slices(
        self,
        model_id: str,
        names: Sequence[str],
        nodes: Sequence[str],
        timings: Sequence[SliceTiming],
    ) -> None:
        """Compute times of one request; `names` by slice index, `nodes` as `timings`."""
        model = model_id if model_id in self._models else UNKNOWN
        for timing, node in zip(timings, nodes, strict=True):
            self.observe_slice(model, names[timing.slice_index], node, timing.compute_us / 1e6)

    def observe_slice(self, model: str, name: str, node: str, duration_s: float) -> None:
        """Compute time of one slice on one node."""
        key = (model, name, node)
        tally = self._slices.tallies.get(key)
        if tally is None:
            if len(self._slices.tallies) >= SLICE_SERIES_MAX:
                key = (model, UNKNOWN, UNKNOWN)
            tally = self._slices.tallies.get(key) or self._slices.add(key)
        if self.runs.is_open:
            self.runs.saw(node, duration_s, tally.mean() if key[2] == node else None)
        tally.observe(duration_s)

    def forget_node(self, node: str) -> None:
        """A node is no member any more: its series go."""
        for key in [key for key in self._slices.tallies if key[2] == node]:
            del self._slices.tallies[key]
        if node in self._restarted:
            self._restarted.remove(node)
            self._restarts.remove(node)

    def count_retry(self) -> None:
        """One more attempt."""
        self._retries.inc()

    def count_restart(self, node: str) -> None:
        """A worker of the node died and was started again."""
        self._restarted.add(node)
        self._restarts.labels(node).inc()

    def count_auth_failure(self, reason: str) -> None:
        """A caller was turned away; reasons are admission's few words."""
        self._refused.labels(reason).inc()

    def count_transfer(self, path: str, direction: str, nbytes: int) -> None:
        """Tensor bytes moved; path is `direct`, `relay` or `http`, direction `in` or `out`."""
        counter = self._transfers.get((path, direction))
        if counter is None:
            counter = self._transfers[path, direction] = self._transfer.labels(path, direction)
        counter.inc(nbytes)

    def watch_load(self, queue_length: Callable[[], int], inflight: Callable[[], int]) -> None:
        """Read queue and in-flight requests of the gateway at scrape time. Once."""
        queue = Gauge(
            "din_queue_length", "Requests that wait in the gateway.", registry=self.registry
        )
        queue.set_function(queue_length)
        running = Gauge("din_inflight_requests", "Requests that run now.", registry=self.registry)
        running.set_function(inflight)

    def watch_datagrams(self, refused: Mapping[str, int]) -> None:
        """Read at scrape time which heartbeats by datagram were not believed. Once."""
        text = "Heartbeats by datagram that were not believed."
        self.registry.register(_Counts("din_heartbeats_refused", text, "reason", refused))

    def watch_slicing_cache(self, view: Callable[[], SlicingCacheView]) -> None:
        """Read the slicing cache at scrape time. Once."""
        self.registry.register(_SlicingCacheCollector(view))

    def watch_fleet(
        self, nodes: Callable[[], Iterable[FleetNode]], now_ms: Callable[[], int], mode: str
    ) -> None:
        """Read the fleet at scrape time; `now_ms` is the clock of `FleetNode.seen_ms`. Once."""
        self.registry.register(_FleetCollector(nodes, now_ms, mode))

    def text(self) -> bytes:
        """Prometheus text format 0.0.4."""
        return generate_latest(self.registry)


class _Counts(Collector):
    """Plain numbers, read at scrape time, of what happens too often for a counter with a lock."""

    def __init__(self, name: str, text: str, label: str, counts: Mapping[str, int]) -> None:
        self._name = name
        self._text = text
        self._label = label
        self._counts = counts

    def collect(self) -> Iterator[CounterMetricFamily]:
        """One sample per key."""
        family = CounterMetricFamily(self._name, self._text, labels=[self._label])
        for key, count in self._counts.items():
            family.add_metric([key.replace(" ", "_")], count)
        yield family


class _SlicingCacheCollector(Collector):
    """What the slicing cache does; its ratio has no sample before anything was looked up."""

    def __init__(self, view: Callable[[], SlicingCacheView]) -> None:
        self._view = view

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Counters since the start, and what is kept now."""
        view, name = self._view(), "din_slicing_cache"
        counts = (
            ("hits", "Cuts of a model that were known.", view.hits),
            ("misses", "Cuts of a model that had to be made.", view.misses),
            ("evictions", "Known cuts that went because the cache was full.", view.evictions),
        )
        for what, text, count in counts:
            yield CounterMetricFamily(f"{name}_{what}", text, value=count)
        yield GaugeMetricFamily(f"{name}_bytes", "Kept, with the slices.", value=view.nbytes)
        ratio = GaugeMetricFamily(
            f"{name}_hit_ratio", "Known of all that was asked; low = too many variants of models."
        )
        if view.hit_ratio is not None:
            ratio.add_metric([], view.hit_ratio)
        yield ratio


class _FleetCollector(Collector):
    """Gauges of nodes, made when asked; a value that was not measured has no sample."""

    def __init__(
        self, nodes: Callable[[], Iterable[FleetNode]], now_ms: Callable[[], int], mode: str
    ) -> None:
        self._nodes = nodes
        self._now_ms = now_ms
        self._mode = mode

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Names only, so that registering reads no fleet."""
        yield from self._families().values()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One sample per node and measured value."""
        families = self._families()
        families["mode"].add_metric([self._mode], 1)
        now_ms = self._now_ms()
        for node in self._nodes():
            labels = [node.profile.name]
            for name, value in _values_of(node, now_ms):
                if value is not None:
                    families[name].add_metric(labels, value)
            for limit in node.health.limits:
                families["limit"].add_metric([*labels, limit], 1)
        yield from families.values()

    @staticmethod
    def _families() -> dict[str, GaugeMetricFamily]:
        return {
            name: GaugeMetricFamily(
                f"din_{metric}", text, labels=[label] if isinstance(label, str) else label
            )
            for name, metric, text, label in _GAUGES
        }


_GAUGES: Final = (
    ("mode", "discovery_mode_info", "Always 1; how nodes are found is a label.", "mode"),
    ("up", "node_up", "1 = ready or draining, 0 = joining, suspect or lost.", "node"),
    ("age", "heartbeat_age_seconds", "Since the last heartbeat.", "node"),
    ("health", "node_health_ratio", "1 = normal, falls on missed beats and errors.", "node"),
    ("queue", "node_queue_length", "Requests accepted and not finished on the node.", "node"),
    ("reserved", "node_memory_reserved_bytes", "Promised to slices placed there.", "node"),
    ("free", "node_memory_free_bytes", "As the node measured it.", "node"),
    ("cpu", "node_cpu_utilization_ratio", "As the node measured it.", "node"),
    ("gpu", "node_gpu_utilization_ratio", "As the node measured it.", "node"),
    ("heat", "node_temperature_celsius", "As the node measured it.", "node"),
    ("power", "node_power_watts", "As the node measured it.", "node"),
    ("swap", "node_swap_used_bytes", "As the node measured it.", "node"),
    ("capacity", "node_capacity_ratio", "Speed left by governor and hardware; 1 = all.", "node"),
    ("limit", "node_speed_limited_info", "Always 1; why it is or was slower.", ("node", "reason")),
)
_MIB: Final = 1024 * 1024


def _values_of(node: FleetNode, now_ms: int) -> Iterator[tuple[str, float | None]]:
    health = node.health
    yield "up", float(node.status in ("ready", "draining"))
    yield "age", max(0, now_ms - node.seen_ms) / 1000
    yield "health", node.health_score
    yield "queue", float(health.queue_length)
    yield "reserved", float(node.memory_mib_reserved * _MIB)
    yield "free", None if health.memory_mib_free is None else health.memory_mib_free * float(_MIB)
    yield "cpu", None if health.cpu_percent is None else health.cpu_percent / 100
    yield "gpu", None if health.accelerator_percent is None else health.accelerator_percent / 100
    yield "heat", health.temperature_c
    yield "power", health.power_w
    swap, capacity = health.swap_mib_used, health.capacity_percent
    yield "swap", None if swap is None else swap * float(_MIB)
    yield "capacity", None if capacity is None else capacity / 100
