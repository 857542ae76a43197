"""Heartbeats as datagrams: what HTTP carries, with a code that only the two sides can make.

    node    -> beat (40..64 bytes, `wire.heartbeat`) | code (16 bytes)
    gateway -> answer (2 bytes) | counter of the beat (u32) | code (16 bytes)

The key is given to the node in its admission, which came over TLS, and holds for that registration.
The code is HMAC-SHA256 cut to 16 bytes (RFC 2104, section 5), over a word for the direction and
the bytes before it, so that no answer can be sent back as a beat. The counter is in the beat: one
that is not higher than the last is a replay, which the receiver refuses.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from contextlib import suppress
from hmac import compare_digest
from importlib import import_module
from typing import Final, Protocol, Self

from din.errors import Denied, UsageError
from din.wire.heartbeat import (
    ANSWER,
    BEAT,
    BEAT_BYTES_MAX,
    HeartbeatAnswer,
    decode_heartbeat_answer,
)

CODE_BYTES: Final = 16
DATAGRAM_BYTES_MIN: Final = BEAT.size + CODE_BYTES
DATAGRAM_BYTES_MAX: Final = BEAT_BYTES_MAX + CODE_BYTES
_TO_GATEWAY: Final = b"din beat 1"
_TO_NODE: Final = b"din answer 1"
_COUNTER_BYTES: Final = 4
_ANSWER_BYTES: Final = ANSWER.size + _COUNTER_BYTES + CODE_BYTES
BODY: Final = slice(-CODE_BYTES)
"""Of a datagram: all before its code. Slices that are made once, since beats come by the ten
thousand a second."""
_CODE: Final = slice(-CODE_BYTES, None)
_CUT: Final = slice(CODE_BYTES)
_COUNTER_AT: Final = slice(16, 20)
_CLAIMS: Final = struct.Struct(">4x8sII")
"""Node id, session and counter inside a beat."""
_BLOCK_BYTES: Final = 64
"""Of SHA256; HMAC pads its key to that."""


class _Hash(Protocol):
    """A SHA256 under way."""

    def copy(self) -> Self:
        """The same state, to go on from."""
        ...

    def update(self, data: bytes, /) -> None:
        """Take more in."""
        ...

    def digest(self) -> bytes:
        """32 bytes."""
        ...


_Prepared = tuple[_Hash, _Hash]


def _sha256() -> Callable[[bytes], _Hash]:
    """CPython's own where it has one: each code copies two prepared hashes, and OpenSSL allocates
    six times for that. An eighth of all that a beat costs a gateway."""
    for name in ("_sha2", "_sha256"):  # since 3.12, and before
        with suppress(ImportError, AttributeError):
            return import_module(name).sha256
    return hashlib.sha256


_SHA256: Final = _sha256()


class BeatKey:
    """One key with both directions' codes prepared: a beat costs two rounds of SHA256."""

    __slots__ = ("_to_gateway", "_to_node")

    def __init__(self, key: bytes) -> None:
        self._to_gateway = _prepared(key, _TO_GATEWAY)
        self._to_node = _prepared(key, _TO_NODE)

    def seal_beat(self, beat: bytes) -> bytes:
        """An encoded heartbeat as a datagram."""
        return beat + _code(self._to_gateway, beat)

    def is_sealed(self, datagram: bytes, beat: bytes) -> bool:
        """Whether the code under the beat was made with this key, in the same time either way."""
        return compare_digest(_code(self._to_gateway, beat), datagram[_CODE])

    def seal_answer(self, answer: bytes, beat: bytes) -> bytes:
        """An encoded answer to this very beat, as a datagram."""
        body = answer + beat[_COUNTER_AT]
        return body + _code(self._to_node, body)

    def open_answer(self, datagram: bytes, beat: bytes) -> HeartbeatAnswer:
        """What the gateway says to this beat. Raises Denied for another's or an older answer,
        UsageError for anything that is none."""
        if len(datagram) != _ANSWER_BYTES:
            raise UsageError(f"an answer of {len(datagram)} bytes instead of {_ANSWER_BYTES}")
        body, code = datagram[BODY], datagram[_CODE]
        if not compare_digest(_code(self._to_node, body), code):
            raise Denied("an answer to a heartbeat with a wrong code")
        if body[ANSWER.size :] != beat[_COUNTER_AT]:
            raise Denied("an answer to another heartbeat")
        return decode_heartbeat_answer(body[: ANSWER.size])


def claims_of(datagram: bytes) -> tuple[bytes, int, int]:
    """Whom it claims to be (8 bytes of node id), in which session, with which counter; nothing of
    it is believed. Raises UsageError when it cannot be a beat."""
    if not DATAGRAM_BYTES_MIN <= len(datagram) <= DATAGRAM_BYTES_MAX:
        raise UsageError(
            f"a datagram of {len(datagram)} bytes, not {DATAGRAM_BYTES_MIN}..{DATAGRAM_BYTES_MAX}"
        )
    return _CLAIMS.unpack_from(datagram)


def _prepared(key: bytes, direction: bytes) -> _Prepared:
    """HMAC's inner and outer hash with the key (and the direction) already taken in."""
    block = key.ljust(_BLOCK_BYTES, b"\0")
    inner = _SHA256(bytes(each ^ 0x36 for each in block) + direction)
    return inner, _SHA256(bytes(each ^ 0x5C for each in block))


def _code(prepared: _Prepared, body: bytes) -> bytes:
    inner, outer = prepared[0].copy(), prepared[1].copy()
    inner.update(body)
    outer.update(inner.digest())
    return outer.digest()[_CUT]
