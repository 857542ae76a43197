"""Refused links: told at once, then counted, so that no stranger fills a log."""

import asyncio
from pathlib import Path

from link_harness import RawPeer, serving, until

from din.transport import refusals
from din.transport.refusals import KINDS_MAX, OTHERS, Refusals
from din.wire.frame import encode_head
from din.wire.messages import Ping


class Told:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict]] = []

    def __call__(self, event: str, **facts: object) -> None:
        self.lines.append((event, facts))


def test_the_first_of_a_reason_is_told_and_the_others_are_counted(monkeypatch) -> None:
    monkeypatch.setattr(refusals, "REFUSALS_S", 0.05)

    async def main() -> None:
        told = Told()
        log = Refusals(asyncio.get_running_loop(), told)
        for number in range(1000):
            log.refused("not a DIN frame", peer=str(number))
        log.refused("no handshake", peer="other")
        assert [facts["peer"] for _, facts in told.lines] == ["0", "other"]
        await until(lambda: len(told.lines) == 3)
        event, facts = told.lines[2]
        assert (event, facts["reason"], facts["more"]) == ("links refused", "not a DIN frame", 999)
        await until(lambda: not log._timers)
        log.refused("not a DIN frame", peer="later")
        assert told.lines[-1][1]["peer"] == "later", "after a quiet while it is news again"
        log.refused("not a DIN frame", peer="last")
        log.close()
        assert told.lines[-1][1]["more"] == 1, "nothing is left untold"

    asyncio.run(main())


def test_reasons_without_end_share_one_line() -> None:
    async def main() -> None:
        told = Told()
        log = Refusals(asyncio.get_running_loop(), told)
        for number in range(1000):
            log.refused(f"node {number} is not registered here")
        assert len(told.lines) == KINDS_MAX + 1
        log.close()
        assert told.lines[-1][1] == {
            "reason": OTHERS, "more": 1000 - KINDS_MAX - 1, "seconds": refusals.REFUSALS_S,
        }  # fmt: skip

    asyncio.run(main())


def test_a_server_says_a_reason_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving("tcp", tmp_path) as pair:
            for _ in range(20):
                peer = RawPeer(pair.address)
                await peer.send(peer.urgent, encode_head(Ping(1)))
                assert await peer.at_end(peer.urgent)
                peer.close()
            assert pair.reports.reasons().count("instead of a Hello") == 1

    asyncio.run(main())
