"""A gateway that asks its own machine for no key believes programs, not the pages they show."""

from __future__ import annotations

from pathlib import Path

import pytest
from api_harness import World, with_server
from msgspec.structs import replace

from din.access.scopes import NEEDS
from din.api.admission import Admission, Rules, Visitor
from din.domain.trust import Peer
from din.errors import Unauthenticated
from din.gateway.trust.keys import KeyBook
from din.store.sqlite import SqliteStore

EVIL = "http://evil.example"
ASKED = [
    ("GET", "/api/v1/nodes", b""),
    ("POST", "/api/v1/nodes/edge-1/drain", b""),
    ("POST", "/api/v1/models", b"{}"),
    ("POST", "/api/v1/heartbeat", b"x"),
    ("POST", "/infer?model=faces", b"x"),
    ("POST", "/v2/models/plain/infer", b"{}"),
]


@pytest.mark.parametrize("headers", [{"origin": EVIL}, {"host": "evil.example"},
                                     {"x-forwarded-for": "10.0.0.9"}])  # fmt: skip
@pytest.mark.parametrize("asked", ASKED)
def test_what_a_web_page_or_a_proxy_sends_needs_a_key(
    tmp_path: Path, asked: tuple[str, str, bytes], headers: dict[str, str]
) -> None:
    counted: list[str] = []

    async def story(world: World) -> None:
        client = await world.client()
        assert (await client.ask("GET", "/api/v1/nodes")).status == 200
        # On a connection that was believed before as well.
        answer = await client.ask(*asked, headers)
        assert answer.status == 401
        assert b"127.0.0.1" in answer.body
        assert counted == ["passed_on"]
        assert world.inference.calls == []

    with_server(tmp_path, story, admission=Admission(rules=Rules(count=counted.append)))


def test_health_is_told_to_everybody(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        answer = await (await world.client()).ask("GET", "/v2/health/live", b"", {"origin": EVIL})
        assert answer.status == 200

    with_server(tmp_path, story)


def test_nobody_of_an_insecure_network_makes_the_first_admin_key(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.sqlite", lambda: 0)
    admission = Admission(KeyBook(store, lambda: 0, bytes), Rules(is_key_required=True))
    here, needs = Peer("127.0.0.1"), NEEDS["POST", "/api/v1/keys"]
    assert Visitor(admission, here).admit(needs, {}).kind == "local"
    with pytest.raises(Unauthenticated):
        Visitor(admission, replace(here, address="10.0.0.9")).admit(needs, {})
