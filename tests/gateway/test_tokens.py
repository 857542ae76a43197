"""A join token admits one machine, also when two show it in the same moment."""

from __future__ import annotations

from pathlib import Path

import pytest
from enrolment_desk import NODE_ID, OTHER_ID, Desk, at_desk

from din.errors import Denied

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
