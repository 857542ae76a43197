"""Hello and Welcome: how two sockets become one link.

The dialler opens two sockets and says Hello on both, with the same `link_id`. The other side
answers Welcome on both once it has both, or Refused. Nothing else is understood before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from din.errors import Unreachable
from din.system.descriptors import close_all
from din.transport.lane import Lane
from din.transport.limits import LinkLimits
from din.transport.sockets import SocketLike
from din.wire.frame import encode_head
from din.wire.messages import PROTOCOL_VERSION, AnyMessage, Hello, Refused, Welcome

ID_CHARACTERS_MAX: Final = 256
REASON_CHARACTERS_MAX: Final = 500


class FirstFrame:
    """Owner of a lane until its first frame: delivers that frame, or why none came."""

    def __init__(
        self,
        on_frame: Callable[[Lane, AnyMessage], None],
        on_failed: Callable[[Lane, str], None],
    ) -> None:
        self._on_frame = on_frame
        self._on_failed = on_failed

    def lane_place(self, lane: Lane, message: AnyMessage, nbytes: int) -> None:
        """A handshake has no bodies."""
        self._on_failed(lane, f"{type(message).__name__} with a body of {nbytes} bytes came first")

    def lane_message(
        self, lane: Lane, message: AnyMessage, body: memoryview | None, fds: tuple[int, ...]
    ) -> None:
        """See LaneOwner."""
        del body
        close_all(fds)
        if not lane.is_closed:
            lane.pause()
            self._on_frame(lane, message)

    def lane_abandoned(self, lane: Lane, message: AnyMessage, view: memoryview) -> None:
        """Never called: no body is ever placed."""

    def lane_skipped(self, lane: Lane, kind: str) -> None:
        """See LaneOwner."""
        self._on_failed(lane, f"a frame of the unknown kind {kind!r} came before the handshake")

    def lane_ended(self, lane: Lane, reason: str) -> None:
        """See LaneOwner."""
        self._on_failed(lane, reason)


def say(lane: Lane, message: AnyMessage) -> None:
    """Send one handshake message."""
    head = encode_head(message)
    lane.put([memoryview(head)], len(head))


def refusal_of(hello: Hello, own_id: str) -> str:
    """Why this Hello cannot be welcomed, before looking at other links; "" when it can."""
    if not 0 < len(hello.node_id) <= ID_CHARACTERS_MAX:
        return f"a node id of {len(hello.node_id)} characters, not 1 to {ID_CHARACTERS_MAX}"
    if hello.target_id not in ("", own_id):
        return f"you look for {hello.target_id!r}, but this is {own_id!r}"
    if PROTOCOL_VERSION not in hello.protocol_versions:
        offered = ", ".join(str(each) for each in hello.protocol_versions[:8]) or "none"
        return f"no common protocol version: you speak {offered}, this is {PROTOCOL_VERSION}"
    return ""


async def greet(
    sock: SocketLike, hello: Hello, limits: LinkLimits, *, is_local: bool
) -> tuple[Lane, Welcome]:
    """Say Hello and wait for the Welcome; the lane comes back paused. Raises Unreachable.

    Closes the socket when it fails or is cancelled.
    """
    answer: asyncio.Future[AnyMessage] = asyncio.get_running_loop().create_future()

    def got(_: Lane, message: AnyMessage) -> None:
        if not answer.done():
            answer.set_result(message)

    def failed(_: Lane, reason: str) -> None:
        if not answer.done():
            answer.set_exception(Unreachable(reason))

    lane = Lane(sock, FirstFrame(got, failed), limits, is_local=is_local)
    try:
        say(lane, hello)
        lane.resume()
        return lane, _welcome(await answer, hello)
    except BaseException:
        lane.close()
        raise


def _welcome(message: AnyMessage, hello: Hello) -> Welcome:
    match message:
        case Refused(reason=reason):
            raise Unreachable(f"refused: {reason[:REASON_CHARACTERS_MAX]}")
        case Welcome(node_id=node_id, protocol_version=version):
            if hello.target_id not in ("", node_id):
                raise Unreachable(f"{node_id!r} answered instead of {hello.target_id!r}")
            if version != PROTOCOL_VERSION:
                raise Unreachable(f"the peer chose protocol version {version}, never offered")
            return message
        case _:
            raise Unreachable(f"{type(message).__name__} came instead of a Welcome")
