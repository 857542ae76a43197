"""Frames over real sockets: bodies, lanes, ends, limits, descriptors."""

import asyncio
import os
import random
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from link_harness import RawPeer, linked, run, serving, settle, until

from din.domain.tensor import TensorMeta, offsets_of
from din.errors import Internal, TooLarge
from din.observability.printable import SAID_CHARACTERS_MAX
from din.transport.limits import LinkLimits
from din.wire.frame import encode_head
from din.wire.messages import (
    URGENT_BODY_BYTES_MAX,
    Bye,
    Cancel,
    Failed,
    Offer,
    Ping,
    Pong,
    Run,
)

BOTH = pytest.mark.parametrize("kind", ["tcp", "unix"])
EVERY = pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
SIZES = [1, 63, 64, 4096, URGENT_BODY_BYTES_MAX, URGENT_BODY_BYTES_MAX + 1, 600_000, 16 << 20]
STILL = LinkLimits(ping_after_ms=600_000, dead_after_ms=1_200_000)
"""Without pings, for tests in which a peer is silent or its queue is full."""


def cancel(request_id: int) -> Cancel:
    return Cancel(request_id, 0, "gateway-1", 1000)


def offer() -> Offer:
    return Offer(run().route.epoch, 0, 1, 4096, 2048)


def connected_tcp_sockets() -> dict[str, int]:
    """Socket -> its TCP_NODELAY, of this process."""
    found: dict[str, int] = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            name = str(descriptor.readlink())
            if not name.startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor.name))) as sock:
                if sock.family == socket.AF_INET and sock.getpeername():
                    found[name] = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    return found


