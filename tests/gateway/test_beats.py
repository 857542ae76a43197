"""Whom the gateway believes by datagram."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from din.domain.node import NodeHealth, NodeId
from din.domain.trust import Peer, PeerName
from din.errors import UsageError
from din.gateway.nodes.beats import BeatKeys
from din.wire.beat_datagram import BeatKey
from din.wire.heartbeat import Heartbeat, encode_heartbeat, encode_heartbeat_answer
from din.wire.registration import Admission

NODE = NodeId("00112233aabbccdd")
OTHER = NodeId("ffeeddccbbaa0099")


def beat_of(counter: int, node: NodeId = NODE, session: int = 7) -> bytes:
    health = NodeHealth(queue_length=counter)
    return encode_heartbeat(
        Heartbeat(node_id=node, session=session, counter=counter, health=health)
    )


class Fleet:
    """Remembers what reached it."""

    def __init__(self) -> None:
        self.beats: list[bytes] = []
        self.answer: Callable[[], bytes] = lambda: encode_heartbeat_answer("ok")

    def take(self, beat: bytes) -> bytes:
        self.beats.append(beat)
        return self.answer()


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def taken() -> dict[str, int]:
    return {"http": 0, "datagram": 0}


@pytest.fixture
def keys(fleet: Fleet, taken: dict[str, int]) -> BeatKeys:
    numbers = iter(range(100))
    return BeatKeys(fleet.take, lambda count: bytes([next(numbers)]) * count, taken)


def test_a_known_node_is_answered_and_its_beat_reaches_the_fleet(
    keys: BeatKeys, fleet: Fleet
) -> None:
    key = BeatKey(keys.give(NODE, 7))
    answer = keys.receive(key.seal_beat(beat_of(1)))
    assert answer is not None
    assert key.open_answer(answer, beat_of(1)) == "ok"
    assert fleet.beats == [beat_of(1)]


def test_a_key_is_given_over_tls_to_a_node_with_a_certificate_and_to_nobody_else(
    keys: BeatKeys,
) -> None:
    admission = Admission(
        name="edge-1", gateway_id="ab" * 8, heartbeat_interval_ms=3000, heartbeat_jitter_ms=450,
        links=(), protocol_version=1,
    )  # fmt: skip
    machine = Peer("10.0.0.9", is_tls=True, name=PeerName("plant", "node", NODE))
    assert keys.offered(admission, machine, NODE, 7).beat_key == b"", "nobody hears datagrams yet"
    keys.port = 8443
    given = keys.offered(admission, machine, NODE, 7)
    assert (len(given.beat_key), given.beat_port) == (32, 8443)
    for plain in (Peer("127.0.0.1"), Peer("10.0.0.9"), Peer("10.0.0.9", is_tls=True)):
        assert keys.offered(admission, plain, NODE, 8) == admission
    # Who registered without TLS since then beats by HTTP: the older key counts no more.
    assert keys.receive(BeatKey(given.beat_key).seal_beat(beat_of(1))) is None


def test_a_replayed_or_older_beat_is_refused(
    keys: BeatKeys, fleet: Fleet, taken: dict[str, int]
) -> None:
    key = BeatKey(keys.give(NODE, 7))
    for counter in (5, 5, 4):
        keys.receive(key.seal_beat(beat_of(counter)))
    assert fleet.beats == [beat_of(5)]
    assert keys.refused["replayed"] == 2
    assert taken == {"http": 0, "datagram": 1}


def test_a_beat_of_an_earlier_registration_is_refused(keys: BeatKeys, fleet: Fleet) -> None:
    old = BeatKey(keys.give(NODE, 7))
    new = BeatKey(keys.give(NODE, 8))
    assert keys.receive(old.seal_beat(beat_of(9))) is None
    assert keys.receive(new.seal_beat(beat_of(1, session=7))) is None
    assert fleet.beats == []
    assert (keys.refused["wrong code"], keys.refused["replayed"]) == (1, 1)


def test_strangers_and_junk_get_no_answer(keys: BeatKeys, fleet: Fleet) -> None:
    key = BeatKey(keys.give(NODE, 7))
    assert keys.receive(key.seal_beat(beat_of(1, OTHER))) is None
    assert keys.receive(b"") is None
    assert keys.receive(b"x" * 2048) is None
    keys.forget(NODE)
    assert keys.receive(key.seal_beat(beat_of(1))) is None
    assert fleet.beats == []
    assert (keys.refused["stranger"], keys.refused["malformed"]) == (2, 2)


def test_a_beat_that_the_fleet_cannot_read_gets_no_answer(keys: BeatKeys, fleet: Fleet) -> None:
    def refuse() -> bytes:
        raise UsageError("no beat")

    fleet.answer = refuse
    key = BeatKey(keys.give(NODE, 7))
    assert keys.receive(key.seal_beat(beat_of(1))) is None
    assert keys.refused["malformed"] == 1
