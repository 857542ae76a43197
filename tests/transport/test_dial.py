"""Dialling: which address, how long, and again after an end."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from link_harness import Recorder, Reports, call, run, serving, settle, until

from din.errors import Unreachable, UsageError
from din.flow.backoff import Backoff
from din.transport.dial import dial
from din.transport.redial import Redialler
from din.transport.sockets import host_of, parse_address

FAST = Backoff(base_ms=5, cap_ms=20)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def test_every_address_and_its_reason_is_named(tmp_path: Path) -> None:
    """T05: a peer that is announced but refuses connections is unreachable, with the reason."""
    port = free_port()
    (tmp_path / "dead.sock").touch()
    addresses = [
        f"unix:{tmp_path}/none.sock",
        f"unix:{tmp_path}/dead.sock",
        f"tcp:127.0.0.1:{port}",
        "carrier-pigeon",
        "tcp:no-such-host.invalid:80",
    ]

    async def main() -> None:
        with pytest.raises(Unreachable) as caught:
            await dial(addresses, own_id="a", session=1, handler=Recorder(), target_id="node-b")
        text = caught.value.message
        assert text.startswith("node-b cannot be reached: ")
        assert "none.sock: no such socket on this host" in text
        assert "dead.sock: Connection refused" in text
        assert f"tcp:127.0.0.1:{port}: Connection refused" in text
        assert "'carrier-pigeon' is no address of a link" in text
        assert "no-such-host.invalid:80: " in text

    asyncio.run(main())


@contextmanager
def as_somebody_else(folder: Path) -> Iterator[None]:
    """As one to whom this folder is closed."""
    folder.chmod(0o000)
    own = os.geteuid()
    if own == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if own == 0:
            os.seteuid(own)
        folder.chmod(0o700)


def test_the_socket_of_another_user_is_passed_over(tmp_path: Path) -> None:
    """Two users of one machine reach each other by TCP."""
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "g.sock").touch()

    async def main() -> None:
        async with serving("tcp", tmp_path) as pair:
            with as_somebody_else(closed):
                link = await dial(
                    [f"unix:{closed}/g.sock", pair.address],
                    own_id="a",
                    session=1,
                    handler=pair.here,
                    target_id="gateway-1",
                )
            assert not link.is_local

    asyncio.run(main())


def test_who_listens_in_the_place_of_our_own_program_is_no_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others may make files they may make a socket of the gateway's name: it proves nothing
    by a certificate, so it must be our own user's."""

    async def main() -> None:
        async with serving("unix", tmp_path) as pair:
            monkeypatch.setattr("os.geteuid", lambda: 4711)
            with pytest.raises(Unreachable, match="another user listens there"):
                await dial([pair.address], own_id="a", session=1, handler=pair.here,
                           target_id="gateway-1")  # fmt: skip
            assert pair.there.opened == []

    asyncio.run(main())


def test_the_first_address_that_answers_is_taken(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path) as pair:
            dead = f"unix:{tmp_path}/none.sock"
            link = await dial(
                [dead, pair.address],
                own_id="a",
                session=1,
                handler=pair.here,
                target_id="gateway-1",
            )
            assert not link.is_local
            assert pair.here.opened == [link]
            link.close("done")
            await link.wait_ended()

    asyncio.run(main())


def test_a_peer_that_says_nothing_costs_its_share_of_the_time_only(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"tcp:127.0.0.1:{silent.getsockname()[1]}"
            async with serving("unix", tmp_path) as pair:
                link = await dial(
                    [address, pair.address], own_id="a", session=1, handler=pair.here,
                    timeout_ms=600,
                )  # fmt: skip
                assert link.is_local
                link.close("done")
                await link.wait_ended()
            with pytest.raises(Unreachable, match="no answer within 50 ms"):
                await dial([address], own_id="a", session=1, handler=pair.here, timeout_ms=50)

    asyncio.run(main())


def test_an_answer_that_is_no_frame_is_named(tmp_path: Path) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match="looks like an HTTP answer"):
            await dial([f"tcp:127.0.0.1:{port}"], own_id="a", session=1, handler=Recorder())
        server.close()
        await server.wait_closed()

    asyncio.run(main())


def test_no_address_at_all_is_said_so() -> None:
    async def main() -> None:
        with pytest.raises(Unreachable, match="node-b cannot be reached: it has no address"):
            await dial([], own_id="a", session=1, handler=Recorder(), target_id="node-b")

    asyncio.run(main())


def test_a_dial_that_is_given_up_leaves_nothing_open(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"tcp:127.0.0.1:{silent.getsockname()[1]}"
            task = asyncio.create_task(dial([address], own_id="a", session=1, handler=Recorder()))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())  # an open socket would be a ResourceWarning, hence an error


