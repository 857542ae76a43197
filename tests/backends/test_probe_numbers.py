"""Distances, made-up inputs, ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from din.backends.probe_numbers import (
    MADE_UP_BYTES_MAX,
    Distance,
    distance,
    guessed_shapes,
    made_up,
    range_of,
)
from din.domain.tensor import TensorSpec
from din.errors import BadTensor

NAN, INF = float("nan"), float("inf")


def floats(*numbers: float, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.array(numbers, dtype)


def between(first: Any, second: Any, dtype: str = "FP32", *, is_exact: bool = False) -> Distance:
    return distance(dtype, first, second, is_exact=is_exact)


def test_equal_tensors_have_no_distance() -> None:
    found = between(floats(1, -2, 0), floats(1, -2, 0), is_exact=True)
    assert found == Distance(max_absolute=0.0, max_relative=0.0, is_equal=True, is_within=True)


def test_nan_at_the_same_places_and_infinities_of_one_sign_are_equal() -> None:
    found = between(floats(NAN, INF, -INF, 1), floats(NAN, INF, -INF, 1), is_exact=True)
    assert found.is_equal
    assert found.max_absolute == 0.0


def test_nan_on_one_side_is_never_within() -> None:
    found = between(floats(NAN, 1), floats(0, 1))
    assert not found.is_within
    assert found.max_absolute is None
    assert found.trouble == "1 of 2 elements are NaN on one side"


def test_an_infinity_on_one_side_is_never_within() -> None:
    found = between(floats(INF, 1), floats(1, 1))
    assert not found.is_within
    assert found.trouble == "1 of 2 elements are infinite on one side"


def test_the_last_bit_counts_where_equal_is_asked() -> None:
    one = np.float32(1)
    near = np.nextafter(one, np.float32(2))
    assert between(floats(one), floats(near)).is_within
    assert not between(floats(one), floats(near), is_exact=True).is_within


def test_the_two_zeros_differ_in_a_bit_and_by_nothing() -> None:
    found = between(floats(0.0), floats(-0.0))
    assert (found.is_equal, found.max_absolute, found.is_within) == (False, 0.0, True)


@pytest.mark.parametrize(
    ("whole", "sliced", "is_within"),
    [
        (200.0, 200.01, True),
        (200.0, 200.03, False),
        (0.0, 9e-7, True),
        (0.0, 2e-6, False),
        (8e-6, 8.18e-6, True),
        (0.56431, 0.56433, True),
    ],
)
def test_the_tolerance_is_relative_with_an_absolute_floor(
    whole: float, sliced: float, is_within: bool
) -> None:
    """T41: machines of two kinds differ in the fifth digit of a float, and both are right."""
    found = between(floats(whole, 1), floats(sliced, 1))
    assert found.is_within is is_within
    assert found.max_relative is not None
    assert (found.max_relative <= 1e-4) is is_within


def test_halves_are_held_against_a_wider_tolerance() -> None:
    first, second = floats(1, dtype=np.float16), floats(1.005, dtype=np.float16)
    assert between(first, second, "FP16").is_within
    assert not between(first.astype(np.float32), second.astype(np.float32)).is_within


def test_bf16_is_compared_as_numbers() -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)  # 1, 2
    near = np.array([0x3F81, 0x4000], np.uint16)
    found = between(bits, near, "BF16")
    assert found.is_within
    assert found.max_absolute == pytest.approx(2**-7)


def test_whole_numbers_have_to_be_equal() -> None:
    found = between(np.array([1, 5]), np.array([1, 9]), "INT64")
    assert (found.is_within, found.max_absolute) == (False, 4.0)
    assert found.trouble == "1 of 2 elements differ"


def test_the_largest_numbers_of_64_bits_are_subtracted_rightly() -> None:
    least, most = np.array([-(2**63)]), np.array([2**63 - 1])
    assert between(least, most, "INT64").max_absolute == float(2**64 - 1)


def test_a_step_of_a_quantised_value_is_allowed_where_kernels_are_fused() -> None:
    first, second = np.array([3, 4], np.uint8), np.array([3, 5], np.uint8)
    assert between(first, second, "UINT8").is_within
    assert not between(first, second, "UINT8", is_exact=True).is_within
    assert not between(first, np.array([3, 6], np.uint8), "UINT8").is_within


def test_booleans_and_strings_are_compared_element_by_element() -> None:
    assert not between(np.array([True, False]), np.array([True, True]), "BOOL").is_within
    text = np.array([b"a", b"b"], np.object_)
    assert between(text, text.copy(), "BYTES").is_equal
    found = between(text, np.array([b"a", b"c"], np.object_), "BYTES")
    assert (found.is_within, found.trouble) == (False, "1 of 2 elements differ")


def test_another_element_type_is_told() -> None:
    found = between(floats(1), floats(1, dtype=np.float64))
    assert found.trouble == "the whole makes float32 [1], the slices float64 [1]"


def test_empty_tensors_and_scalars_are_compared() -> None:
    assert between(np.empty((0, 3), np.float32), np.empty((0, 3), np.float32)).is_equal
    assert between(np.float32(2).reshape(()), np.float32(2).reshape(())).is_equal
    assert between(np.empty(0, np.int64), np.empty(0, np.int64), "INT64").is_equal


# Made-up inputs.


def test_one_symbol_has_one_size_and_a_given_input_decides_it() -> None:
    specs = (TensorSpec("a", "FP32", ("B", "S")), TensorSpec("b", "INT64", ("B", "S", 2)))
    assert guessed_shapes(specs, {"a": (2, 7)}, (None, 640)) == {"a": (2, 7), "b": (2, 7, 2)}
    assert guessed_shapes(specs, {}, (None, 64)) == {"a": (1, 64), "b": (1, 64, 2)}


def test_the_same_seed_makes_the_same_inputs() -> None:
    spec = TensorSpec("x", "FP32", (2, 3))
    first, second, other = (made_up([spec], {"x": (2, 3)}, seed)["x"] for seed in (1, 1, 2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("dtype", "numpy_type"),
    [
        ("FP32", np.float32),
        ("FP16", np.float16),
        ("FP64", np.float64),
        ("BF16", np.uint16),
        ("FP8", np.uint8),
        ("BOOL", np.bool_),
        ("UINT8", np.uint8),
        ("INT64", np.int64),
        ("BYTES", np.object_),
    ],
)
def test_each_datatype_is_made_up_in_its_own_form(dtype: str, numpy_type: Any) -> None:
    made = made_up([TensorSpec("x", dtype, (2, 2))], {"x": (2, 2)}, 0)["x"]
    assert made.dtype == numpy_type
    assert made.shape == (2, 2)


def test_made_up_inputs_have_a_limit() -> None:
    count = MADE_UP_BYTES_MAX // 4
    spec = TensorSpec("x", "FP32", (None,))
    assert made_up([spec], {"x": (count,)}, 0)["x"].nbytes == MADE_UP_BYTES_MAX
    with pytest.raises(BadTensor, match="over"):
        made_up([spec], {"x": (count + 1,)}, 0)
    with pytest.raises(BadTensor, match="over"):
        made_up([TensorSpec("t", "BYTES", (None,))], {"t": (MADE_UP_BYTES_MAX,)}, 0)


# Ranges.


def test_a_range_leaves_out_what_is_not_finite() -> None:
    found = range_of("x", "FP32", floats(NAN, -1, INF, 3))
    assert (found.minimum, found.maximum) == (-1.0, 3.0)
    assert found.channel_minima == ()
    nothing = range_of("x", "FP32", np.full((1, 2), NAN, np.float32))
    assert (nothing.minimum, nothing.channel_maxima) == (None, (None, None))


def test_strings_have_no_range() -> None:
    with pytest.raises(BadTensor, match="no range"):
        range_of("x", "BYTES", np.array([b"a"], np.object_))
