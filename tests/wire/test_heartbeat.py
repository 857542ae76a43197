"""Heartbeats: forty bytes in which "not measured" and "zero" differ."""

import json
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from din.domain.node import SPEED_LIMITS, NodeHealth, NodeId
from din.errors import DinError, TooLarge, UsageError
from din.wire.heartbeat import (
    BEAT_BYTES_MAX,
    UTILIZATION_SOURCES,
    Heartbeat,
    decode_heartbeat,
    decode_heartbeat_answer,
    encode_heartbeat,
    encode_heartbeat_answer,
)

VECTORS = Path(__file__).parents[2] / "docs/protocol/vectors/heartbeat.json"
NODE = NodeId("3f2a9c0d1e4b5a67")


def tenths(low: int, high: int) -> st.SearchStrategy[float | None]:
    return st.none() | st.integers(low * 10, high * 10).map(lambda each: each / 10)


u32 = st.integers(0, 2**32 - 1)
healths = st.builds(
    NodeHealth,
    cpu_percent=tenths(0, 100),
    memory_mib_free=st.none() | u32,
    accelerator_percent=tenths(0, 100),
    accelerator_memory_mib_free=st.none() | u32,
    utilization_source=st.none() | st.sampled_from(UTILIZATION_SOURCES[1:]),
    temperature_c=tenths(-40, 150),
    power_w=tenths(0, 6553),
    queue_length=u32,
    capacity_percent=st.none() | st.integers(0, 100),
    limits=st.sets(st.sampled_from(SPEED_LIMITS)).map(
        lambda found: tuple(each for each in SPEED_LIMITS if each in found)
    ),
    swap_mib_used=st.none() | u32,
)
beats = st.builds(
    Heartbeat,
    node_id=st.integers(0, 2**64 - 1).map(lambda each: f"{each:016x}"),
    session=u32,
    counter=u32,
    health=healths,
)


def beat(**health: object) -> Heartbeat:
    return Heartbeat(node_id=NODE, session=1, counter=1, health=NodeHealth(**health))


@given(original=beats)
def test_every_beat_comes_back_in_forty_bytes_or_seven_more(original: Heartbeat) -> None:
    health = original.health
    has_tail = bool(health.limits) or (health.capacity_percent, health.swap_mib_used) != (None,) * 2
    body = encode_heartbeat(original)
    assert len(body) == (47 if has_tail else 40)
    assert decode_heartbeat(body) == original


def test_not_measured_and_zero_are_different_bytes() -> None:
    fields = ("cpu_percent", "accelerator_percent", "temperature_c", "power_w")
    for field in fields:
        zero = encode_heartbeat(beat(**{field: 0.0}))
        assert zero != encode_heartbeat(beat())
        assert getattr(decode_heartbeat(zero).health, field) == 0.0
    assert decode_heartbeat(encode_heartbeat(beat())).health == NodeHealth()


@given(body=st.binary(max_size=80))
def test_random_bytes_raise_nothing_but_our_errors(body: bytes) -> None:
    for decode in (decode_heartbeat, decode_heartbeat_answer):
        with suppress(DinError):
            decode(body)


@pytest.mark.parametrize(
    "health",
    [
        {"cpu_percent": 100.2},
        {"cpu_percent": float("nan")},
        {"temperature_c": 151.0},
        {"temperature_c": -650788.984},
        {"power_w": -1.0},
        {"memory_mib_free": -1},
        {"queue_length": 2**32},
        {"utilization_source": "guess"},
        {"capacity_percent": 101},
        {"capacity_percent": -1},
        {"limits": ("tired",)},
        {"swap_mib_used": -1},
    ],
)
def test_values_that_no_sensor_may_say_are_refused(health: dict[str, object]) -> None:
    """T20: nonsense from a sensor does not get onto the wire."""
    with pytest.raises(UsageError):
        encode_heartbeat(beat(**health))


def test_an_impossible_value_from_the_wire_is_refused() -> None:
    body = bytearray(encode_heartbeat(beat(cpu_percent=50.0)))
    body[24:26] = (1001).to_bytes(2, "big")
    with pytest.raises(UsageError, match=r"cpu 100.1 is outside 0..100"):
        decode_heartbeat(body)


def test_a_longer_beat_of_a_newer_node_is_read_as_far_as_known() -> None:
    body = encode_heartbeat(beat(cpu_percent=1.5))
    assert decode_heartbeat(body + b"future") == beat(cpu_percent=1.5)
    with pytest.raises(TooLarge):
        decode_heartbeat(body + bytes(BEAT_BYTES_MAX))
    with pytest.raises(UsageError, match="39 bytes of 40"):
        decode_heartbeat(body[:-1])
    with pytest.raises(UsageError, match="format 2"):
        decode_heartbeat(b"\x02" + body[1:])


def test_a_tail_that_is_promised_has_to_be_there() -> None:
    body = encode_heartbeat(beat(capacity_percent=50, limits=("undervoltage",)))
    with pytest.raises(UsageError, match="6 bytes of 7"):
        decode_heartbeat(body[:-1])
    with pytest.raises(UsageError, match="capacity 101"):
        decode_heartbeat(body[:40] + b"\x65" + body[41:])


def test_limits_that_a_newer_node_knows_are_passed_over() -> None:
    body = bytearray(encode_heartbeat(beat(limits=("throttled",))))
    body[41] |= 0x80
    assert decode_heartbeat(body).health.limits == ("throttled",)


def test_an_unknown_source_reads_as_other() -> None:
    body = bytearray(encode_heartbeat(beat(accelerator_percent=1.0, utilization_source="nvml")))
    body[1] = 200
    assert decode_heartbeat(body).health.utilization_source == "other"


@pytest.mark.parametrize("answer", ["ok", "register again", "draining"])
def test_answers_come_back(answer) -> None:
    assert decode_heartbeat_answer(encode_heartbeat_answer(answer)) == answer


@pytest.mark.parametrize("node_id", ["", "xyz", "0x12345678901234", "3F2A9C0D1E4B5A67"])
def test_a_malformed_node_id_is_refused(node_id: str) -> None:
    with pytest.raises(UsageError, match="node id"):
        encode_heartbeat(
            Heartbeat(node_id=NodeId(node_id), session=1, counter=1, health=NodeHealth())
        )


def test_the_published_vectors_hold() -> None:
    vectors = json.loads(VECTORS.read_text())
    for vector in vectors["beats"]:
        original = msgspec.convert(vector["beat"], Heartbeat)
        assert encode_heartbeat(original).hex() == vector["hex"]
        assert decode_heartbeat(bytes.fromhex(vector["hex"])) == original
    for vector in vectors["answers"]:
        assert encode_heartbeat_answer(vector["answer"]).hex() == vector["hex"]
