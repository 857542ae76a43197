"""The verbs that every engine offers, and the words they answer with.

Keys are `/`-separated text of at most 512 bytes. Revisions count every change of one store up by
one and are never reused, so a revision is a fencing token. `if_rev=0` means "only if absent".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, Literal, Protocol

from msgspec import Struct

KEY_BYTES_MAX: Final = 512
VALUE_BYTES_MAX: Final = 4 * 1024 * 1024
QUEUE_ROWS_MAX: Final = 1_000_000
DEDUPLICATION_MS: Final = 24 * 3600 * 1000
WATCH_LOG_ROWS_MAX: Final = 10_000
"""Changes kept for watchers that come back; an older revision is answered with Conflict."""


class Entry(Struct, frozen=True):
    """A stored value with the revision that wrote it."""

    key: str
    value: bytes
    revision: int


class Change(Struct, frozen=True):
    """One event of a watch."""

    kind: Literal["put", "delete", "expire"]
    key: str
    value: bytes
    revision: int


class Job(Struct, frozen=True):
    """A leased queue entry. `lease` fences: an ack with an old lease is refused."""

    queue: str
    id: str
    body: bytes
    lease: int
    deliveries: int


class Store(Protocol):
    """Durable state. Every verb raises Unavailable when the disk is full or the store broken, and
    UsageError for keys or values over their limits."""

    async def put(
        self, key: str, value: bytes, *, ttl_ms: int | None = None, if_rev: int | None = None
    ) -> int:
        """Write; answers the new revision. Raises Conflict when `if_rev` is not the current one."""
        ...

    async def get(self, key: str) -> Entry | None:
        """Read one key; expired keys are absent."""
        ...

    async def list(self, prefix: str) -> tuple[Entry, ...]:
        """All entries under a prefix, by key."""
        ...

    async def delete(self, key: str, *, if_rev: int | None = None) -> bool:
        """Remove; False when it was not there. Raises Conflict like put."""
        ...

    def watch(self, prefix: str, from_rev: int) -> AsyncIterator[Change]:
        """Changes with a revision over `from_rev`, in order, without gaps."""
        ...

    async def push(self, queue: str, id: str, body: bytes, *, delay_ms: int = 0) -> bool:  # noqa: A002
        """Durable once it returns. False when this id was pushed within the last 24 h."""
        ...

    async def pull(self, queue: str, count: int, lease_ms: int) -> tuple[Job, ...]:
        """Lease up to `count` jobs, oldest first. A lease that runs out makes the job visible."""
        ...

    async def ack(self, job: Job) -> bool:
        """Done with it. False when the lease was lost meanwhile."""
        ...

    async def nack(self, job: Job, *, delay_ms: int = 0) -> bool:
        """Give it back. False when the lease was lost meanwhile."""
        ...

    async def extend(self, job: Job, lease_ms: int) -> bool:
        """Keep it longer. False when the lease was lost meanwhile."""
        ...

    async def emit(self, topic: str, body: bytes) -> None:
        """Tell whoever listens now; nobody's absence is remembered."""
        ...

    def listen(self, pattern: str) -> AsyncIterator[tuple[str, bytes]]:
        """Topics that match a shell pattern; a slow listener loses the oldest messages."""
        ...
