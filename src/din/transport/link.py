"""One link: two lanes to one peer, so that a cancel does not wait behind a tensor.

Messages of `URGENT_KINDS` and bodies up to `URGENT_BODY_BYTES_MAX` travel on the urgent lane, the
others on the bulk lane. **Order holds inside one lane only**: a Cancel may overtake its Run. Both
lanes end together. An idle peer is pinged; one that stays silent is given up, so a cut cable or a
stopped process is noticed in `dead_after_ms` plus one tick.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from din.errors import DinError, Internal
from din.observability.printable import SAID_CHARACTERS_MAX, one_line
from din.system.descriptors import close_all
from din.transport.lane import END_OF_FILE, Lane
from din.transport.limits import LinkLimits
from din.wire.frame import body_parts, encode_head
from din.wire.messages import (
    URGENT_BODY_BYTES_MAX,
    URGENT_KINDS,
    AnyMessage,
    Bye,
    Cancel,
    Failed,
    Hello,
    Ping,
    Pong,
    Refused,
    Welcome,
)

Report = Callable[..., None]
"""Takes a short text and the facts as keywords."""

RESERVED_KINDS: Final = (Cancel, Failed, Bye, Ping, Pong)
"""May use the room beyond the queue limit: they make queues shorter, or end them."""
OWN_KINDS: Final = (Ping, Pong, Bye, Hello, Welcome, Refused)
"""Never for the handler."""
RTTS_MAX: Final = 8
STALL_FACTOR: Final = 3
"""A tick so many times late was our own sleep (suspend, a stopped process), not the peer's."""


class LinkHandler(Protocol):
    """Plain callbacks in the loop's thread. What they raise is reported and kills nothing."""

    def on_open(self, link: Link) -> None:
        """The link is up. Comes before anything else of this link."""
        ...

    def on_closed(self, link: Link, reason: str, is_orderly: bool) -> None:
        """The link is down, for good; orderly = one side said Bye. Once for each `on_open`."""
        ...

    def place_body(self, link: Link, message: AnyMessage, nbytes: int) -> memoryview | None:
        """Memory of exactly `nbytes` for the body of this frame, or None to throw it away."""
        ...

    def on_message(
        self, link: Link, message: AnyMessage, body: memoryview | None, fds: tuple[int, ...]
    ) -> None:
        """One whole frame. `body` is what `place_body` gave. The descriptors belong to the handler
        from here on, which closes those it does not want."""
        ...

    def on_body_abandoned(self, link: Link, message: AnyMessage, view: memoryview) -> None:
        """The link ended in the middle of a body: the memory is the handler's again."""
        ...


