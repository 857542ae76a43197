"""The TLS listener: who is who there, and what slow and greedy strangers get."""

from __future__ import annotations

import asyncio
import gc
import ssl
from asyncio import sslproto
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from api_fakes import FakeControl, FakeInference
from api_harness import Client, until

from din.api import secure as module
from din.api.admission import Admission, Rules
from din.api.app import build_app
from din.api.limits import FrontLimits
from din.api.secure import READ_BYTES
from din.api.serve import Secure, bind, serve
from din.api.turn import Front
from din.api.turns import Turns
from din.domain.enrolment import Enrolled, RenewOrder
from din.domain.keys import CreateKey
from din.domain.trust import Peer, PeerName, Role
from din.errors import Denied
from din.gateway.trust.keys import KeyBook
from din.store.sqlite import SqliteStore
from din.system.identity import write_atomically
from din.transport.tls import (
    TlsFiles,
    client_context,
    files_in,
    pinned_context,
    server_context,
)
from din.trust.authority import Authority, open_authority
from din.trust.requests import load_key, new_key_pem

NODE_ID = "00000000000000aa"
OIP_BODY = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'
BEAT = ("POST", "/api/v1/heartbeat", b"beat")


class Hall:
    """A TLS port of a gateway, and machines with certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = open_authority(folder / "trust", "default", datetime.now(UTC))
        self.control = FakeControl(folder)
        self.inference = FakeInference()
        self.keys: KeyBook
        self.front: Front
        self.port = 0
        self.clients: list[Client] = []
        self.renewing: list[Peer] = []

    async def renew(self, order: RenewOrder, peer: Peer) -> Enrolled:
        """As service.TrustService."""
        del order
        self.renewing.append(peer)
        raise Denied("not today")

    def machine(
        self, role: Role, authority: Authority | None = None, age: timedelta = timedelta()
    ) -> TlsFiles:
        folder = self.folder / f"{role}-{id(authority)}"
        folder.mkdir(exist_ok=True)
        files, key = files_in(folder, role), new_key_pem()
        issuer = authority or self.authority
        name = PeerName("default", role, NODE_ID)
        made = issuer.issue(load_key(key).public_key(), name, datetime.now(UTC) - age)
        write_atomically(files.key, key, mode=0o600)
        write_atomically(files.certificate, made)
        write_atomically(files.authority, self.authority.pem)
        return files

    async def client(
        self, context: ssl.SSLContext | None = None, address: str = "127.0.0.1"
    ) -> Client:
        context = context or pinned_context(self.authority.pem.decode())
        opened = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, local_addr=(address, 0)
        )
        made = Client(*opened)
        self.clients.append(made)
        return made


def in_hall(
    folder: Path, story: Callable[[Hall], Awaitable[None]], limits: FrontLimits | None = None
) -> None:
    async def run() -> None:
        hall = Hall(folder)
        store = SqliteStore(folder / "store.sqlite", lambda: 1_000_000)
        await store.open()
        hall.keys = KeyBook(store, lambda: 1_000_000, Random(1).randbytes)
        admission = Admission(hall.keys, Rules(cluster="default"))
        front = hall.front = Front(
            Turns(hall.inference, hall.control), limits or FrontLimits(), admission
        )
        app = build_app(hall.control, hall.inference, front.limits, trust=hall)
        files = hall.machine("gateway")
        context = server_context(files, is_certificate_required=False, is_lapsed_heard=True)
        sock = bind("127.0.0.1", 0)
        hall.port = sock.getsockname()[1]
        server = await serve(app, front, bind("127.0.0.1", 0), Secure(sock, context))
        try:
            async with asyncio.timeout(60):
                await story(hall)
        finally:
            for client in hall.clients:
                with suppress(OSError):
                    await client.close()
            await server.stop(grace_s=0.5)
            sock.close()
            await store.close()

    asyncio.run(run())


async def status(client: Client, *asked, **headers: str) -> int:
    method, path, body = (*asked, b"")[:3]
    return (await client.ask(method, path, body, headers)).status


def test_strangers_see_health_and_nothing_else(tmp_path: Path) -> None:
    async def story(hall: Hall) -> None:
        assert await status(await hall.client(), "GET", "/v2/health/live") == 200
        for asked in (
            ("GET", "/api/v1/nodes"),
            ("POST", "/v2/models/plain/infer", OIP_BODY),
            BEAT,
            ("GET", "/nowhere"),
        ):
            assert await status(await hall.client(), *asked) == 401
        assert hall.inference.calls == []
        assert hall.control.beats == []

    in_hall(tmp_path, story)


def test_a_key_works_over_tls_and_a_large_answer_comes_whole(tmp_path: Path) -> None:
    async def story(hall: Hall) -> None:
        made = await hall.keys.create(CreateKey(name="ci", scopes=("infer",)), "test")
        client = await hall.client()
        hall.inference.big = bytes(range(256)) * 8_192
        answer = await client.ask(
            "POST", "/v2/models/plain/infer", OIP_BODY, {"x-api-key": made.key}
        )
        assert (answer.status, len(answer.body) > 2**20) == (200, True)
        assert await status(client, "GET", "/api/v1/nodes", **{"x-api-key": made.key}) == 403

    in_hall(tmp_path, story)


def test_a_node_does_what_nodes_do(tmp_path: Path) -> None:
    async def story(hall: Hall) -> None:
        context = client_context(hall.machine("node"))
        client = await hall.client(context)
        assert await status(client, *BEAT) == 200
        assert await status(client, "GET", "/api/v1/keys") in (403, 404)
        assert await status(client, "GET", "/api/v1/nodes") == 403

    in_hall(tmp_path, story)


def test_a_certificate_of_another_authority_gets_no_connection(tmp_path: Path) -> None:
    async def story(hall: Hall) -> None:
        rogue = open_authority(tmp_path / "rogue", "default", datetime.now(UTC))
        context = client_context(hall.machine("node", rogue))
        try:
            client = await hall.client(context)
            await status(client, *BEAT)
        except (OSError, asyncio.IncompleteReadError):
            assert hall.control.beats == []
            return
        raise AssertionError("a foreign certificate was taken")

    in_hall(tmp_path, story)


def test_a_certificate_that_has_ended_may_be_renewed_and_nothing_else(tmp_path: Path) -> None:
    async def story(hall: Hall) -> None:
        client = await hall.client(client_context(hall.machine("node", age=timedelta(days=3))))
        for asked in (BEAT, ("POST", "/api/v1/nodes", b"x"), ("GET", "/api/v1/gateway")):
            answer = await client.ask(*(*asked, b"")[:3])
            assert answer.status == 401
            assert f"the certificate of node {NODE_ID} has ended" in str(answer.body)
            client = await hall.client(client_context(hall.machine("node", age=timedelta(days=3))))
        assert hall.control.beats == []
        assert await status(client, "GET", "/v2/health/live") == 200
        assert await status(client, "POST", "/api/v1/trust/renew", b'{"request":""}') == 403
        (peer,) = hall.renewing
        assert (peer.name, peer.lapsed is not None) == (None, True)
        assert peer.lapsed is not None
        assert peer.lapsed.name.id == NODE_ID
        two_days_ago = (datetime.now(UTC) - timedelta(days=2)).timestamp() * 1000
        assert abs(peer.lapsed.ended_ms - two_days_ago) < 600_000

    in_hall(tmp_path, story)


def test_a_certificate_that_has_not_begun_is_told_of_its_clock(tmp_path: Path) -> None:
    async def story(hall: Hall) -> None:
        early = client_context(hall.machine("node", age=timedelta(hours=-2)))
        client = await hall.client(early)
        answer = await client.ask("POST", "/api/v1/trust/renew", b'{"request":""}', {})
        assert answer.status == 403
        assert "later than it is here" in str(answer.body)
        assert hall.renewing == []

    in_hall(tmp_path, story)


def test_slow_and_oversized_heads_end_here_too(tmp_path: Path) -> None:
    async def story(hall: Hall) -> None:
        slow, large = await hall.client(), await hall.client()
        slow.send(b"GET /v2/health/live HTTP/1.1\r\nhost: 127.0.0.1")
        large.send(b"GET /v2/health/live HTTP/1.1\r\nx-filler: " + b"A" * 40_000)
        assert (await large.read()).status == 431
        assert (await slow.read()).status == 408
        assert await slow.is_closed()

    in_hall(tmp_path, story, FrontLimits(head_timeout_s=0.2, linger_s=0.05))


def test_who_never_ends_a_handshake_is_cut_off(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module.SecureListener.__init__, "__defaults__", (0.2,))

    async def story(hall: Hall) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", hall.port)
        writer.write(b"\x16\x03\x01")
        with suppress(ConnectionError):
            assert await reader.read(1) == b""
        writer.close()
        assert await status(await hall.client(), "GET", "/v2/health/live") == 200

    in_hall(tmp_path, story)


async def silent(hall: Hall, address: str) -> Client:
    """Begins a handshake and says no more."""
    opened = await asyncio.open_connection("127.0.0.1", hall.port, local_addr=(address, 0))
    made = Client(*opened)
    hall.clients.append(made)
    made.send(b"\x16")
    return made


def test_handshakes_that_never_end_cost_others_nothing(tmp_path: Path, monkeypatch) -> None:
    """All together have a bounded number; of the address with the most, the oldest goes."""
    monkeypatch.setattr(module, "HANDSHAKES_MAX", 5)
    monkeypatch.setattr(module.SecureListener.__init__, "__defaults__", (600.0,))

    async def story(hall: Hall) -> None:
        many = [await silent(hall, "127.0.0.2") for _ in range(4)]
        other = await silent(hall, "127.0.0.3")
        # Whether it comes from elsewhere or from the very address that fills the room.
        for address, gone in (("127.0.0.1", many[0]), ("127.0.0.2", many[1])):
            client = await hall.client(address=address)
            assert await status(client, "GET", "/v2/health/live") == 200
            assert await gone.is_closed()
            many.append(await silent(hall, "127.0.0.2"))
        assert not other.reader.at_eof()

    in_hall(tmp_path, story)


def test_strangers_that_stay_cost_those_who_are_known_nothing(tmp_path: Path) -> None:
    async def story(hall: Hall) -> None:
        node = await hall.client(client_context(hall.machine("node")))
        assert await status(node, "POST", "/api/v1/heartbeat") == 200
        strangers = [await hall.client() for _ in range(3)]
        for each in strangers:
            assert await status(each, "GET", "/v2/health/live") == 200
        late = await hall.client()
        assert await status(late, "GET", "/v2/health/live") == 200
        assert await strangers[0].is_closed()
        assert await status(strangers[2], "GET", "/v2/health/live") == 200
        assert await status(node, "POST", "/api/v1/heartbeat") == 200

    in_hall(tmp_path, story, FrontLimits(strangers_max=3))


def test_a_connection_holds_no_more_to_read_into_than_the_limit(tmp_path: Path) -> None:
    async def story(hall: Hall) -> None:
        clients = [await hall.client() for _ in range(2)]
        assert [await status(each, "GET", "/v2/health/live") for each in clients] == [200, 200]
        seen = [each for each in gc.get_objects() if isinstance(each, sslproto.SSLProtocol)]
        assert len(seen) >= len(clients)
        assert {len(each._ssl_buffer) for each in seen} == {READ_BYTES}

    in_hall(tmp_path, story)


def test_no_key_and_no_node_takes_all_connections(tmp_path: Path) -> None:
    async def story(hall: Hall) -> None:
        order = CreateKey(name="line-4", scopes=("infer",))
        key = {"x-api-key": (await hall.keys.create(order, "test")).key}
        asked = ("POST", "/v2/models/plain/infer", OIP_BODY, key)
        clients = [await hall.client() for _ in range(3)]
        assert [(await each.ask(*asked)).status for each in clients] == [200, 200, 429]
        # The one too many stays a stranger, which goes first, and gets in when another has gone.
        await clients[0].close()
        await until(lambda: hall.front.known.total() == 1)
        assert (await clients[2].ask(*asked)).status == 200
        node = client_context(hall.machine("node"))
        nodes = [await hall.client(node) for _ in range(3)]
        assert [(await each.ask(*BEAT)).status for each in nodes] == [200, 200, 429]

    in_hall(tmp_path, story, FrontLimits(own_connections_max=2, linger_s=0.05))


def test_plain_text_on_the_tls_port_gets_no_answer(tmp_path: Path) -> None:
    async def story(hall: Hall) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", hall.port)
        writer.write(b"GET /v2/health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        with suppress(ConnectionError):
            assert b"HTTP" not in await reader.read(4_096)
        writer.close()

    in_hall(tmp_path, story)


def test_older_tls_is_refused(tmp_path: Path) -> None:
    async def story(hall: Hall) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        try:
            await hall.client(context)
        except (ssl.SSLError, ConnectionError):
            return
        raise AssertionError("TLS 1.2 was spoken")

    in_hall(tmp_path, story)