@pytest.mark.parametrize(
    "text",
    ["", "unix:", "tcp:host", "tcp::80", "tcp:host:0", "tcp:host:65536", "tcp:host:+1", "x:y:1"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no address of a link"):
        parse_address(text)


def test_addresses_are_read() -> None:
    assert parse_address("tcp:[::1]:80").host == "::1"
    assert parse_address("tcp:node.local:9001").port == 9001
    assert parse_address("unix:/run/din/link.sock").path == "/run/din/link.sock"


def test_a_link_is_dialled_again_after_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path) as pair:
            redialler = Redialler(
                [pair.address], own_id="node-a", session=3, handler=pair.here,
                target_id="gateway-1", random=Random(1), backoff=FAST, report=pair.reports,
            )  # fmt: skip
            redialler.start()
            redialler.start()
            for count in (1, 2, 3):
                await pair.there.until(lambda count=count: len(pair.there.opened) == count)
                assert pair.far.send(run())
                await pair.here.until(lambda count=count: len(pair.here.messages) == count)
                if count < 3:
                    pair.far.close("cut")
            await redialler.stop()
            await pair.there.until(lambda: len(pair.there.closed) == 3)
            assert [orderly for _, _, orderly in pair.there.closed] == [False, False, True]
            assert redialler.link is None

    asyncio.run(main())


def test_new_addresses_are_used_at_once_while_there_is_no_link(tmp_path: Path) -> None:
    """T06: a peer that moved is dialled at its new address without waiting for the back-off."""
    reports = Reports()

    async def main() -> None:
        async with serving("tcp", tmp_path) as pair:
            redialler = Redialler(
                [f"tcp:127.0.0.1:{free_port()}"], own_id="node-a", session=3, handler=pair.here,
                random=Random(1), backoff=Backoff(base_ms=60_000, cap_ms=60_000), report=reports,
            )  # fmt: skip
            redialler.start()
            await until(lambda: reports)
            assert "Connection refused" in redialler.last_error
            redialler.update([pair.address])
            await until(lambda: redialler.link is not None)
            assert redialler.last_error == ""
            await redialler.stop()

    asyncio.run(main())


def test_a_link_by_a_lost_address_of_ours_is_replaced_at_once_and_another_is_kept(
    tmp_path: Path,
) -> None:
    """T06: nobody else would say for seconds that it is dead."""

    async def main() -> None:
        async with serving("tcp", tmp_path) as pair:
            redialler = Redialler(
                [pair.address], own_id="node-a", session=3, handler=pair.here,
                random=Random(1), backoff=Backoff(base_ms=60_000, cap_ms=60_000),
            )  # fmt: skip
            redialler.start()
            await until(lambda: redialler.link is not None)
            redialler.address_changed({"10.0.0.5"})
            assert redialler.link.is_open
            assert redialler.link.peer_host == "127.0.0.1"
            redialler.address_changed({redialler.link.local_host})
            await pair.there.until(lambda: len(pair.there.opened) == 2)
            assert "no address of this machine" in pair.here.closed[0][1]
            await redialler.stop()

    asyncio.run(main())


def test_a_dial_that_failed_is_tried_at_once_after_a_change_of_addresses(tmp_path: Path) -> None:
    reports = Reports()

    async def main() -> None:
        async with serving("tcp", tmp_path) as pair:
            port = free_port()
            redialler = Redialler(
                [f"tcp:127.0.0.1:{port}"], own_id="node-a", session=3, handler=pair.here,
                random=Random(1), backoff=Backoff(base_ms=60_000, cap_ms=60_000), report=reports,
            )  # fmt: skip
            redialler.start()
            await until(lambda: reports)
            pair.server.listen_tcp("127.0.0.1", port)
            redialler.address_changed(())
            await until(lambda: redialler.link is not None)
            await redialler.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "host"),
    [
        (("10.0.0.5", 80), "10.0.0.5"),
        (("::ffff:10.0.0.5", 80, 0, 0), "10.0.0.5"),
        (("fe80::1%eth0", 80, 0, 2), "fe80::1"),
        (("2001:db8::1", 80, 0, 0), "2001:db8::1"),
    ],
)
def test_hosts_of_sockets_are_written_as_in_addresses(name: tuple[object, ...], host: str) -> None:
    assert host_of(name) == host


def test_the_same_failure_is_reported_once(tmp_path: Path) -> None:
    reports = Reports()

    async def main() -> None:
        redialler = Redialler(
            [f"tcp:127.0.0.1:{free_port()}"], own_id="node-a", session=3, handler=Recorder(),
            random=Random(1), backoff=FAST, report=reports,
        )  # fmt: skip
        redialler.start()
        await asyncio.sleep(0.3)
        await redialler.stop()
        assert len(reports) == 1

    asyncio.run(main())


def test_a_link_to_a_stopping_server_is_told_orderly(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("unix", tmp_path) as pair:
            link = await call(pair)
            pair.server.close("the gateway stops")
            await pair.here.until(lambda: pair.here.closed)
            assert pair.here.closed[0][1:] == ("the gateway stops", True)
            await link.wait_ended()
            await settle()

    asyncio.run(main())
