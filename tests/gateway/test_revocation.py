"""Who is told that a node was revoked, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from gateway_fakes import VirtualLoop, finish
from gateway_play import FakeNode, GatewayPlay, MemoryStore

from din.domain.node import NodeHealth
from din.errors import Conflict, NotFound, Unavailable
from din.gateway.nodes import roll as roll_module
from din.gateway.nodes.roll import TOLD_MS, Binding, Roll
from din.wire.beat_datagram import BeatKey
from din.wire.heartbeat import Heartbeat, encode_heartbeat
from din.wire.messages import AnyMessage, ThrownOut

DAY_MS = 24 * 3600 * 1000


class Ears:
    """What some nodes were told of revocations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[tuple[str, ThrownOut]] = []
        heard = FakeNode.heard

        def listen(node: FakeNode, link: object, message: AnyMessage, *body: bytes) -> None:
            if isinstance(message, ThrownOut):
                self.told.append((node.name, message))
            heard(node, link, message, *body)

        monkeypatch.setattr(FakeNode, "heard", listen)

    def of(self, name: str) -> list[tuple[str, ...]]:
        return [message.node_ids for each, message in self.told if each == name]


async def out(play: GatewayPlay, node: FakeNode) -> None:
    """Revoke a node; it does not try to come back."""
    node.is_mute = True
    await play.service.revoke_node(node.name)
    assert node.link is not None
    assert not node.link.is_open
    node.kill()


def play(folder: Path, story: Callable[[GatewayPlay], Awaitable[None]]) -> None:
    async def main() -> None:
        play = GatewayPlay(folder)
        await play.start()
        try:
            await story(play)
        finally:
            for node in play.nodes:
                node.kill()
            await play.stop()

    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(main())
    finally:
        finish(loop)
        asyncio.set_event_loop(None)


def test_every_other_node_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ears = Ears(monkeypatch)

    async def story(play: GatewayPlay) -> None:
        first, second, third = (play.add() for _ in range(3))
        await asyncio.sleep(1)
        assert ears.told == []
        await out(play, first)
        await asyncio.sleep(0.001)
        assert ears.of("node-2") == ears.of("node-3") == [(first.node_id,)]
        for each in (second, third):
            assert each.link is not None
            assert each.link.is_open
        await out(play, third)
        await asyncio.sleep(0.001)
        assert ears.of("node-2") == [(first.node_id,), (third.node_id,)]

    play(tmp_path, story)


def test_a_node_that_was_away_is_told_when_it_returns_also_by_a_gateway_that_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ears = Ears(monkeypatch)

    async def story(play: GatewayPlay) -> None:
        first, second, third = (play.add() for _ in range(3))
        await asyncio.sleep(1)
        second.kill()
        await out(play, first)
        await out(play, third)
        await asyncio.sleep(1)
        assert ears.of("node-2") == []
        gone = {first.node_id, third.node_id}
        second.start()
        await asyncio.sleep(0.001)
        assert [set(each) for each in ears.of("node-2")] == [gone]
        await play.crash()
        await asyncio.sleep(20)
        assert all(set(each) == gone for each in ears.of("node-2")[1:])
        assert len(ears.of("node-2")) > 1

    play(tmp_path, story)


def kept_wishes(play: GatewayPlay) -> list[str]:
    """Keys of drains and labels in the store."""
    return [key for key in sorted(play.store.entries) if key.startswith(("drains/", "labels/"))]


def test_what_operators_wished_of_a_node_goes_with_it(tmp_path: Path) -> None:
    async def story(play: GatewayPlay) -> None:
        first, second = play.add(), play.add()
        await asyncio.sleep(1)
        for node in (first, second):
            await play.service.drain_node(node.name)
            await play.service.label_node(node.name, {"line": "4"})
        await out(play, first)
        left = [f"drains/{second.node_id}", f"labels/{second.node_id}"]
        assert kept_wishes(play) == left
        assert play.gateway.drains.leaving() == {second.node_id}
        assert not play.service.inspect_node(first.name).is_draining
        await play.crash()
        await asyncio.sleep(20)
        assert kept_wishes(play) == left
        assert play.service.inspect_node(second.name).status == "draining"

    play(tmp_path, story)


