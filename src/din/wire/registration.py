"""Registration: what a node says when it joins, and what the gateway answers. Both are TLV bodies.

    node    -> POST /api/v1/nodes, Content-Type: application/x-din-tlv, body < 380 bytes
    gateway -> Admission (name, link addresses, heartbeat interval, protocol version) or Refusal

The byte form does not change with the protocol version, so that a node and a gateway without a
common version still understand each other's refusal. `docs/protocol/registration.md` fixes tags
and limits; `docs/protocol/vectors/registration.json` fixes bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeVar

from msgspec import Struct

from din.domain.device import parse_device_type
from din.domain.node import NodeId, NodeProfile
from din.errors import DinError, UsageError
from din.wire.messages import PROTOCOL_VERSION
from din.wire.tlv import Buffer, Reader, Writer

CONTENT_TYPE: Final = "application/x-din-tlv"
REGISTRATION_BYTES_MAX: Final = 379
"""Strictly under 380, the figure that the field bus profile allows."""
ANSWER_BYTES_MAX: Final = 2048
PROTOCOL_VERSIONS: Final = (PROTOCOL_VERSION,)
"""What this release speaks, best last."""

NAME_BYTES_MAX: Final = 63
CLUSTER_BYTES_MAX: Final = 63
DEVICE_TYPE_BYTES_MAX: Final = 64
MODEL_BYTES_MAX: Final = 48
ISA_COUNT_MAX, ISA_BYTES_MAX = 12, 20
BACKEND_COUNT_MAX, BACKEND_BYTES_MAX = 8, 24
VERSION_COUNT_MAX, VERSION_BYTES_MAX = 12, 32
LABEL_COUNT_MAX, LABEL_BYTES_MAX = 8, 40
ADDRESS_COUNT_MAX, ADDRESS_BYTES_MAX = 4, 120
PROTOCOL_COUNT_MAX: Final = 8
SANDBOX_LEVEL_MAX: Final = 3
WARNING_COUNT_MAX, WARNING_BYTES_MAX = 4, 255
BEAT_KEY_BYTES: Final = 32
U32_MAX: Final = 2**32 - 1
INTERVAL_MS_MAX: Final = 3_600_000
CENTICORES_MAX: Final = 1_000_000

_Value = TypeVar("_Value")

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NODE_ID = re.compile(r"[0-9a-f]{16}")
_PORT_MAX = 65_535
_REGISTRATION = "registration"
_ANSWER = "registration answer"

(
    NODE_ID, SESSION, NAME, CLUSTER, DEVICE_TYPE, CPU_MODEL, CPU_ISA, CPU_CENTICORES, MEMORY_MIB,
    ACCELERATOR, ACCELERATOR_MIB, BACKENDS, VERSIONS, LABELS, ADDRESSES, FINGERPRINT, PROTOCOLS,
    INSECURE, SANDBOX,
) = _NODE_TAGS = tuple(range(1, 20))  # fmt: skip
(
    OUTCOME, GIVEN_NAME, GATEWAY_ID, INTERVAL_MS, JITTER_MS, LINKS, PROTOCOL, WARNINGS, REASON,
    HINT, GATEWAY_PROTOCOLS, GATEWAY_CLUSTER, BEAT_KEY, BEAT_PORT,
) = _ANSWER_TAGS = tuple(range(1, 15))  # fmt: skip
_ADMITTED, _REFUSED = 1, 2


class Registration(Struct, frozen=True, kw_only=True):
    """A node asks to become a member of a cluster."""

    cluster: str
    profile: NodeProfile


class Admission(Struct, frozen=True, kw_only=True):
    """The node is a member as soon as its link is open."""

    name: str
    """The accepted name; differs from the asked one when another live node has that."""
    gateway_id: str
    heartbeat_interval_ms: int
    heartbeat_jitter_ms: int
    links: tuple[str, ...]
    """Where the node dials the gateway: `unix:/path` first, then `tcp:host:port`."""
    protocol_version: int
    warnings: tuple[str, ...] = ()
    beat_key: bytes = b""
    """For heartbeats by datagram during this registration; given over TLS only."""
    beat_port: int = 0
    """UDP port of the host that answered; 0 = heartbeats go by HTTP."""

    def __repr__(self) -> str:
        """Without the key: representations end up in logs."""
        return f"Admission(name={self.name!r}, gateway_id={self.gateway_id!r})"


class Refusal(Struct, frozen=True, kw_only=True):
    """The node is no member, and why."""

    reason: str
    hint: str = ""
    gateway_id: str = ""
    cluster: str = ""
    protocol_versions: tuple[int, ...] = ()


RegistrationAnswer = Admission | Refusal


def is_name(text: str) -> bool:
    """Whether the text is an RFC 1123 label: the form of node and cluster names."""
    return _LABEL.fullmatch(text) is not None


def check_name(what: str, text: str) -> str:
    """The same text. Raises UsageError when it is no RFC 1123 label."""
    if not is_name(text):
        raise UsageError(
            f"{what} {text!r} is not a name",
            hint="use 1..63 of a-z, 0-9 and '-', beginning and ending with a letter or digit",
        )
    return text


def check_node_id(text: str) -> NodeId:
    """The same text as a NodeId. Raises UsageError unless it is 16 lowercase hex digits."""
    if _NODE_ID.fullmatch(text) is None:
        raise UsageError(f"node id {text!r} is not 16 lowercase hex digits")
    return NodeId(text)


def check_address(text: str) -> str:
    """The same text. Raises UsageError unless it is `unix:/path` or `tcp:host:port`."""
    kind, _, rest = text.partition(":")
    host, _, port = rest.rpartition(":")
    is_unix = kind == "unix" and rest.startswith("/")
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5
    is_tcp = kind == "tcp" and bool(host) and is_port and 0 < int(port) <= _PORT_MAX
    if not (is_unix or is_tcp):
        raise UsageError(
            f"address {text!r} is neither unix:/path nor tcp:host:port",
            hint="for example unix:/run/din/edge-1.sock or tcp:192.168.1.20:8001",
        )
    return text


def negotiate(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The highest protocol version that both speak, or None."""
    return max(set(ours) & set(theirs), default=None)


