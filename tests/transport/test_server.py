"""Handshakes, strangers, sessions, listening sockets."""

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest
from link_harness import RawPeer, Recorder, Reports, call, linked, run, serving, settle, until

from din.errors import Conflict, Unreachable, UsageError
from din.transport.dial import dial
from din.transport.limits import LinkLimits
from din.transport.server import LinkServer
from din.wire.frame import encode_head
from din.wire.messages import Hello, Ping, Refused

BOTH = pytest.mark.parametrize("kind", ["tcp", "unix"])
QUICK = LinkLimits(handshake_ms=100)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "looks like an HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "looks like a TLS hello"),
        (os.urandom(3).join((b"\x00\x01", bytes(100))), "not a DIN frame"),
        (encode_head(Ping(1)), "Ping came instead of a Hello"),
        (encode_head(Hello("node-a", 1, "urgent", 1), 64) + bytes(64), "with a body of 64 bytes"),
        (encode_head(Hello("node-a", 1, "urgent", 1))[:30], "no handshake within 100 ms"),
        (b"", "no handshake within 100 ms"),
        (b"DN\x01\x00\x08\x00\x00\x00" + bytes(8) + b"\x92\xa5LATER\x01", "unknown kind 'LATER'"),
    ],
)
def test_a_stranger_is_told_apart_and_dropped(data: bytes, reason: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path, QUICK) as pair:
            peer = RawPeer(pair.address)
            peer.bulk.close()
            await peer.send(peer.urgent, data)
            assert await peer.at_end(peer.urgent)
            await until(lambda: reason in pair.reports.reasons())
            peer.close()
            link = await call(pair)
            assert link.is_open, "the server still serves"
            link.close("done")
            await link.wait_ended()
            await settle()

    asyncio.run(main())


def test_a_hello_that_drips_in_is_cut_off_in_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path, QUICK) as pair:
            peer = RawPeer(pair.address)
            try:
                for byte in encode_head(Hello("node-a", 1, "urgent", 1)) * 50:
                    await peer.send(peer.urgent, bytes([byte]))
                    await asyncio.sleep(0.02)
            except ConnectionError:
                pass
            assert "no handshake within 100 ms" in pair.reports.reasons()
            assert pair.there.opened == []
            peer.close()

    asyncio.run(main())


def test_half_open_handshakes_are_limited_and_the_oldest_makes_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path, LinkLimits(handshakes_max=4)) as pair:
            peers = [RawPeer(pair.address), RawPeer(pair.address)]
            await until(lambda: len(pair.server._visitors) == 4)
            link = await call(pair)
            assert link.is_open, "who says Hello at once is through before it is the oldest"
            assert await peers[0].at_end(peers[0].urgent)
            assert await peers[0].at_end(peers[0].bulk)
            assert "too many unfinished handshakes" in pair.reports.reasons()
            for peer in peers:
                peer.close()
            link.close("done")
            await link.wait_ended()

    asyncio.run(main())


def test_links_are_limited_and_one_more_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path, LinkLimits(links_max=2)) as pair:
            links = [await call(pair, own_id=name) for name in ("a", "b")]
            with pytest.raises(Unreachable, match="2 links are open already"):
                await call(pair, own_id="c")
            links[0].close("done")
            await pair.there.until(lambda: pair.there.closed)
            links.append(await call(pair, own_id="c"))
            for link in links:
                link.close("done")
                await link.wait_ended()

    asyncio.run(main())


@BOTH
def test_a_newer_session_evicts_the_older_link_at_once(kind: str, tmp_path: Path) -> None:
    """T10: a restarted node is never shadowed by its own ghost."""

    async def main() -> None:
        async with linked(kind, tmp_path) as pair:
            old = pair.far
            newer = await call(pair, session=4)
            await pair.there.until(lambda: len(pair.there.opened) == 2)
            assert pair.there.closed[0][0] is old
            assert "replaced by a newer link" in pair.there.closed[0][1]
            assert pair.far.peer_session == 4
            await pair.here.until(lambda: pair.here.closed)
            with pytest.raises(Unreachable, match="session 3 of 'node-a' was replaced"):
                await call(pair, session=3)
            assert pair.far.is_open
            newer.close("done")
            await newer.wait_ended()

    asyncio.run(main())


def test_the_same_session_may_dial_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked("tcp", tmp_path) as pair:
            again = await call(pair, session=3)
            await pair.there.until(lambda: len(pair.there.opened) == 2)
            assert len(pair.server.links) == 1
            assert again.send(run())
            await pair.there.until(lambda: pair.there.messages)
            again.close("done")
            await again.wait_ended()

    asyncio.run(main())


def test_a_wrong_target_is_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path) as pair:
            with pytest.raises(Unreachable, match=r"you look for 'gateway-2'.*is 'gateway-1'"):
                await call(pair, target_id="gateway-2")
            assert pair.there.opened == []
            link = await call(pair, target_id="")
            assert (link.peer_id, link.peer_session) == ("gateway-1", 7)
            link.close("done")
            await link.wait_ended()

    asyncio.run(main())


