"""A node that heat or a weak supply slows down is told of when it begins and when it ends."""

import pytest

from din.domain.node import SPEED_LIMITS, NodeHealth, NodeId, SpeedLimit
from din.gateway.nodes.derating import WORDS, DeratingNews, slowdown_words

NODE = NodeId("3f2a9c0d1e4b5a67")


def test_every_limit_has_its_words() -> None:
    assert tuple(WORDS) == SPEED_LIMITS


@pytest.mark.parametrize(
    ("capacity", "limits", "words"),
    [
        (100, (), ""),
        (None, (), ""),
        (40, ("undervoltage",), "runs at 40 %: its supply's voltage is too low"),
        (
            40,
            ("undervoltage", "undervoltage_before"),
            "runs at 40 %: its supply's voltage is too low",
        ),
        (100, ("throttled_before",), "its hardware throttled since it started"),
        (
            50,
            ("throttled_before", "governor"),
            "runs at 50 %: its hardware throttled since it started; "
            "its governor holds cores back because of heat",
        ),
    ],
)
def test_what_people_read(capacity: int | None, limits: tuple[SpeedLimit, ...], words: str) -> None:
    assert slowdown_words(NodeHealth(capacity_percent=capacity, limits=limits)) == words


def test_beats_that_say_the_same_are_no_news() -> None:
    """T25: an alert, and one alert."""
    told: list[tuple[str, object]] = []
    news = DeratingNews(
        lambda event, **facts: told.append((event, facts.get("limits"))), lambda _: "edge-1"
    )
    fine = NodeHealth(capacity_percent=100)
    slow = NodeHealth(capacity_percent=40, limits=("undervoltage", "throttled"))
    for health in (fine, slow, slow, fine, fine, slow):
        news.look(NODE, health)
    slowed = ("node slowed down", "undervoltage, throttled")
    assert told == [slowed, ("node at full speed", None), slowed]
    news.forget(NODE)
    news.look(NODE, slow)
    assert len(told) == 4
