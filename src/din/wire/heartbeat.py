"""Heartbeat: 40 bytes that say "I live" and how the node feels, and a two-byte answer.

    offset  0 u8   format, now 1          offset 20 u32 queue length, requests
    offset  1 u8   utilisation source     offset 24 u16 CPU, tenths of a percent
    offset  2 u16  bits of what was       offset 26 u32 memory free, MiB
                   measured, see MEASURED  offset 30 u16 accelerator, tenths of a percent
    offset  4 u64  node id                offset 32 u32 accelerator memory free, MiB
    offset 12 u32  session                offset 36 i16 temperature, tenths of a degree Celsius
    offset 16 u32  counter                offset 38 u16 power, tenths of a watt

All big-endian. A field whose bit is clear was not measured; its bytes are zero and are not read, so
"not measured" and "zero" are different bytes. Longer bodies (up to 64 bytes) come from newer nodes
and are read as far as known. There is no time in it: only the receiver's clock counts.
"""

from __future__ import annotations

import struct
from typing import Final, Literal

from msgspec import Struct

from din.domain.node import NodeHealth, NodeId
from din.errors import TooLarge, UsageError
from din.wire.tlv import Buffer

FORMAT: Final = 1
BEAT: Final = struct.Struct(">BBH8sIIIHIHIhH")
BEAT_BYTES_MAX: Final = 64
NODE_ID_BYTES: Final = 8
ANSWER: Final = struct.Struct(">BB")
CONTENT_TYPE: Final = "application/octet-stream"

UTILIZATION_SOURCES: Final = ("", "nvml", "nvidia-smi", "npu-smi", "sysfs", "worker", "other")
"""By number; 0 = nothing measures the accelerator. Numbers from newer nodes read as `other`."""

MEASURED: Final = {"cpu": 1, "memory": 2, "accelerator": 4, "accelerator_memory": 8,
                   "temperature": 16, "power": 32}  # fmt: skip
"""Bits of the field at offset 2."""
_CPU, _MEMORY, _ACCELERATOR, _ACCELERATOR_MEMORY, _TEMPERATURE, _POWER = MEASURED.values()

TEMPERATURE_C_RANGE: Final = (-40.0, 150.0)
POWER_W_MAX: Final = 6553.5
U32_MAX: Final = 2**32 - 1

HeartbeatAnswer = Literal["ok", "register again", "draining"]
_ANSWERS: Final[tuple[HeartbeatAnswer, ...]] = ("ok", "register again", "draining")
_ENCODED_ANSWERS: Final = {each: ANSWER.pack(FORMAT, at) for at, each in enumerate(_ANSWERS)}


class Heartbeat(Struct, frozen=True):
    """One beat of one session of a node."""

    node_id: NodeId
    session: int
    counter: int
    """Counts up with each beat of the session: a lower one came late and is ignored."""
    health: NodeHealth


def encode_heartbeat(beat: Heartbeat) -> bytes:
    """40 bytes. Raises UsageError for a value that no sensor may say."""
    health = beat.health
    measured = 0
    tenths: list[int] = []
    for bit, value, low, high in (
        (MEASURED["cpu"], health.cpu_percent, 0.0, 100.0),
        (MEASURED["accelerator"], health.accelerator_percent, 0.0, 100.0),
        (MEASURED["temperature"], health.temperature_c, *TEMPERATURE_C_RANGE),
        (MEASURED["power"], health.power_w, 0.0, POWER_W_MAX),
    ):
        measured |= bit if value is not None else 0
        tenths.append(0 if value is None else round(_in_range(bit, value, low, high) * 10))
    mebibytes: list[int] = []
    for bit, count in (
        (MEASURED["memory"], health.memory_mib_free),
        (MEASURED["accelerator_memory"], health.accelerator_memory_mib_free),
    ):
        measured |= bit if count is not None else 0
        mebibytes.append(0 if count is None else _u32(f"measurement {bit}", count))
    cpu, accelerator, temperature, power = tenths
    return BEAT.pack(
        FORMAT,
        _source_number(health.utilization_source),
        measured,
        _node_bytes(beat.node_id),
        _u32("session", beat.session),
        _u32("counter", beat.counter),
        _u32("queue_length", health.queue_length),
        cpu,
        mebibytes[0],
        accelerator,
        mebibytes[1],
        temperature,
        power,
    )


