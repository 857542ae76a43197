"""Bytes of a frame: vectors, limits, strangers."""

import json
import struct
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from din.domain.tensor import TENSOR_ALIGNMENT_BYTES
from din.errors import DinError, Internal, TooLarge, UsageError
from din.wire.frame import (
    BODY_BYTES_MAX,
    DESCRIPTORS_MAX,
    FIXED_BYTES,
    HEADER_BYTES_MAX,
    Fixed,
    Unknown,
    body_parts,
    decode_fixed,
    decode_message,
    encode_head,
)
from din.wire.messages import AnyMessage, Bye, Message, Ping

VECTORS = json.loads((Path(__file__).parents[2] / "docs/protocol/vectors/frames.json").read_text())


def decode(data: bytes) -> tuple[Fixed, AnyMessage | Unknown]:
    fixed = decode_fixed(data)
    return fixed, decode_message(data[FIXED_BYTES : FIXED_BYTES + fixed.header_len])


@pytest.mark.parametrize("vector", VECTORS["frames"], ids=lambda each: each["what"])
def test_vectors_decode_and_encode_to_the_same_bytes(vector) -> None:
    data = bytes.fromhex(vector["hex"])
    fixed, message = decode(data)
    assert not isinstance(message, Unknown)
    assert json.loads(msgspec.json.encode(message)) == vector["message"]
    assert fixed.descriptor_count == vector["descriptors"]
    parts, body_len = body_parts([bytes.fromhex(each) for each in vector["tensors"]])
    head = encode_head(message, body_len, descriptor_count=fixed.descriptor_count)
    assert head + b"".join(parts) == data


def test_there_is_a_vector_of_every_kind() -> None:
    kinds = {each["message"][0] for each in VECTORS["frames"]}
    assert kinds == {each.__struct_config__.tag for each in AnyMessage.__args__}


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda each: each["what"])
def test_refused_vectors_say_why(vector) -> None:
    data = bytes.fromhex(vector["hex"])
    with pytest.raises(DinError) as caught:
        decode(data)
    assert vector["says"] in caught.value.message


@pytest.mark.parametrize("vector", VECTORS["skipped"], ids=lambda each: each["what"])
def test_skipped_vectors_are_unknown_kinds(vector) -> None:
    data = bytes.fromhex(vector["hex"])
    assert decode(data)[1] == Unknown(vector["kind"])


def test_the_header_limit_holds_at_its_edge() -> None:
    room = HEADER_BYTES_MAX - len(encode_head(Bye(""))) + FIXED_BYTES
    text = "x" * (room - 4)  # a long msgpack string has a prefix of 5 bytes, an empty one of 1
    head = encode_head(Bye(text))
    assert decode_fixed(head).header_len == HEADER_BYTES_MAX
    with pytest.raises(TooLarge, match="262145 bytes, over 262144"):
        encode_head(Bye(text + "x"))
    raw = struct.pack("<2sBBIQ", b"DN", 1, 0, HEADER_BYTES_MAX + 1, 0)
    with pytest.raises(TooLarge, match="262145 header bytes"):
        decode_fixed(raw)


def test_the_body_limit_holds_at_its_edge() -> None:
    assert decode_fixed(encode_head(Ping(1), BODY_BYTES_MAX)).body_len == BODY_BYTES_MAX
    with pytest.raises(TooLarge, match="Ping frame"):
        encode_head(Ping(1), BODY_BYTES_MAX + 1)
    with pytest.raises(TooLarge, match="body bytes"):
        decode_fixed(struct.pack("<2sBBIQ", b"DN", 1, 0, 1, BODY_BYTES_MAX + 1))


def test_the_descriptor_count_holds_at_its_edge() -> None:
    head = encode_head(Ping(1), descriptor_count=DESCRIPTORS_MAX)
    assert decode_fixed(head) == Fixed(len(head) - FIXED_BYTES, 0, DESCRIPTORS_MAX)
    with pytest.raises(Internal):
        encode_head(Ping(1), descriptor_count=DESCRIPTORS_MAX + 1)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"GET / HTTP/1.1\r\n", "an HTTP request"),
        (b"POST /infer HTTP", "an HTTP request"),
        (b"PRI * HTTP/2.0\r\n", "an HTTP/2 connection"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abcde", "a TLS hello"),
        (b"SSH-2.0-OpenSSH_9", "an SSH client"),
        (bytes(16), "instead of b'DN'"),
    ],
)
def test_strangers_are_called_by_their_name(data: bytes, what: str) -> None:
    with pytest.raises(UsageError, match="not a DIN frame") as caught:
        decode_fixed(data)
    assert what in caught.value.message
    assert "HTTP API" in caught.value.hint


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_an_unknown_kind_or_a_typed_error(data: bytes) -> None:
    try:
        message = decode_message(data)
    except UsageError:
        return
    assert isinstance(message, Message | Unknown)


@given(st.recursive(st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(), st.lists))
def test_any_msgpack_is_a_message_an_unknown_kind_or_a_typed_error(value: object) -> None:
    data = msgspec.msgpack.encode(value)
    try:
        message = decode_message(data)
    except UsageError:
        return
    assert isinstance(message, Message | Unknown)


def test_deep_nesting_is_a_typed_error() -> None:
    with pytest.raises(UsageError):
        decode_message(b"\x91" * 10_000)
    with pytest.raises(UsageError):
        decode_message(b"\x92\xa4PING" + b"\x91" * 10_000)


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_bodies_are_padded_to_the_tensor_alignment(tensors: list[bytes]) -> None:
    parts, total = body_parts(tensors)
    joined = b"".join(parts)
    assert len(joined) == total
    assert total % TENSOR_ALIGNMENT_BYTES == 0
    at = 0
    for tensor in tensors:
        assert joined[at : at + len(tensor)] == tensor
        at += -(-len(tensor) // TENSOR_ALIGNMENT_BYTES) * TENSOR_ALIGNMENT_BYTES


def test_views_of_any_format_are_sent_as_their_bytes() -> None:
    """T37: only row-major bytes travel; anything else is refused, never reordered in silence."""
    floats = memoryview(bytes(128)).cast("f", shape=[4, 8])
    assert body_parts([floats])[1] == 128
    with pytest.raises(Internal, match="not contiguous"):
        body_parts([memoryview(bytes(128))[::2]])
