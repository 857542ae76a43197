"""A server's log on its way to the agent: whole lines, so many a second and no more."""

from __future__ import annotations

import os
from collections import deque
from typing import Final

from din.wire.runner import LINE_CHARACTERS_MAX, LINES_MAX, Said

LINES_PER_SECOND: Final = 20
BURST: Final = 200
WAITING_MAX: Final = 200
READ_BYTES: Final = 65_536
READS_MAX: Final = 16
"""At once: a server that writes without end must not keep us from all else."""
LAST: Final = 4
"""Lines that are told as the reason when it ends."""


class Lines:
    """Of one container over all its lives."""

    def __init__(self) -> None:
        self._begun = b""
        self._waiting: deque[str] = deque()
        self._last: deque[str] = deque(maxlen=LAST)
        self._dropped = 0
        self._allowance = float(BURST)
        self._counted_s = 0.0

    def read(self, descriptor: int) -> bool:
        """Take what can be read now of a pipe that does not block; False at its end."""
        for _ in range(READS_MAX):
            try:
                data = os.read(descriptor, READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return True
            if not data:
                if self._begun:
                    self._add(self._begun)
                    self._begun = b""
                return False
            *whole, self._begun = (self._begun + data).split(b"\n")
            for each in whole:
                self._add(each)
            if len(self._begun) > 4 * LINE_CHARACTERS_MAX:
                self._begun = self._begun[: 4 * LINE_CHARACTERS_MAX]  # the rest of it is not kept
        return True

    def due(self, now_s: float) -> Said | None:
        """Lines that may go now."""
        elapsed_s = max(0.0, now_s - self._counted_s)
        self._counted_s = now_s
        self._allowance = min(BURST, self._allowance + elapsed_s * LINES_PER_SECOND)
        count = min(len(self._waiting), LINES_MAX, int(self._allowance))
        if count == 0:
            return None
        self._allowance -= count
        said = Said(
            lines=tuple(self._waiting.popleft() for _ in range(count)), dropped=self._dropped
        )
        self._dropped = 0
        return said

    def give_back(self, said: Said) -> None:
        """They could not be sent."""
        self._waiting.extendleft(reversed(said.lines))
        self._dropped += said.dropped

    def last(self) -> str:
        """What was said last, as the end of a sentence."""
        return f": {' | '.join(self._last)}" if self._last else ""

    def _add(self, line: bytes) -> None:
        text = line[: 4 * LINE_CHARACTERS_MAX].decode(errors="replace")[:LINE_CHARACTERS_MAX]
        text = "".join(each if each.isprintable() else " " for each in text).strip()
        if not text:
            return
        self._last.append(text[:300])
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self._dropped += 1
        self._waiting.append(text)
