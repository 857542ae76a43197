"""Samples of the user's own, held against the model that they are for."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from din.domain.calibration import GIVEN_MAX, CalibrationFile, encode_calibration
from din.domain.profile import GivenTensor
from din.domain.tensor import DTYPE_BYTES, TensorSpec
from din.domain.views import RegisterModel
from din.errors import BadStrategy, BadTensor
from din.gateway.registration.calibration import MADE_UP, samples_of
from din.gateway.registration.record import check_order, sources_of

IMAGE = TensorSpec("image", "UINT8", ("N", 3))
SIZE = TensorSpec("size", "INT64", (2,))


def tensor(name: str, shape: tuple[int, ...], datatype: str = "UINT8", **more: Any) -> GivenTensor:
    count = 1
    for each in shape:
        count *= each
    data = bytes(number % 251 for number in range(count * DTYPE_BYTES.get(datatype, 1)))
    fields: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape, "data": data}
    return GivenTensor(**(fields | more))


def read(*tensors: GivenTensor, inputs: tuple[TensorSpec, ...] = (IMAGE,)) -> Any:
    return samples_of(encode_calibration(CalibrationFile(tensors=tensors)), inputs)


def joined(chunks: Any) -> list[bytes]:
    return [b"".join(map(bytes, each)) for each in chunks]


def test_samples_are_parted_in_turns_and_nothing_is_lost() -> None:
    one = tensor("image", (5, 2, 3))
    found = read(one)
    first, second = found.to_calibrate, found.to_check
    rows = [one.data[place * 6 : place * 6 + 6] for place in range(5)]
    assert joined(first.chunks) == [b"".join(rows[::2])]
    assert joined(second.chunks) == [b"".join(rows[1::2])]
    assert (first.metas[0].shape, first.metas[0].nbytes) == ((3, 2, 3), 18)
    assert (second.specs[0].shape, found.count, found.missing) == ((2, 2, 3), 5, ())


def test_a_single_sample_may_come_as_it_is_and_does_both() -> None:
    found = read(tensor("image", (2, 3)))
    assert found.count == 1
    assert found.to_calibrate == found.to_check
    assert found.to_check.specs[0].shape == (1, 2, 3)


def test_an_array_without_a_name_is_for_the_only_input() -> None:
    assert list(read(tensor("", (4, 2, 3))).rows) == ["image"]
    with pytest.raises(BadTensor, match="the model has 2 inputs"):
        read(tensor("", (4, 2, 3)), inputs=(IMAGE, SIZE))


def test_inputs_without_samples_are_told() -> None:
    found = read(tensor("image", (4, 2, 3)), inputs=(IMAGE, SIZE))
    assert found.missing == ("size",)
    assert (MADE_UP.count, MADE_UP.to_calibrate.specs) == (0, ())


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ((), "there are samples none"),
        ((tensor("picture", (4, 2, 3)),), "has no input 'picture'"),
        ((tensor("image", (4, 2, 3)), tensor("image", (4, 2, 3))), "'image' was given twice"),
        ((tensor("image", (4, 2, 3), "FP32"),), "'image' is FP32 but the model takes UINT8"),
        ((tensor("image", (4, 2, 4)),), r"has shape \[2, 4\] but the model takes"),
        ((tensor("image", (4, 2, 3, 1)),), r"has shape \[2, 3, 1\]"),
        ((tensor("image", (4, 2, 3), data=b"short"),), "needs 24 bytes, got 5"),
        ((tensor("image", (0, 2, 3)),), "0 samples of 'image' are given"),
        ((tensor("image", (GIVEN_MAX + 1, 1, 3)),), f"{GIVEN_MAX + 1} samples of"),
        ((tensor("image", (4, 2, 3), "BYTES"),), r"is BYTES of shape \[4, 2, 3\]"),
        ((tensor("image", (-4, -2, 3), data=b""),), r"shape \[-4, -2, 3\]"),
        ((tensor("image", (4, 2, 3)), tensor("size", (3, 2), "INT64")), "4 of 'image', 3 of"),
    ],
)
def test_what_the_model_does_not_take_is_refused_by_name_and_reason(tensors: Any, why: str) -> None:
    with pytest.raises(BadTensor, match=why) as refused:
        read(*tensors, inputs=(IMAGE, SIZE))
    assert refused.value.message.startswith("calibration inputs: ")
    assert refused.value.hint


def test_as_many_as_may_be_given_are_taken() -> None:
    assert read(tensor("image", (GIVEN_MAX, 1, 3))).count == GIVEN_MAX


@given(st.binary(max_size=200))
def test_any_bytes_are_samples_or_refused(data: bytes) -> None:
    with pytest.raises(BadTensor):
        samples_of(data, (IMAGE,))


@given(st.recursive(st.none() | st.integers(-5, 5) | st.text(max_size=3) | st.binary(max_size=9),
                    lambda inner: st.lists(inner, max_size=4), max_leaves=8))  # fmt: skip
def test_any_fields_are_samples_or_refused(value: Any) -> None:
    content = {"name": "image", "datatype": "UINT8", "shape": value, "data": b"abc"}
    for document in (value, {"tensors": value}, {"tensors": [content]}):
        with suppress(BadTensor):
            assert 1 <= samples_of(msgspec.msgpack.encode(document), (IMAGE,)).count <= GIVEN_MAX


def test_samples_are_kept_with_the_model_and_need_a_precision() -> None:
    order = RegisterModel(model_id="m", source_sha256="a" * 64, calibration_sha256="c" * 64)
    assert sources_of(order) == {"a" * 64, "c" * 64}
    with pytest.raises(BadStrategy, match="nothing is calibrated"):
        check_order(order)
