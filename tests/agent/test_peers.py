"""Links between nodes: the newest serves, and those by addresses that are gone are closed."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from din.agent.peers import Peers
from din.errors import Unavailable, Unreachable, error_of_code
from din.transport.dial import dial
from din.transport.link import Link
from din.transport.server import LinkServer
from din.wire.messages import AnyMessage, Cancel, Failed

sys.path.insert(0, str(Path(__file__).parents[1] / "transport"))
from link_harness import Recorder, Reports, run, until

OWN, PEER, GATEWAY = "00000000000000aa", "00000000000000bb", "gateway-1"
CANCEL = Cancel(1, 1, "gateway", 1000)


class Side(Recorder):
    """A node with links: what its router does for `Peers`, and what it heard."""

    def __init__(self, own_id: str) -> None:
        super().__init__()
        self.own_id = own_id
        self.reports = Reports()
        self.reached: list[str] = []
        self.peers = Peers(own_id, 1, Random(1), self.reports)
        self.peers.connect(self, self.reached.append)
        self.server = LinkServer(own_id, 1, self)

    def on_open(self, link: Link) -> None:
        super().on_open(link)
        self.peers.opened(link)

    def on_closed(self, link: Link, reason: str, is_orderly: bool) -> None:
        super().on_closed(link, reason, is_orderly)
        self.peers.closed(link, is_orderly=is_orderly)

    def listen(self, host: str) -> str:
        return f"tcp:{host}:{self.server.listen_tcp(host, 0)}"

    async def meets(self, node_id: str) -> Side:
        """Somebody else, who has dialled this node."""
        somebody = Side(node_id)
        await dial([self.listen("127.0.0.1")], own_id=node_id, session=1, handler=somebody)
        await self.until(lambda: self.peers.link(node_id))
        return somebody

    def tell(self, peer_id: str, message: AnyMessage = CANCEL) -> bool:
        return self.peers.tell(peer_id, message)


@asynccontextmanager
async def two_sides() -> AsyncIterator[tuple[Side, Side]]:
    sides = Side(OWN), Side(PEER)
    try:
        yield sides
    finally:
        for side in sides:
            await side.peers.close()
            side.server.close()
        for side in sides:
            for link in side.opened:
                link.close("the test ends")
                await link.wait_ended()
        await asyncio.sleep(0)


def play(story: Callable[[Side, Side], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with two_sides() as (own, other):
            await story(own, other)

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_a_peer_that_moved_is_dialled_where_it_is_now_and_the_old_link_ends_in_order() -> None:
    """T06."""

    async def story(own: Side, other: Side) -> None:
        old, new = other.listen("127.0.0.2"), other.listen("127.0.0.3")
        assert await own.peers.dial_all({PEER: (old,)}) == ()
        assert own.peers.link(PEER).peer_host == "127.0.0.2"
        assert own.tell(PEER)
        assert await own.peers.dial_all({PEER: (new,)}) == ()
        assert own.peers.link(PEER).peer_host == "127.0.0.3"
        assert own.tell(PEER)
        await other.until(lambda: len(other.messages) == 2)
        await own.until(lambda: own.closed)
        ((_, reason, is_orderly),) = own.closed
        assert (reason, is_orderly) == ("the peer has left 127.0.0.2", True)

    play(story)


def test_an_address_more_leaves_the_link_as_it_is() -> None:
    async def story(own: Side, other: Side) -> None:
        first, second = other.listen("127.0.0.2"), other.listen("127.0.0.3")
        await own.peers.dial_all({PEER: (first,)})
        link = own.peers.link(PEER)
        assert await own.peers.dial_all({PEER: (second, first)}) == ()
        assert own.peers.link(PEER) is link
        assert len(own.opened) == 1

    play(story)


def test_a_dial_under_way_is_begun_anew_when_the_addresses_change() -> None:
    """Waiting for the old ones to fail would take seconds, and report the peer as not dialled."""

    async def story(own: Side, other: Side) -> None:
        with socket.create_server(("127.0.0.2", 0)) as silent:
            silent.setblocking(False)
            address = f"tcp:127.0.0.2:{silent.getsockname()[1]}"
            waiting = asyncio.create_task(own.peers.dial_all({PEER: (address,)}))
            visitor, _ = await asyncio.get_running_loop().sock_accept(silent)
            with visitor:
                assert await own.peers.dial_all({PEER: (other.listen("127.0.0.3"),)}) == ()
                assert await waiting == ()
        assert own.reports == []

    play(story)


def test_the_newest_link_serves() -> None:
    """The older one may be dead before anybody says so."""

    async def story(own: Side, other: Side) -> None:
        await own.peers.dial_all({PEER: (other.listen("127.0.0.1"),)})
        back = await dial([own.listen("127.0.0.1")], own_id=PEER, session=1, handler=other)
        await own.until(lambda: len(own.opened) == 2)
        newest = own.opened[-1]
        assert own.peers.link(PEER) is newest
        back.close("it ends")
        await own.until(lambda: own.closed)
        assert own.peers.link(PEER) is own.opened[0]

    play(story)


def test_links_by_a_lost_address_of_ours_are_replaced_at_once() -> None:
    async def story(own: Side, other: Side) -> None:
        await own.peers.dial_all({PEER: (other.listen("127.0.0.1"),)})
        old = own.peers.link(PEER)
        own.peers.address_changed(frozenset({"10.0.0.5"}))
        assert own.peers.link(PEER) is old
        own.peers.address_changed(frozenset({old.local_host}))
        assert own.peers.link(PEER) is None
        await until(lambda: own.peers.link(PEER))
        assert own.opened[-1] is not old
        assert "no address of this machine" in own.closed[0][1]

    play(story)


def test_a_peer_that_was_not_reached_is_dialled_at_once_after_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("din.agent.peers.DIAL_MS", 500)

    async def story(own: Side, other: Side) -> None:
        address = other.listen("127.0.0.1")
        other.server.close()
        assert await own.peers.dial_all({PEER: (address,)}) == (PEER,)
        assert own.reached == [PEER], "who told the gateway must hear that it is not reached"
        port = int(address.rpartition(":")[2])
        other.server = LinkServer(PEER, 1, other)
        other.server.listen_tcp("127.0.0.1", port)
        own.peers.address_changed(frozenset())
        await until(lambda: own.peers.link(PEER))
        assert own.reached == [PEER, PEER], "and that it is reached now"

    play(story)


@pytest.mark.parametrize("ends", ["broken", "in order"])
def test_what_a_broken_link_may_have_swallowed_is_told_to_the_gateway(ends: str) -> None:
    """Its time-out would come seconds later, and nobody else knows."""

    async def story(own: Side, other: Side) -> None:
        await own.peers.dial_all({PEER: (other.listen("127.0.0.1"),)})
        gateway = await own.meets(GATEWAY)
        sent: list[str] = []
        own.peers.forward(PEER, run(request_id=7), [], sent.append)
        await until(lambda: sent == [""])
        own.peers.link(PEER).close("the test cuts it", is_orderly=ends == "in order")
        await own.until(lambda: own.closed)
        own.tell(GATEWAY)
        await gateway.until(lambda: CANCEL in gateway.messages)
        told = [each for each in gateway.messages if isinstance(each, Failed)]
        if ends == "in order":
            assert told == []
            return
        (failed,) = told
        assert (failed.request_id, failed.node_id, failed.is_retryable) == (7, PEER, True)
        assert isinstance(error_of_code(failed.code, ""), Unavailable)
        assert not isinstance(error_of_code(failed.code, ""), Unreachable), "its own link may live"

    play(story)


def test_what_was_sent_long_before_the_peer_was_last_heard_has_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("din.agent.peers.UNCERTAIN_S", -3600.0)

    async def story(own: Side, other: Side) -> None:
        await own.peers.dial_all({PEER: (other.listen("127.0.0.1"),)})
        gateway = await own.meets(GATEWAY)
        sent: list[str] = []
        own.peers.forward(PEER, run(), [], sent.append)
        await until(lambda: sent == [""])
        own.peers.link(PEER).close("the test cuts it")
        await own.until(lambda: own.closed)
        own.tell(GATEWAY)
        await gateway.until(lambda: gateway.messages)
        assert gateway.messages == [CANCEL]

    play(story)
