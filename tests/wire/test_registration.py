"""Registration: under 380 bytes, every limit named, refusals readable across versions."""

import json
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from din.domain.node import NodeId, NodeProfile
from din.errors import DinError, TooLarge, UsageError
from din.wire.registration import (
    CONTENT_TYPE,
    REGISTRATION_BYTES_MAX,
    Admission,
    Refusal,
    Registration,
    check_address,
    decode_answer,
    decode_registration,
    encode_answer,
    encode_registration,
    negotiate,
)

VECTORS = Path(__file__).parents[2] / "docs/protocol/vectors/registration.json"

TYPICAL = NodeProfile(
    node_id=NodeId("3f2a9c0d1e4b5a67"),
    session=3,
    name="edge-gpu-01",
    device_type="x86_64-cuda11.8-trt8.6",
    cpu_model="Intel Xeon Platinum 8375C",
    cpu_isa=("avx2", "avx512f", "avx512_vnni"),
    cpu_cores=7.5,
    memory_mib=16384,
    accelerator="NVIDIA T4",
    accelerator_memory_mib=6144,
    backends=("onnxruntime",),
    versions={"din": "0.1.0", "onnxruntime": "1.32.0"},
    addresses=("tcp:192.168.1.20:8080",),
    fingerprint_sha256="00ff00ff00ff00ff",
    sandbox_level=3,
)
ADMITTED = Admission(
    name="edge-gpu-01",
    gateway_id="9d8c7b6a5f4e3d2c",
    heartbeat_interval_ms=3000,
    heartbeat_jitter_ms=450,
    links=("unix:/run/din/gateway.sock", "tcp:192.168.1.10:8002"),
    protocol_version=1,
    warnings=("the name 'edge' is taken",),
)

hexes = st.integers(0, 2**64 - 1).map(lambda each: f"{each:016x}")
names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
words = st.text("abcdefghij._0123456789", min_size=1, max_size=12)
profiles = st.builds(
    NodeProfile,
    node_id=hexes,
    session=st.integers(0, 2**32 - 1),
    name=names,
    device_type=st.builds("{}-{}".format, words, words),
    cpu_model=st.text(st.characters(categories=("L", "N")), max_size=10),
    cpu_isa=st.lists(words, max_size=3).map(tuple),
    cpu_cores=st.integers(1, 1_000_000).map(lambda each: each / 100),
    memory_mib=st.integers(0, 2**32 - 1),
    accelerator=st.none() | words,
    accelerator_memory_mib=st.none() | st.integers(0, 2**32 - 1),
    backends=st.lists(words, max_size=2).map(tuple),
    versions=st.dictionaries(words, words, max_size=2),
    labels=st.dictionaries(words, words, max_size=2),
    addresses=st.lists(st.sampled_from(["unix:/run/a", "tcp:10.0.0.1:80"]), max_size=2).map(tuple),
    fingerprint_sha256=st.just("") | hexes,
    sandbox_level=st.none() | st.integers(0, 3),
    protocol_versions=st.lists(st.integers(1, 255), min_size=1, max_size=3).map(tuple),
)


@given(profile=profiles, cluster=names)
def test_every_profile_comes_back_and_stays_under_380_bytes(profile, cluster) -> None:
    try:
        body = encode_registration(profile, cluster)
    except TooLarge:
        assume(False)
    assert len(body) < 380
    assert decode_registration(body) == Registration(cluster=cluster, profile=profile)


def test_a_typical_node_takes_at_most_220_bytes() -> None:
    plain = msgspec.structs.replace(
        TYPICAL, device_type="aarch64-cpu", accelerator=None, accelerator_memory_mib=None
    )
    assert len(encode_registration(plain, "factory")) <= 220


@given(body=st.binary(max_size=400))
def test_random_bytes_raise_nothing_but_our_errors(body: bytes) -> None:
    for decode in (decode_registration, decode_answer):
        with suppress(DinError):
            decode(body)


