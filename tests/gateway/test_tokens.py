"""A join token admits one machine, also when two show it in the same moment."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode
from pathlib import Path

import pytest
from enrolment_desk import NODE_ID, OTHER_ID, Desk, at_desk

from din.domain.enrolment import CreateToken
from din.errors import Busy, Conflict, Denied, NotFound
from din.gateway.nodes import tokens as tokens_module
from din.gateway.nodes.tokens import REMEMBERED_MS, TokenBook

KEY, OTHER_KEY = "11" * 32, "22" * 32


def test_of_two_machines_that_show_one_token_at_once_one_wins(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        shown = await desk.token()
        first, second = [await desk.tokens.check(*shown) for _ in range(2)]
        await desk.tokens.use(first, NODE_ID, KEY)
        with pytest.raises(Denied, match=f"was used by node {NODE_ID}"):
            await desk.tokens.use(second, OTHER_ID, OTHER_KEY)
        (view,) = await desk.tokens.list()
        assert (view.state, view.used_by) == ("used", NODE_ID)

    at_desk(tmp_path, story)


def test_one_machine_that_asks_twice_at_once_is_not_taken_for_two(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        shown = await desk.token()
        first, second = [await desk.tokens.check(*shown) for _ in range(2)]
        await desk.tokens.use(first, NODE_ID, KEY)
        await desk.tokens.use(second, NODE_ID, KEY)
        with pytest.raises(Denied, match="was used"):  # the id alone proves nothing
            await desk.tokens.use(await desk.tokens.check(*shown), NODE_ID, OTHER_KEY)

    at_desk(tmp_path, story)


def test_a_token_that_is_revoked_while_a_machine_joins_admits_it_no_more(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        shown = await desk.token()
        use = await desk.tokens.check(*shown)
        await desk.tokens.revoke(shown[0])
        with pytest.raises(Denied, match="was revoked"):
            await desk.tokens.use(use, NODE_ID, KEY)

    at_desk(tmp_path, story)


def test_the_store_holds_no_secret_and_the_list_shows_none(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        token_id, secret = await desk.token(labels={"line": "4"}, ttl_s=600)
        assert len(urlsafe_b64decode(secret + "==")) == 16
        (entry,) = await desk.store.list("trust/tokens/")
        assert secret.encode() not in entry.value
        (view,) = await desk.tokens.list()
        assert (view.id, view.state, view.expires_in_s) == (token_id, "open", 600)
        assert (view.labels, view.used_by) == ({"line": "4"}, "")
        use = await desk.tokens.check(token_id, secret)
        assert (use.id, use.labels) == (token_id, {"line": "4"})

    at_desk(tmp_path, story)


def test_wrong_secrets_and_unknown_ids_are_refused_and_use_nothing_up(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        token_id, secret = await desk.token()
        other_id, other = await desk.token()
        for shown in ("A" * 22, other, secret.swapcase(), ""):
            with pytest.raises(Denied, match=f"secret of join token {token_id} is wrong") as told:
                await desk.tokens.check(token_id, shown)
            assert "din token create" in told.value.hint
            assert secret not in told.value.story()
        with pytest.raises(Denied, match="is not known here"):
            await desk.tokens.check("ffffffff", secret)
        assert await desk.tokens.check(token_id, secret)
        assert await desk.tokens.check(other_id, other)

    at_desk(tmp_path, story)


def test_a_token_ends_to_the_millisecond_and_says_for_a_day_that_it_did(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        shown = await desk.token(ttl_s=60)
        desk.now_ms += 59_999
        assert await desk.tokens.check(*shown)
        desk.now_ms += 5_001
        with pytest.raises(Denied, match="expired 5 s ago"):
            await desk.tokens.check(*shown)
        (view,) = await desk.tokens.list()
        assert (view.state, view.expires_in_s) == ("expired", 0)
        desk.now_ms += REMEMBERED_MS
        with pytest.raises(Denied, match="is not known here"):
            await desk.tokens.check(*shown)
        assert await desk.tokens.list() == ()

    at_desk(tmp_path, story)


def test_a_used_token_lets_its_machine_in_again_until_it_ends(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        shown = await desk.token(ttl_s=60)
        await desk.tokens.use(await desk.tokens.check(*shown), NODE_ID, KEY)
        await desk.tokens.use(await desk.tokens.check(*shown), NODE_ID, KEY)
        with pytest.raises(Denied, match=f"used by node {NODE_ID}"):
            await desk.tokens.use(await desk.tokens.check(*shown), OTHER_ID, KEY)
        desk.now_ms += 60_000
        with pytest.raises(Denied, match="expired 0 s ago"):
            await desk.tokens.check(*shown)
        (view,) = await desk.tokens.list()
        assert (view.state, view.used_by) == ("used", NODE_ID)

    at_desk(tmp_path, story)


def test_a_revoked_token_is_gone_and_revoking_nothing_is_said(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        token_id, secret = await desk.token()
        await desk.tokens.revoke(token_id)
        with pytest.raises(Denied, match="was revoked, or is of another time"):
            await desk.tokens.check(token_id, secret)
        for unknown in (token_id, "", "x" * 500):
            with pytest.raises(NotFound) as told:
                await desk.tokens.revoke(unknown)
            assert len(told.value.message) < 100

    at_desk(tmp_path, story)


def test_a_token_is_found_by_a_beginning_that_means_one(tmp_path: Path) -> None:
    ids = iter(("aa110000", "aa120000", "bb130000"))

    def chosen(nbytes: int) -> bytes:
        return bytes.fromhex(next(ids)) if nbytes == 4 else bytes(nbytes)

    async def story(desk: Desk) -> None:
        desk.tokens = TokenBook(desk.store, lambda: desk.now_ms, chosen)
        desk.enrolment = desk.made(tmp_path)
        for _ in range(3):
            await desk.token()
        assert (await desk.tokens.find("bb")).id == "bb130000"
        with pytest.raises(Conflict, match="means 2 join tokens") as told:
            await desk.tokens.find("aa1")
        assert told.value.hint == "ids: aa110000 (open), aa120000 (open)"
        for unknown in ("cc", "", "x" * 500):
            with pytest.raises(NotFound):
                await desk.tokens.find(unknown)
        # What admits nobody any more is meant only where nothing else is.
        use = await desk.tokens.check("aa110000", "A" * 22)
        await desk.tokens.use(use, NODE_ID, "11" * 32)
        assert (await desk.tokens.find("aa")).id == "aa120000"
        assert (await desk.tokens.find("aa11")).state == "used"

    at_desk(tmp_path, story)


def test_there_are_no_more_tokens_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "TOKENS_MAX", 2)

    async def story(desk: Desk) -> None:
        first, _ = [await desk.tokens.create(CreateToken(), "ab" * 32) for _ in range(2)]
        with pytest.raises(Busy, match="2 join tokens are open"):
            await desk.tokens.create(CreateToken(), "ab" * 32)
        await desk.tokens.revoke(first.id)
        assert await desk.tokens.create(CreateToken(), "ab" * 32)

    at_desk(tmp_path, story)


def test_used_and_expired_tokens_make_room_and_many_at_once_make_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "TOKENS_MAX", 3)

    async def story(desk: Desk) -> None:
        used = await desk.token(ttl_s=900)
        await desk.tokens.use(await desk.tokens.check(*used), NODE_ID, KEY)
        expired, _ = await desk.token(ttl_s=1)
        kept, _ = await desk.token(ttl_s=600)
        desk.now_ms += 2000
        fresh = [desk.tokens.create(CreateToken(), "ab" * 32) for _ in range(4)]
        made = await asyncio.gather(*fresh, return_exceptions=True)
        assert [type(each) for each in made].count(Busy) == 2
        left = {each.id for each in await desk.tokens.list()}
        assert len(left) == 3
        assert kept in left
        assert not {used[0], expired} & left

    at_desk(tmp_path, story)
