"""The audit log says who changed what before it happens, and bounds what strangers can write."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from din.domain.audit import AuditFact, AuditQuery
from din.domain.trust import Caller
from din.errors import NotFound, Unavailable
from din.gateway.trust.audit import NOTES_MAX, REFUSALS_BURST, AuditLog

ADMIN = Caller(kind="key", name="0badcafe", tenant="line-4", address="10.0.0.9")
STRANGER = Caller(kind="stranger", address="10.6.6.6")


class Clock:
    """Time of day and monotonic time as a test sets them."""

    def __init__(self) -> None:
        self.second = 0
        self.reports: list[tuple[str, dict[str, Any]]] = []

    def iso(self) -> str:
        return f"2026-01-01T00:00:{self.second:02}.000+00:00"

    def ms(self) -> float:
        return self.second * 1000.0

    def report(self, event: str, **facts: Any) -> None:
        self.reports.append((event, facts))


def audited(
    folder: Path, story: Callable[[AuditLog, Clock], Awaitable[None]], **limits: int
) -> None:
    async def run() -> None:
        clock = Clock()
        log = AuditLog(folder / "audit", clock.iso, clock.ms, clock.report, **limits)
        await log.open()
        try:
            await story(log, clock)
        finally:
            await log.close()

    asyncio.run(run())


async def facts(log: AuditLog, **query: Any) -> list[AuditFact]:
    return [each.entry for each in (await log.query(AuditQuery(**query))).items]


async def settled(log: AuditLog) -> None:
    while log._writing is not None:
        await log._writing


def test_a_change_is_written_before_it_is_made(tmp_path: Path) -> None:
    async def story(log: AuditLog, clock: Clock) -> None:
        async with log.change(ADMIN, "model.remove", "faces", before={"version": "3"}):
            (fact,) = await facts(log)
        assert (fact.kind, fact.who, fact.tenant) == ("key", "0badcafe", "line-4")
        assert (fact.address, fact.what, fact.target) == ("10.0.0.9", "model.remove", "faces")
        assert (fact.at, fact.before, fact.after) == (clock.iso(), {"version": "3"}, {})

    audited(tmp_path, story)


def test_a_change_that_failed_says_so(tmp_path: Path) -> None:
    async def story(log: AuditLog, clock: Clock) -> None:
        with pytest.raises(NotFound):
            async with log.change(ADMIN, "model.remove", "faces"):
                raise NotFound("no model 'faces'")
        await settled(log)
        newest, oldest = await facts(log)
        assert (newest.outcome, oldest.outcome) == ("failed: no model 'faces'", "")

    audited(tmp_path, story)


def test_a_change_that_cannot_be_written_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(log: AuditLog, clock: Clock) -> None:
        made = False
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", _full)
            with pytest.raises(Unavailable, match=r"key.create of 'ci' is refused.*No space left"):
                async with log.change(ADMIN, "key.create", "ci"):
                    made = True
        assert not made
        assert await facts(log) == []
        async with log.change(ADMIN, "key.create", "ci"):
            made = True
        assert made

    audited(tmp_path, story)


def test_a_log_that_could_not_be_opened_is_opened_once_there_is_room(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    folder.write_text("a file is in the way")

    async def story(log: AuditLog, clock: Clock) -> None:
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"key.create of 'ci' is refused.*audit failed"):
                async with log.change(ADMIN, "key.create", "ci"):
                    pass
            with pytest.raises(Unavailable, match="audit failed"):
                await log.check()
        log.note(ADMIN, "node.join", "aa")
        await settled(log)
        assert [event for event, _ in clock.reports] == [
            "audit log cannot be opened",
            "audit log cannot be written",
        ]
        folder.unlink()
        async with log.change(ADMIN, "key.create", "ci"):
            pass
        found = await facts(log)
        assert [each.what for each in found] == ["key.create"]
        assert (await log.check()).is_whole

    audited(tmp_path, story)


def test_a_check_says_that_no_line_can_be_written_until_one_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(log: AuditLog, clock: Clock) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", _full)
            with pytest.raises(Unavailable):
                async with log.change(ADMIN, "key.create", "ci"):
                    pass
            check = await log.check()
            assert not check.is_whole
            assert "No space left" in check.problems[0]
        check = await log.check()
        assert (check.is_whole, check.last_seq) == (True, 1)
        assert "No space left" in check.notes[0]
        assert (await log.check()).last_seq == 1

    audited(tmp_path, story)


def test_what_was_wrong_is_written_down_later_where_it_could_not_be_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write(log: AuditLog, clock: Clock) -> None:
        async with log.change(ADMIN, "key.create", "ci"):
            pass

    audited(tmp_path, write)
    (path,) = (tmp_path / "audit").glob("*.jsonl")
    path.write_bytes(path.read_bytes() + b'{"seq":2,')
    write_to_disk = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, _: _full(descriptor))

    async def story(log: AuditLog, clock: Clock) -> None:
        assert [event for event, _ in clock.reports] == ["audit log cannot be opened"]
        monkeypatch.setattr(os, "write", write_to_disk)
        await write(log, clock)
        assert [each.what for each in await facts(log)] == [
            "key.create",
            "audit.repair",
            "key.create",
        ]
        assert (await log.check()).is_whole

    audited(tmp_path, story)


def _full(_descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_note_that_cannot_be_written_is_counted_and_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(log: AuditLog, clock: Clock) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", _full)
            for _ in range(3):
                log.note(ADMIN, "node.join", "aa")
                await settled(log)
        assert [event for event, _ in clock.reports] == ["audit log cannot be written"]
        log.note(ADMIN, "node.join", "bb")
        await settled(log)
        assert [each.outcome for each in await facts(log, what="audit")] == [
            "3 more notes were left out"
        ]

    audited(tmp_path, story)


def test_refusals_are_noted_up_to_a_rate_and_the_rest_is_counted(tmp_path: Path) -> None:
    async def story(log: AuditLog, clock: Clock) -> None:
        for _ in range(REFUSALS_BURST + 40):
            log.refused(STRANGER, "unknown", "POST /infer")
        await settled(log)
        refused = await facts(log, what="access.refuse", limit=1_000)
        assert len(refused) == REFUSALS_BURST
        assert {(each.address, each.outcome) for each in refused} == {("10.6.6.6", "unknown")}
        assert [each.outcome for each in await facts(log, what="audit.suppress")] == [
            "40 more notes were left out"
        ]

    audited(tmp_path, story)


def test_notes_that_wait_are_bounded(tmp_path: Path) -> None:
    async def story(log: AuditLog, clock: Clock) -> None:
        for _ in range(NOTES_MAX + 7):
            log.note(ADMIN, "node.join", "aa")
        await settled(log)
        assert len(await facts(log, what="node", limit=1_000)) == NOTES_MAX
        assert (await facts(log, what="audit"))[0].outcome == "7 more notes were left out"

    audited(tmp_path, story)


def test_queries_by_time_who_what_and_target(tmp_path: Path) -> None:
    async def story(log: AuditLog, clock: Clock) -> None:
        for clock.second, what, target in (
            (1, "model.register", "faces"),
            (2, "model.remove", "faces"),
            (3, "modelling.x", "other"),
        ):
            async with log.change(ADMIN, what, target):
                pass
        clock.second = 4
        async with log.change(STRANGER, "model.register", "b"):
            pass
        at = "2026-01-01T00:00:0{}.000+00:00".format
        assert [each.what for each in await facts(log, what="model")] == [
            "model.register",
            "model.remove",
            "model.register",
        ]
        assert len(await facts(log, since=at(2), until=at(4))) == 2
        assert len(await facts(log, who="0badcafe")) == 3
        assert len(await facts(log, who="stranger")) == 1
        assert len(await facts(log, target="faces")) == 2
        named = {"name": "edge-1"}
        async with log.change(ADMIN, "node.label", "ab" * 8, after=named):
            pass
        async with log.change(ADMIN, "node.revoke", "ab" * 8, before=named):
            pass
        assert len(await facts(log, target="edge-1")) == len(await facts(log, target="ab" * 8)) == 2
        async with log.change(STRANGER, "model.register", "b"):
            pass
        assert [each.target for each in await facts(log, limit=1)] == ["b"]

    audited(tmp_path, story)


def test_a_whole_log_is_whole_after_rotation_and_restart(tmp_path: Path) -> None:
    async def story(log: AuditLog, clock: Clock) -> None:
        for _ in range(60):
            async with log.change(ADMIN, "model.register", "faces"):
                pass
        check = await log.check()
        assert (check.is_whole, check.problems) == (True, ())
        assert check.first_seq > 1
        assert any("dropped" in note for note in check.notes)

    audited(tmp_path, story, file_bytes_max=2_000, files_max=3)

    async def later(log: AuditLog, clock: Clock) -> None:
        assert (await log.check()).is_whole
        files = sorted((tmp_path / "audit").glob("*.jsonl"))
        files[0].unlink()
        check = await log.check()
        assert not check.is_whole
        assert "no line says why" in check.problems[0]

    audited(tmp_path, later, file_bytes_max=2_000, files_max=3)


def test_an_edited_line_is_found(tmp_path: Path) -> None:
    async def story(log: AuditLog, clock: Clock) -> None:
        for target in ("faces", "other"):
            async with log.change(ADMIN, "model.remove", target):
                pass
        (path,) = (tmp_path / "audit").glob("*.jsonl")
        path.write_bytes(path.read_bytes().replace(b"faces", b"races"))
        check = await log.check()
        assert (check.is_whole, len(check.problems)) == (False, 1)
        assert "line 1 was changed" in check.problems[0]

    audited(tmp_path, story)


def test_what_was_repaired_at_start_stands_in_the_log(tmp_path: Path) -> None:
    async def story(log: AuditLog, clock: Clock) -> None:
        async with log.change(ADMIN, "model.remove", "faces"):
            pass

    audited(tmp_path, story)
    (path,) = (tmp_path / "audit").glob("*.jsonl")
    path.write_bytes(path.read_bytes() + b'{"seq":2')

    async def later(log: AuditLog, clock: Clock) -> None:
        await settled(log)
        check = await log.check()
        assert check.is_whole
        assert "unfinished line" in check.notes[0]

    audited(tmp_path, later)


def test_a_log_that_cannot_be_opened_refuses_changes_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("a file is in the way")

    async def story(log: AuditLog, clock: Clock) -> None:
        assert clock.reports[0][0] == "audit log cannot be opened"
        log.note(ADMIN, "node.join", "aa")
        await settled(log)
        with pytest.raises(Unavailable, match="refused"):
            async with log.change(ADMIN, "key.create", "ci"):
                pass

    audited(tmp_path, story)


def test_secrets_are_not_written(tmp_path: Path) -> None:
    async def story(log: AuditLog, clock: Clock) -> None:
        key = "din_0badcafe." + "S" * 43
        log.refused(STRANGER, "unknown", f"GET /?key={key}")
        async with log.change(ADMIN, "key.create", key, after={"secret": "S" * 43, "text": key}):
            pass
        await settled(log)
        (path,) = (tmp_path / "audit").glob("*.jsonl")
        assert b"SSSS" not in path.read_bytes()

    audited(tmp_path, story)
