"""Encodings at the cuts, run through ONNX Runtime as the slices would be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from din.domain.encoding import Encoding
from din.domain.model import GATEWAY
from din.errors import BadStrategy

node = helper.make_node
HALF = Encoding(kind="fp16")


def quantising(array, axis=1):
    """Scales over the real range, as a calibration on this very value finds them."""
    rows = (
        array.reshape(1, -1)
        if axis is None
        else np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    )
    low, high = np.minimum(rows.min(1), 0), np.maximum(rows.max(1), 0)
    scale = np.where(high > low, (high - low) / 255, 1.0)
    zero = np.clip(np.round(-low / scale), 0, 255)
    return Encoding(
        kind="uint8",
        scale=tuple(map(float, scale)),
        zero_point=tuple(map(int, zero)),
        axis=axis,
    )


def chain(build, shape=(1, 4, 3, 3), opset=17, kind="FLOAT"):
    dims = ",".join(map(str, shape))
    return build(
        [node("Identity", ["x"], ["a"], "first"), node("Identity", ["a"], ["y"], "last")],
        [f"x:{kind}:{dims}"],
        [f"y:{kind}:{dims}"],
        opset_imports=[helper.make_opsetid("", opset)],
    )


def across(bench, model, x, encoding, is_optimised=True):
    sliced = bench.cut(model, "a", encodings={"a": encoding})
    return sliced, bench.run_sliced(sliced, {"x": x}, is_optimised)["y"]


def noise(shape, seed=1):
    chance = np.random.default_rng(seed)
    spread = 10.0 ** chance.uniform(-2, 2, (1, shape[1], *[1] * (len(shape) - 2)))
    return (chance.normal(0, 1, shape) * spread).astype(np.float32)


@settings(deadline=None, max_examples=25)
@given(
    shape=st.lists(st.integers(0, 5), min_size=2, max_size=5),
    seed=st.integers(0, 1000),
    is_optimised=st.booleans(),
)
def test_any_shape_crosses_within_the_bounds_of_its_encoding(
    build, bench, shape, seed, is_optimised
):
    shape[1] = max(shape[1], 1)
    x = noise(tuple(shape), seed)
    model = chain(build, tuple(shape))
    _, half = across(bench, model, x, HALF, is_optimised)
    assert half.tobytes() == x.astype(np.float16).astype(np.float32).tobytes()
    if x.size:
        encoding = quantising(x)
        _, small = across(bench, model, x, encoding, is_optimised)
        steps = np.asarray(encoding.scale).reshape(1, -1, *[1] * (len(shape) - 2))
        assert small.shape == x.shape
        # Half a step of rounding; the zero point moves the ends of the range by as much.
        assert np.all(np.abs(small - x) <= steps * 1.001 + 1e-12)


def test_channels_with_scales_of_their_own_lose_less_than_a_tensor_with_one(build, bench):
    x = noise((1, 8, 6, 6))
    model = chain(build, x.shape)
    _, by_channel = across(bench, model, x, quantising(x))
    _, at_once = across(bench, model, x, quantising(x, axis=None))
    smallest = np.abs(x).max(axis=(0, 2, 3)).argmin()
    error = [np.abs(each - x)[:, smallest].max() for each in (by_channel, at_once)]
    assert error[0] * 10 < error[1]


def test_what_was_encoded_once_is_encoded_again_without_loss(build, bench):
    x = noise((2, 3, 4))
    encoding, model = quantising(x), chain(build, x.shape)
    _, once = across(bench, model, x, encoding)
    _, twice = across(bench, model, once, encoding)
    assert once.tobytes() == twice.tobytes()


def test_fp16_keeps_nan_and_infinity_and_makes_large_figures_infinite(build, bench):
    x = np.array([[np.nan, np.inf, -np.inf, 65504.0, 70000.0, -0.0]], np.float32)
    _, y = across(bench, chain(build, x.shape), x, HALF)
    assert np.isnan(y[0, 0])
    assert list(y[0, 1:5]) == [np.inf, -np.inf, 65504.0, np.inf]
    assert np.signbit(y[0, 5])


def test_uint8_saturates_outside_its_range(build, bench):
    x = np.array([[-9.0, 0.0, 9.0]], np.float32)
    encoding = Encoding(kind="uint8", scale=(2 / 255,), zero_point=(127,))
    _, y = across(bench, chain(build, x.shape), x, encoding)
    assert y.min() == pytest.approx(-127 * 2 / 255)
    assert y.max() == pytest.approx(128 * 2 / 255)
    assert y[0, 1] == 0.0


def test_half_precision_tensors_cross_as_uint8_and_come_back_as_they_were(build, bench):
    x = noise((1, 4, 3)).astype(np.float16)
    encoding = quantising(x.astype(np.float32))
    sliced, y = across(bench, chain(build, x.shape, kind="FLOAT16"), x, encoding)
    assert y.dtype == np.float16
    assert sliced.answer.slices[1].inputs[0].dtype == "UINT8"
    assert np.abs(y.astype(np.float32) - x).max() <= max(encoding.scale) * 1.1


def test_an_encoded_tensor_is_an_edge_of_its_own_with_the_bytes_that_really_cross(build, bench):
    x = noise((1, 4, 3, 3))
    model = chain(build, x.shape)
    for encoding, nbytes in ((HALF, 72), (quantising(x), 36)):
        sliced, _ = across(bench, model, x, encoding)
        (cut,) = sliced.answer.cuts
        assert cut.tensors == (f"a.{encoding.kind}",)
        assert (cut.nbytes, cut.nbytes_exact) == (nbytes, 144)
        first, last = sliced.answer.slices
        assert first.outputs == last.inputs
        assert first.outputs[0].dtype == {"fp16": "FP16", "uint8": "UINT8"}[encoding.kind]


def test_the_gateway_gets_plain_outputs_also_of_what_crosses_encoded(build, bench):
    model = build(
        [node("Relu", ["x"], ["a"], "first"), node("Exp", ["a"], ["y"], "last")],
        ["x"],
        ["a", "y"],
    )
    x = noise((2, 3))
    sliced = bench.cut(model, "a", encodings={"a": HALF})
    assert [each for each in sliced.answer.edges if each.producer == 0] == [
        type(sliced.answer.edges[0])("a", 0, (GATEWAY,)),
        type(sliced.answer.edges[0])("a.fp16", 0, (1,)),
    ]
    answer = bench.run_sliced(sliced, {"x": x}, False)
    assert answer["a"].tobytes() == np.maximum(x, 0).tobytes()
    assert (
        answer["y"].tobytes()
        != bench.run_whole(model.SerializeToString(), {"x": x}, False)["y"].tobytes()
    )


def test_every_consumer_reads_the_encoded_tensor_and_each_slice_makes_it_once(build, bench):
    model = build(
        [
            node("Relu", ["x"], ["a"], "one"),
            node("Exp", ["a"], ["b"], "two"),
            node("Add", ["a", "b"], ["y"], "three"),
        ],
        ["x"],
        ["y"],
    )
    sliced = bench.cut(model, "a", "b", encodings={"a": HALF, "b": HALF})
    inputs = [[each.name for each in part.inputs] for part in sliced.answer.slices]
    assert inputs == [["x"], ["a.fp16"], ["a.fp16", "b.fp16"]]
    assert sliced.answer.slices[0].outputs[0].name == "a.fp16"
    assert len(sliced.answer.slices[0].outputs) == 1
    bench.run_sliced(sliced, {"x": noise((2, 3))}, True)


def test_an_encoded_tensor_takes_no_name_that_the_model_has(build, bench):
    model = build(
        [node("Identity", ["x"], ["a"]), node("Identity", ["a"], ["a.fp16"])],
        ["x"],
        ["a.fp16"],
    )
    sliced = bench.cut(model, "a", encodings={"a": HALF})
    assert sliced.answer.cuts[0].tensors == ("a.fp16_",)
    bench.run_sliced(sliced, {"x": noise((2, 3))}, False)


def test_slices_have_other_ids_with_an_encoding_and_the_same_without(build, bench):
    model = chain(build)
    plain = bench.cut(model, "a").answer
    again = bench.cut(model, "a", encodings={}).answer
    half = bench.cut(model, "a", encodings={"a": HALF}).answer
    assert [each.slice_id for each in plain.slices] == [each.slice_id for each in again.slices]
    assert not {e.slice_id for e in plain.slices} & {e.slice_id for e in half.slices}
    assert plain.cuts[0].nbytes == plain.cuts[0].nbytes_exact


UNIT = Encoding(kind="uint8", scale=(1.0,), zero_point=(0,))


@pytest.mark.parametrize(
    ("opset", "encoding", "reason"),
    [
        (6, UNIT, "opset 6 is too old for encodings"),
        (17, Encoding(kind="uint8", scale=(1.0,) * 3, zero_point=(0,) * 3, axis=1), "4 channels"),
        (17, Encoding(kind="uint8", scale=(1.0,), zero_point=(0,), axis=4), "axis 4"),
        (17, Encoding(kind="uint8", scale=(0.0,), zero_point=(0,)), "no positive"),
        (17, Encoding(kind="uint8", scale=(float("nan"),), zero_point=(0,)), "no positive"),
        (17, Encoding(kind="uint8", scale=(1.0,), zero_point=(256,)), "outside 0..255"),
        (17, Encoding(kind="uint8"), "0 scales"),
        (17, Encoding(kind="uint8", scale=(1.0, 2.0), zero_point=(0, 0)), "without an axis"),
    ],
)
def test_an_encoding_that_the_tensor_cannot_have_is_refused_with_the_reason(
    build, bench, opset, encoding, reason
):
    with pytest.raises(BadStrategy, match=reason):
        bench.cut(chain(build, opset=opset), "a", encodings={"a": encoding})


@pytest.mark.parametrize("kind", ["FLOAT", "FLOAT16"])
@pytest.mark.parametrize("opset", [7, 9, 10, 11])
def test_before_opset_13_channels_are_scaled_to_the_same_codes_by_plain_arithmetic(
    build, bench, kind, opset
):
    x = noise((2, 4, 3, 3)).astype(np.float16 if kind == "FLOAT16" else np.float32)
    encoding = quantising(x.astype(np.float32))
    for at_once in (encoding, quantising(x.astype(np.float32), axis=None)):
        old, new = (
            across(bench, chain(build, x.shape, opset, kind), x, at_once)[1]
            for opset in (opset, 17)
        )
        steps = np.asarray(at_once.scale).reshape(-1, 1, 1)
        # A figure between two codes may be rounded to either.
        assert np.all(np.abs(old.astype(np.float32) - x) <= steps * 0.51 + 0.01 * np.abs(x))
        assert np.mean(old != new) < 0.05
    twice = across(bench, chain(build, x.shape, opset, kind), old, at_once)[1]
    assert twice.tobytes() == old.tobytes()


def test_integers_and_the_pairs_of_quantised_operators_cross_exactly(build, bench):
    model = build(
        [
            node("Cast", ["x"], ["whole"], "cast", to=TensorProto.INT64),
            node("Cast", ["whole"], ["y"], "back", to=TensorProto.FLOAT),
        ],
        ["x"],
        ["y"],
    )
    assert "INT64" in bench.cut(model, "whole").answer.exact_only["whole"]
    with pytest.raises(BadStrategy, match="only floating-point"):
        bench.cut(model, "whole", encodings={"whole": HALF})
    pair = build(
        [
            node("QuantizeLinear", ["x", "scale", "zero"], ["q"], "quantise"),
            node("DequantizeLinear", ["q", "scale", "zero"], ["d"], "dequantise"),
            node("Exp", ["d"], ["y"], "last"),
        ],
        ["x"],
        ["y"],
        {"scale": np.float32(0.1), "zero": np.uint8(3)},
    )
    with pytest.raises(BadStrategy, match="ties an operator"):
        bench.cut(pair, "d", encodings={"d": HALF})


@pytest.mark.parametrize("name", ["x", "y", "nowhere"])
def test_only_what_crosses_between_slices_is_encoded(build, bench, name):
    with pytest.raises(BadStrategy, match="does not cross between slices"):
        bench.cut(chain(build), "a", encodings={name: HALF})


def test_shapes_that_depend_on_the_input_cross_encoded_too(build, bench):
    model: ModelProto = build(
        [node("Identity", ["x"], ["a"]), node("Identity", ["a"], ["y"])],
        ["x:FLOAT:N,4"],
        ["y:FLOAT:N,4"],
    )
    for rows in (1, 3):
        x = noise((rows, 4))
        sliced, y = across(bench, model, x, quantising(x))
        assert sliced.answer.cuts[0].nbytes is None
        assert sliced.answer.cuts[0].nbytes_exact is None
        assert y.shape == x.shape
