"""Every limit of links in one place. The defaults fit a local network."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from din.wire.frame import BODY_BYTES_MAX, HEADER_BYTES_MAX

QUEUE_BYTES_MAX: Final = 256 * 1024 * 1024
QUEUE_FRAMES_MAX: Final = 10_000
RESERVED_FRAMES_MAX: Final = 2_000
"""Room beyond QUEUE_FRAMES_MAX that only Cancel, Failed, Bye, Ping and Pong may use."""


class LinkLimits(Struct, frozen=True, kw_only=True):
    """What one program allows on its links; both ends hold their own."""

    header_bytes_max: int = HEADER_BYTES_MAX
    body_bytes_max: int = BODY_BYTES_MAX
    queue_bytes_max: int = QUEUE_BYTES_MAX
    """Waiting in one lane; a single larger frame is taken when the lane is empty."""
    queue_frames_max: int = QUEUE_FRAMES_MAX
    reserved_frames_max: int = RESERVED_FRAMES_MAX
    links_max: int = 4_096
    """Accepted by one server."""
    handshakes_max: int = 256
    """Sockets of one server that have not finished their handshake."""
    handshake_ms: int = 5_000
    ping_after_ms: int = 2_000
    dead_after_ms: int = 6_000
    """Without any byte from the peer; kept well under 10 s so that a cut cable is noticed."""
    linger_ms: int = 1_000
    """How long an orderly close may take to flush."""


DEFAULT_LIMITS: Final = LinkLimits()
