"""Who is let in: keys, scopes, tenants, limits and guesses, on both halves of the front."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from api_harness import Answer, Client, World, until, with_server
from msgspec.structs import replace

from din.api.admission import REFUSED_BODY_BYTES_MAX, Admission, Rules, Visitor
from din.api.limits import FrontLimits
from din.domain.keys import CreateKey, KeyCreated
from din.domain.trust import Caller, Peer, PeerName
from din.errors import Denied, Unauthenticated
from din.gateway.trust.keys import KeyBook
from din.store.sqlite import SqliteStore

INFER = ("POST", "/infer?model=faces", b"x" * 10)
OIP_BODY = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'
OIP = ("POST", "/v2/models/plain/infer", OIP_BODY)
NODES = ("GET", "/api/v1/nodes")
NODE_ID = "00000000000000aa"


class Desk:
    """Keys, an admission over them, and what it told."""

    def __init__(self, folder: Path, *, is_key_required: bool = True) -> None:
        self.now_ms = 1_000_000
        self.counted: Counter[str] = Counter()
        self.told: list[tuple[str, str]] = []
        self.revoked: set[str] = set()
        self.store = SqliteStore(folder / "store.sqlite", lambda: self.now_ms)
        self.book = KeyBook(self.store, lambda: self.now_ms, Random(1).randbytes)
        self.admission = Admission(
            self.book,
            Rules(
                cluster="default",
                is_key_required=is_key_required,
                refusal_of_node=lambda node: "it was revoked" if node in self.revoked else "",
                count=self._count,
                tell=self._tell,
            ),
            lambda: float(self.now_ms),
        )

    def _count(self, reason: str) -> None:
        self.counted[reason] += 1

    def _tell(self, caller: Caller, reason: str, target: str) -> None:
        self.told.append((reason, target))

    async def key(self, *scopes: str, **fields: Any) -> KeyCreated:
        order = CreateKey(name="test", scopes=scopes, **fields)
        return await self.book.create(order, "test")


class Play:
    """A server whose callers need keys."""

    def __init__(self, world: World, desk: Desk) -> None:
        self.world, self.desk = world, desk

    async def ask(self, asked: tuple[Any, ...], key: str = "", client: Client | None = None):
        method, path, body = (*asked, b"")[:3]
        client = client or await self.world.client()
        headers = {"authorization": f"Bearer {key}"} if key else {}
        if path == INFER[1]:
            headers["content-type"] = "image/jpeg"
        return await client.ask(method, path, body, headers)


def play(folder: Path, story, limits: FrontLimits | None = None, **settings: Any) -> None:
    desk = Desk(folder, **settings)

    async def test(world: World) -> None:
        await desk.store.open()
        try:
            await story(Play(world, desk))
        finally:
            await desk.store.close()

    with_server(folder, test, limits or FrontLimits(linger_s=0.05), desk.admission)


def error_of(answer: Answer) -> dict[str, str]:
    found = answer.json()
    return found.get("din") or found["error"]


@pytest.mark.parametrize("asked", [INFER, OIP, NODES, ("GET", "/v2")])
def test_without_a_key_nothing_but_health_is_answered(tmp_path: Path, asked) -> None:
    async def story(play: Play) -> None:
        answer = await play.ask(asked)
        assert (answer.status, error_of(answer)["code"]) == (401, "DIN-710")
        assert answer.headers["www-authenticate"] == 'bearer realm="din"'
        assert "din key create" in error_of(answer)["hint"]
        for path in ("/", "/v2/health/live", "/v2/health/ready"):
            assert (await play.ask(("GET", path))).status == 200
        assert play.world.inference.calls == []
        assert play.desk.counted == {"missing": 1}

    play(tmp_path, story)


def test_a_key_opens_what_its_scope_names_in_both_halves(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        infer = (await play.desk.key("infer")).key
        watch = (await play.desk.key("metrics:read")).key
        assert [(await play.ask(each, infer)).status for each in (INFER, OIP)] == [200, 200]
        assert (await play.ask(NODES, watch)).status == 200
        for asked, key in ((INFER, watch), (OIP, watch), (NODES, infer)):
            answer = await play.ask(asked, key)
            error = error_of(answer)
            assert (answer.status, error["code"]) == (403, "DIN-700")
            assert "needs scope" in error["message"]
            needed = "metrics:read" if asked is NODES else "infer"
            assert f"din key create NAME --scope {needed} --save FILE" in error["hint"]
            assert "holds infer" in error["message"] or "holds metrics:read" in error["message"]
        assert play.desk.counted == {"scope": 3}

    play(tmp_path, story)


def test_each_api_tells_it_in_its_own_shape(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        infer, oip, api = [(await play.ask(each)).json() for each in (INFER, OIP, NODES)]
        assert (infer["status"], infer["error"]["code"]) == ("failed", "DIN-710")
        assert isinstance(oip["error"], str)
        assert api["error"]["code"] == "DIN-710"

    play(tmp_path, story)


def test_x_api_key_works_as_well(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        key = (await play.desk.key("infer", "metrics:read")).key
        client = await play.world.client()
        for method, path, body in (INFER, (*NODES, b"")):
            headers = {"x-api-key": key, "content-type": "image/jpeg"}
            answer = await client.ask(method, path, body, headers)
            assert answer.status == 200
        wrong = await client.ask("GET", "/api/v1/nodes", b"", {"x-api-key": "letmein"})
        assert wrong.status == 401
        assert play.desk.counted == {"malformed": 1}

    play(tmp_path, story)


def test_a_revoked_key_ends_on_an_open_connection(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        made = await play.desk.key("infer")
        client = await play.world.client()
        assert (await play.ask(OIP, made.key, client)).status == 200
        await play.desk.book.revoke(made.view.id)
        answer = await play.ask(OIP, made.key, client)
        assert (answer.status, play.desk.counted) == (401, {"revoked": 1})
        assert "revoked" in error_of(answer)["message"]

    play(tmp_path, story)


def test_an_expired_key_ends_on_an_open_connection(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        made = await play.desk.key("metrics:read", life_s=60)
        client = await play.world.client()
        assert (await play.ask(NODES, made.key, client)).status == 200
        play.desk.now_ms += 60_000
        answer = await play.ask(NODES, made.key, client)
        assert (answer.status, play.desk.counted) == (401, {"expired": 1})
        assert "din key create NAME --scope metrics:read" in error_of(answer)["hint"]

    play(tmp_path, story)


def test_a_connection_may_change_its_key_and_lose_it(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        infer = (await play.desk.key("infer")).key
        watch = (await play.desk.key("metrics:read")).key
        client = await play.world.client()
        seen = [
            (await play.ask(asked, key, client)).status
            for asked, key in ((OIP, infer), (NODES, watch), (OIP, watch), (OIP, infer), (OIP, ""))
        ]
        assert seen == [200, 200, 403, 200, 401]

    play(tmp_path, story)


def test_guesses_are_counted_by_address_and_told_to_wait(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        made = await play.desk.key("infer")
        guess = made.key[:-1] + ("A" if made.key[-1] != "A" else "B")
        answers = [await play.ask(each, guess) for each in [OIP, NODES] * 6]
        assert [each.status for each in answers] == [401] * 10 + [429] * 2
        assert int(answers[-1].headers["retry-after"]) == 60
        assert (await play.ask(OIP, made.key)).status == 200
        assert len(play.desk.told) == 10
        play.desk.now_ms += 60_000
        assert (await play.ask(OIP, guess)).status == 401
        assert play.desk.counted == {"secret": 13, "limited": 2}
        assert made.key.partition(".")[2][:20] not in str([each.body for each in answers])

    play(tmp_path, story)


def test_a_key_over_its_rate_waits_and_keeps_its_connection(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        made = await play.desk.key("infer", "metrics:read", requests_per_s=0.5, burst=2)
        client = await play.world.client()
        answers = [await play.ask(each, made.key, client) for each in (OIP, NODES, OIP, NODES)]
        assert [each.status for each in answers] == [200, 200, 429, 429]
        assert [each.headers["retry-after"] for each in answers[2:]] == ["2", "2"]
        assert (await play.ask(("GET", "/v2/health/live"), made.key, client)).status == 200
        play.desk.now_ms += 2_000
        assert (await play.ask(OIP, made.key, client)).status == 200
        assert len(play.world.inference.calls) == 2

    play(tmp_path, story)


def test_a_key_has_its_own_body_limit_in_both_halves(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        made = await play.desk.key("infer", "models:write", body_bytes_max=100)
        big = b"x" * 101
        for asked in (
            ("POST", "/infer?model=faces", big),
            ("POST", "/api/v1/models", big),
            ("PUT", "/api/v1/artifacts/" + "0" * 64, big),
        ):
            answer = await play.ask(asked, made.key)
            error = error_of(answer)
            assert (answer.status, "100" in error["message"]) == (413, True)
            assert "--body-max" in error["hint"]
        chunked = b"65\r\n" + big + b"\r\n0\r\n\r\n"
        client = await play.world.client()
        client.send(
            b"POST /api/v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n",
            f"authorization: Bearer {made.key}\r\n\r\n".encode(),
            chunked,
        )
        assert (await client.read()).status == 413

    play(tmp_path, story)


def test_a_stranger_is_refused_before_its_body_is_read(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        for path in (b"/infer?model=faces", b"/api/v1/models"):
            client = await play.world.client()
            client.send(
                b"POST "
                + path
                + b" HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 60000000\r\n\r\n"
            )
            assert (await client.read()).status == 401
            assert await client.is_closed()
            assert play.world.front.buffered_bytes == 0

    play(tmp_path, story)


def test_a_body_that_a_key_may_not_send_is_not_asked_for(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        made = await play.desk.key("metrics:read")
        for head in (b"content-length: %d" % (REFUSED_BODY_BYTES_MAX + 1), b"expect: 100-continue"):
            client = await play.world.client()
            client.send(
                b"POST /infer?model=faces HTTP/1.1\r\nhost: 127.0.0.1\r\n",
                f"authorization: Bearer {made.key}\r\n".encode(),
                head,
                b"\r\n\r\n" if b"length" in head else b"\r\ncontent-length: 5\r\n\r\n",
            )
            assert (await client.read()).status == 403
            assert await client.is_closed()

    play(tmp_path, story)


def test_pipelined_requests_are_each_held_against_their_own_key(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        infer = (await play.desk.key("infer", tenant="line-4")).key
        watch = (await play.desk.key("metrics:read")).key
        client = await play.world.client()
        for asked, key in ((NODES, watch), (OIP, infer), (NODES, infer), (NODES, watch)):
            method, path, body = (*asked, b"")[:3]
            client.send(
                f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
                f"authorization: Bearer {key}\r\n\r\n".encode(),
                body,
            )
        assert [(await client.read()).status for _ in range(4)] == [200, 200, 403, 200]
        assert [call.tenant for call in play.world.inference.calls] == ["line-4"]

    play(tmp_path, story)


def test_models_of_another_tenant_do_not_exist(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        models = play.world.inference.models
        models["plain"] = replace(models["plain"], tenant="line-5")
        key = (await play.desk.key("infer", "models:write", tenant="line-4")).key
        admin = (await play.desk.key("admin")).key
        owner = (await play.desk.key("infer", tenant="line-5")).key
        for asked in (
            OIP,
            ("POST", "/infer?model=plain&dry-run=true", b"{}"),
            ("GET", "/v2/models/plain"),
            ("GET", "/v2/models/plain/ready"),
            ("GET", "/api/v1/models/plain"),
            ("DELETE", "/api/v1/models/plain"),
            ("GET", "/api/v1/plan?model=plain"),
        ):
            hidden = error_of(await play.ask(asked, key))
            absent = (asked[0], asked[1].replace("plain", "palin"), *asked[2:])
            assert hidden["code"] == "DIN-500"
            unknown = error_of(await play.ask(absent, key))
            assert unknown["message"].replace("palin", "plain") == hidden["message"]
            assert unknown["hint"] == hidden["hint"]
        assert play.world.control.removed == []
        assert (await play.ask(OIP, owner)).status == 200
        assert (await play.ask(OIP, admin)).status == 200
        assert (await play.ask(INFER, key)).status == 200

    play(tmp_path, story)


def test_this_machine_needs_no_key_unless_told_so_but_a_wrong_one_is_refused(
    tmp_path: Path,
) -> None:
    async def story(play: Play) -> None:
        assert [(await play.ask(each)).status for each in (OIP, NODES)] == [200, 200]
        answer = await play.ask(OIP, "din_ffffffff." + "A" * 43)
        assert (answer.status, play.desk.counted) == (401, {"unknown": 1})
        client = await play.world.client()
        basic = await client.ask("GET", "/api/v1/nodes", b"", {"authorization": "Basic YTpi"})
        assert basic.status == 200

    play(tmp_path, story, is_key_required=False)


def test_nodes_of_this_machine_need_no_key(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        tlv = {"content-type": "application/x-din-tlv"}
        client = await play.world.client()
        assert (await client.ask("POST", "/api/v1/nodes", b"hello", tlv)).status == 200
        assert (await client.ask("POST", "/api/v1/heartbeat", b"beat")).status == 200

    play(tmp_path, story)


def test_a_key_that_sends_a_node_away_is_named(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        made = await play.desk.key("nodes:write")
        asked = ("DELETE", "/api/v1/nodes/edge-1?session=7")
        assert (await play.ask(asked, made.key)).status == 204
        assert play.world.control.deregistered_by == [(made.view.id, "edge-1", 7)]
        assert play.world.control.deregistered == []

    play(tmp_path, story)


def test_a_key_is_no_node(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        key = (await play.desk.key("admin")).key
        assert (await play.ask(("POST", "/api/v1/heartbeat", b"beat"), key)).status == 403
        assert play.world.control.beats == []

    play(tmp_path, story)


def test_slow_heads_and_large_heads_cost_a_stranger_its_connection(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        slow, large = await play.world.client(), await play.world.client()
        slow.send(b"GET /api/v1/nodes HTTP/1.1\r\nauthorization: Bear")
        large.send(b"GET / HTTP/1.1\r\nauthorization: Bearer " + b"A" * 40_000)
        assert (await large.read()).status == 431
        assert (await slow.read()).status == 408
        assert await slow.is_closed()

    play(tmp_path, story, FrontLimits(linger_s=0.05, head_timeout_s=0.2))


def visitor(desk: Desk, name: PeerName | None) -> Visitor:
    return Visitor(desk.admission, Peer("10.0.0.9", is_tls=True, name=name))


def test_certificates_of_nodes_open_what_nodes_do(tmp_path: Path) -> None:
    desk = Desk(tmp_path, is_key_required=False)
    node = visitor(desk, PeerName("default", "node", NODE_ID))
    assert node.admit(("node",), {}).name == NODE_ID
    with pytest.raises(Denied, match=f"node {NODE_ID} may not"):
        node.admit(("infer",), {})
    desk.revoked.add(NODE_ID)
    with pytest.raises(Unauthenticated, match="it was revoked") as told:
        node.admit(("node",), {})
    assert "din node join -" in told.value.hint
    assert desk.counted == {"scope": 1, "revoked": 1}


@pytest.mark.parametrize(
    "name",
    [None, PeerName("default", "gateway", NODE_ID), PeerName("other", "node", NODE_ID)],
)
def test_off_this_machine_whoever_is_no_node_of_the_cluster_is_a_stranger(tmp_path, name) -> None:
    stranger = visitor(Desk(tmp_path, is_key_required=False), name)
    assert stranger.admit((), {}).kind == "stranger"
    for needs in (("node",), ("infer",), ("admin", "first")):
        with pytest.raises(Unauthenticated):
            stranger.admit(needs, {})


def test_the_first_admin_key_is_made_here_without_one(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    async def story() -> None:
        await desk.store.open()
        here = Visitor(desk.admission, Peer("127.0.0.1"))
        needs = ("admin", "first")
        assert here.admit(needs, {}).kind == "local"
        await desk.key("admin")
        with pytest.raises(Unauthenticated):
            here.admit(needs, {})
        await desk.store.close()

    asyncio.run(story())


def test_a_stream_of_events_ends_with_its_key(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        made = await play.desk.key("metrics:read")
        client = await play.world.client()
        client.send(
            b"GET /api/v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\n",
            f"authorization: Bearer {made.key}\r\n\r\n".encode(),
        )
        await client.reader.readuntil(b"event: beat")
        await play.desk.book.revoke(made.view.id)
        await until(lambda: play.world.control.watching == 0)
        assert b"0\r\n\r\n" in await client.reader.readuntil(b"0\r\n\r\n")

    play(tmp_path, story)


def test_a_client_that_goes_while_it_is_refused_leaves_nothing(tmp_path: Path) -> None:
    async def story(play: Play) -> None:
        made = await play.desk.key("metrics:read")
        client = await play.world.client()
        client.send(
            b"POST /infer HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n",
            f"authorization: Bearer {made.key}\r\n\r\n".encode(),
            b"x" * 500,
        )
        await until(lambda: play.world.front.buffered_bytes == 500)
        await client.close()
        await until(lambda: play.world.front.buffered_bytes == 0)

    play(tmp_path, story)