def fits(profile: NodeProfile, cluster: str) -> bool:
    """Whether a registration has room for it."""
    try:
        encode_registration(profile, cluster)
    except DinError:
        return False
    return True


def encode_registration(profile: NodeProfile, cluster: str) -> bytes:
    """Bytes of a registration, fewer than 380. Raises UsageError or TooLarge naming the field."""
    _check_profile(profile, cluster)
    writer = Writer(_REGISTRATION, REGISTRATION_BYTES_MAX)
    writer.raw(NODE_ID, "node_id", bytes.fromhex(profile.node_id), 8)
    writer.integer(SESSION, "session", profile.session, U32_MAX)
    writer.text(NAME, "name", profile.name, NAME_BYTES_MAX)
    writer.text(CLUSTER, "cluster", cluster, CLUSTER_BYTES_MAX)
    writer.text(DEVICE_TYPE, "device_type", profile.device_type, DEVICE_TYPE_BYTES_MAX)
    writer.text(CPU_MODEL, "cpu_model", profile.cpu_model, MODEL_BYTES_MAX)
    writer.texts(CPU_ISA, "cpu_isa", profile.cpu_isa, ISA_COUNT_MAX, ISA_BYTES_MAX)
    centicores = _centicores(profile.cpu_cores)
    writer.integer(CPU_CENTICORES, "cpu_cores x 100", centicores, CENTICORES_MAX)
    writer.integer(MEMORY_MIB, "memory_mib", profile.memory_mib, U32_MAX)
    writer.text(ACCELERATOR, "accelerator", profile.accelerator, MODEL_BYTES_MAX)
    accelerator_mib = profile.accelerator_memory_mib
    writer.integer(ACCELERATOR_MIB, "accelerator_memory_mib", accelerator_mib, U32_MAX)
    writer.texts(BACKENDS, "backends", profile.backends, BACKEND_COUNT_MAX, BACKEND_BYTES_MAX)
    writer.pairs(VERSIONS, "versions", profile.versions, VERSION_COUNT_MAX, VERSION_BYTES_MAX)
    writer.pairs(LABELS, "labels", profile.labels, LABEL_COUNT_MAX, LABEL_BYTES_MAX)
    writer.texts(ADDRESSES, "addresses", profile.addresses, ADDRESS_COUNT_MAX, ADDRESS_BYTES_MAX)
    if profile.fingerprint_sha256:
        fingerprint = bytes.fromhex(profile.fingerprint_sha256)
        writer.raw(FINGERPRINT, "fingerprint_sha256", fingerprint, 8)
    writer.raw(PROTOCOLS, "protocol_versions", bytes(profile.protocol_versions), PROTOCOL_COUNT_MAX)
    writer.integer(INSECURE, "insecure_network", 1 if profile.is_insecure_network else None, 1)
    writer.integer(SANDBOX, "sandbox_level", profile.sandbox_level, SANDBOX_LEVEL_MAX)
    return writer.body()


