"""Throughput is measured by what a link carries: never faster than it came."""

from __future__ import annotations

import asyncio
from pathlib import Path

from link_harness import RawPeer, linked, run, serving, until

from din.transport.limits import LinkLimits
from din.wire.frame import encode_head

PIECE_BYTES = 16 * 1024
PIECE_S = 0.01
"""No machine sends pieces faster than that, a slow one slower."""
PACE_MIB_MAX = PIECE_BYTES / PIECE_S / (1024 * 1024)


async def paced(peer: RawPeer, nbytes: int) -> None:
    await peer.send(peer.bulk, encode_head(run(nbytes), nbytes))
    for _ in range(nbytes // PIECE_BYTES):
        await asyncio.sleep(PIECE_S)
        await peer.send(peer.bulk, bytes(PIECE_BYTES))


def test_a_slow_sender_is_measured_as_slow_whether_its_bodies_are_wanted_or_not(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path) as pair:
            peer = RawPeer(pair.address)
            await peer.hello()
            await pair.there.until(lambda: pair.there.opened)
            assert pair.far.mib_per_second is None
            await paced(peer, 16 * PIECE_BYTES)
            await pair.there.until(lambda: pair.there.messages)
            first = pair.far.mib_per_second
            assert first is not None
            assert 0 < first <= PACE_MIB_MAX * 1.1
            pair.there.takes = lambda _: None
            await paced(peer, 16 * PIECE_BYTES)
            await pair.there.until(lambda: len(pair.there.messages) == 2)
            second = pair.far.mib_per_second
            assert second is not None
            assert 0 < second <= PACE_MIB_MAX * 1.1
            peer.close()

    asyncio.run(main())


def test_what_came_before_anybody_looked_is_not_taken_for_a_fast_link(tmp_path: Path) -> None:
    """A busy program finds whole bodies in the kernel: they read at the speed of memory."""

    async def main() -> None:
        async with serving("tcp", tmp_path) as pair:
            peer = RawPeer(pair.address)
            await peer.hello()
            await pair.there.until(lambda: pair.there.opened)
            nbytes = 96 * 1024
            peer.bulk.setblocking(True)
            peer.bulk.sendall(encode_head(run(nbytes), nbytes) + bytes(nbytes))
            await pair.there.until(lambda: pair.there.messages)
            assert pair.far.mib_per_second is None
            peer.close()

    asyncio.run(main())


def test_small_bodies_and_unix_sockets_measure_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        for kind, nbytes in (("tcp", 32 * 1024), ("unix", 4 << 20)):
            async with linked(kind, tmp_path) as pair:
                assert pair.link.send(run(nbytes), [bytes(nbytes)])
                await pair.there.until(lambda: pair.there.messages)
                assert pair.far.mib_per_second is None

    asyncio.run(main())


def test_a_large_body_over_tls_is_measured_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked("tls", tmp_path) as pair:
            nbytes = 8 << 20
            assert pair.link.send(run(nbytes), [bytes(nbytes)])
            await pair.there.until(lambda: pair.there.messages)
            assert (pair.far.mib_per_second or 0) > 0
            assert pair.link.mib_per_second is None  # nothing came from there

    asyncio.run(main())


def test_the_shortest_of_the_last_round_trips_is_shown(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked("tcp", tmp_path, LinkLimits(ping_after_ms=20)) as pair:
            await until(lambda: pair.link.rtt_ms is not None and pair.far.rtt_ms is not None)
            assert (pair.link.rtt_ms or 0) > 0

    asyncio.run(main())
