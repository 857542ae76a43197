"""Standard error that never makes its writer wait: a stopped pager or a full pipe costs lines, not
the event loop.

Text goes into a bounded queue that one thread writes out. What does not fit is dropped and counted,
and the count is told once there is room again. At the end of the process what is left has a moment
to be written.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import Final, TextIO, cast

QUEUED_CHARACTERS_MAX: Final = 1024 * 1024
"""Some thousand lines: more than any reader that is only slow falls behind."""
LAST_WORDS_S: Final = 1.0
"""How long the end of the process may take for what is still unwritten."""


class LineStream(io.TextIOBase):
    """Text to a descriptor by a thread of its own. Writing never blocks and never fails."""

    def __init__(self, descriptor: int, characters_max: int = QUEUED_CHARACTERS_MAX) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._characters_max = characters_max
        self._queue: deque[str] = deque()
        self._queued = 0
        self._dropped = 0
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_idle = True
        self._is_gone = False

    def write(self, text: str, /) -> int:
        """Queue it, or drop and count it when the queue is full."""
        with self._change:
            if self._is_gone:
                return len(text)
            if self._queued + len(text) > self._characters_max:
                self._dropped += 1
                return len(text)
            self._queue.append(text)
            self._queued += len(text)
            if self._thread is None:
                self._begin()
            self._change.notify_all()
        return len(text)

    def _begin(self) -> None:
        """Only with the first text: a program that says nothing needs no thread."""
        thread = threading.Thread(target=self._run, name="din-log", daemon=True)
        with suppress(RuntimeError):  # no thread to be had now: tried again with the next text
            thread.start()
            self._thread = thread

    def flush(self) -> None:
        """Nothing: flushing is what would block."""

    def isatty(self) -> bool:
        """Whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """The descriptor, for programs that inherit it."""
        return self._descriptor

    def writable(self) -> bool:
        """Always."""
        return True

    def drain(self, seconds: float = LAST_WORDS_S) -> bool:
        """Wait until all is written, for so long at most; False when the time was up."""
        with self._change:
            return self._change.wait_for(lambda: self._is_idle and not self._has_work(), seconds)

    def _has_work(self) -> bool:
        return bool(self._queue) or self._dropped > 0

    def _run(self) -> None:
        while True:
            with self._change:
                self._is_idle = True
                self._change.notify_all()
                self._change.wait_for(self._has_work)
                self._is_idle = False
                text = "".join(self._queue)
                self._queue.clear()
                dropped, self._dropped = self._dropped, 0
            self._put(text)
            if dropped:
                self._put(f'{{"level":"warning","event":"log_lines_dropped","count":{dropped}}}\n')
            with self._change:
                self._queued -= len(text)

    def _put(self, text: str) -> None:
        left = memoryview(text.encode("utf-8", "backslashreplace"))
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            with self._change:
                self._is_gone = True  # the reader has gone: nobody will ever read any of it


def unblock_stderr() -> None:
    """From now on whatever this process writes to `sys.stderr` waits for no reader."""
    former = cast("TextIO | None", sys.stderr)
    if former is None:
        return  # descriptor 2 was closed before we started
    former.flush()
    sys.stderr = stream = LineStream(former.fileno())
    atexit.register(stream.drain)
