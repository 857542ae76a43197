"""What is known of each request: its newest attempt, which slices of it work here, what is over.

One entry serves three ends: a frame of an older attempt is stale, a frame of an attempt that was
cancelled or has failed is thrown away (the tombstone), a slice that has finished does not start
again. Entries without work are remembered until their deadline, the oldest forgotten first when
there are too many.
"""

from __future__ import annotations

from collections import OrderedDict

from din.execution.limits import MEMORIES_MAX, REMAINING_MS_MAX

RequestKey = tuple[str, int]
"""Gateway and request number."""


class Entry:
    """The newest attempt of one request on this node."""

    __slots__ = ("attempt", "finished", "is_over", "tasks", "until_ms")

    def __init__(self, attempt: int) -> None:
        self.renew(attempt)

    def renew(self, attempt: int) -> None:
        """A newer attempt: what was is forgotten."""
        self.attempt = attempt
        self.is_over = False
        self.until_ms = 0.0
        self.tasks: dict[int, int] = {}
        """Slice -> task."""
        self.finished: set[int] = set()

    def remember(self, now_ms: float, remaining_ms: int) -> None:
        """Keep it at least this long."""
        bounded_ms = min(max(remaining_ms, 0), REMAINING_MS_MAX)
        self.until_ms = max(self.until_ms, now_ms + bounded_ms)


class Attempts:
    """Entries of all requests."""

    def __init__(self) -> None:
        self._working: dict[RequestKey, Entry] = {}
        self._memories: OrderedDict[RequestKey, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._working) + len(self._memories)

    @property
    def memories(self) -> int:
        """Entries without work."""
        return len(self._memories)

    def find(self, key: RequestKey, now_ms: float) -> Entry | None:
        """The entry of a request, unless its time is over."""
        entry = self._working.get(key)
        if entry is None:
            entry = self._memories.get(key)
            if entry is not None and entry.until_ms <= now_ms:
                del self._memories[key]
                return None
        return entry

    def is_stale(self, key: RequestKey, attempt: int, slice_index: int, now_ms: float) -> bool:
        """Whether a frame must be thrown away without a word."""
        entry = self.find(key, now_ms)
        if entry is None or attempt > entry.attempt:
            return False
        return attempt < entry.attempt or entry.is_over or slice_index in entry.finished

    def open(self, key: RequestKey, attempt: int, now_ms: float) -> Entry:
        """The entry of a request, made when there is none. The caller renews an older attempt."""
        entry = self.find(key, now_ms)
        if entry is None:
            entry = Entry(attempt)
            self._working[key] = entry
        else:
            self._memories.pop(key, None)
            self._working[key] = entry
        return entry

    def rest(self, key: RequestKey, now_ms: float) -> None:
        """The request may have no work here any more: keep it as a memory."""
        entry = self._working.get(key)
        if entry is None or entry.tasks:
            return
        del self._working[key]
        self._memories[key] = entry
        while self._memories:
            oldest = next(iter(self._memories))
            if len(self._memories) <= MEMORIES_MAX and self._memories[oldest].until_ms > now_ms:
                break
            del self._memories[oldest]