def decode_registration(body: Buffer) -> Registration:
    """A checked registration. Raises UsageError or TooLarge naming field, value and limit."""
    reader = Reader(_REGISTRATION, body, _NODE_TAGS, REGISTRATION_BYTES_MAX)
    fingerprint = reader.raw(FINGERPRINT, "fingerprint_sha256", 8) or b""
    centicores = reader.integer(CPU_CENTICORES, "cpu_cores x 100", CENTICORES_MAX)
    protocols = reader.raw(PROTOCOLS, "protocol_versions", PROTOCOL_COUNT_MAX)
    profile = NodeProfile(
        node_id=NodeId((reader.raw(NODE_ID, "node_id", 8) or b"").hex()),
        session=_needed("session", reader.integer(SESSION, "session", U32_MAX)),
        name=_needed("name", reader.text(NAME, "name", NAME_BYTES_MAX)),
        device_type=_needed(
            "device_type", reader.text(DEVICE_TYPE, "device_type", DEVICE_TYPE_BYTES_MAX)
        ),
        cpu_model=reader.text(CPU_MODEL, "cpu_model", MODEL_BYTES_MAX) or "",
        cpu_isa=reader.texts(CPU_ISA, "cpu_isa", ISA_COUNT_MAX, ISA_BYTES_MAX),
        cpu_cores=_needed("cpu_cores", centicores) / 100,
        memory_mib=_needed("memory_mib", reader.integer(MEMORY_MIB, "memory_mib", U32_MAX)),
        accelerator=reader.text(ACCELERATOR, "accelerator", MODEL_BYTES_MAX),
        accelerator_memory_mib=reader.integer(ACCELERATOR_MIB, "accelerator_memory_mib", U32_MAX),
        backends=reader.texts(BACKENDS, "backends", BACKEND_COUNT_MAX, BACKEND_BYTES_MAX),
        versions=reader.pairs(VERSIONS, "versions", VERSION_COUNT_MAX, VERSION_BYTES_MAX),
        labels=reader.pairs(LABELS, "labels", LABEL_COUNT_MAX, LABEL_BYTES_MAX),
        addresses=reader.texts(ADDRESSES, "addresses", ADDRESS_COUNT_MAX, ADDRESS_BYTES_MAX),
        fingerprint_sha256=fingerprint.hex(),
        protocol_versions=tuple(protocols or b""),
        is_insecure_network=bool(reader.integer(INSECURE, "insecure_network", 1)),
        sandbox_level=reader.integer(SANDBOX, "sandbox_level", SANDBOX_LEVEL_MAX),
    )
    cluster = _needed("cluster", reader.text(CLUSTER, "cluster", CLUSTER_BYTES_MAX))
    _check_profile(profile, cluster)
    return Registration(cluster=cluster, profile=profile)


def encode_answer(answer: RegistrationAnswer) -> bytes:
    """Bytes of the gateway's answer. Raises UsageError or TooLarge naming the field."""
    writer = Writer(_ANSWER, ANSWER_BYTES_MAX)
    writer.integer(OUTCOME, "outcome", _outcome_of(answer), 255)
    writer.text(GATEWAY_ID, "gateway_id", answer.gateway_id, NAME_BYTES_MAX)
    if isinstance(answer, Refusal):
        writer.text(REASON, "reason", answer.reason, WARNING_BYTES_MAX)
        writer.text(HINT, "hint", answer.hint, WARNING_BYTES_MAX)
        writer.text(GATEWAY_CLUSTER, "cluster", answer.cluster, CLUSTER_BYTES_MAX)
        versions = bytes(answer.protocol_versions)
        writer.raw(GATEWAY_PROTOCOLS, "protocol_versions", versions, PROTOCOL_COUNT_MAX)
        return writer.body()
    interval_ms, jitter_ms = answer.heartbeat_interval_ms, answer.heartbeat_jitter_ms
    writer.text(GIVEN_NAME, "name", check_name("node name", answer.name), NAME_BYTES_MAX)
    writer.integer(INTERVAL_MS, "heartbeat_interval_ms", interval_ms, INTERVAL_MS_MAX)
    writer.integer(JITTER_MS, "heartbeat_jitter_ms", jitter_ms, INTERVAL_MS_MAX)
    links = [check_address(each) for each in answer.links]
    writer.texts(LINKS, "links", links, ADDRESS_COUNT_MAX, ADDRESS_BYTES_MAX)
    writer.integer(PROTOCOL, "protocol_version", answer.protocol_version, 255)
    writer.texts(WARNINGS, "warnings", answer.warnings, WARNING_COUNT_MAX, WARNING_BYTES_MAX)
    if answer.beat_port:
        writer.raw(BEAT_KEY, "beat_key", answer.beat_key, BEAT_KEY_BYTES)
        writer.integer(BEAT_PORT, "beat_port", answer.beat_port, _PORT_MAX)
    return writer.body()