def test_no_common_protocol_version_is_refused_with_both(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path) as pair:
            peer = RawPeer(pair.address)
            hello = Hello("node-a", 1, "urgent", 1, (8, 9))
            await peer.send(peer.urgent, encode_head(hello))
            answer = await peer.read(peer.urgent)
            assert isinstance(answer, Refused)
            assert answer.reason == "no common protocol version: you speak 8, 9, this is 1"
            peer.close()

    asyncio.run(main())


def test_one_lane_alone_is_no_link(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path, QUICK) as pair:
            peer = RawPeer(pair.address)
            await peer.send(peer.urgent, encode_head(Hello("node-a", 1, "urgent", 5)))
            await peer.send(peer.bulk, encode_head(Hello("node-a", 1, "bulk", 6)))
            assert await peer.at_end(peer.urgent)
            assert pair.there.opened == []
            peer.close()

    asyncio.run(main())


def test_frames_said_right_after_the_hello_wait_for_the_link(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path) as pair:
            peer = RawPeer(pair.address)
            await peer.send(
                peer.urgent,
                encode_head(Hello("node-a", 1, "urgent", 5)) + encode_head(run(0, 1)) * 3,
            )
            await settle()
            assert pair.there.messages == []
            await peer.send(peer.bulk, encode_head(Hello("node-a", 1, "bulk", 5)))
            await pair.there.until(lambda: len(pair.there.messages) == 3)
            peer.close()
            await pair.there.until(lambda: pair.there.closed)

    asyncio.run(main())


def test_a_port_in_use_is_a_conflict_that_names_it() -> None:
    async def main() -> None:
        server = LinkServer("a", 1, Recorder())
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(Conflict, match=f"port {port} on 127.0.0.1 is in use") as caught:
                server.listen_tcp("127.0.0.1", port)
            assert "--port" in caught.value.hint
        with pytest.raises(UsageError, match=r"192\.0\.2\.1"):
            server.listen_tcp("192.0.2.1", 0)
        server.close()

    asyncio.run(main())


def test_a_socket_file_is_private_and_goes_with_its_server(tmp_path: Path) -> None:
    path = tmp_path / "link.sock"

    async def main() -> None:
        server = LinkServer("a", 1, Recorder())
        server.listen_unix(str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        other = LinkServer("b", 1, Recorder())
        with pytest.raises(Conflict, match="another process listens"):
            other.listen_unix(str(path))
        assert path.exists()
        server.close()
        assert not path.exists()

    asyncio.run(main())


def test_a_socket_file_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "link.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def main() -> None:
        server = LinkServer("a", 1, Recorder())
        server.listen_unix(str(path))
        handler = Recorder()
        link = await dial([f"unix:{path}"], own_id="b", session=1, handler=handler)
        assert link.is_local
        link.close("done", is_orderly=True)
        await link.wait_ended()
        server.close()
        await server.wait_closed()

    asyncio.run(main())


def test_a_server_leaves_a_socket_file_that_is_not_its_own(tmp_path: Path) -> None:
    path = tmp_path / "link.sock"

    async def main() -> None:
        server = LinkServer("a", 1, Recorder())
        server.listen_unix(str(path))
        path.unlink()
        newer = LinkServer("b", 1, Recorder())
        newer.listen_unix(str(path))
        server.close()
        assert path.exists()
        newer.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("plain", Conflict, "is not a socket"),
        ("missing/link.sock", UsageError, "cannot listen"),
        ("x" * 200, UsageError, "over 107"),
    ],
)
def test_a_path_that_cannot_be_a_socket_is_said_so(
    name: str, error: type[Exception], text: str, tmp_path: Path
) -> None:
    (tmp_path / "plain").write_text("something of somebody's")

    async def main() -> None:
        with pytest.raises(error, match=text):
            LinkServer("a", 1, Recorder()).listen_unix(str(tmp_path / name))

    asyncio.run(main())
    assert (tmp_path / "plain").read_text() == "something of somebody's"


def test_without_free_descriptors_accepting_pauses_and_goes_on(tmp_path: Path) -> None:
    class Full:
        def accept(self) -> None:
            raise OSError(24, "Too many open files")

        def fileno(self) -> int:
            return number

    reports = Reports()
    reading, number = os.pipe()

    async def main() -> None:
        server = LinkServer("a", 1, Recorder(), report=reports)
        server._on_acceptable(Full())
        assert reports[0][1]["hint"] == "raise the limit of open files"
        server.close()

    asyncio.run(main())
    os.close(reading)
    os.close(number)


def test_a_session_that_is_not_admitted_does_not_replace_the_link(tmp_path: Path) -> None:
    """A stranger that says a node's name, with a higher session, costs that node nothing."""

    async def main() -> None:
        async with linked("tcp", tmp_path) as pair:
            pair.server._admit = lambda name, session: "" if session == 3 else "not registered"
            with pytest.raises(Unreachable, match="not registered"):
                await call(pair, session=4)
            assert pair.link.is_open
            assert pair.far.is_open

    asyncio.run(main())
