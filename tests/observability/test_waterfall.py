from hypothesis import given
from hypothesis import strategies as st

from din.domain.model import GATEWAY, Edge
from din.domain.request import SliceTiming
from din.observability.waterfall import Names, build_spans, build_steps, render

NAMES = Names({0: "backbone", 1: "head"}, {"a": "edge-1", "b": "edge-2"})
CHAIN = (Edge("x", GATEWAY, (0,)), Edge("t", 0, (1,)), Edge("y", 1, (GATEWAY,)))


def timing(index: int, node: str = "a", compute_us: int = 4_000, queue_us: int = 0) -> SliceTiming:
    return SliceTiming(index, node, 500, queue_us, compute_us)


def test_a_slice_starts_after_its_producer_ended_and_the_rest_is_transfer():
    spans = build_spans([timing(0), timing(1, "b", 3_000)], CHAIN, 10.0, NAMES)
    compute = {span.phase: span for span in spans if span.kind == "compute"}
    assert compute["backbone"].start_ms == 1.0
    assert compute["head"].start_ms == 1.0 + 4.0 + 1.0
    assert compute["head"].node == "edge-2"
    gateway = next(span for span in spans if span.node == "gateway")
    assert (gateway.start_ms, gateway.duration_ms) == (9.0, 1.0)


def test_what_was_compressed_stands_at_the_encoding_and_nowhere_else():
    timings = [SliceTiming(0, "a", 0, 0, 4_000, 2_000, None, 300, 1000), timing(1, "b")]
    spans = build_spans(timings, CHAIN, 20.0, NAMES)
    (encode,) = [span for span in spans if span.kind == "encode"]
    assert (encode.slice_index, encode.duration_ms) == (0, 2.0)
    assert (encode.compressed_bytes, encode.uncompressed_bytes) == (300, 1000)
    assert not any(span.uncompressed_bytes for span in spans if span is not encode)


def test_spans_of_parallel_slices_overlap():
    edges = (
        Edge("x", GATEWAY, (0, 1)),
        Edge("p", 0, (2,)),
        Edge("q", 1, (2,)),
        Edge("y", 2, (GATEWAY,)),
    )
    timings = [timing(0, compute_us=8_000), timing(1, "b", 2_000), timing(2, compute_us=1_000)]
    spans = build_spans(timings, edges, 12.0, NAMES)
    start = {span.slice_index: span.start_ms for span in spans if span.kind == "compute"}
    assert start[0] == start[1] == 1.0
    assert start[2] == 1.0 + 8.0 + 1.0


def test_a_skip_edge_does_not_shorten_the_longest_way():
    edges = (*CHAIN, Edge("skip", 0, (1,)))
    assert build_spans([timing(0), timing(1)], edges, 11.0, NAMES) == build_spans(
        [timing(0), timing(1)], CHAIN, 11.0, NAMES
    )


def test_no_timings_give_no_spans():
    assert build_spans([], CHAIN, 5.0, NAMES) == ()
    assert render((), 40) == ()


def test_steps_say_null_where_the_accelerator_is_not_measured():
    (step,) = build_steps([timing(0, queue_us=250)], NAMES)
    assert step.gpu_util is None
    assert (step.node, step.phase, step.latency_ms, step.queue_ms) == (
        "edge-1",
        "backbone",
        4.0,
        0.25,
    )


def test_steps_name_unknown_nodes_and_slices_by_what_is_known():
    (step,) = build_steps([timing(7, "ffff")], NAMES)
    assert (step.node, step.phase) == ("ffff", "slice 7")


times = st.integers(0, 50_000)


@given(
    st.lists(st.tuples(times, times, times), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=10),
    st.floats(0, 500),
    st.integers(1, 200),
)
def test_bars_stay_inside_the_request_when_the_request_lasted_as_long_as_its_slices(
    figures, pairs, extra_ms, width
):
    timings = [SliceTiming(i, "a", 0, q, c, e) for i, (q, c, e) in enumerate(figures)]
    edges = [Edge(f"t{a}{b}", a, (b,)) for a, b in pairs if a < b]
    total_ms = sum(sum(figure) for figure in figures) / 1000 + extra_ms
    spans = build_spans(timings, edges, total_ms, NAMES)
    assert all(s.start_ms >= 0 and s.duration_ms >= 0 for s in spans)
    assert all(s.start_ms + s.duration_ms <= total_ms + 1e-6 for s in spans)
    bars = render(spans, width)
    assert all(b.start >= 0 and b.start + b.length <= max(width, 8) for b in bars)
