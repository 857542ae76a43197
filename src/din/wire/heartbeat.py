"""Heartbeat: 40 or 47 bytes that say "I live" and how the node feels, and a two-byte answer.

    offset  0 u8   format, now 1          offset 20 u32 queue length, requests
    offset  1 u8   utilisation source     offset 24 u16 CPU, tenths of a percent
    offset  2 u16  bits of what was       offset 26 u32 memory free, MiB
                   measured, see MEASURED  offset 30 u16 accelerator, tenths of a percent
    offset  4 u64  node id                offset 32 u32 accelerator memory free, MiB
    offset 12 u32  session                offset 36 i16 temperature, tenths of a degree Celsius
    offset 16 u32  counter                offset 38 u16 power, tenths of a watt

and where the node knows something of it

    offset 40 u8   capacity, percent      offset 43 u32 swap used, MiB
    offset 41 u16  bits of SPEED_LIMITS

All big-endian. A field whose bit is clear was not measured; its bytes are zero and are not read, so
"not measured" and "zero" are different bytes. Longer bodies (up to 64 bytes) come from newer nodes
and are read as far as known. There is no time in it: only the receiver's clock counts.
"""

from __future__ import annotations

import struct
from typing import Final, Literal

from msgspec import Struct

from din.domain.node import SPEED_LIMITS, NodeHealth, NodeId, SpeedLimit
from din.errors import TooLarge, UsageError
from din.wire.tlv import Buffer

FORMAT: Final = 1
BEAT: Final = struct.Struct(">BBH8sIIIHIHIhH")
TAIL: Final = struct.Struct(">BHI")
BEAT_BYTES_MAX: Final = 64
NODE_ID_BYTES: Final = 8
ANSWER: Final = struct.Struct(">BB")
CONTENT_TYPE: Final = "application/octet-stream"

UTILIZATION_SOURCES: Final = ("", "nvml", "nvidia-smi", "npu-smi", "sysfs", "worker", "other")
"""By number; 0 = nothing measures the accelerator. Numbers from newer nodes read as `other`."""

MEASURED: Final = {"cpu": 1, "memory": 2, "accelerator": 4, "accelerator_memory": 8,
                   "temperature": 16, "power": 32, "capacity": 64, "swap": 128,
                   "limits": 256}  # fmt: skip
"""Bits of the field at offset 2; those from 64 on are of the tail."""
_CPU, _MEMORY, _ACCELERATOR, _ACCELERATOR_MEMORY, _TEMPERATURE, _POWER, *_ = MEASURED.values()
_CAPACITY, _SWAP, _LIMITS = MEASURED["capacity"], MEASURED["swap"], MEASURED["limits"]
_NO_TAIL: Final[tuple[None, tuple[SpeedLimit, ...], None]] = (None, (), None)
_TAIL: Final = _CAPACITY | _SWAP | _LIMITS

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
    """40 bytes, or 47. Raises UsageError for a value that no sensor may say."""
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
    tail_bits, tail = _encode_tail(health)
    head = BEAT.pack(
        FORMAT,
        _source_number(health.utilization_source),
        measured | tail_bits,
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
    return head + tail


def _encode_tail(health: NodeHealth) -> tuple[int, bytes]:
    """Bits of what was measured, and the bytes; nothing where nothing is known."""
    capacity, swap = health.capacity_percent, health.swap_mib_used
    bits = _CAPACITY if capacity is not None else 0
    bits |= _SWAP if swap is not None else 0
    bits |= _LIMITS if health.limits else 0
    if not bits:
        return 0, b""
    limits = 0
    for word in health.limits:
        if word not in SPEED_LIMITS:
            raise UsageError(f"heartbeat: speed limit {word!r} is not known")
        limits |= 1 << SPEED_LIMITS.index(word)
    share = round(_in_range(_CAPACITY, 0 if capacity is None else capacity, 0, 100))
    return bits, TAIL.pack(share, limits, _u32("swap", swap or 0))


def _decode_tail(
    measured: int, tail: Buffer
) -> tuple[int | None, tuple[SpeedLimit, ...], int | None]:
    """Capacity, limits, swap. Bits of limits that are not known come from newer nodes."""
    if len(tail) < TAIL.size:
        raise UsageError(f"heartbeat ends early: {len(tail)} bytes of {TAIL.size} in its tail")
    capacity, bits, swap = TAIL.unpack_from(tail)
    if measured & _CAPACITY:
        _in_range(_CAPACITY, capacity, 0, 100)
    limits: tuple[SpeedLimit, ...] = tuple(
        word for at, word in enumerate(SPEED_LIMITS) if bits >> at & 1
    )
    return (
        capacity if measured & _CAPACITY else None,
        limits if measured & _LIMITS else _NO_TAIL[1],
        swap if measured & _SWAP else None,
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
    capacity, limits, swap = (
        _decode_tail(measured, body[BEAT.size :]) if measured & _TAIL else _NO_TAIL
    )
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
        capacity_percent=capacity,
        limits=limits,
        swap_mib_used=swap,
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
