"""The walk over the wire form, held against protobuf's own parser."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from din.errors import BadModel, TooLarge
from din.slicing import skeleton
from din.slicing.fields import fields_of, head_of
from din.slicing.skeleton import REFERENCE_KEY, WEIGHT_BYTES_KEPT, skeleton_of

node = helper.make_node
LARGE = np.arange(600, dtype=np.float32)


def filled(data: bytes) -> ModelProto:
    """The parsed skeleton with every weight put back from where it was left."""
    found = skeleton_of(memoryview(data))
    model = ModelProto.FromString(found.data)
    for tensor in tensors_of(model):
        entries = {each.key: each.value for each in tensor.external_data}
        if REFERENCE_KEY in entries:
            start, nbytes = found.weights[int(entries[REFERENCE_KEY])]
            tensor.raw_data = data[start : start + nbytes]
            del tensor.external_data[:]
            tensor.ClearField("data_location")
    return model


def tensors_of(model: ModelProto):
    yield from model.graph.initializer
    for each in model.graph.node:
        for attribute in each.attribute:
            if attribute.HasField("t"):
                yield attribute.t


def alike(model: ModelProto) -> bytes:
    """As the walk leaves it: packed floats and doubles are what raw data would be."""
    made = ModelProto()
    made.CopyFrom(model)
    for tensor in tensors_of(made):
        for name, code, kinds in (("float_data", "f", (1, 14)), ("double_data", "d", (11, 15))):
            values = getattr(tensor, name)
            if tensor.data_type in kinds and values:
                tensor.raw_data = struct.pack(f"<{len(values)}{code}", *values)
                tensor.ClearField(name)
            if tensor.data_type in kinds and len(tensor.raw_data) % 8 == 0:
                # Python cannot hold every kind of not-a-number: those that signal come out quiet.
                numbers = np.frombuffer(tensor.raw_data, f"<{code}").copy()
                numbers[np.isnan(numbers)] = np.nan
                tensor.raw_data = numbers.tobytes()
    return made.SerializeToString(deterministic=True)


def check(data: bytes) -> None:
    """Both refuse, or both read the same."""
    try:
        expected = ModelProto.FromString(data)
    except DecodeError:
        with pytest.raises((DecodeError, BadModel)):
            filled(data)
        return
    found = filled(data).SerializeToString(deterministic=True)
    plain = expected.SerializeToString(deterministic=True)
    assert found == plain or alike(filled(data)) == alike(expected)


def model_with(*tensors: TensorProto, nodes=(), **fields) -> ModelProto:
    graph = helper.make_graph(
        [*nodes, node("Relu", ["x"], ["y"], "only")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        list(tensors),
    )
    return helper.make_model(graph, ir_version=8, **fields)


def branch(tensor: TensorProto):
    return helper.make_graph([node("Identity", ["w"], ["o"])], "b", [], [], [tensor])


def samples() -> list[ModelProto]:
    raw = numpy_helper.from_array(LARGE, "w")
    small = numpy_helper.from_array(LARGE[:8], "s")
    typed = helper.make_tensor("t", TensorProto.FLOAT, [600], LARGE.tolist())
    doubles = helper.make_tensor("d", TensorProto.DOUBLE, [600], LARGE.tolist())
    numbers = helper.make_tensor("n", TensorProto.INT64, [600], range(600))
    text = helper.make_tensor("b", TensorProto.STRING, [2], [b"x" * 900, b"y" * 900])
    constant = node("Constant", [], ["c"], "constant", value=raw)
    other = node("Other", [], ["o"], "other", domain="mine", value=raw)
    choice = node("If", ["x"], ["z"], then_branch=branch(raw), else_branch=branch(small))
    function = helper.make_function("mine", "F", ["a"], ["b"], [constant], [])
    return [
        model_with(raw, small, typed, doubles, numbers, text),
        model_with(small, nodes=[constant, other, choice]),
        model_with(raw, functions=[function], doc_string="d" * 2000),
    ]


@pytest.mark.parametrize("number", range(3))
def test_what_is_left_and_what_was_taken_out_make_the_model_again(number):
    model = samples()[number]
    data = model.SerializeToString()
    check(data)
    assert len(skeleton_of(memoryview(data)).weights) == (3, 1, 1)[number]


def test_only_what_engines_find_outside_of_the_file_is_taken_out():
    _, constants, _ = samples()
    found = ModelProto.FromString(skeleton_of(memoryview(constants.SerializeToString())).data)
    constant, other, choice, _ = found.graph.node
    assert constant.attribute[0].t.external_data[0].key == REFERENCE_KEY
    assert len(other.attribute[0].t.raw_data) == LARGE.nbytes
    held = {each.name: each.g.initializer[0].raw_data for each in choice.attribute}
    assert len(held["then_branch"]) == LARGE.nbytes


@pytest.mark.parametrize("more", [0, 1])
def test_weights_over_the_limit_are_taken_out_and_no_others(more):
    data = bytes(WEIGHT_BYTES_KEPT + more)
    tensor = TensorProto(name="w", data_type=TensorProto.UINT8, dims=[len(data)], raw_data=data)
    found = skeleton_of(memoryview(model_with(tensor).SerializeToString()))
    assert [nbytes for _, nbytes in found.weights] == [len(data)] * more


def wrapped(*numbers: int, inside: bytes) -> bytes:
    for number in reversed(numbers):
        inside = head_of(number, len(inside)) + inside
    return inside


def field(number: int, content: bytes) -> bytes:
    return head_of(number, len(content)) + content


BIG = bytes(range(256)) * 8
KIND = b"\x10\x02"  # UINT8


@pytest.mark.parametrize(
    "data",
    {
        "raw data twice": wrapped(7, 5, inside=KIND + field(9, BIG) + field(9, b"last")),
        "raw and typed": wrapped(7, 5, inside=KIND + field(9, BIG) + field(4, BIG)),
        "typed twice": wrapped(7, 5, inside=b"\x10\x01" + field(4, BIG) + field(4, BIG)),
        "unpacked": wrapped(7, 5, inside=b"\x10\x01" + (b"\x25" + bytes(4)) * 600),
        "type is last": wrapped(7, 5, inside=field(4, BIG) + b"\x10\x01"),
        "type is wide": wrapped(7, 5, inside=b"\x10\x81\x80\x80\x80\x10" + field(4, BIG)),
        "location in front": wrapped(7, 5, inside=b"\x70\x01" + KIND + field(9, BIG)),
        "raw as number": wrapped(7, 5, inside=KIND + b"\x48\x01" + field(9, BIG)),
        "two graphs": wrapped(7, 5, inside=KIND + field(9, BIG)) * 2,
        "graph as number": b"\x38\x01" + wrapped(7, 5, inside=KIND + field(9, BIG)),
        "two values": wrapped(
            7, 1, inside=field(4, b"Constant") + field(5, field(5, KIND + field(9, BIG)) * 2)
        ),
        "two kinds": wrapped(
            7,
            1,
            inside=field(4, b"Constant")
            + field(5, field(5, KIND + field(9, BIG)))
            + field(4, b"Other"),
        ),
        "unknown fields": wrapped(
            7, 5, inside=field(99, BIG) + KIND + field(9, BIG) + b"\xf8\x06\x01"
        ),
        "group": b"\xa3\x06\x08\x01\x0b\x0c\xa4\x06" + wrapped(7, 5, inside=KIND + field(9, BIG)),
        "open group": b"\xa3\x06\x08\x01",
        "wrong group": b"\xa3\x06\x0c",
        "end of group": b"\xa4\x06",
        "deep groups": b"\xa3\x06" * 5000,
        "number 0": b"\x02\x00",
        "wire type 6": b"\x0e",
        "long tag": b"\x88\x80\x80\x80\x80\x00\x01",
        "long number": b"\x08" + b"\xff" * 11,
        "padded length": b"\x3a\x80\x80\x80\x80\x00",
        "cut length": b"\x3a\xff",
        "no length": b"\x3a",
        "huge length": b"\x3a\xff\xff\xff\xff\x7f",
        "length behind the end": wrapped(7, inside=b"\x2a\x7f"),
        "cut fixed": b"\x0d\x00",
        "cut double": b"\x09\x00",
        "nothing": b"",
    }.items(),
    ids=lambda each: each[0],
)
def test_odd_forms_are_read_as_protobuf_reads_them(data):
    check(data[1])


SEEDS = [each.SerializeToString() for each in samples()]


# Weights fill most of a file and say nothing: its beginning and end are changed more often.
PLACES = st.integers(0, 250) | st.integers(-250, -1) | st.integers(0, 20_000)
CHANGES = st.tuples(PLACES, st.integers(0, 3), st.binary(max_size=12))


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(SEEDS), st.lists(CHANGES, min_size=1, max_size=4), st.none() | PLACES)
def test_changed_bytes_are_read_as_protobuf_reads_them(data, changes, end):
    changed = bytearray(data)
    for place, removed, put in changes:
        at = place % (len(changed) + 1)
        changed[at : at + removed] = put
    check(bytes(changed[:end]))


WIRE = st.recursive(
    st.binary(max_size=40) | st.just(BIG),
    lambda inner: st.lists(st.tuples(st.integers(0, 16), inner), max_size=4).map(
        lambda pairs: b"".join(field(number, content) for number, content in pairs)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(WIRE)
def test_made_up_messages_are_read_as_protobuf_reads_them(data):
    check(wrapped(7, inside=data))


def test_a_skeleton_that_is_no_skeleton_is_refused(monkeypatch):
    monkeypatch.setattr(skeleton, "SKELETON_BYTES_MAX", 1000)
    with pytest.raises(TooLarge, match="more than 1000") as failed:
        skeleton_of(memoryview(model_with(doc_string="d" * 2000).SerializeToString()))
    assert "initialisers of the top graph" in failed.value.hint


def test_damage_is_told_with_its_place():
    with pytest.raises(BadModel, match="at byte 3"):
        list(fields_of(memoryview(b"\x08\x01\x08\xff"), 0, 4))
