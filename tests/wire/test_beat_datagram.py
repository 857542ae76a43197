"""Beats by datagram: what is believed, and what is not."""

from __future__ import annotations

import hmac
import json
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from din.domain.node import NodeHealth, NodeId
from din.errors import Denied, UsageError
from din.wire import beat_datagram as module
from din.wire.beat_datagram import CODE_BYTES, BeatKey, claims_of
from din.wire.heartbeat import Heartbeat, encode_heartbeat, encode_heartbeat_answer

VECTORS = Path(__file__).parents[2] / "docs/protocol/vectors"
KEY = bytes(range(32))
NODE = NodeId("00112233aabbccdd")


def beat_of(counter: int) -> bytes:
    health = NodeHealth(cpu_percent=12.5, queue_length=3)
    return encode_heartbeat(Heartbeat(node_id=NODE, session=7, counter=counter, health=health))


def test_the_code_is_hmac_sha256_cut_to_16_bytes() -> None:
    beat = beat_of(1)
    expected = hmac.digest(KEY, b"din beat 1" + beat, "sha256")[:16]
    assert BeatKey(KEY).seal_beat(beat) == beat + expected


@pytest.mark.parametrize("missing", [(), ("_sha2", "_sha256")])
def test_the_code_is_the_same_whichever_implementation_makes_it(
    missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(name: str) -> ModuleType:
        if name in missing:
            raise ImportError(name)
        return import_module(name)

    monkeypatch.setattr(module, "import_module", found)
    monkeypatch.setattr(module, "_SHA256", module._sha256())
    expected = hmac.digest(KEY, b"din beat 1" + beat_of(1), "sha256")[:16]
    assert BeatKey(KEY).seal_beat(beat_of(1))[-16:] == expected


def test_a_beat_and_its_answer_come_through() -> None:
    key, beat = BeatKey(KEY), beat_of(5)
    datagram = key.seal_beat(beat)
    node, session, counter = claims_of(datagram)
    assert (node.hex(), session, counter) == (NODE, 7, 5)
    assert key.is_sealed(datagram, datagram[:-CODE_BYTES])
    answer = key.seal_answer(encode_heartbeat_answer("draining"), beat)
    assert key.open_answer(answer, beat) == "draining"


@given(st.integers(0, 8 * 56 - 1))
def test_no_bit_of_a_beat_can_be_changed(bit: int) -> None:
    key = BeatKey(KEY)
    datagram = bytearray(key.seal_beat(beat_of(5)))
    datagram[bit // 8] ^= 1 << bit % 8
    assert not key.is_sealed(bytes(datagram), bytes(datagram[:-CODE_BYTES]))


def test_an_answer_counts_for_its_own_beat_and_key_only() -> None:
    key = BeatKey(KEY)
    answer = key.seal_answer(encode_heartbeat_answer("ok"), beat_of(5))
    with pytest.raises(Denied, match="another heartbeat"):
        key.open_answer(answer, beat_of(6))
    with pytest.raises(Denied, match="wrong code"):
        BeatKey(b"x" * 32).open_answer(answer, beat_of(5))
    with pytest.raises(Denied, match="wrong code"):
        key.open_answer(b"\x01\x01" + answer[2:], beat_of(5))


@given(st.binary(max_size=200))
def test_junk_is_named_and_nothing_else_is_raised(junk: bytes) -> None:
    key = BeatKey(KEY)
    with pytest.raises((Denied, UsageError)):
        key.open_answer(junk, beat_of(1))
    try:
        claims_of(junk)
    except UsageError:
        return
    assert not key.is_sealed(junk, junk[:-CODE_BYTES])


def test_an_answer_is_never_taken_for_a_beat() -> None:
    key = BeatKey(KEY)
    longest = beat_of(1) + b"\0" * 24
    body = longest + key.seal_answer(b"", longest)[-CODE_BYTES:]
    claims_of(body)
    assert not key.is_sealed(body, body[:-CODE_BYTES])


def test_the_published_vector_holds() -> None:
    vector = json.loads((VECTORS / "heartbeat-datagram.json").read_text())
    key, beat = BeatKey(bytes.fromhex(vector["key"])), bytes.fromhex(vector["beat"])
    assert key.seal_beat(beat).hex() == vector["datagram"]
    assert key.open_answer(bytes.fromhex(vector["answer"]), beat) == vector["answer_word"]
