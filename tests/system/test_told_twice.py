"""Signals to stop, counted."""

from din.system.signals import SAME_BREATH_S, ToldTwice


def test_a_second_signal_ends_at_once_unless_it_came_in_the_same_breath() -> None:
    now, told = [100.0], list[str]()
    stop = ToldTwice(lambda: told.append("begin"), lambda: told.append("end"), lambda: now[0])
    stop()
    now[0] += SAME_BREATH_S
    stop()
    assert told == ["begin"]
    now[0] += 0.1
    stop()
    assert told == ["begin", "end"]
