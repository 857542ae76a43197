"""Joins and tokens are written down before they are made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from enrolment_desk import ADMIN, MACHINE, Desk, at_desk, join_order, query
from msgspec.structs import replace

from din.domain.enrolment import CreateToken
from din.errors import Denied, Unavailable


def _full(_descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_tokens_and_joins_are_written_down_and_refused_when_they_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets: list[bytes] = []

    async def story(desk: Desk) -> None:
        enrolment = desk.enrolment
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", _full)
            with pytest.raises(Unavailable, match=r"token\.create"):
                await enrolment.create_token(CreateToken(), ADMIN)
        assert await enrolment.tokens() == ()
        token_id, secret = await desk.token()
        secrets.append(secret.encode())
        order = join_order(token_id, secret)
        with pytest.raises(Denied):
            await enrolment.join(replace(order, secret="A" * len(secret)), MACHINE)
        await enrolment.join(order, MACHINE)
        seen = [(each.what, each.address) for each in await desk.audited("")]
        assert ("token.create", "127.0.0.1") in seen
        assert ("node.enrol", "10.0.0.9") in seen
        (joined,) = (await desk.audit.query(query("node.enrol"))).items
        assert joined.entry.after["token_id"] == token_id

    at_desk(tmp_path, story)
    (path,) = (tmp_path / "audit").glob("*.jsonl")
    assert b"access.refuse" in path.read_bytes()
    assert secrets[0] not in path.read_bytes()
