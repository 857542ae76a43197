"""Where the time of one request went: spans on one axis, from figures of clocks that do not agree.

Each node reports durations only. A slice starts when its latest producer has ended and the tensors
have come over, so queueing and computing along the longest way add up to less than the measured
total; the rest is what moving tensors took. It is an estimate: every hop, the way in and the way
out included, is taken to last equally long, as long as the measured total allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from din.domain.model import GATEWAY, Edge
from din.domain.request import SliceTiming, Span, SpanKind, TraceStep

GATEWAY_NAME: Final = "gateway"
WIDTH_MIN: Final = 8


class Bar(NamedTuple):
    """One row of the text waterfall: start and length in columns."""

    label: str
    start: int
    length: int


class Names(NamedTuple):
    """What people call slices and nodes."""

    slices: Mapping[int, str]
    nodes: Mapping[str, str]

    def phase(self, slice_index: int) -> str:
        """Name of a slice, or its number where it has none."""
        return self.slices.get(slice_index) or f"slice {slice_index}"

    def node(self, node_id: str) -> str:
        """Name of a node, or its id where it is unknown."""
        return self.nodes.get(node_id, node_id)


def build_spans(
    timings: Sequence[SliceTiming], edges: Sequence[Edge], duration_ms: float, names: Names
) -> tuple[Span, ...]:
    """The bars of a request: transfer, queue, compute, encode of each slice, in order of start."""
    if not timings:
        return ()
    by_index = {timing.slice_index: timing for timing in timings}
    producers = _producers(edges, by_index)
    order = _in_order(producers)
    hop_ms = _hop_ms(by_index, producers, order, duration_ms)
    end_ms: dict[int, float] = {}
    spans: list[Span] = []
    for index in order:
        start_ms = max((end_ms[each] for each in producers[index] if each in end_ms), default=0.0)
        end_ms[index] = start_ms + hop_ms + _busy_ms(by_index[index])
        spans.extend(_spans_of(by_index[index], start_ms, hop_ms, names))
    spans.append(
        Span(
            node=GATEWAY_NAME,
            slice_index=GATEWAY,
            phase=GATEWAY_NAME,
            kind="transfer",
            start_ms=max(end_ms.values()),
            duration_ms=max(duration_ms - max(end_ms.values()), 0.0),
        )
    )
    return tuple(sorted(spans, key=lambda span: span.start_ms))


def build_steps(timings: Sequence[SliceTiming], names: Names) -> tuple[TraceStep, ...]:
    """`execution_trace`, one step per slice in the order given; gpu_util is null where the node
    measures none."""
    return tuple(
        TraceStep(
            node=names.node(timing.node_id),
            phase=names.phase(timing.slice_index),
            latency_ms=timing.compute_us / 1000,
            gpu_util=timing.accelerator_percent,
            queue_ms=timing.queue_us / 1000,
            wait_ms=timing.wait_us / 1000,
            slice_index=timing.slice_index,
        )
        for timing in timings
    )


def render(spans: Sequence[Span], width: int) -> tuple[Bar, ...]:
    """Rows for a terminal of `width` columns; what took any time is at least one column long."""
    width = max(width, WIDTH_MIN)
    total = max((span.start_ms + span.duration_ms for span in spans), default=0.0)
    if total <= 0:
        return ()
    bars: list[Bar] = []
    for span in spans:
        start = min(int(span.start_ms / total * width), width - 1)
        length = max(round(span.duration_ms / total * width), 1 if span.duration_ms > 0 else 0)
        label = f"{span.node} {span.phase} {span.kind}"
        bars.append(Bar(label, start, min(length, width - start)))
    return tuple(bars)


def _producers(
    edges: Sequence[Edge], known: Mapping[int, SliceTiming]
) -> dict[int, frozenset[int]]:
    found: dict[int, set[int]] = {index: set() for index in known}
    for edge in edges:
        if edge.producer in known:
            for consumer in edge.consumers:
                if consumer in known:
                    found[consumer].add(edge.producer)
    return {index: frozenset(feeding) for index, feeding in found.items()}


def _in_order(producers: Mapping[int, frozenset[int]]) -> tuple[int, ...]:
    """Slices, producers first."""
    order: list[int] = []
    left = dict(producers)
    while left:
        # A cycle cannot come from the carver; if one did, its first slice is taken as a start.
        free = [each for each, feeding in left.items() if feeding.isdisjoint(left)]
        for index in sorted(free) or [min(left)]:
            order.append(index)
            del left[index]
    return tuple(order)


def _hop_ms(
    timings: Mapping[int, SliceTiming],
    producers: Mapping[int, frozenset[int]],
    order: Sequence[int],
    duration_ms: float,
) -> float:
    """The longest hop with which no way from the gateway and back outlasts the request."""
    longest: dict[int, dict[int, float]] = {}
    """Per slice: number of hops so far -> the longest busy time of a way with so many."""
    for index in order:
        ways: dict[int, float] = {}
        before = [longest[each] for each in producers[index] if each in longest] or [{0: 0.0}]
        for way in before:
            for hops, busy_ms in way.items():
                ways[hops + 1] = max(ways.get(hops + 1, 0.0), busy_ms + _busy_ms(timings[index]))
        longest[index] = ways
    return min(
        max(duration_ms - busy_ms, 0.0) / (hops + 1)
        for ways in longest.values()
        for hops, busy_ms in ways.items()
    )


def _busy_ms(timing: SliceTiming) -> float:
    return (timing.queue_us + timing.compute_us + timing.encode_us) / 1000


def _spans_of(timing: SliceTiming, before_ms: float, hop_ms: float, names: Names) -> list[Span]:
    node, phase = names.node(timing.node_id), names.phase(timing.slice_index)
    parts: tuple[tuple[SpanKind, float], ...] = (
        ("transfer", hop_ms),
        ("queue", timing.queue_us / 1000),
        ("compute", timing.compute_us / 1000),
        ("encode", timing.encode_us / 1000),
    )
    spans: list[Span] = []
    at = before_ms
    for kind, length in parts:
        if length > 0 or kind == "compute":
            is_encode = kind == "encode"
            spans.append(
                Span(
                    node=node,
                    slice_index=timing.slice_index,
                    phase=phase,
                    kind=kind,
                    start_ms=at,
                    duration_ms=length,
                    compressed_bytes=max(timing.compressed_bytes, 0) if is_encode else 0,
                    uncompressed_bytes=max(timing.uncompressed_bytes, 0) if is_encode else 0,
                )
            )
        at += length
    return spans