def test_what_a_full_disk_kept_of_a_revoked_node_goes_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(play: GatewayPlay) -> None:
        first, _ = play.add(), play.add()
        await asyncio.sleep(1)
        await play.service.drain_node(first.name)
        with monkeypatch.context() as patched:

            async def full(*_: object, **__: object) -> bool:
                raise Unavailable("the disk is full")

            patched.setattr(play.store, "delete", full)
            await out(play, first)
        assert play.gateway.roll.is_revoked(first.node_id)
        assert kept_wishes(play) == [f"drains/{first.node_id}"]
        await play.crash()
        assert kept_wishes(play) == []

    play(tmp_path, story)


def test_a_node_whose_link_takes_nothing_is_cut_off_and_told_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ears = Ears(monkeypatch)

    async def story(play: GatewayPlay) -> None:
        first, second = play.add(), play.add()
        await asyncio.sleep(1)
        full = second.link
        assert full is not None
        full.send = lambda *_, **__: False
        await out(play, first)
        assert not full.is_open
        await asyncio.sleep(5)
        assert second.link is not full
        assert ears.of("node-2")[0] == (first.node_id,)

    play(tmp_path, story)


def test_revocations_of_long_ago_and_beyond_the_limit_are_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(roll_module, "TOLD_MAX", 3)

    async def story() -> None:
        now_ms = 0
        store = MemoryStore()
        roll = Roll(store, lambda: now_ms)
        for number in range(5):
            now_ms = number * 1000
            await roll.revoke(f"{number:016x}", "")
        newest = tuple(f"{number:016x}" for number in (4, 3, 2))
        assert roll.thrown_out() == newest
        now_ms = TOLD_MS + 3500
        assert roll.thrown_out() == newest[:1]
        again = Roll(store, lambda: now_ms)
        await again.load()
        assert again.thrown_out() == newest[:1]
        now_ms = TOLD_MS + 4001
        assert again.thrown_out() == ()
        assert again.is_revoked(newest[0])

    asyncio.run(story())


def test_beats_of_a_revoked_node_are_not_believed_any_more(tmp_path: Path) -> None:
    async def story(play: GatewayPlay) -> None:
        node = play.add()
        await asyncio.sleep(1)
        beats = play.gateway.beats
        key = BeatKey(beats.give(node.node_id, node.session))

        def beaten(counter: int) -> bytes | None:
            beat = Heartbeat(
                node_id=node.node_id, session=node.session, counter=counter, health=NodeHealth()
            )
            return beats.receive(key.seal_beat(encode_heartbeat(beat)))

        assert beaten(1_000_000) is not None
        await out(play, node)
        assert beaten(1_000_001) is None
        assert beats.refused["stranger"] == 1

    play(tmp_path, story)


def test_a_machine_that_is_back_under_its_name_is_the_one_that_is_thrown_out(
    tmp_path: Path,
) -> None:
    back_id, other_id = "ee" * 8, "ef" * 8

    async def story(play: GatewayPlay) -> None:
        node = play.add()
        await asyncio.sleep(1)
        await out(play, node)
        assert not (await play.service.revoke_node(node.name)).is_new
        # It has joined with a new identity, and has not been started yet.
        roll = play.gateway.roll
        await roll.bind(back_id, Binding("11" * 32, node.name))
        meant = await play.service.revoke_node(node.name, is_dry_run=True)
        assert (meant.node_id, meant.name, meant.is_new) == (back_id, node.name, True)
        assert not roll.is_revoked(back_id)
        assert await play.service.revoke_node(node.name) == meant
        assert roll.is_revoked(back_id)
        with pytest.raises(Conflict, match="means 2 nodes"):
            await play.service.revoke_node(node.name)
        with pytest.raises(NotFound, match="here or among those that joined"):
            await play.service.revoke_node("nobody")
        await roll.bind(other_id, Binding("22" * 32, "edge-9"))
        assert (await play.service.revoke_node("ef")).node_id == other_id

    play(tmp_path, story)