@given(at=st.integers(0, 1000), value=st.integers(0, 255))
def test_a_damaged_registration_is_read_or_refused_and_never_breaks(at: int, value: int) -> None:
    body = bytearray(encode_registration(TYPICAL, "factory"))
    body[at % len(body)] = value
    with suppress(DinError):
        decode_registration(body)


def test_every_truncation_is_refused() -> None:
    # What comes last is needed: where it is not, a body without it is whole.
    body = encode_registration(msgspec.structs.replace(TYPICAL, sandbox_level=None), "factory")
    for length in range(len(body)):
        with pytest.raises(UsageError):
            decode_registration(body[:length])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "Edge_1"}, "node name 'Edge_1'"),
        ({"node_id": "xyz"}, "node id 'xyz'"),
        ({"device_type": "310P 1"}, "device type '310P 1'"),
        ({"cpu_cores": 0.0}, "cpu_cores 0.0"),
        ({"cpu_cores": float("nan")}, "cpu_cores nan"),
        ({"cpu_cores": 0.001}, "cpu_cores 0.001"),
        ({"addresses": ("http://x",)}, "address 'http://x'"),
        ({"protocol_versions": ()}, r"protocol_versions \(\)"),
        ({"fingerprint_sha256": "12"}, "fingerprint_sha256 '12'"),
        ({"labels": {"line": "3\n"}}, "labels '3"),
    ],
)
def test_a_bad_field_is_named_with_its_value(change: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        encode_registration(msgspec.structs.replace(TYPICAL, **change), "factory")


def test_too_many_labels_name_the_limit() -> None:
    labels = {f"k{each}": "v" for each in range(9)}
    with pytest.raises(TooLarge, match="limit is 16"):
        encode_registration(msgspec.structs.replace(TYPICAL, labels=labels), "factory")


def test_a_registration_over_380_bytes_names_what_to_shorten() -> None:
    labels = {f"label-{each}": "x" * 30 for each in range(8)}
    with pytest.raises(TooLarge, match=f"limit is {REGISTRATION_BYTES_MAX}") as caught:
        encode_registration(msgspec.structs.replace(TYPICAL, labels=labels), "factory")
    assert "labels" in caught.value.hint


@pytest.mark.parametrize(
    "text", ["tcp:host", "tcp::80", "tcp:h:0", "tcp:h:70000", "unix:relative", "", "tcp:h:8\u00b2"]
)
def test_an_address_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        check_address(text)


def test_the_highest_common_version_is_chosen() -> None:
    assert negotiate((1, 2, 3), (2, 3, 9)) == 3
    assert negotiate((1,), (2,)) is None


@pytest.mark.parametrize(
    "answer",
    [
        ADMITTED,
        Refusal(reason="no common protocol version", gateway_id="g", protocol_versions=(2, 3)),
    ],
)
def test_answers_come_back(answer) -> None:
    assert decode_answer(encode_answer(answer)) == answer


@pytest.mark.parametrize("body", [b"", b"\x01\x00\x01\x07", b"\x01\x00\x01\x01"])
def test_an_answer_without_its_fields_is_refused(body: bytes) -> None:
    with pytest.raises(UsageError):
        decode_answer(body)


def test_the_published_vectors_hold() -> None:
    vectors = json.loads(VECTORS.read_text())
    assert vectors["content_type"] == CONTENT_TYPE
    for vector in vectors["registrations"]:
        profile = msgspec.convert(vector["profile"], NodeProfile)
        body = bytes.fromhex(vector["hex"])
        assert encode_registration(profile, vector["cluster"]) == body
        assert decode_registration(body).profile == profile
    for vector in vectors["answers"]:
        kind = Admission if vector["outcome"] == "admitted" else Refusal
        answer = msgspec.convert(vector["answer"], kind)
        assert encode_answer(answer).hex() == vector["hex"]
        assert decode_answer(bytes.fromhex(vector["hex"])) == answer
    for vector in vectors["refused"]:
        with pytest.raises(UsageError, match=vector["because"]):
            decode_registration(bytes.fromhex(vector["hex"]))
