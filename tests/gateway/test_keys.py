"""Keys in store and memory: made once, counted at once, gone at once, there after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from din.domain.keys import CreateKey
from din.errors import Conflict, NotFound, TooLarge, Unavailable
from din.gateway.trust import keys as module
from din.gateway.trust.keys import Held, KeyBook, Refusal
from din.store.sqlite import SqliteStore

ORDER = CreateKey(name="ci", scopes=("infer",))


class Desk:
    """A book over a real store, with a clock that a test turns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now_ms = 1_000_000
        self.random = Random(1)
        self.store: SqliteStore
        self.book: KeyBook

    async def open(self) -> KeyBook:
        self.store = SqliteStore(self.path, lambda: self.now_ms)
        await self.store.open()
        self.book = KeyBook(self.store, lambda: self.now_ms, self.random.randbytes)
        await self.book.load()
        return self.book

    def shown(self, text: str) -> Held | Refusal:
        return self.book.show(text, self.now_ms)

    def reason(self, text: str) -> str:
        found = self.shown(text)
        return found.reason if isinstance(found, Refusal) else "held"


def at_desk(folder: Path, story: Callable[[Desk], Awaitable[None]]) -> None:
    async def run() -> None:
        desk = Desk(folder / "store.sqlite")
        await desk.open()
        try:
            await story(desk)
        finally:
            await desk.store.close()

    asyncio.run(run())


def test_a_key_counts_from_the_moment_it_is_made(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        made = await desk.book.create(ORDER, "local")
        held = desk.shown(made.key)
        assert isinstance(held, Held)
        assert (held.record.id, held.record.scopes) == (made.view.id, ("infer",))
        assert (made.view.state, made.view.created_by) == ("active", "local")

    at_desk(tmp_path, story)


def test_the_store_holds_no_secret(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        made = await desk.book.create(ORDER, "local")
        secret = made.key.partition(".")[2].encode()
        await desk.store.close()
        assert secret not in desk.path.read_bytes()

    at_desk(tmp_path, story)


def test_wrong_keys_are_told_apart_in_metrics_and_not_to_the_caller(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        made = await desk.book.create(ORDER, "local")
        wrong = desk.shown(made.key[:-1] + ("A" if made.key[-1] != "A" else "B"))
        unknown = desk.shown("din_ffffffff." + "A" * 43)
        assert isinstance(wrong, Refusal)
        assert isinstance(unknown, Refusal)
        assert (wrong.reason, unknown.reason) == ("secret", "unknown")
        assert wrong.told.replace(made.view.id, "ffffffff") == unknown.told
        assert desk.reason("hello") == "malformed"

    at_desk(tmp_path, story)


def test_a_revoked_key_stops_counting_where_it_is_held(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        made = await desk.book.create(ORDER, "local")
        held = desk.shown(made.key)
        assert isinstance(held, Held)
        assert desk.book.is_current(held)
        view = await desk.book.revoke("ci")
        assert view.state == "revoked"
        assert not desk.book.is_current(held)
        assert desk.reason(made.key) == "revoked"
        assert (await desk.book.revoke(made.view.id)).revoked_at == view.revoked_at

    at_desk(tmp_path, story)


def test_a_key_expires_where_it_is_held(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        made = await desk.book.create(
            CreateKey(name="brief", scopes=("infer",), life_s=60), "local"
        )
        held = desk.shown(made.key)
        assert isinstance(held, Held)
        desk.now_ms += 59_999
        assert desk.book.is_current(held)
        desk.now_ms += 1
        assert not desk.book.is_current(held)
        assert desk.reason(made.key) == "expired"

    at_desk(tmp_path, story)


def test_keys_survive_a_restart_with_their_last_use(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        kept = await desk.book.create(ORDER, "local")
        gone = await desk.book.create(CreateKey(name="old", scopes=("admin",)), "local")
        await desk.book.revoke(gone.view.id)
        desk.shown(kept.key)
        await desk.book.flush()
        await desk.store.close()
        await desk.open()
        assert desk.reason(kept.key) == "held"
        assert desk.reason(gone.key) == "revoked"
        assert desk.book.find("ci").used_at is not None

    at_desk(tmp_path, story)


def test_asking_writes_once_in_ten_minutes(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        made = await desk.book.create(ORDER, "local")
        held = desk.shown(made.key)
        for _ in range(100):
            desk.now_ms += 1_000
            again = desk.shown(made.key)
            assert isinstance(again, Held)
            assert isinstance(held, Held)
            assert again.record is held.record
        desk.now_ms += module.USED_STEP_MS
        assert not desk.book.is_current(held)
        renewed = desk.shown(made.key)
        assert isinstance(renewed, Held)
        assert renewed.record.used_ms == desk.now_ms

    at_desk(tmp_path, story)


def test_connections_of_one_key_share_its_rate(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        order = CreateKey(name="slow", scopes=("infer",), requests_per_s=1.0, burst=2)
        made = await desk.book.create(order, "local")
        one, two = desk.shown(made.key), desk.shown(made.key)
        assert isinstance(one, Held)
        assert isinstance(two, Held)
        assert one.bucket is two.bucket is not None

    at_desk(tmp_path, story)


def test_the_first_admin_key_is_known_until_it_is_revoked(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.book.create(ORDER, "local")
        assert not desk.book.has_admin()
        made = await desk.book.create(CreateKey(name="root", scopes=("admin",)), "local")
        assert desk.book.has_admin()
        await desk.book.revoke(made.view.id)
        assert not desk.book.has_admin()

    at_desk(tmp_path, story)


def test_keys_are_found_by_id_its_beginning_or_name(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        one = await desk.book.create(ORDER, "local")
        await desk.book.create(ORDER, "local")
        assert desk.book.find(one.view.id[:7]).id == one.view.id
        with pytest.raises(Conflict, match="2 API keys"):
            desk.book.find("ci")
        with pytest.raises(NotFound, match="'cj'"):
            desk.book.find("cj")
        with pytest.raises(NotFound):
            desk.book.find("")

    at_desk(tmp_path, story)


def test_a_full_book_forgets_what_has_ended_and_then_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEYS_MAX", 2)

    async def story(desk: Desk) -> None:
        old = await desk.book.create(ORDER, "local")
        await desk.book.create(ORDER, "local")
        with pytest.raises(TooLarge, match="2 API keys are active"):
            await desk.book.create(ORDER, "local")
        await desk.book.revoke(old.view.id)
        await desk.book.create(ORDER, "local")
        assert desk.reason(old.key) == "unknown"
        assert len(desk.book.list().items) == 2

    at_desk(tmp_path, story)


def test_a_key_that_cannot_be_stored_was_never_made(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        kept = await desk.book.create(ORDER, "local")
        await desk.store.close()
        with pytest.raises(Unavailable):
            await desk.book.create(ORDER, "local")
        with pytest.raises(Unavailable):
            await desk.book.revoke(kept.view.id)
        assert [each.id for each in desk.book.list().items] == [kept.view.id]
        assert desk.reason(kept.key) == "held"

    at_desk(tmp_path, story)
