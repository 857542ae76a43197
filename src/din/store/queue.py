"""The queue's table: leases, fencing and 24 h of deduplication. Called inside a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

from din.errors import Busy
from din.store.contract import DEDUPLICATION_MS, QUEUE_ROWS_MAX, Job

QUEUE_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS job(
    number INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, id TEXT NOT NULL,
    body BLOB NOT NULL, visible_ms INTEGER NOT NULL, lease INTEGER NOT NULL DEFAULT 0,
    deliveries INTEGER NOT NULL DEFAULT 0, UNIQUE(queue, id));
CREATE INDEX IF NOT EXISTS job_visible ON job(queue, visible_ms);
CREATE TABLE IF NOT EXISTS pushed(
    queue TEXT NOT NULL, id TEXT NOT NULL, until_ms INTEGER NOT NULL, PRIMARY KEY(queue, id));
CREATE INDEX IF NOT EXISTS pushed_until ON pushed(until_ms);
CREATE TABLE IF NOT EXISTS lease_counter(value INTEGER NOT NULL);
INSERT INTO lease_counter SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM lease_counter);
"""


class QueueTable:
    """Jobs of all queues. Times are the store's clock."""

    def __init__(self, connection: sqlite3.Connection, now_ms: Callable[[], int]) -> None:
        self._db = connection
        self._now_ms = now_ms
        self._rows: dict[str, int] = dict(
            connection.execute("SELECT queue, count(*) FROM job GROUP BY queue").fetchall()
        )

    def push(self, queue: str, id: str, body: bytes, delay_ms: int) -> bool:  # noqa: A002
        """Insert unless the id was seen within 24 h. Raises Busy over QUEUE_ROWS_MAX."""
        now_ms = self._now_ms()
        self._db.execute("DELETE FROM pushed WHERE until_ms <= ?", (now_ms,))
        try:
            self._db.execute(
                "INSERT INTO pushed VALUES(?, ?, ?)", (queue, id, now_ms + DEDUPLICATION_MS)
            )
        except sqlite3.IntegrityError:
            return False
        count = self._rows.get(queue, 0)
        if count >= QUEUE_ROWS_MAX:
            raise Busy(
                f"queue {queue!r} holds {count} jobs, its limit",
                hint="drain it or add consumers",
            )
        self._db.execute(
            "INSERT INTO job(queue, id, body, visible_ms) VALUES(?, ?, ?, ?)",
            (queue, id, body, now_ms + delay_ms),
        )
        self._rows[queue] = count + 1
        return True

    def pull(self, queue: str, count: int, lease_ms: int) -> tuple[Job, ...]:
        """Lease the oldest visible jobs."""
        now_ms = self._now_ms()
        rows = self._db.execute(
            "SELECT number, id, body, deliveries FROM job WHERE queue = ? AND visible_ms <= ? "
            "ORDER BY number LIMIT ?",
            (queue, now_ms, count),
        ).fetchall()
        jobs: list[Job] = []
        for number, job_id, body, deliveries in rows:
            lease = self._next_lease()
            self._db.execute(
                "UPDATE job SET visible_ms = ?, lease = ?, deliveries = ? WHERE number = ?",
                (now_ms + lease_ms, lease, deliveries + 1, number),
            )
            jobs.append(Job(queue, job_id, body, lease, deliveries + 1))
        return tuple(jobs)

    def ack(self, job: Job) -> bool:
        """Delete, if the lease still holds."""
        is_acked = self._change(job, "DELETE FROM job", ())
        self._rows[job.queue] -= is_acked
        return is_acked

    def nack(self, job: Job, delay_ms: int) -> bool:
        """Make visible again, if the lease still holds."""
        return self._change(
            job, "UPDATE job SET lease = 0, visible_ms = ?", (self._now_ms() + delay_ms,)
        )

    def extend(self, job: Job, lease_ms: int) -> bool:
        """Move the end of the lease, if it still holds."""
        return self._change(job, "UPDATE job SET visible_ms = ?", (self._now_ms() + lease_ms,))

    def _change(self, job: Job, statement: str, arguments: tuple[object, ...]) -> bool:
        cursor = self._db.execute(
            f"{statement} WHERE queue = ? AND id = ? AND lease = ? AND visible_ms > ?",
            (*arguments, job.queue, job.id, job.lease, self._now_ms()),
        )
        return cursor.rowcount == 1

    def _next_lease(self) -> int:
        self._db.execute("UPDATE lease_counter SET value = value + 1")
        return int(self._db.execute("SELECT value FROM lease_counter").fetchone()[0])
