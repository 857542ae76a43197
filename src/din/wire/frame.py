"""The bytes of one frame on a link.

    frame  = fixed | message | body
    fixed  = "DN" | version u8 | flags u8 | header_len u32 | body_len u64: 16 bytes, little-endian
    body   = tensor*, each starting at a multiple of 64 and padded with zeros up to the next one

`message` is one msgpack array of `wire.messages`, `header_len` its size. The low four bits of
`flags` count the file descriptors that travel beside the frame; the others must be zero.
Knows nothing about sockets: `transport.reader` feeds it, `transport.outbox` writes what it encodes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, get_args

import msgspec

from din.domain.tensor import aligned
from din.errors import Internal, TooLarge, UsageError
from din.wire.messages import AnyMessage, Message

MAGIC: Final = b"DN"
FRAME_VERSION: Final = 1
FIXED_BYTES: Final = 16
HEADER_BYTES_MAX: Final = 256 * 1024
BODY_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Default for both directions; `transport.limits` may lower it."""
DESCRIPTORS_MAX: Final = 15
"""Descriptors beside one frame: what four bits count."""

_FIXED: Final = struct.Struct("<2sBBIQ")
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(AnyMessage)
_KINDS: Final = frozenset(str(each.__struct_config__.tag) for each in get_args(AnyMessage))
_PADDING: Final = bytes(64)
_OTHER_PROTOCOLS: Final = (
    ((b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN"), "an HTTP request"),
    ((b"PRI ",), "an HTTP/2 connection"),
    ((b"HTTP",), "an HTTP answer"),
    ((b"\x16\x03",), "a TLS hello"),
    ((b"SSH-",), "an SSH client"),
)


class Fixed(NamedTuple):
    """The fixed header of one frame, checked against the limits."""

    header_len: int
    body_len: int
    descriptor_count: int


class Unknown(msgspec.Struct, frozen=True):
    """A well-formed message of a kind that this version does not know: skipped, not a fault."""

    kind: str


def encode_head(
    message: Message,
    body_len: int = 0,
    *,
    descriptor_count: int = 0,
    header_bytes_max: int = HEADER_BYTES_MAX,
    body_bytes_max: int = BODY_BYTES_MAX,
) -> bytes:
    """Fixed header and message. `body_len` counts padding. Raises TooLarge over a limit."""
    header = _ENCODER.encode(message)
    if len(header) > header_bytes_max:
        raise TooLarge(
            f"the header of a {type(message).__name__} frame has {len(header)} bytes, "
            f"over {header_bytes_max}",
            hint="send fewer or shorter names, edges or timings in one message",
        )
    if body_len > body_bytes_max:
        raise TooLarge(
            f"the tensors of a {type(message).__name__} frame have {body_len} bytes, "
            f"over {body_bytes_max}",
            hint="send a smaller batch, or raise the limit on every node",
        )
    if not 0 <= descriptor_count <= DESCRIPTORS_MAX:
        raise Internal(f"{descriptor_count} descriptors beside a frame, over {DESCRIPTORS_MAX}")
    return _FIXED.pack(MAGIC, FRAME_VERSION, descriptor_count, len(header), body_len) + header


def decode_fixed(
    data: bytes | bytearray | memoryview,
    *,
    header_bytes_max: int = HEADER_BYTES_MAX,
    body_bytes_max: int = BODY_BYTES_MAX,
) -> Fixed:
    """The first 16 bytes of a frame. Raises UsageError or TooLarge naming what was seen."""
    magic, version, flags, header_len, body_len = _FIXED.unpack_from(data)
    if magic != MAGIC:
        raise UsageError(
            f"not a DIN frame: {_guess(bytes(data[:FIXED_BYTES]))}",
            hint="this port takes DIN links only; the HTTP API has a port of its own",
        )
    if version != FRAME_VERSION:
        raise UsageError(
            f"frame version {version}, but this program speaks {FRAME_VERSION}",
            hint="run the same release of DIN on both ends",
        )
    if flags > DESCRIPTORS_MAX:
        raise UsageError(f"frame flags 0x{flags:02x} have bits set that version 1 does not know")
    if header_len > header_bytes_max:
        raise TooLarge(f"a frame announces {header_len} header bytes, over {header_bytes_max}")
    if header_len == 0:
        raise UsageError("a frame announces a header of 0 bytes")
    if body_len > body_bytes_max:
        raise TooLarge(
            f"a frame announces {body_len} body bytes, over {body_bytes_max}",
            hint="send a smaller batch, or raise the limit on every node",
        )
    return Fixed(header_len, body_len, flags)


def decode_message(data: bytes | bytearray | memoryview) -> AnyMessage | Unknown:
    """The message header. Raises UsageError for anything but a known or unknown kind."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        kind = _kind_of(data)
        if kind is not None and kind not in _KINDS:
            return Unknown(kind)
        what = "a frame header" if kind is None else f"the header of a {kind} frame"
        raise UsageError(f"{what} of {len(data)} bytes is malformed: {error}") from error


def body_parts(body: Sequence[memoryview | bytes]) -> tuple[list[memoryview], int]:
    """Tensors as flat byte views with the padding between and after them, and their total size.

    Raises Internal for a view that is not contiguous: bytes on the wire are row-major.
    """
    parts: list[memoryview] = []
    total = 0
    for each in body:
        view = memoryview(each)
        if not view.c_contiguous:
            raise Internal("a tensor that is not contiguous cannot be sent")
        nbytes = view.nbytes
        if nbytes == 0:
            continue
        parts.append(view if view.format == "B" and view.ndim == 1 else view.cast("B"))
        gap = aligned(nbytes) - nbytes
        if gap:
            parts.append(memoryview(_PADDING)[:gap])
        total += nbytes + gap
    return parts, total


def _guess(data: bytes) -> str:
    for starts, what in _OTHER_PROTOCOLS:
        if data.startswith(starts):
            return f"the first bytes are {data!r}, which looks like {what}"
    return f"the first bytes are {data!r} instead of {MAGIC!r}"


def _kind_of(data: bytes | bytearray | memoryview) -> str | None:
    try:
        fields = msgspec.msgpack.decode(data, type=list[object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    first = fields[0] if fields else None
    return first if isinstance(first, str) and len(first) <= 64 else None