class Link:
    """An open link to one peer. Made by `dial` and `LinkServer`, which call `start`."""

    def __init__(
        self,
        peer_id: str,
        peer_session: int,
        lanes: tuple[Lane, Lane],
        handler: LinkHandler,
        limits: LinkLimits,
        report: Report,
        *,
        is_local: bool,
    ) -> None:
        self.peer_id = peer_id
        self.peer_session = peer_session
        self.is_local = is_local
        self.is_open = True
        self._loop = asyncio.get_running_loop()
        self._urgent, self._bulk = lanes
        self._handler = handler
        self._limits = limits
        self._report = report
        self._ended: set[Lane] = set()
        self._all_done = asyncio.Event()
        self._bye: str | None = None
        self._is_told = False
        self._reason = ""
        self._pinged_at = 0.0
        self._rtts_ms: deque[float] = deque(maxlen=RTTS_MAX)
        self._nonce = 0
        self._ticked_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def local_host(self) -> str:
        """Under which of our addresses the peer has us; empty on a Unix socket."""
        return self._urgent.local_host

    @property
    def peer_host(self) -> str:
        """Under which of its addresses we have the peer; empty on a Unix socket."""
        return self._urgent.peer_host

    @property
    def rtt_ms(self) -> float | None:
        """The shortest of the last round trips: longer ones waited for a busy program at one end,
        or behind a tensor. None = no answer yet."""
        return min(self._rtts_ms, default=None)

    @property
    def mib_per_second(self) -> float | None:
        """How fast large bodies came from the peer of late; None = not measured."""
        return self._bulk.mib_per_second

    @property
    def heard_at(self) -> float:
        """When the last byte came from the peer, by the loop's clock in seconds."""
        return max(self._urgent.received_at, self._bulk.received_at)

    @property
    def queued_bytes(self) -> int:
        """Accepted by `send` but not yet taken by the kernel, in both lanes."""
        return self._urgent.queued_bytes + self._bulk.queued_bytes

    def start(self) -> None:
        """Tell the handler and begin to read. Once."""
        for lane in (self._urgent, self._bulk):
            lane.hand_over(self)
        self._guard(self._handler.on_open, self)
        if not self.is_open:
            return
        self._tick()
        for lane in (self._urgent, self._bulk):
            lane.resume()

    def send(
        self,
        message: AnyMessage,
        body: Sequence[memoryview | bytes] = (),
        *,
        fds: Sequence[int] = (),
        on_sent: Callable[[bool], None] | None = None,
    ) -> bool:
        """Queue one frame; `body` is the tensors in order, padded here, not copied.

        False = closed or the lane is full: nothing was queued, `on_sent` is never called. Otherwise
        `on_sent` comes once, True when the kernel has it all, which may be inside this call, and
        False in a later turn when the link ended first; until then the views must stay as they
        are. Descriptors stay the caller's.
        Raises TooLarge over a frame limit, Internal for descriptors on a link that is not local.
        """
        if not self.is_open:
            return False
        if fds and not self.is_local:
            raise Internal(f"descriptors cannot travel to {self.peer_id}: not on this host")
        parts, body_len = body_parts(body)
        head = encode_head(
            message,
            body_len,
            descriptor_count=len(fds),
            header_bytes_max=self._limits.header_bytes_max,
            body_bytes_max=self._limits.body_bytes_max,
        )
        is_urgent = body_len <= URGENT_BODY_BYTES_MAX or isinstance(message, URGENT_KINDS)
        lane = self._urgent if is_urgent else self._bulk
        nbytes = len(head) + body_len
        if lane.queued_frames and not self._has_room(lane, message, nbytes):
            return False
        told = None if on_sent is None else partial(self._guard, on_sent)
        lane.put([memoryview(head), *parts], nbytes, fds, told)
        return True

    def close(self, reason: str, *, is_orderly: bool = False) -> None:
        """End the link; repeating it is harmless. `on_closed` comes in a later turn.

        Orderly: says Bye and lets what is queued go first, for `linger_ms` at most.
        """
        if not self.is_open:
            return
        if is_orderly:
            self.send(Bye(reason))
            self._bye = reason
            self._begin_end(reason)
            for lane in (self._urgent, self._bulk):
                lane.finish()
            self._timer = self._loop.call_later(self._limits.linger_ms / 1000, self._shut, reason)
            self._loop.call_soon(self._tell_closed)
        else:
            self._shut(reason)

    async def wait_ended(self) -> None:
        """Until both sockets are closed and the handler was told."""
        await self._all_done.wait()

    # LaneOwner.

    def lane_place(self, lane: Lane, message: AnyMessage, nbytes: int) -> memoryview | None:
        """See LaneOwner."""
        view = self._guard(self._handler.place_body, self, message, nbytes)
        if view is None:
            return None
        is_fit = view.nbytes == nbytes and not view.readonly and view.c_contiguous
        if not lane.is_reading or not is_fit:
            if not is_fit:
                kind = type(message).__name__
                self._report("link handler placed a body wrongly", peer=self.peer_id, kind=kind,
                             wanted_bytes=nbytes, got_bytes=view.nbytes)  # fmt: skip
            self.lane_abandoned(lane, message, view)
            return None
        return view if view.format == "B" and view.ndim == 1 else view.cast("B")

    def lane_message(
        self, lane: Lane, message: AnyMessage, body: memoryview | None, fds: tuple[int, ...]
    ) -> None:
        """See LaneOwner."""
        if not isinstance(message, OWN_KINDS):
            self._guard(self._handler.on_message, self, message, body, fds)
            return
        match message:
            case Ping(nonce=nonce):
                if self.is_open and not self.send(Pong(nonce)):
                    self.close("the peer asks but does not read our answers")
            case Pong(nonce=nonce):
                if nonce == self._nonce:
                    self._rtts_ms.append((self._loop.time() - self._pinged_at) * 1000)
            case Bye(reason=said):
                self._bye = reason = one_line(said, SAID_CHARACTERS_MAX)
                self._begin_end(reason)
                self._timer = self._loop.call_later(
                    self._limits.linger_ms / 1000, self._shut, reason
                )
            case _:
                self.close(f"the peer sent {type(message).__name__} on an open link")
        close_all(fds)

    def lane_abandoned(self, lane: Lane, message: AnyMessage, view: memoryview) -> None:
        """See LaneOwner."""
        del lane
        self._guard(self._handler.on_body_abandoned, self, message, view)

    def lane_skipped(self, lane: Lane, kind: str) -> None:
        """See LaneOwner."""
        del lane
        self._report("link skipped a frame of an unknown kind", peer=self.peer_id, kind=kind)

    def lane_ended(self, lane: Lane, reason: str) -> None:
        """See LaneOwner."""
        self._ended.add(lane)
        if self._bye is None:
            self._shut(reason)
        elif len(self._ended) == 2 or reason != END_OF_FILE:
            self._shut(self._bye)

    # Inside.

    def _has_room(self, lane: Lane, message: AnyMessage, nbytes: int) -> bool:
        frames_max = self._limits.queue_frames_max
        if isinstance(message, RESERVED_KINDS):
            return lane.queued_frames < frames_max + self._limits.reserved_frames_max
        is_small = lane.queued_bytes + nbytes <= self._limits.queue_bytes_max
        return is_small and lane.queued_frames < frames_max

    def _tick(self) -> None:
        now, limits = self._loop.time(), self._limits
        tick_s = limits.ping_after_ms / 2000
        is_late = now - self._ticked_at > STALL_FACTOR * tick_s
        self._ticked_at = now
        heard_at = self.heard_at
        if is_late:
            self._urgent.received_at = heard_at = now
        if now - heard_at > limits.dead_after_ms / 1000:
            self.close(f"nothing was heard from {self.peer_id} for {limits.dead_after_ms} ms")
            return
        if now - self._pinged_at >= limits.ping_after_ms / 1000:
            self._nonce += 1
            self._pinged_at = now
            self.send(Ping(self._nonce))
        self._timer = self._loop.call_later(tick_s, self._tick)

    def _begin_end(self, reason: str) -> None:
        self.is_open = False
        self._reason = self._reason or reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _shut(self, reason: str) -> None:
        self._begin_end(reason)
        for lane in (self._urgent, self._bulk):
            lane.close()
        self._loop.call_soon(self._tell_closed)
        self._loop.call_soon(self._all_done.set)

    def _tell_closed(self) -> None:
        if not self._is_told:
            self._is_told = True
            orderly = self._bye is not None
            self._guard(self._handler.on_closed, self, self._reason, orderly)

    def _guard(
        self, call: Callable[..., memoryview | None], *arguments: object
    ) -> memoryview | None:
        try:
            return call(*arguments)
        except Exception as error:
            self._report(
                "link handler failed",
                peer=self.peer_id,
                call=getattr(call, "__name__", repr(call)),
                error=error.message if isinstance(error, DinError) else repr(error),
            )
            return None
