"""Peers that die, freeze, or vanish behind a cut cable: noticed in under 10 s."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from link_harness import RawPeer, linked, run, serving

from din.transport.limits import DEFAULT_LIMITS, LinkLimits
from din.transport.sockets import TCP_USER_TIMEOUT_MS

NOTICED_S_MAX = 10

PEER = """
import asyncio, sys
from din.transport.dial import dial

class Quiet:
    def on_open(self, link): print("open", flush=True)
    def on_closed(self, link, reason, is_orderly): pass
    def place_body(self, link, message, nbytes): return memoryview(bytearray(nbytes))
    def on_message(self, link, message, body, fds): pass
    def on_body_abandoned(self, link, message, view): pass

async def main():
    await dial([sys.argv[1]], own_id="victim", session=1, handler=Quiet())
    await asyncio.sleep(60)

asyncio.run(main())
"""


def start(address: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PEER, address], stdout=subprocess.DEVNULL)


@pytest.mark.system
@pytest.mark.parametrize("kind", ["tcp", "unix"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_frozen_peer_is_noticed_in_under_ten_seconds(
    how: signal.Signals, kind: str, tmp_path: Path
) -> None:
    """T15: a half-open link is given up by pings, not by TCP's quarter of an hour."""

    async def main() -> None:
        async with serving(kind, tmp_path) as pair:
            process = start(pair.address)
            try:
                await pair.there.until(lambda: pair.there.opened)
                sent: list[bool] = []
                os.kill(process.pid, how)
                pair.far.send(run(32 << 20), [bytes(32 << 20)], on_sent=sent.append)
                await pair.there.until(lambda: pair.there.closed, NOTICED_S_MAX)
                assert not pair.there.closed[0][2]
                await pair.far.wait_ended()
                assert sent in ([False], [])
            finally:
                process.kill()
                process.wait()

    asyncio.run(main())


def test_the_defaults_leave_room_below_ten_seconds() -> None:
    tick_ms = DEFAULT_LIMITS.ping_after_ms / 2
    assert DEFAULT_LIMITS.dead_after_ms + tick_ms < NOTICED_S_MAX * 1000
    assert TCP_USER_TIMEOUT_MS < NOTICED_S_MAX * 1000


def test_a_peer_that_reads_but_never_answers_is_given_up(tmp_path: Path) -> None:
    limits = LinkLimits(ping_after_ms=40, dead_after_ms=200)

    async def main() -> None:
        async with serving("tcp", tmp_path, limits) as pair:
            peer = RawPeer(pair.address)
            await peer.hello()
            await pair.there.until(lambda: pair.there.closed)
            assert pair.there.closed[0][1] == "nothing was heard from node-raw for 200 ms"
            peer.close()

    asyncio.run(main())


def test_an_idle_link_lives_on_pings(tmp_path: Path) -> None:
    limits = LinkLimits(ping_after_ms=20, dead_after_ms=300)

    async def main() -> None:
        async with linked("tcp", tmp_path, limits) as pair:
            await asyncio.sleep(0.8)
            assert pair.there.closed == []
            assert pair.link.send(run())
            await pair.there.until(lambda: pair.there.messages)

    asyncio.run(main())


def test_our_own_sleep_is_not_taken_for_the_peers(tmp_path: Path) -> None:
    """T11: after a suspend the peer gets its chance to answer."""
    limits = LinkLimits(ping_after_ms=40, dead_after_ms=200)

    async def main() -> None:
        async with linked("unix", tmp_path, limits) as pair:
            await asyncio.sleep(0.1)
            await asyncio.to_thread(lambda: None)
            import time

            time.sleep(0.5)  # noqa: ASYNC251
            await asyncio.sleep(0.3)
            assert pair.there.closed == []
            assert pair.here.closed == []

    asyncio.run(main())


def test_a_slow_reader_does_not_hold_up_other_links(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked("tcp", tmp_path) as pair:
            slow = RawPeer(pair.address)
            await slow.hello()
            await pair.there.until(lambda: len(pair.there.opened) == 2)
            assert pair.far.send(run(64 << 20), [bytes(64 << 20)])
            other = pair.there.opened[0]
            for _ in range(5):
                assert other.send(run(4 << 20), [bytes(4 << 20)])
            await pair.here.until(lambda: len(pair.here.messages) == 5)
            assert pair.far.queued_bytes > 0
            slow.close()
            await pair.there.until(lambda: pair.there.closed)

    asyncio.run(main())
