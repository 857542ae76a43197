"""The audit log: who changed what, from where, written down before it is done.

A change that cannot be written down is refused. What happens by itself (a node comes, a wrong key
is shown) is noted without making anybody wait: notes are bounded in number and in time, and what
was left out is said. Everything is synced; one thread writes, so inference never waits for this
disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from din.access.limits import TokenBucket
from din.access.redaction import redacted, redacted_text
from din.domain.audit import AuditCheck, AuditEntry, AuditFact, AuditList, AuditQuery
from din.domain.malformed import MALFORMED
from din.domain.trust import GATEWAY, Caller
from din.errors import DinError, Unavailable
from din.store.journal import NOTHING, Dropped, Journal

NOTES_MAX: Final = 256
"""That wait for the disk at once."""
REFUSALS_PER_S: Final = 1.0
REFUSALS_BURST: Final = 60
"""Refused callers that are noted; the rest is counted."""
QUERY_LINES_MAX: Final = 1_000
ENTRY_BYTES_MAX: Final = 32 * 1024
DROPPED: Final = "audit.drop"
SUPPRESSED: Final = "audit.suppress"
REPAIRED: Final = "audit.repair"


class AuditLog:
    """One per gateway. `wall_clock_iso` is the time of day."""

    def __init__(
        self,
        folder: Path,
        wall_clock_iso: Callable[[], str],
        clock_ms: Callable[[], float],
        report: Callable[..., None],
        **limits: int,
    ) -> None:
        self._wall_clock_iso = wall_clock_iso
        self._clock_ms = clock_ms
        self._report = report
        self._journal = Journal(folder, self._say_dropped, **limits)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="din-audit")
        self._notes: list[bytes] = []
        self._left_out = 0
        self._bucket = TokenBucket(REFUSALS_PER_S, REFUSALS_BURST, clock_ms())
        self._writing: asyncio.Task[None] | None = None
        self._is_failing = False
        self._failure = ""
        """Why the last line could not be written; empty when it could."""
        self._problems: list[str] = []
        """Found when the log was opened, not written down yet."""

    async def open(self) -> None:
        """Find the end of the log and write down what was wrong with it. A disk that cannot take
        that refuses changes, not requests: it is reported only, and tried again at each line."""
        try:
            await self._append([])
        except Unavailable as error:
            self._report("audit log cannot be opened", error=error.message)

    async def _append(self, facts: Sequence[bytes]) -> None:
        try:
            problems = await self._in_thread(lambda: self._write(facts))
        except Unavailable as error:
            self._failure = error.message
            raise
        self._failure = ""
        for problem in problems:
            self._report("audit log repaired", warning=problem)

    def _write(self, facts: Sequence[bytes]) -> list[str]:
        """Write lines, and before them what was wrong with the log when it was opened, which this
        does where nobody could before; answers that. Raises Unavailable."""
        if not self._journal.is_open:
            self._problems += self._journal.open()
        told = [self._fact(GATEWAY, REPAIRED, "", outcome=each) for each in self._problems]
        if lines := [*told, *facts]:
            self._journal.append(lines)
        problems, self._problems = self._problems, []
        return problems

    async def close(self) -> None:
        """Write what waits, then close."""
        while self._writing is not None:
            with suppress(asyncio.CancelledError):
                await self._writing
        await self._in_thread(self._journal.close)
        self._thread.shutdown(wait=True)

    # Writing.

    @asynccontextmanager
    async def change(
        self,
        caller: Caller,
        what: str,
        target: str,
        *,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[None]:
        """Around one change: written first, and again when it fails. Raises Unavailable when it
        cannot be written, and then nothing was changed."""
        fact = self._fact(caller, what, target, before=before, after=after)
        try:
            await self._append([fact])
        except Unavailable as error:
            raise Unavailable(
                f"{what} of {target!r:.80} is refused, since the audit log cannot take it: "
                f"{error.message}",
                hint="make room on the gateway's disk; inference goes on meanwhile",
            ) from None
        try:
            yield
        except BaseException as error:
            told = error.message if isinstance(error, DinError) else type(error).__name__
            self.note(caller, what, target, outcome=f"failed: {told}")
            raise

    def note(
        self,
        caller: Caller,
        what: str,
        target: str = "",
        *,
        outcome: str = "",
        after: Mapping[str, Any] | None = None,
    ) -> None:
        """Write something down soon, without waiting."""
        if len(self._notes) >= NOTES_MAX:
            self._left_out += 1
            return
        self._notes.append(self._fact(caller, what, target, outcome=outcome, after=after))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_notes())

    def refused(self, caller: Caller, reason: str, target: str) -> None:
        """Note a caller that was turned away, when that is not too often."""
        if self._bucket.take(self._clock_ms()):
            self._left_out += 1
            return
        self.note(caller, "access.refuse", target, outcome=reason)

    async def _write_notes(self) -> None:
        try:
            while self._notes:
                batch, self._notes = self._notes, []
                await self._write_batch(batch)
        finally:
            self._writing = None

    async def _write_batch(self, batch: list[bytes]) -> None:
        left_out = self._left_out
        told = f"{left_out} more notes were left out"
        more = [self._fact(GATEWAY, SUPPRESSED, "", outcome=told)] if left_out else []
        try:
            await self._append([*batch, *more])
        except Unavailable as error:
            self._left_out += len(batch)
            if not self._is_failing:
                self._report("audit log cannot be written", error=error.message)
            self._is_failing = True
            return
        self._left_out -= left_out
        self._is_failing = False

    def _fact(
        self,
        caller: Caller,
        what: str,
        target: str,
        *,
        outcome: str = "",
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> bytes:
        fact = AuditFact(
            at=self._wall_clock_iso(),
            kind=caller.kind,
            who=caller.name,
            tenant=caller.tenant,
            address=caller.address,
            what=what,
            target=redacted_text(target),
            outcome=redacted_text(outcome),
            before=redacted(before or {}),
            after=redacted(after or {}),
        )
        body = msgspec.json.encode(fact)
        if len(body) <= ENTRY_BYTES_MAX:
            return body
        cut = {"left out": f"{len(body)} bytes"}
        return msgspec.json.encode(msgspec.structs.replace(fact, before=cut, after=cut))

    def _say_dropped(self, gone: Dropped) -> bytes:
        return self._fact(GATEWAY, DROPPED, "", after=msgspec.structs.asdict(gone))

    # Reading.

    async def query(self, query: AuditQuery) -> AuditList:
        """Newest first, at most QUERY_LINES_MAX. Raises Unavailable."""
        return await self._in_thread(lambda: AuditList(items=tuple(self._find(query))))

    def _find(self, query: AuditQuery) -> Iterator[AuditEntry]:
        left = min(query.limit, QUERY_LINES_MAX)
        for line in self._journal.newest_first():
            if not left:
                return
            try:
                entry = msgspec.json.decode(line, type=AuditEntry)
            except MALFORMED:
                continue  # `check` is who tells of lines that are none
            if _matches(entry.entry, query):
                left -= 1
                yield entry

    async def check(self) -> AuditCheck:
        """Whether every line is there as it was written, and more could be. Raises Unavailable."""
        if self._failure:
            told = f"lines could not be written: {self._failure}"
            with suppress(Unavailable):  # `_check` says so
                await self._append([self._fact(GATEWAY, REPAIRED, "", outcome=told)])
        return await self._in_thread(self._check)

    def _check(self) -> AuditCheck:
        if not self._journal.is_open:
            self._write([])
        walk = self._journal.walk()
        if self._failure:
            walk.add(f"lines cannot be written: {self._failure}")
        notes: list[str] = []
        is_begin_known = walk.first_seq <= 1 and walk.first_previous == NOTHING
        for line in self._journal.newest_first():
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                fact = msgspec.json.decode(line, type=AuditEntry).entry
                if fact.what == DROPPED:
                    gone = msgspec.convert(fact.after, Dropped)
                    notes.append(f"{fact.at}: lines {gone.first_seq} to {gone.last_seq} dropped")
                    end = (gone.last_seq + 1, gone.last_sha256)
                    is_begin_known |= end == (walk.first_seq, walk.first_previous)
                elif fact.what == REPAIRED:
                    notes.append(f"{fact.at}: {fact.outcome}")
        if not is_begin_known:
            walk.add(f"lines before {walk.first_seq} are missing, and no line says why")
        return AuditCheck(
            is_whole=not walk.problems,
            first_seq=walk.first_seq,
            last_seq=walk.last_seq,
            head_sha256=walk.last_sha256,
            problems=tuple(walk.problems),
            notes=tuple(reversed(notes)),
        )

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RuntimeError:
            raise Unavailable("the audit log is closed", hint="the gateway is stopping") from None


def _matches(fact: AuditFact, query: AuditQuery) -> bool:
    if fact.at < query.since or (query.until and fact.at >= query.until):
        return False
    if query.who and query.who not in (fact.who, fact.kind):
        return False
    if query.target and query.target not in (fact.target, fact.name):
        return False
    return not query.what or fact.what == query.what or fact.what.startswith(f"{query.what}.")
