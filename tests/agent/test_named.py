"""Who may open a link to a node and whose frames it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from din.agent import named as named_module
from din.agent.named import RETIRED_MAX, Named
from din.domain.deployment import Epoch, Route
from din.domain.node import NodeId
from din.wire.messages import Run

GATEWAY, A, B, ME = "00" * 8, "aa" * 8, "bb" * 8, "cc" * 8
EPOCH, OTHER = Epoch(1, 1), Epoch(2, 5)
FROM_A = Run(
    1, 1, 1, Route(EPOCH, False, (NodeId(A), NodeId(ME), NodeId(B))), 1000, (), GATEWAY, producer=0
)


class Play:
    def __init__(self) -> None:
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.gone: list[str] = []
        self.named = Named(lambda text, **facts: self.reports.append((text, facts)))
        self.out: list[str] = []
        self.named.connect(self.gone.extend, self.out.extend)
        self.named.gateway_id = GATEWAY
        self.named.name(EPOCH, (A, ME, B))

    def may_knock(self, node_id: str) -> bool:
        return not self.named.refusal_of_link(node_id, 1)


def play(story: Callable[[Play], None]) -> None:
    async def main() -> None:
        story(Play())

    asyncio.run(main())


def test_named_nodes_may_knock_and_nobody_else_and_none_in_the_name_of_the_gateway() -> None:
    def story(play: Play) -> None:
        assert [each for each in (GATEWAY, A, B, "dd" * 8, "") if play.may_knock(each)] == [A, B]
        assert "dials its gateway" in play.named.refusal_of_link(GATEWAY, 1)
        play.named.name(EPOCH, (GATEWAY, ME))
        assert not play.may_knock(GATEWAY)
        assert "no deployment on this node names 'dddd" in play.named.refusal_of_link("dd" * 8, 1)

    play(story)


def test_before_a_gateway_is_joined_nobody_may_knock() -> None:
    async def main() -> None:
        named = Named(lambda text, **facts: None)
        assert named.refusal_of_link("", 1)
        assert named.refusal_of_link(A, 1)

    asyncio.run(main())


def test_the_id_of_the_gateway_must_be_proven_by_a_gateway() -> None:
    def story(play: Play) -> None:
        assert play.named.role_of(GATEWAY) == "gateway"
        assert play.named.role_of(A) == "node"

    play(story)


@pytest.mark.parametrize(
    ("sender", "change", "may"),
    [
        (A, {}, True),
        (GATEWAY, {"producer": -1}, True),
        (B, {}, False),
        (A, {"producer": -1}, False),
        (A, {"producer": 2}, False),
        (A, {"producer": 99}, False),
        (A, {"origin": B}, False),
        (A, {"route": Route(OTHER, False, (NodeId(A), NodeId(ME)))}, False),
        ("dd" * 8, {"route": Route(EPOCH, False, (NodeId("dd" * 8), NodeId(ME)))}, False),
    ],
)
def test_a_frame_is_taken_from_its_named_producer_only(
    sender: str, change: dict[str, Any], may: bool
) -> None:
    def story(play: Play) -> None:
        assert play.named.may_send(sender, replace(FROM_A, **change)) == may

    play(story)


def test_late_frames_of_a_deployment_that_is_gone_are_answered_and_links_end() -> None:
    def story(play: Play) -> None:
        play.named.name(OTHER, (B, ME))
        play.named.retire(EPOCH)
        assert play.gone == [A]
        assert not play.may_knock(A)
        assert play.may_knock(B)
        assert play.named.may_send(A, FROM_A), "it is answered that nothing is loaded"
        for number in range(RETIRED_MAX):
            play.named.name(Epoch(9, number), (A,))
            play.named.retire(Epoch(9, number))
        assert not play.named.may_send(A, FROM_A)

    play(story)


def test_a_node_that_is_named_no_more_loses_its_place_a_little_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(named_module, "LEAVE_S", 0.05)

    async def main() -> None:
        play = Play()
        play.named.name(EPOCH, (B, ME))
        assert play.named.may_send(A, FROM_A), "what it accepted before may still leave"
        async with asyncio.timeout(20):
            while not play.gone:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert play.gone == [A]
        assert not play.named.may_send(A, FROM_A)
        assert not play.may_knock(A)
        play.named.name(EPOCH, (B, ME))
        play.named.name(EPOCH, (A, B, ME))
        await asyncio.sleep(0.1)
        assert play.may_knock(A), "it was named again"

    asyncio.run(main())


def test_refused_frames_are_counted_and_told_seldom() -> None:
    def story(play: Play) -> None:
        for _ in range(1000):
            play.named.refuse("dd" * 8, FROM_A)
        ((text, facts),) = play.reports
        assert text == "frame_refused"
        assert (facts["peer"], facts["deployment"], facts["frames"]) == ("dd" * 8, 1, 1)

    play(story)


def test_a_node_that_was_thrown_out_loses_its_place_at_once_and_for_good() -> None:
    def story(play: Play) -> None:
        play.named.throw_out((A,))
        assert play.out == [A]
        assert play.named.refusal_of_link(A, 1) == f"node {A!r} was revoked"
        assert not play.named.may_send(A, FROM_A)
        assert play.may_knock(B)
        play.named.name(EPOCH, (A, ME, B))  # an order that was under way
        assert not play.may_knock(A)
        assert not play.named.may_send(A, FROM_A)

    play(story)


def test_of_very_many_thrown_out_those_told_of_last_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(named_module, "OUT_MAX", 3)

    def story(play: Play) -> None:
        play.named.throw_out((A, B, "1" * 16))
        play.named.throw_out((A,))
        play.named.throw_out(("2" * 16,))
        assert [play.named.is_out(each) for each in (A, B, "1" * 16, "2" * 16)] == [
            True, False, True, True,
        ]  # fmt: skip

    play(story)
