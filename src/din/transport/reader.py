"""Cuts a byte stream into frames. Holds no socket: bytes are received into `room()`, then told.

States: FIXED (16 bytes) -> HEADER (message) -> BODY (into the owner's memory, or thrown away) ->
FIXED. Heads come through one small buffer; a body is received straight into its place, only what
arrived together with its head is copied.
"""

from __future__ import annotations

from typing import Final, Protocol

from din.transport.limits import LinkLimits
from din.wire.frame import FIXED_BYTES, Fixed, Unknown, decode_fixed, decode_message
from din.wire.messages import AnyMessage

BUFFER_BYTES: Final = 32 * 1024
CHUNK_BYTES_MAX: Final = 1024 * 1024
"""Taken from one socket in one turn of the loop, so that others get theirs."""


class FrameSink(Protocol):
    """Who gets the frames. A call may stop or pause the reader."""

    def place(self, message: AnyMessage, nbytes: int) -> memoryview | None:
        """Memory of exactly `nbytes` for a body, None to throw it away."""
        ...

    def take(
        self, message: AnyMessage | Unknown, body: memoryview | None, descriptor_count: int
    ) -> None:
        """One whole frame."""
        ...


class FrameReader:
    """One direction of one stream."""

    __slots__ = (
        "_body", "_buffer", "_end", "_fixed", "_left", "_limits", "_message", "_sink", "_start",
        "is_paused", "is_stopped",
    )  # fmt: skip

    def __init__(self, sink: FrameSink, limits: LinkLimits) -> None:
        self._sink = sink
        self._limits = limits
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._start = 0
        self._end = 0
        self._fixed: Fixed | None = None
        self._message: AnyMessage | Unknown | None = None
        self._body: memoryview | None = None
        self._left = 0
        self.is_paused = False
        self.is_stopped = False

    @property
    def is_between_frames(self) -> bool:
        """Whether the stream may end here without cutting a frame."""
        return self._message is None and self._fixed is None and self._start == self._end

    @property
    def is_in_body(self) -> bool:
        """Whether all that is here is taken and a body goes on."""
        return self._message is not None and self._start == self._end

    @property
    def buffered_bytes(self) -> int:
        """Received and not yet looked at."""
        return self._end - self._start

    def room(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        if self._message is not None and self._start == self._end:
            if self._body is not None:
                start = len(self._body) - self._left
                return self._body[start : start + CHUNK_BYTES_MAX]
            return self._buffer[: min(self._left, len(self._buffer))]
        return self._buffer[self._end :]

    def received(self, nbytes: int) -> None:
        """`nbytes` were written to `room()`. Raises DinError when they are not DIN frames."""
        if self._message is not None and self._start == self._end:
            self._left -= nbytes
            if self._left == 0:
                self._finish()
        else:
            self._end += nbytes
        self.parse()

    def parse(self) -> None:
        """Go on with what is buffered. Raises DinError when it is not DIN frames."""
        while not (self.is_paused or self.is_stopped):
            is_more = self._take_head() if self._message is None else self._take_body()
            if not is_more:
                break
        self._make_room()

    def stop(self) -> tuple[AnyMessage, memoryview] | None:
        """Take no more; answers the body that was being received, if any."""
        self.is_stopped = True
        message, body = self._message, self._body
        self._message = self._body = None
        if body is None or message is None or isinstance(message, Unknown):
            return None
        return message, body

    # Inside.

    def _take_head(self) -> bool:
        """Fixed header and message; False = more bytes are needed."""
        start, fixed = self._start, self._fixed
        if fixed is None:
            if self._end - start < FIXED_BYTES:
                self._refuse_early()
                return False
            limits = self._limits
            fixed = self._fixed = decode_fixed(
                self._buffer[start : start + FIXED_BYTES],
                header_bytes_max=limits.header_bytes_max,
                body_bytes_max=limits.body_bytes_max,
            )
            start = self._start = start + FIXED_BYTES
        if self._end - start < fixed.header_len:
            return False
        self._start = start + fixed.header_len
        message = self._message = decode_message(self._buffer[start : self._start])
        self._left = fixed.body_len
        if fixed.body_len == 0:
            self._finish()
        elif not isinstance(message, Unknown):
            self._body = self._sink.place(message, fixed.body_len)
        return True

    def _refuse_early(self) -> None:
        """A stranger that speaks another protocol may wait for our answer after fewer bytes."""
        have = self._end - self._start
        if have >= 2 and bytes(self._buffer[self._start : self._start + 2]) != b"DN":
            decode_fixed(bytes(self._buffer[self._start : self._end]).ljust(FIXED_BYTES, b"\0"))

    def _take_body(self) -> bool:
        """What is buffered of a body; False = more bytes are needed."""
        start, body = self._start, self._body
        have = min(self._left, self._end - start)
        if have == 0:
            return False
        if body is not None:
            done = len(body) - self._left
            body[done : done + have] = self._buffer[start : start + have]
        self._start = start + have
        self._left -= have
        if self._left == 0:
            self._finish()
        return True

    def _finish(self) -> None:
        message, body, fixed = self._message, self._body, self._fixed
        self._message = self._body = self._fixed = None
        if message is not None and fixed is not None:
            self._sink.take(message, body, fixed.descriptor_count)

    def _make_room(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
            if self._fixed is None:
                if len(self._buffer) > BUFFER_BYTES:
                    self._buffer = memoryview(bytearray(BUFFER_BYTES))
                return
        need = FIXED_BYTES if self._fixed is None else self._fixed.header_len
        if self._message is not None or self._start + need <= len(self._buffer) > self._end:
            return
        kept = self._buffer[self._start : self._end]
        if need > len(self._buffer):
            grown = memoryview(bytearray(need))
            grown[: len(kept)] = kept
            self._buffer = grown
        else:
            self._buffer[: len(kept)] = bytes(kept)
        self._start, self._end = 0, len(kept)
