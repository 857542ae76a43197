"""Every limit of the HTTP front in one place."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

KEY_LIMIT_HINT: Final = "send less at once, or make a key with a higher --body-max: din key create"


class FrontLimits(Struct, frozen=True, kw_only=True):
    """Bounds that hold for each connection and for the front as a whole."""

    body_bytes_max: int = 64 * 1024 * 1024
    """Of one inference post."""
    buffered_bytes_max: int = 512 * 1024 * 1024
    """Of all inference posts that lie in memory at once."""
    unsent_bytes_max: int = 512 * 1024 * 1024
    """Of all answers that wait for their readers."""
    control_body_bytes_max: int = 4 * 1024 * 1024
    """Of one post to the control API; artifacts have their own quota."""
    probe_body_bytes_max: int = 32 * 1024 * 1024
    """Of one order to profile or verify a model, inputs in base64 included."""
    heartbeat_bytes_max: int = 4096
    head_bytes_max: int = 32 * 1024
    """Request line and header fields."""
    pipelined_max: int = 64
    """Requests of one connection that wait for their turn."""
    connections_max: int = 4096
    strangers_max: int = 512
    """Of those, connections by TLS that have not shown yet who they are."""
    own_connections_max: int = 1024
    """Of those, with one API key or of one node."""
    head_timeout_s: float = 10.0
    """From the first moment to the end of the head."""
    body_idle_timeout_s: float = 30.0
    """Between two pieces of a body."""
    body_timeout_s: float = 600.0
    keep_alive_timeout_s: float = 75.0
    write_timeout_s: float = 60.0
    """Without any progress of a reader that owes us room."""
    linger_s: float = 2.0
    """How long a refused connection is drained, so that the refusal arrives."""
