"""Telling of what comes too often."""

from din.flow.seldom import Seldom


def test_the_first_is_told_at_once_and_the_others_together_later():
    seldom = Seldom(1000)
    assert [seldom.count(now_ms) for now_ms in (0, 1, 999)] == [1, 0, 0]
    assert seldom.count(1000) == 3
    assert seldom.count(1999) == 0
    assert seldom.count(9000) == 2
    assert seldom.total == 6
