"""What a node says of its links: what is new at once, the rest seldom, nothing of its machine."""

from __future__ import annotations

from typing import Any

from din.agent.way_news import REPEAT_EVERY_MS, TELL_EVERY_MS, WAYS_MAX, WayNews
from din.wire.messages import AnyMessage, Measured, MeasuredWay


class FakeLink:
    def __init__(self, peer_id: str, rtt_ms: float | None = 8.0, rate: float | None = None) -> None:
        self.peer_id, self.rtt_ms, self.mib_per_second, self.is_local = peer_id, rtt_ms, rate, False


class Play:
    def __init__(self, *links: FakeLink) -> None:
        self.links = list(links)
        self.told: list[tuple[MeasuredWay, ...]] = []
        self.is_heard = True
        given: Any = lambda: self.links  # noqa: E731
        self.news = WayNews(given, self.tell)

    def tell(self, message: AnyMessage) -> bool:
        assert isinstance(message, Measured)
        self.told.append(message.ways)
        return self.is_heard


def test_what_is_measured_is_told_once_and_again_when_it_changes_or_after_a_minute():
    play = Play(FakeLink("peer", 8.0, 10.0))
    for now_ms in (0.0, 1.0, TELL_EVERY_MS, 2 * TELL_EVERY_MS):
        play.news.look(now_ms)
    assert play.told == [(MeasuredWay("peer", 4.0, 10.0),)]
    play.links[0].mib_per_second = 5.0
    play.news.look(3 * TELL_EVERY_MS)
    assert play.told[1:] == [(MeasuredWay("peer", 4.0, 5.0),)]
    play.links[0].mib_per_second = 5.2  # noise
    play.news.look(4 * TELL_EVERY_MS)
    assert len(play.told) == 2
    play.news.look(3 * TELL_EVERY_MS + REPEAT_EVERY_MS)
    assert len(play.told) == 3


def test_links_within_a_machine_and_links_without_an_answer_yet_are_left_out():
    inside, fresh = FakeLink("inside"), FakeLink("fresh", None)
    inside.is_local = True
    play = Play(inside, fresh)
    play.news.look(0)
    assert play.told == []
    fresh.rtt_ms = 2.0
    play.news.look(1)
    assert play.told == [(MeasuredWay("fresh", 1.0, None),)]


def test_what_nobody_heard_is_told_again():
    play = Play(FakeLink("peer"))
    play.is_heard = False
    play.news.look(0)
    play.is_heard = True
    play.news.look(1)
    assert len(play.told) == 2


def test_of_very_many_links_the_newest_are_told():
    play = Play(*(FakeLink(f"{number}") for number in range(2 * WAYS_MAX)))
    play.news.look(0)
    assert [each.peer_id for each in play.told[0]][-1] == f"{2 * WAYS_MAX - 1}"
    assert len(play.told[0]) == WAYS_MAX
