"""Frames that wait to be written to one socket, as views: nothing is joined or copied.

Holds no socket: `next_views` says what to write, `written` how much of it went. A frame's
descriptors travel with its first byte, so such a frame starts a write of its own.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Final

CHUNK_BYTES_MAX: Final = 1024 * 1024
"""Offered to one socket in one turn of the loop, so that others get theirs."""
VIEWS_MAX: Final = 64
"""In one vectored write; the kernel allows 1,024."""

OnSent = Callable[[bool], object]


class _Frame:
    __slots__ = ("descriptors", "on_sent", "parts")

    def __init__(
        self, parts: deque[memoryview], descriptors: list[int], on_sent: OnSent | None
    ) -> None:
        self.parts = parts
        self.descriptors = descriptors
        self.on_sent = on_sent


class Outbox:
    """The send queue of one lane."""

    __slots__ = ("_frames", "queued_bytes")

    def __init__(self) -> None:
        self._frames: deque[_Frame] = deque()
        self.queued_bytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    def put(
        self,
        parts: list[memoryview],
        nbytes: int,
        descriptors: list[int],
        on_sent: OnSent | None,
    ) -> None:
        """Queue one frame of `nbytes`; takes over the descriptors."""
        self._frames.append(_Frame(deque(parts), descriptors, on_sent))
        self.queued_bytes += nbytes

    def next_views(self) -> tuple[list[memoryview], list[int]]:
        """What to write now, and the descriptors to send beside it."""
        views: list[memoryview] = []
        left = CHUNK_BYTES_MAX
        descriptors: list[int] = []
        for frame in self._frames:
            if frame.descriptors:
                if views:
                    break
                descriptors = frame.descriptors
            for part in frame.parts:
                views.append(part[:left])
                left -= len(views[-1])
                if left == 0 or len(views) == VIEWS_MAX:
                    return views, descriptors
        return views, descriptors

    def written(self, nbytes: int) -> list[OnSent]:
        """`nbytes` (> 0) of the last `next_views` went; answers whom to tell of whole frames."""
        self.queued_bytes -= nbytes
        done: list[OnSent] = []
        self._drop_descriptors(self._frames[0])
        while self._frames:
            parts = self._frames[0].parts
            while parts and len(parts[0]) <= nbytes:
                nbytes -= len(parts.popleft())
            if parts:
                parts[0] = parts[0][nbytes:]
                break
            frame = self._frames.popleft()
            if frame.on_sent is not None:
                done.append(frame.on_sent)
        return done

    def clear(self) -> list[OnSent]:
        """Give up everything that waits; answers whom to tell."""
        given_up: list[OnSent] = []
        for frame in self._frames:
            self._drop_descriptors(frame)
            if frame.on_sent is not None:
                given_up.append(frame.on_sent)
        self._frames.clear()
        self.queued_bytes = 0
        return given_up

    @staticmethod
    def _drop_descriptors(frame: _Frame) -> None:
        for descriptor in frame.descriptors:
            os.close(descriptor)
        frame.descriptors = []