@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_no_socket_of_a_link_holds_a_small_frame_back(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        before = connected_tcp_sockets()
        async with linked(kind, tmp_path):
            now = connected_tcp_sockets()
            # Two lanes, each with two ends.
            assert [now[name] for name in now.keys() - before.keys()] == [1] * 4

    asyncio.run(story())


async def body_of_every_size(kind: str, folder: Path) -> None:
    async with linked(kind, folder) as pair:
        for nbytes in SIZES:
            data = random.Random(nbytes).randbytes(nbytes)
            sent: list[bool] = []
            assert pair.link.send(run(nbytes), [data], on_sent=sent.append)
            count = len(pair.there.messages) + 1
            await pair.there.until(lambda count=count: len(pair.there.messages) == count)
            await until(lambda sent=sent: sent)
            body = pair.there.bodies[-1]
            assert body is not None
            assert pair.there.messages[-1] == run(nbytes)
            assert body[:nbytes] == data
            assert body[nbytes:] == bytes(len(body) - nbytes)
            assert sent == [True]
        assert pair.link.queued_bytes == 0
        assert pair.link.is_local == (kind == "unix")


@EVERY
def test_a_frame_that_the_kernel_takes_whole_is_told_as_sent_before_send_returns(
    kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with linked(kind, tmp_path) as pair:
            sent: list[bool] = []
            assert pair.link.send(run(100), [bytes(100)], on_sent=sent.append)
            assert sent == [True]
            assert pair.link.queued_bytes == 0
            await pair.there.until(lambda: pair.there.messages)

    asyncio.run(main())


@EVERY
def test_bodies_of_every_size_arrive_whole(kind: str, tmp_path: Path) -> None:
    asyncio.run(body_of_every_size(kind, tmp_path))


def test_many_tensors_lie_where_offsets_of_says(tmp_path: Path) -> None:
    sizes = [5, 0, 64, 100, 40_000, 1]
    metas = tuple(TensorMeta(f"t{i}", "UINT8", (n,), n) for i, n in enumerate(sizes))
    tensors = [random.Random(i).randbytes(n) for i, n in enumerate(sizes)]

    async def main() -> None:
        async with linked("unix", tmp_path) as pair:
            assert pair.link.send(run(), tensors)
            await pair.there.until(lambda: pair.there.messages)
            offsets, total = offsets_of(metas)
            body = pair.there.bodies[0]
            assert body is not None
            assert len(body) == total
            assert [body[o : o + n] for o, n in zip(offsets, sizes, strict=True)] == tensors

    asyncio.run(main())


@EVERY
def test_both_sides_send_at_once(kind: str, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3_000_000)

    async def main() -> None:
        async with linked(kind, tmp_path) as pair:
            for number in range(5):
                assert pair.link.send(run(len(data), number), [data])
                assert pair.far.send(run(len(data), 100 + number), [data])
            await pair.there.until(lambda: len(pair.there.messages) == 5)
            await pair.here.until(lambda: len(pair.here.messages) == 5)
            ids = [each.request_id for each in pair.there.messages if isinstance(each, Run)]
            assert ids == [0, 1, 2, 3, 4]
            padded = data + bytes(-len(data) % 64)
            assert set(pair.there.bodies) == set(pair.here.bodies) == {padded}

    asyncio.run(main())


def test_a_cancel_overtakes_a_body_that_nobody_reads_yet(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path, STILL) as pair:
            peer = RawPeer(pair.address)
            await peer.hello()
            await pair.there.until(lambda: pair.there.opened)
            assert pair.far.send(run(64 << 20), [bytes(64 << 20)])
            assert pair.far.send(cancel(1))
            assert pair.far.queued_bytes > 0
            first = await peer.read(peer.urgent)
            second = await peer.read(peer.urgent)
            assert isinstance(first, Ping)
            assert second == cancel(1)
            peer.close()
            await pair.there.until(lambda: pair.there.closed)

    asyncio.run(main())


def test_a_body_nobody_places_is_thrown_away_and_the_next_frame_is_whole(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked("tcp", tmp_path) as pair:
            pair.there.takes = lambda _: None
            assert pair.link.send(run(600_000, 1), [b"a" * 600_000])
            await pair.there.until(lambda: pair.there.messages)
            assert pair.there.bodies == [None]
            pair.there.takes = lambda n: memoryview(bytearray(n))
            assert pair.link.send(run(100_032, 2), [b"b" * 100_032])
            await pair.there.until(lambda: len(pair.there.messages) == 2)
            assert pair.there.bodies[1] == b"b" * 100_032

    asyncio.run(main())


@pytest.mark.parametrize(
    "place", [lambda n: memoryview(bytearray(n - 1)), lambda n: memoryview(bytes(n))]
)
def test_a_wrong_place_is_reported_given_back_and_not_written(place, tmp_path: Path) -> None:
    async def main() -> None:
        async with linked("unix", tmp_path) as pair:
            pair.there.takes = place
            assert pair.link.send(run(50_000), [b"a" * 50_000])
            await pair.there.until(lambda: pair.there.messages)
            assert pair.there.bodies == [None]
            assert len(pair.there.abandoned) == 1
            assert "placed a body wrongly" in pair.reports[0][0]

    asyncio.run(main())


@BOTH
def test_a_link_cut_in_mid_body_gives_the_memory_back(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(kind, tmp_path) as pair:
            peer = RawPeer(pair.address)
            await peer.hello()
            await peer.send(peer.bulk, encode_head(run(100_032), 100_032) + b"x" * 40_000)
            await pair.there.until(lambda: pair.there.placed)
            peer.bulk.close()
            await pair.there.until(lambda: pair.there.closed)
            assert [len(each) for each in pair.there.abandoned] == [100_032]
            assert pair.there.messages == []
            _, reason, is_orderly = pair.there.closed[0]
            assert "closed the connection in the middle of a frame" in reason
            assert not is_orderly
            peer.close()

    asyncio.run(main())


def test_our_own_close_in_mid_body_gives_the_memory_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path) as pair:
            peer = RawPeer(pair.address)
            await peer.hello()
            await peer.send(peer.bulk, encode_head(run(100_032), 100_032) + b"x" * 40_000)
            await pair.there.until(lambda: pair.there.placed)
            pair.far.close("enough", is_orderly=True)
            assert [len(each) for each in pair.there.abandoned] == [100_032]
            await pair.there.until(lambda: pair.there.closed)
            peer.close()

    asyncio.run(main())


@EVERY
def test_an_orderly_close_lets_what_is_queued_go_first(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with linked(kind, tmp_path) as pair:
            sent: list[bool] = []
            assert pair.link.send(run(8 << 20), [bytes(8 << 20)], on_sent=sent.append)
            pair.link.close("maintenance", is_orderly=True)
            assert not pair.link.is_open
            assert not pair.link.send(cancel(1))
            await pair.there.until(lambda: pair.there.closed)
            await pair.here.until(lambda: pair.here.closed)
            await pair.link.wait_ended()
            assert sent == [True]
            assert len(pair.there.messages) == 1
            assert pair.there.closed[0][1:] == ("maintenance", True)
            assert pair.here.closed[0][1:] == ("maintenance", True)

    asyncio.run(main())


def test_an_abrupt_close_is_not_orderly_and_gives_up_what_is_queued(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked("tcp", tmp_path) as pair:
            sent: list[bool] = []
            assert pair.link.send(run(64 << 20), [bytes(64 << 20)], on_sent=sent.append)
            pair.link.close("broken")
            pair.link.close("broken again")
            await pair.there.until(lambda: pair.there.closed)
            await pair.here.until(lambda: pair.here.closed)
            assert sent == [False]
            assert [each[1:] for each in pair.here.closed] == [("broken", False)]
            assert pair.there.closed[0][2] is False
            assert pair.link.queued_bytes == 0

    asyncio.run(main())


@pytest.mark.parametrize("lane", [0, 1])
def test_both_lanes_end_together(lane: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path) as pair:
            peer = RawPeer(pair.address)
            await peer.hello()
            await pair.there.until(lambda: pair.there.opened)
            peer.sockets[lane].close()
            await pair.there.until(lambda: pair.there.closed)
            assert await peer.at_end(peer.sockets[1 - lane])
            peer.close()

    asyncio.run(main())


def test_descriptors_travel_beside_their_own_frame(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked("unix", tmp_path) as pair:
            for number in range(50):
                reading, writing = os.pipe()
                assert pair.link.send(cancel(number))
                assert pair.link.send(offer(), fds=(reading, writing))
                assert pair.link.send(cancel(number))
                os.close(reading)
                os.close(writing)
            await pair.there.until(lambda: len(pair.there.messages) == 150)
            assert len(pair.there.fds) == 100
            reading, writing = pair.there.fds[:2]
            os.write(writing, b"through")
            assert os.read(reading, 10) == b"through"
            assert not os.get_inheritable(reading)
            pair.there.drop_fds()

    asyncio.run(main())


def test_descriptors_do_not_leak_when_a_link_ends_or_a_frame_is_queued(tmp_path: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    async def main() -> None:
        async with serving("unix", tmp_path, STILL) as pair:
            peer = RawPeer(pair.address)
            await peer.hello()
            await pair.there.until(lambda: pair.there.opened)
            before = count()
            while pair.far.queued_bytes == 0:  # fill the socket
                assert pair.far.send(run(16_000), [bytes(16_000)])
            for _ in range(10):
                assert pair.far.send(offer(), fds=(0, 1))
            assert count() == before + 20
            pair.far.close("enough")
            await settle()
            assert count() == before - 2
            peer.close()

    asyncio.run(main())


def test_descriptors_are_refused_where_they_cannot_travel(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked("tcp", tmp_path) as pair:
            with pytest.raises(Internal, match="not on this host"):
                pair.link.send(offer(), fds=(0,))

    asyncio.run(main())


def test_a_frame_that_announces_descriptors_without_any_ends_the_link(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("unix", tmp_path) as pair:
            peer = RawPeer(pair.address)
            await peer.hello()
            await peer.send(peer.urgent, encode_head(offer(), descriptor_count=2))
            await pair.there.until(lambda: pair.there.closed)
            assert "announces 2 descriptors, but 0 came" in pair.there.closed[0][1]
            peer.close()

    asyncio.run(main())


def test_frames_up_to_the_queue_limit_are_taken_and_one_more_is_not(tmp_path: Path) -> None:
    limits = LinkLimits(
        queue_frames_max=20, reserved_frames_max=3, ping_after_ms=600_000, dead_after_ms=1_200_000
    )

    async def main() -> None:
        async with serving("unix", tmp_path, limits) as pair:
            peer = RawPeer(pair.address)
            await peer.hello()
            await pair.there.until(lambda: pair.there.opened)
            link = pair.far
            told: list[bool] = []
            while link.queued_bytes == 0:
                assert link.send(run(16_000), [bytes(16_000)])
            for _ in range(19):
                assert link.send(run(), on_sent=told.append)
            assert not link.send(run(), on_sent=told.append)
            assert link.send(cancel(1), on_sent=told.append)
            assert link.send(Failed(1, 0, 0, "n", "DIN-330", "m"), on_sent=told.append)
            assert link.send(Bye("full"), on_sent=told.append)
            assert not link.send(cancel(2), on_sent=told.append)
            assert link.send(run(20_000), [bytes(20_000)]), "the bulk lane has a queue of its own"
            link.close("enough")
            await settle()
            assert told == [False] * 22
            peer.close()

    asyncio.run(main())


def test_bytes_up_to_the_queue_limit_are_taken_and_more_are_not(tmp_path: Path) -> None:
    limits = LinkLimits(queue_bytes_max=1 << 20, ping_after_ms=600_000, dead_after_ms=1_200_000)

    async def main() -> None:
        async with serving("unix", tmp_path, limits) as pair:
            peer = RawPeer(pair.address)
            await peer.hello()
            await pair.there.until(lambda: pair.there.opened)
            link = pair.far
            assert link.send(run(8 << 20), [bytes(8 << 20)]), "an empty lane takes any one frame"
            assert not link.send(run(64_000), [bytes(64_000)])
            assert link.send(run(64), [bytes(64)])
            peer.close()
            await pair.there.until(lambda: pair.there.closed)

    asyncio.run(main())


def test_a_body_over_the_limit_is_refused_before_it_is_queued(tmp_path: Path) -> None:
    """T16: a tensor over the message limit is a clear error that names both sizes."""

    async def main() -> None:
        async with linked("tcp", tmp_path, LinkLimits(body_bytes_max=1 << 20)) as pair:
            assert pair.link.send(run(1 << 20), [bytes(1 << 20)])
            with pytest.raises(TooLarge, match="1048640 bytes, over 1048576"):
                pair.link.send(run((1 << 20) + 1), [bytes((1 << 20) + 1)])
            await pair.there.until(lambda: pair.there.messages)
            assert pair.link.is_open

    asyncio.run(main())


def test_a_peer_that_announces_too_much_is_cut_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path, LinkLimits(body_bytes_max=1 << 20)) as pair:
            peer = RawPeer(pair.address)
            await peer.hello()
            await peer.send(peer.bulk, encode_head(run(), (1 << 20) + 1))
            await pair.there.until(lambda: pair.there.closed)
            assert "announces 1048577 body bytes, over 1048576" in pair.there.closed[0][1]
            peer.close()

    asyncio.run(main())


def test_a_frame_of_an_unknown_kind_is_skipped_with_its_body(tmp_path: Path) -> None:
    header = b"\x92\xa6FUTURE\x01"
    fixed = b"DN\x01\x00" + len(header).to_bytes(4, "little") + (100_032).to_bytes(8, "little")

    async def main() -> None:
        async with serving("tcp", tmp_path) as pair:
            peer = RawPeer(pair.address)
            await peer.hello()
            await peer.send(peer.bulk, fixed + header + b"?" * 100_032 + encode_head(run()))
            await pair.there.until(lambda: pair.there.messages)
            assert pair.there.messages == [run()]
            assert pair.reports[0][1] == {"peer": "node-raw", "kind": "FUTURE"}
            peer.close()
            await pair.there.until(lambda: pair.there.closed)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"garbage that is no frame", "instead of b'DN'"),
        (b"DN\x01\x00\x03\x00\x00\x00" + bytes(8) + b"\xc1\xc1\xc1", "malformed"),
        (b"DN\x01\x00\x07\x00\x00\x00" + bytes(8) + b"\x92\xa4PING\xc0", "PING frame"),
        (encode_head(Ping(1)).replace(b"DN\x01", b"DN\x09"), "frame version 9"),
    ],
)
def test_malformed_frames_end_the_link_with_a_reason(
    data: bytes, reason: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path) as pair:
            peer = RawPeer(pair.address)
            await peer.hello()
            await peer.send(peer.urgent, data)
            await pair.there.until(lambda: pair.there.closed)
            assert reason in pair.there.closed[0][1]
            peer.close()

    asyncio.run(main())


def test_a_broken_handler_is_reported_and_the_link_lives(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked("unix", tmp_path) as pair:
            pair.there.fails = True
            assert pair.link.send(run())
            await pair.there.until(lambda: pair.there.messages)
            pair.there.fails = False
            assert pair.link.send(run(0, 2))
            await pair.there.until(lambda: len(pair.there.messages) == 2)
            assert "the handler is broken" in str(pair.reports[0][1]["error"])

    asyncio.run(main())


def test_an_on_sent_that_raises_is_reported_and_the_link_lives(tmp_path: Path) -> None:
    def broken(_: bool) -> None:
        raise ValueError("no")

    async def main() -> None:
        async with linked("tcp", tmp_path) as pair:
            assert pair.link.send(run(8 << 20), [bytes(8 << 20)], on_sent=broken)
            await pair.there.until(lambda: pair.there.messages)
            await until(lambda: pair.reports)
            assert pair.link.send(run())
            await pair.there.until(lambda: len(pair.there.messages) == 2)

    asyncio.run(main())


def test_pings_are_answered_and_the_round_trip_is_known(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked("tcp", tmp_path) as pair:
            await until(lambda: pair.link.rtt_ms is not None and pair.far.rtt_ms is not None)
            assert pair.there.messages == []

    asyncio.run(main())


def test_a_peer_that_asks_without_reading_is_cut_off(tmp_path: Path) -> None:
    limits = LinkLimits(queue_frames_max=5, reserved_frames_max=5)

    async def main() -> None:
        async with serving("unix", tmp_path, limits) as pair:
            peer = RawPeer(pair.address)
            await peer.hello()
            pings = b"".join(encode_head(Ping(n)) for n in range(1000))
            try:
                for _ in range(200):
                    await peer.send(peer.urgent, pings)
            except ConnectionError:
                pass
            await pair.there.until(lambda: pair.there.closed)
            assert "does not read" in pair.there.closed[0][1]
            peer.close()

    asyncio.run(main())


def test_a_bye_ends_the_link_in_an_orderly_way_even_if_the_peer_lingers(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path, LinkLimits(linger_ms=50)) as pair:
            peer = RawPeer(pair.address)
            await peer.hello()
            await peer.send(peer.urgent, encode_head(Bye("going home")) + encode_head(Pong(1)))
            await pair.there.until(lambda: pair.there.closed)
            assert pair.there.closed[0][1:] == ("going home", True)
            peer.close()

    asyncio.run(main())


def test_what_a_bye_says_is_one_line_and_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path, LinkLimits(linger_ms=50)) as pair:
            peer = RawPeer(pair.address)
            await peer.hello()
            await peer.send(peer.urgent, encode_head(Bye("bye\n\x1b[2J" + "x" * 9_000)))
            await pair.there.until(lambda: pair.there.closed)
            said = pair.there.closed[0][1]
            assert said.startswith("bye\\x0a\\x1b[2Jx")
            assert len(said) < 2 * SAID_CHARACTERS_MAX
            peer.close()

    asyncio.run(main())