def decode_answer(body: Buffer) -> RegistrationAnswer:
    """A checked answer. Raises UsageError or TooLarge naming field, value and limit."""
    reader = Reader(_ANSWER, body, _ANSWER_TAGS, ANSWER_BYTES_MAX)
    outcome = reader.integer(OUTCOME, "outcome", 255)
    gateway_id = reader.text(GATEWAY_ID, "gateway_id", NAME_BYTES_MAX) or ""
    if outcome == _ADMITTED:
        return _decode_admission(reader, gateway_id)
    if outcome == _REFUSED:
        versions = reader.raw(GATEWAY_PROTOCOLS, "protocol_versions", PROTOCOL_COUNT_MAX)
        return Refusal(
            reason=reader.text(REASON, "reason", WARNING_BYTES_MAX) or "no reason given",
            hint=reader.text(HINT, "hint", WARNING_BYTES_MAX) or "",
            gateway_id=gateway_id,
            cluster=reader.text(GATEWAY_CLUSTER, "cluster", CLUSTER_BYTES_MAX) or "",
            protocol_versions=tuple(versions or b""),
        )
    raise UsageError(f"{_ANSWER}: outcome {outcome} is neither 1 (admitted) nor 2 (refused)")


def _decode_admission(reader: Reader, gateway_id: str) -> Admission:
    interval_ms = reader.integer(INTERVAL_MS, "heartbeat_interval_ms", INTERVAL_MS_MAX)
    if not interval_ms:
        raise UsageError(f"{_ANSWER}: heartbeat_interval_ms is {interval_ms}, at least 1 is needed")
    name = _needed("name", reader.text(GIVEN_NAME, "name", NAME_BYTES_MAX), _ANSWER)
    jitter_ms = reader.integer(JITTER_MS, "heartbeat_jitter_ms", INTERVAL_MS_MAX)
    links = reader.texts(LINKS, "links", ADDRESS_COUNT_MAX, ADDRESS_BYTES_MAX)
    version = reader.integer(PROTOCOL, "protocol_version", 255)
    key = reader.raw(BEAT_KEY, "beat_key", BEAT_KEY_BYTES) or b""
    port = reader.integer(BEAT_PORT, "beat_port", _PORT_MAX) or 0
    if port and len(key) != BEAT_KEY_BYTES:
        raise UsageError(f"{_ANSWER}: beat_key has {len(key)} bytes, not {BEAT_KEY_BYTES}")
    return Admission(
        name=check_name("node name", name),
        gateway_id=_needed("gateway_id", gateway_id or None, _ANSWER),
        heartbeat_interval_ms=interval_ms,
        heartbeat_jitter_ms=_needed("heartbeat_jitter_ms", jitter_ms, _ANSWER),
        links=tuple(check_address(each) for each in links),
        protocol_version=_needed("protocol_version", version, _ANSWER),
        warnings=reader.texts(WARNINGS, "warnings", WARNING_COUNT_MAX, WARNING_BYTES_MAX),
        beat_key=key if port else b"",
        beat_port=port,
    )


def _check_profile(profile: NodeProfile, cluster: str) -> None:
    """Checks that both sides make, so that neither trusts the other."""
    check_node_id(profile.node_id)
    check_name("node name", profile.name)
    check_name("cluster", cluster)
    parse_device_type(profile.device_type)
    for address in profile.addresses:
        check_address(address)
    fingerprint = profile.fingerprint_sha256
    if fingerprint and _NODE_ID.fullmatch(fingerprint) is None:
        raise UsageError(f"fingerprint_sha256 {fingerprint!r} is not 16 lowercase hex digits")
    versions = profile.protocol_versions
    if not versions or not all(0 < each <= 255 for each in versions):
        raise UsageError(f"protocol_versions {versions!r} must be one or more of 1..255")
    if _centicores(profile.cpu_cores) == 0:
        raise UsageError(f"cpu_cores {profile.cpu_cores} is less than 0.01")


def _centicores(cores: float) -> int:
    """Hundredths of a core: quotas such as 0.5 survive the integer form."""
    if not 0 < cores <= CENTICORES_MAX / 100:  # also refuses NaN
        raise UsageError(f"cpu_cores {cores} is outside 0.01..{CENTICORES_MAX // 100}")
    return round(cores * 100)


def _needed(field: str, value: _Value | None, what: str = _REGISTRATION) -> _Value:
    if value is None:
        raise UsageError(f"{what} lacks {field}")
    return value


def _outcome_of(answer: RegistrationAnswer) -> int:
    return _ADMITTED if isinstance(answer, Admission) else _REFUSED
