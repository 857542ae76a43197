"""Every form on a wire, damaged from its published vectors: taken or refused in our own words,
in memory and work in proportion to its size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from din.domain.calibration import CalibrationFile, decode_calibration, encode_calibration
from din.domain.profile import GivenTensor
from din.errors import DinError, UsageError
from din.wire.beat_datagram import BeatKey, claims_of
from din.wire.frame import FIXED_BYTES, Unknown, decode_fixed, decode_message
from din.wire.gateway_url import gateway_url
from din.wire.heartbeat import decode_heartbeat, decode_heartbeat_answer
from din.wire.join_token import JoinToken, parse_join_token
from din.wire.messages import Message
from din.wire.registration import decode_answer, decode_registration
from din.wire.statement import read_statement
from tests import mutants

VECTORS = Path(__file__).parents[2] / "docs" / "protocol" / "vectors"
SHORT, LONG = 4000, 200_000


def vectors(name: str) -> dict[str, Any]:
    return json.loads((VECTORS / f"{name}.json").read_text())


def hexes(rows: list[dict[str, Any]]) -> list[bytes]:
    return [bytes.fromhex(each["hex"]) for each in rows]


def frame(data: bytes) -> None:
    """As the reader of a link takes it: the fixed part, then the message by its length."""
    fixed = decode_fixed(data[:FIXED_BYTES].ljust(FIXED_BYTES, b"\0"))
    found = decode_message(memoryview(data)[FIXED_BYTES : FIXED_BYTES + fixed.header_len])
    assert isinstance(found, Message | Unknown)


def message(data: bytes) -> None:
    assert isinstance(decode_message(data), Message | Unknown)


def datagram(data: bytes) -> None:
    claims_of(data)
    BEAT_KEY.is_sealed(data, data[:-16])


def answer_by_datagram(data: bytes) -> None:
    assert BEAT_KEY.open_answer(data, BEAT) == "ok"
    assert data == ANSWER, "no damaged answer is taken"


def token(data: bytes) -> None:
    parse_join_token(data.decode("latin-1"))


def url(data: bytes) -> None:
    gateway_url(data.decode("latin-1"))


def statement(data: bytes) -> None:
    read_statement(data)


class Parser(NamedTuple):
    """One parser, and good input for it."""

    parse: Callable[[bytes], object]
    seeds: list[bytes]


FRAMES = vectors("frames")
DATAGRAM = vectors("heartbeat-datagram")
BEAT_KEY = BeatKey(bytes.fromhex(DATAGRAM["key"]))
BEAT, ANSWER = bytes.fromhex(DATAGRAM["beat"]), bytes.fromhex(DATAGRAM["answer"])
TOKEN = JoinToken("a" * 64, "0123abcd", "x" * 22).text.encode()
HEADS = [
    each[FIXED_BYTES : FIXED_BYTES + decode_fixed(each).header_len]
    for each in hexes(FRAMES["frames"])
]
CALIBRATION = encode_calibration(
    CalibrationFile(tensors=(GivenTensor(name="x", datatype="FP32", shape=(2, 1), data=bytes(8)),))
)
PARSERS = {
    "registration": Parser(decode_registration, hexes(vectors("registration")["registrations"])),
    "registration answer": Parser(decode_answer, hexes(vectors("registration")["answers"])),
    "heartbeat": Parser(decode_heartbeat, hexes(vectors("heartbeat")["beats"])),
    "heartbeat answer": Parser(decode_heartbeat_answer, hexes(vectors("heartbeat")["answers"])),
    "beat by datagram": Parser(datagram, [bytes.fromhex(DATAGRAM["datagram"])]),
    "answer by datagram": Parser(answer_by_datagram, [ANSWER]),
    "frame": Parser(frame, [each[:2000] for each in hexes(FRAMES["frames"])]),
    "message": Parser(message, HEADS),
    "statement": Parser(
        statement, [each["statement"].encode() for each in vectors("sealed-slice")["statements"]]
    ),
    "calibration": Parser(decode_calibration, [CALIBRATION]),
    "join token": Parser(token, [TOKEN]),
    "gateway URL": Parser(url, [b"http://10.0.0.5:8000", b"[::1]:80", b"https://edge-1", b"edge"]),
}


@pytest.mark.parametrize("name", PARSERS)
def test_damaged_input_is_taken_or_refused_in_our_words(name: str) -> None:
    parse, seeds = PARSERS[name]
    for seed in seeds:
        parse(seed)
    _, refused = mutants.check(parse, mutants.bytes_mutants(seeds, SHORT, 1), DinError)
    assert refused > SHORT / 20


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_much_damaged_input_is_taken_or_refused_in_our_words(name: str) -> None:
    parse, seeds = PARSERS[name]
    mutants.check(parse, mutants.bytes_mutants(seeds, LONG, 2), DinError)


def test_messages_whose_fields_are_exchanged_are_refused_in_our_words() -> None:
    """Well-formed msgpack with other values in it, as a wrong program sends."""
    seeds = [msgspec.msgpack.decode(each) for each in HEADS]
    made = (
        msgspec.msgpack.encode(each)
        for each in mutants.value_mutants(seeds, SHORT, 3)
        if mutants.is_packable(each)
    )
    taken, refused = mutants.check(message, made, UsageError)
    assert taken > SHORT / 20
    assert refused > SHORT / 4


@pytest.mark.parametrize("name", PARSERS)
def test_large_input_costs_in_proportion_to_its_size(name: str) -> None:
    parse, seeds = PARSERS[name]
    large = [seed * (60_000 // len(seed)) for seed in seeds[:2]]
    fillers = (b"\0", b"\x01", b"[", b"\x91", b"9", b"\xff")
    large += [seeds[0] + filler * 60_000 for filler in fillers]
    large += [seeds[0][:1] + bytes(60_000), b"\x91" * 60_000, b"[" * 60_000, b""]
    mutants.check_cost(parse, iter(large), DinError)