def decode_heartbeat(body: Buffer) -> Heartbeat:
    """A checked beat. Raises UsageError or TooLarge."""
    if len(body) > BEAT_BYTES_MAX:
        raise TooLarge(f"heartbeat takes {len(body)} bytes, the limit is {BEAT_BYTES_MAX}")
    if len(body) < BEAT.size:
        raise UsageError(f"heartbeat ends early: {len(body)} bytes of {BEAT.size}")
    (
        beat_format, source, measured, node, session, counter, queue_length,
        cpu, memory, accelerator, accelerator_memory, temperature, power,
    ) = BEAT.unpack_from(body)  # fmt: skip
    if beat_format != FORMAT:
        raise UsageError(f"heartbeat has format {beat_format}, this gateway reads {FORMAT}")
    # A gateway reads these by the ten thousand a second: what was not measured costs nothing.
    health = NodeHealth(
        cpu_percent=_tenths(_CPU, cpu, 0.0, 100.0) if measured & _CPU else None,
        memory_mib_free=memory if measured & _MEMORY else None,
        accelerator_percent=(
            _tenths(_ACCELERATOR, accelerator, 0.0, 100.0) if measured & _ACCELERATOR else None
        ),
        accelerator_memory_mib_free=accelerator_memory if measured & _ACCELERATOR_MEMORY else None,
        utilization_source=_source_name(source) if source else None,
        temperature_c=(
            _tenths(_TEMPERATURE, temperature, *TEMPERATURE_C_RANGE)
            if measured & _TEMPERATURE
            else None
        ),
        power_w=_tenths(_POWER, power, 0.0, POWER_W_MAX) if measured & _POWER else None,
        queue_length=queue_length,
    )
    return Heartbeat(NodeId(node.hex()), session, counter, health)


def encode_heartbeat_answer(answer: HeartbeatAnswer) -> bytes:
    """Two bytes: format and answer."""
    return _ENCODED_ANSWERS[answer]


def decode_heartbeat_answer(body: Buffer) -> HeartbeatAnswer:
    """The answer's words. Raises UsageError."""
    if len(body) != ANSWER.size:
        raise UsageError(f"heartbeat answer has {len(body)} bytes instead of {ANSWER.size}")
    answer_format, number = ANSWER.unpack(body)
    if answer_format != FORMAT or number >= len(_ANSWERS):
        raise UsageError(f"heartbeat answer {answer_format}/{number} is not known")
    return _ANSWERS[number]


def _in_range(bit: int, value: float, low: float, high: float) -> float:
    if not low <= value <= high:  # refuses NaN and infinity too
        name = next(name for name, each in MEASURED.items() if each == bit)
        raise UsageError(f"heartbeat: {name} {value} is outside {low:g}..{high:g}")
    return value


def _tenths(bit: int, value: int, low: float, high: float) -> float:
    tenths = value / 10
    return tenths if low <= tenths <= high else _in_range(bit, tenths, low, high)


def _u32(field: str, value: int) -> int:
    if not 0 <= value <= U32_MAX:
        raise UsageError(f"heartbeat: {field} {value} is outside 0..{U32_MAX}")
    return value


def _node_bytes(node_id: str) -> bytes:
    try:
        node = bytes.fromhex(node_id)
    except ValueError:
        node = b""
    if len(node) != NODE_ID_BYTES or node.hex() != node_id:
        raise UsageError(f"node id {node_id!r} is not 16 lowercase hex digits")
    return node


def _source_number(source: str | None) -> int:
    if source is None:
        return 0
    if source not in UTILIZATION_SOURCES[1:]:
        raise UsageError(
            f"utilization source {source!r} is not known",
            hint=f"one of {', '.join(UTILIZATION_SOURCES[1:])}",
        )
    return UTILIZATION_SOURCES.index(source)


def _source_name(number: int) -> str:
    return UTILIZATION_SOURCES[number] if number < len(UTILIZATION_SOURCES) else "other"
