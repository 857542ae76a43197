"""Encrypted links: who gets one, what happens to it on a bad road, and that nothing falls back."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from forwarder import Edit, Way, forwarding
from link_harness import (
    RawPeer,
    Recorder,
    Reports,
    call,
    linked,
    run,
    serving,
    settle,
    until,
)
from tls_machines import (
    CLUSTER,
    GATEWAY,
    NODE,
    OTHER,
    Machines,
    ask_for_new_keys,
    authority_in,
    connected,
    machine,
    secured,
)

from din.domain.trust import PeerName
from din.errors import Denied, DinError, Unreachable
from din.transport.dial import dial
from din.transport.limits import LinkLimits
from din.transport.server import LinkServer
from din.transport.tls import TlsFiles, client_context, pinned_context, server_context
from din.transport.tls_handshake import secure
from din.transport.tls_identity import TlsIdentity
from din.transport.tls_socket import CUT, TlsSocket
from din.wire.frame import encode_head
from din.wire.messages import Hello

STILL = LinkLimits(ping_after_ms=600_000, dead_after_ms=1_200_000)
BIG = 300_000


def identity(files: TlsFiles, reports: Reports | None = None) -> TlsIdentity:
    return TlsIdentity(files, CLUSTER, reports if reports is not None else Reports())


@pytest.mark.parametrize(("piece_bytes", "size"), [(1, 2_000), (7, 40_000), (1500, 600_000)])
def test_frames_arrive_whole_over_a_wire_that_cuts_records_anywhere(
    piece_bytes: int, size: int, tmp_path: Path
) -> None:
    async def main() -> None:
        async with (
            serving("tls", tmp_path, STILL) as pair,
            forwarding(pair.address, piece_bytes) as forwarder,
        ):
            pair.address = forwarder.address
            link = await call(pair, timeout_ms=30_000, limits=STILL)
            await pair.there.until(lambda: pair.there.opened)
            data = bytes(range(256)) * (size // 256)
            for sender, receiver in ((link, pair.there), (pair.far, pair.here)):
                for _ in range(3):
                    assert sender.send(run(len(data)), [data])
                await receiver.until(lambda receiver=receiver: len(receiver.bodies) == 3)
                assert [body[: len(data)] for body in receiver.bodies if body] == [data] * 3
            link.close("done", is_orderly=True)
            await pair.there.until(lambda: pair.there.closed)
            assert pair.there.closed[0][1:] == ("done", True)
            await link.wait_ended()

    asyncio.run(main())


class RawTlsPeer:
    """A node that says what a test wants, inside TLS."""

    def __init__(self, urgent: TlsSocket, bulk: TlsSocket) -> None:
        self.urgent, self.bulk = urgent, bulk

    @staticmethod
    async def dial(address: str, machines: Machines) -> "RawTlsPeer":
        host, _, port = address.removeprefix("tcp:").rpartition(":")
        lanes: list[TlsSocket] = []
        for _ in range(2):
            sock = socket.create_connection((host, int(port)))
            sock.setblocking(False)
            lanes.append(await secure(sock, machines.client(), is_server=False))
        peer = RawTlsPeer(*lanes)
        for name, lane in (("urgent", peer.urgent), ("bulk", peer.bulk)):
            peer.send(lane, encode_head(Hello(NODE.id, 1, name, 99)))
        return peer

    @staticmethod
    def send(lane: TlsSocket, data: bytes) -> None:
        assert lane.sendmsg([memoryview(data)], (), 0) == len(data)

    def close(self) -> None:
        self.urgent.close()
        self.bulk.close()


def test_frames_behind_the_end_of_a_body_come_without_another_byte_on_the_wire(
    tmp_path: Path,
) -> None:
    """They are decrypted already when the body is full, and the descriptor stays unreadable."""

    async def main() -> None:
        async with serving("tls", tmp_path, STILL) as pair:
            peer = await RawTlsPeer.dial(pair.address, Machines(tmp_path))
            await pair.there.until(lambda: pair.there.opened)
            size = 20_480
            frame = encode_head(run(size), size) + bytes(size)
            peer.send(peer.bulk, frame[:16_384])
            await pair.there.until(lambda: pair.there.placed)
            peer.send(peer.bulk, frame[16_384:] + encode_head(run(0)) * 40)
            await pair.there.until(lambda: len(pair.there.messages) == 41)
            peer.close()
            await pair.there.until(lambda: pair.there.closed)

    asyncio.run(main())


def test_a_peer_that_does_not_read_fills_the_queue_and_not_the_memory(tmp_path: Path) -> None:
    limits = LinkLimits(ping_after_ms=600_000, dead_after_ms=1_200_000, queue_bytes_max=2 << 20)

    async def main() -> None:
        async with linked("tls", tmp_path, limits) as pair:
            pair.far._bulk.pause()
            data, count = bytes(1 << 20), 0
            while pair.link.send(run(len(data), count), [data]):
                count += 1
                assert pair.link.queued_bytes <= 3 << 20
                await asyncio.sleep(0)
            assert count >= 2
            pair.far._bulk.resume()
            await pair.there.until(lambda: len(pair.there.messages) == count)
            assert [each.request_id for each in pair.there.messages] == list(range(count))

    asyncio.run(main())


def test_new_keys_asked_for_while_nothing_can_be_written_lose_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked("tls", tmp_path, STILL) as pair:
            near, far = pair.link._bulk._socket, pair.far._bulk._socket
            assert isinstance(near, TlsSocket)
            assert isinstance(far, TlsSocket)
            pair.far._bulk.pause()
            data, count = bytes(range(256)) * 4096, 8
            for number in range(count):
                assert pair.link.send(run(len(data), number), [data])
            await settle(200)
            assert pair.link.queued_bytes, "the kernel is full"
            ask_for_new_keys(far)
            assert pair.far.send(run(BIG), [bytes(BIG)])
            await settle(200)
            pair.far._bulk.resume()
            await pair.there.until(lambda: len(pair.there.messages) == count)
            assert [body == data for body in pair.there.bodies] == [True] * count
            await pair.here.until(lambda: pair.here.messages)
            assert pair.link.is_open

    asyncio.run(main())


def after(nbytes: int, what: Callable[[bytes], bytes | None]) -> Edit:
    """Leave the first bytes of one way alone."""
    seen = 0

    def edit(way: Way, data: bytes) -> bytes | None:
        nonlocal seen
        if way == "back":
            return data
        seen += len(data)
        return what(data) if seen > nbytes else data

    return edit


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize(
    ("what", "reason"),
    [(flipped, "a TLS record was changed on the way"), (lambda _: None, CUT)],
)
def test_a_body_that_is_changed_or_cut_on_the_way_is_not_delivered(
    what: Callable[[bytes], bytes | None], reason: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with (
            serving("tls", tmp_path, STILL) as pair,
            forwarding(pair.address, 4096) as forwarder,
        ):
            pair.address = forwarder.address
            link = await call(pair, limits=STILL)
            await pair.there.until(lambda: pair.there.opened)
            forwarder.edit = after(BIG // 2, what)
            assert link.send(run(BIG), [bytes(BIG)])
            await pair.there.until(lambda: pair.there.closed)
            assert pair.there.closed[0][1:] == (reason, False)
            assert pair.there.messages == []
            assert len(pair.there.abandoned) == 1
            await pair.here.until(lambda: pair.here.closed)
            await link.wait_ended()

    asyncio.run(main())


def test_a_link_cut_between_frames_says_that_it_was_cut(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tls", tmp_path, STILL) as pair:
            peer = await RawTlsPeer.dial(pair.address, Machines(tmp_path))
            await pair.there.until(lambda: pair.there.opened)
            peer.close()
            await pair.there.until(lambda: pair.there.closed)
            assert pair.there.closed[0][1:] == (CUT, False)

    asyncio.run(main())


def test_a_plain_peer_at_an_encrypted_port_is_told_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tls", tmp_path) as pair:
            pair.tls = None
            with pytest.raises(Unreachable, match="refused: links are encrypted here: join"):
                await call(pair)
            assert "a plain link came to an encrypted port" in pair.reports.reasons()
            assert pair.there.opened == []

    asyncio.run(main())


def test_an_encrypted_link_to_a_plain_port_fails_at_both_ends_and_is_not_tried_plain(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path) as pair:
            pair.tls = identity(Machines(tmp_path).node)
            with pytest.raises(Unreachable, match="does it speak without TLS there"):
                await call(pair)
            await until(lambda: "looks like a TLS hello" in pair.reports.reasons())
            assert pair.there.opened == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "does not speak TLS: its first byte is b'G'"),
        (b"\x16\x03\x01\x00\x05hello", "TLS handshake: "),
        (b"", "no handshake within 200 ms"),
        (b"\x16", "no handshake within 200 ms"),
        (b"D", "a plain link came"),
    ],
)
def test_a_stranger_at_an_encrypted_port_is_told_apart_and_dropped(
    said: bytes, reason: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving("tls", tmp_path, LinkLimits(handshake_ms=200)) as pair:
            peer = RawPeer(pair.address)
            await peer.send(peer.urgent, said)
            assert await peer.at_end(peer.urgent)
            await until(lambda: reason in pair.reports.reasons())
            peer.close()
            await settle()

    asyncio.run(main())


def test_handshakes_that_drip_in_are_counted_and_cut_off(tmp_path: Path) -> None:
    limits = LinkLimits(handshake_ms=1500, handshakes_max=4)

    async def main() -> None:
        async with serving("tls", tmp_path, limits) as pair:
            slow = [RawPeer(pair.address), RawPeer(pair.address)]
            await settle()
            await until(lambda: len(pair.server._visitors) == 4)
            late = await call(pair)
            assert late.is_open, "a node finds its way past any number of open ends"
            assert await slow[0].at_end(slow[0].urgent)
            assert await slow[0].at_end(slow[0].bulk)
            assert "too many unfinished handshakes" in pair.reports.reasons()
            hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)
            with suppress(ConnectionError):  # it is cut off sooner or later
                for byte in hello:
                    await slow[1].send(slow[1].urgent, bytes([byte]))
                    await asyncio.sleep(0.02)
            await until(lambda: not pair.server._visitors)
            assert "no handshake within 1500 ms" in pair.reports.reasons()
            link = await call(pair)
            assert link.is_open, "the places are free again"
            for each in (late, link):
                each.close("done")
                await each.wait_ended()
            for peer in slow:
                peer.close()

    asyncio.run(main())


def test_a_handshake_that_is_given_up_leaves_nothing_open(tmp_path: Path) -> None:
    machines = Machines(tmp_path)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"tcp:127.0.0.1:{silent.getsockname()[1]}"
            arguments = {"own_id": NODE.id, "session": 1, "handler": Recorder()}
            task = asyncio.create_task(dial([address], tls=identity(machines.node), **arguments))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        server = LinkServer(GATEWAY.id, 1, Recorder(), tls=identity(machines.gateway))
        port = server.listen_tcp("127.0.0.1", 0)
        for turns in (1, 2, 20):
            with socket.create_connection(("127.0.0.1", port)):
                await settle(turns)
        server.close()
        await server.wait_closed()

    asyncio.run(main())  # an open socket would be a ResourceWarning, hence an error


def test_tls_1_2_is_refused(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    old = client_context(machines.node)
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2

    async def main() -> None:
        async with serving("tls", tmp_path) as pair:
            sock = socket.create_connection(("127.0.0.1", int(pair.address.rpartition(":")[2])))
            sock.setblocking(False)
            with pytest.raises(Unreachable, match=r"does not speak TLS 1\.3"):
                await secure(sock, old, is_server=False)
            await until(lambda: "does not speak TLS 1.3" in pair.reports.reasons())

    asyncio.run(main())


@pytest.mark.parametrize(
    ("own_id", "roles", "text"),
    [
        (OTHER.id, "node", f"names {NODE.uri}, your Hello node '{OTHER.id}'"),
        (GATEWAY.id, "node", "your certificate names"),
        (NODE.id, "gateway", "your Hello gateway"),
    ],
)
def test_a_hello_says_what_the_certificate_says_or_is_refused(
    own_id: str, roles: str, text: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving("tls", tmp_path) as pair:
            pair.server._role_of = lambda _: "gateway" if roles == "gateway" else "node"
            with pytest.raises(Unreachable, match=text):
                await call(pair, own_id=own_id)
            assert pair.there.opened == []
            assert text in pair.reports.reasons()

    asyncio.run(main())


def test_nothing_is_said_to_a_peer_with_another_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tls", tmp_path) as pair:
            heard: list[object] = []
            pair.server._on_first = lambda _, message: heard.append(message)
            for target_id, role in ((OTHER.id, "gateway"), ("", "node")):
                with pytest.raises(Unreachable, match=f"{GATEWAY.uri} answered instead of {role}"):
                    await dial(
                        [pair.address], own_id=NODE.id, session=1, handler=pair.here,
                        target_id=target_id, target_role=role, tls=pair.tls,
                    )  # fmt: skip
            await until(lambda: not pair.server._visitors)
            assert heard == []

    asyncio.run(main())


def foreign(folder: Path) -> TlsFiles:
    return machine(folder / "foreign", authority_in(folder / "other"), NODE)


def expired(folder: Path) -> TlsFiles:
    return machine(folder / "old", authority_in(folder / "authority"), NODE, timedelta(hours=25))


def of_another_cluster(folder: Path) -> TlsFiles:
    name = PeerName("mill", "node", NODE.id)
    return machine(folder / "mill", authority_in(folder / "authority"), name)


@pytest.mark.parametrize(
    ("files", "here", "there"),
    [
        (foreign, "certificate does not count: ", "certificate"),
        (expired, "the peer refused our certificate: it has expired", "has expired"),
        (of_another_cluster, "names spiffe://din/mill/node/", "names spiffe://din/mill/node/"),
    ],
)
def test_a_certificate_that_does_not_count_gets_no_link(
    files: Callable[[Path], TlsFiles], here: str, there: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving("tls", tmp_path) as pair:
            pair.tls = identity(files(tmp_path))
            with pytest.raises(Unreachable, match=here):
                await call(pair)
            await until(lambda: there in pair.reports.reasons())
            assert pair.there.opened == []

    asyncio.run(main())


def test_whoever_shows_no_certificate_gets_no_link_under_any_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tls", tmp_path) as pair:
            # It knows our authority, as everybody may, and has only itself to say who it is.
            pair.tls._client = pinned_context((tmp_path / "gateway" / "ca.pem").read_text())
            with pytest.raises(Unreachable, match="wants a certificate"):
                await call(pair)
            await until(lambda: "showed no certificate" in pair.reports.reasons())
            assert pair.there.opened == []

    asyncio.run(main())


def test_no_link_goes_on_without_a_name_although_the_context_let_it_pass(tmp_path: Path) -> None:

    async def main() -> None:
        machines = Machines(tmp_path)
        lenient = server_context(machines.gateway, is_certificate_required=False)
        nobody = pinned_context(machines.authority.pem.decode())
        ends = connected()
        asked = [
            asyncio.ensure_future(secure(ends[0], nobody, is_server=False)),
            asyncio.ensure_future(secure(ends[1], lenient, is_server=True)),
        ]
        client, server = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(client, TlsSocket)
        client.close()
        assert isinstance(server, Denied)

    asyncio.run(main())


def test_a_foreign_node_that_trusts_us_is_refused_with_the_reason(tmp_path: Path) -> None:
    """It may know our authority; ours does not know it."""

    async def main() -> None:
        async with serving("tls", tmp_path) as pair:
            files = foreign(tmp_path)
            context = client_context(files)
            context.load_verify_locations(cafile=str(tmp_path / "gateway" / "ca.pem"))
            pair.tls = identity(files)
            pair.tls._client = context
            with pytest.raises(Unreachable, match="refused our certificate: it is not of its"):
                await call(pair)
            await until(lambda: "certificate does not count" in pair.reports.reasons())
            assert pair.there.opened == []

    asyncio.run(main())


def test_a_revoked_node_is_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tls", tmp_path) as pair:
            pair.server._admit = lambda name, _: "" if name != NODE.id else "it was revoked"
            with pytest.raises(Unreachable, match="refused: it was revoked"):
                await call(pair)
            assert pair.there.opened == []

    asyncio.run(main())


def test_a_renewed_certificate_is_used_by_new_links_and_open_ones_stay(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked("tls", tmp_path, STILL) as pair:
            assert pair.tls is not None
            before = pair.tls.client()
            assert pair.tls.client() is before
            machines = Machines(tmp_path)  # issues again, for the same keys
            assert pair.tls.client() is not before
            serials = await serials_of(machines, pair.tls)
            again = await call(pair, session=4, limits=STILL)
            await pair.there.until(lambda: len(pair.there.opened) == 2)
            machines.node.certificate.write_text("half a cert")
            kept = pair.tls.client()
            assert "cannot be used" in pair.reports.reasons()
            assert pair.tls.client() is kept
            assert serials == await serials_of(machines, pair.tls)
            assert again.send(run(10), [bytes(10)])
            await pair.there.until(lambda: pair.there.messages)
            again.close("done")
            await again.wait_ended()

    async def serials_of(machines: Machines, tls: TlsIdentity) -> str:
        machines.client = tls.client
        async with secured(machines) as (_, server):
            return server.peer.serial

    asyncio.run(main())


def test_an_identity_without_files_says_which_is_missing(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    machines.node.key.unlink()
    with pytest.raises(DinError, match=r"node\.key is missing"):
        identity(machines.node)


def test_a_forwarder_learns_nothing_of_a_tensor(tmp_path: Path) -> None:
    secret = b"the tensor of a customer, 32 byt"

    async def main() -> None:
        for kind, is_seen in (("tcp", True), ("tls", False)):
            async with serving(kind, tmp_path, STILL) as pair, forwarding(pair.address) as wire:
                pair.address = wire.address
                link = await call(pair, limits=STILL)
                data = secret * 4000
                assert link.send(run(len(data)), [data])
                await pair.there.until(lambda pair=pair: pair.there.messages)
                assert (secret in wire.passed["there"]) == is_seen
                assert len(wire.passed["there"]) > len(data)
                link.close("done")
                await link.wait_ended()

    asyncio.run(main())
