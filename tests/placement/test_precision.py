"""Which encoding a tensor may get, and whether its way is slow enough for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from din.domain.encoding import Encoding, OutputLoss
from din.domain.probe import TensorRange
from din.domain.tensor import TensorSpec
from din.placement.precision import (
    Refused,
    encoded_bytes,
    encoding_of,
    exact_bytes,
    kinds_of,
    slow_enough,
    spread_warnings,
    tolerance_of,
    too_lossy,
)
from din.placement.rates import ASSUMED_RATE, ONE_NODE, Rate

MIB = 1024 * 1024
SPEC = TensorSpec("a", "FP32", (1, 3, 8, 8))


def seen(low=-1.0, high=3.0, minima=(), maxima=(), **more):
    return TensorRange(
        name="a",
        dtype="FP32",
        shape=(1, 3, 8, 8),
        minimum=low,
        maximum=high,
        channel_minima=minima,
        channel_maxima=maxima,
        **more,
    )


def loss(number, name="y", trouble=""):
    return OutputLoss(name=name, max_absolute=1.0, mean_absolute=0.1, loss=number, trouble=trouble)


@pytest.mark.parametrize(
    ("way", "is_worth"),
    [
        (Rate(1.2, "measured from a to b"), True),  # 10 Mbit/s
        (Rate(12.0, "label link_mbit of a"), True),
        (Rate(120.0, "measured from a to b"), True),
        (ASSUMED_RATE, False),
        (ONE_NODE, False),
    ],
)
def test_only_slow_ways_are_worth_an_encoding(way, is_worth):
    for kind in ("fp16", "uint8"):
        reason = slow_enough(4 * MIB, "FP32", kind, way)
        assert (reason == "") == is_worth
        assert is_worth or f"{way.mib_per_second:g} MiB/s ({way.source})" in reason


def test_uint8_is_worth_it_on_faster_ways_than_fp16():
    way = Rate(300.0, "assumed")
    assert slow_enough(MIB, "FP32", "uint8", way) == ""
    assert "would spare 1.67 ms and cost 1 ms" in slow_enough(MIB, "FP32", "fp16", way)


def test_sizes_follow_the_type_and_what_was_seen_of_free_shapes():
    assert exact_bytes(SPEC) == 768
    free = TensorSpec("a", "FP32", ("N", 3, None, 8))
    assert exact_bytes(free) is None
    assert exact_bytes(free, seen()) == 768
    assert [encoded_bytes(768, "FP32", kind) for kind in ("fp16", "uint8")] == [384, 192]
    assert encoded_bytes(384, "FP16", "uint8") == 192


def test_a_range_becomes_a_scale_and_a_zero_point_that_meets_zero():
    made = encoding_of(SPEC, seen(-1.0, 3.0), "uint8")
    assert made == Encoding(kind="uint8", scale=(4.4 / 255,), zero_point=(64,))
    positive = encoding_of(SPEC, seen(2.0, 3.0), "uint8")
    assert isinstance(positive, Encoding)
    assert positive.zero_point == (0,)
    assert positive.scale[0] == pytest.approx(3.3 / 255)


@given(
    low=st.floats(-1e30, 1e30, allow_nan=False),
    width=st.floats(0, 1e30, allow_nan=False),
)
def test_every_range_is_met_within_one_step(low, width):
    high = low + width
    made = encoding_of(SPEC, seen(low, high), "uint8")
    assert isinstance(made, Encoding)
    (scale,), (zero,) = made.scale, made.zero_point
    assert 0 <= zero <= 255
    for end in (low, 0.0, high):
        code = min(max(round(end / scale) + zero, 0), 255)
        assert abs((code - zero) * scale - end) <= scale * 1.001


def test_channels_have_scales_of_their_own_where_their_number_is_promised():
    ranges = seen(-2.0, 9.0, (-1.0, 0.0, -2.0), (1.0, 9.0, 2.0))
    made = encoding_of(SPEC, ranges, "uint8")
    assert isinstance(made, Encoding)
    assert (made.axis, len(made.scale)) == (1, 3)
    assert made.scale[1] == pytest.approx(9.9 / 255)
    for spec in (
        TensorSpec("a", "FP32", (1, None, 8, 8)),
        TensorSpec("a", "FP32", None),
        TensorSpec("a", "FP32", (3,)),
    ):
        whole = encoding_of(spec, ranges, "uint8")
        assert isinstance(whole, Encoding)
        assert (whole.axis, len(whole.scale)) == (None, 1)


def test_a_channel_that_is_always_zero_or_was_never_finite_gets_some_scale():
    ranges = seen(-2.0, 9.0, (0.0, None, -2.0), (0.0, None, 9.0))
    made = encoding_of(SPEC, ranges, "uint8")
    assert isinstance(made, Encoding)
    assert made.scale[:2] == (1.0, 1.0)


@pytest.mark.parametrize(
    ("kind", "ranges", "reason"),
    [
        ("fp16", seen(-70000.0, 1.0), "saw 7e+04, and FP16 ends at 65504"),
        ("fp16", seen(None, None), "no finite value"),
        ("uint8", seen(is_finite=False), "NaN or infinity"),
    ],
)
def test_what_an_encoding_cannot_hold_is_refused_with_the_reason(kind, ranges, reason):
    refused = encoding_of(SPEC, ranges, kind)
    assert isinstance(refused, Refused)
    assert reason in refused.reason


def test_fp16_is_no_encoding_of_fp16():
    assert isinstance(encoding_of(TensorSpec("a", "FP16", (4,)), seen(), "fp16"), Refused)


def test_auto_tries_the_narrower_encoding_first_and_the_others_what_they_say():
    assert kinds_of("auto") == ("uint8", "fp16")
    assert kinds_of("exact") == ()
    assert kinds_of("fp16") == ("fp16",)


def test_losses_are_held_to_the_tolerance_and_named():
    assert tolerance_of("fp16", None) == 0.01
    assert tolerance_of("uint8", 0.2) == 0.2
    assert too_lossy((loss(0.01), loss(0.05, "z")), 0.05) == ""
    assert "'z' is off by 6.00%" in too_lossy((loss(0.01), loss(0.06, "z")), 0.05)
    assert "'y' cannot be compared: why" in too_lossy((loss(None, trouble="why"),), 0.05)
    assert "no output could be compared" in too_lossy((), 0.05)


def test_samples_are_judged_by_their_spread_and_not_by_their_number():
    assert "one sample" in spread_warnings((seen(),), 1)[0]
    assert (
        "16 calibration samples look alike (spread 0.02"
        in spread_warnings((seen(spread=0.02), seen(spread=0.01), seen()), 16)[0]
    )
    assert spread_warnings((seen(spread=0.4), seen(spread=0.01)), 2) == ()
