import pytest
from hypothesis import given
from hypothesis import strategies as st

from din.errors import Internal
from din.flow.timeout import TimeoutLimits, Timeouts


def test_a_cold_slice_waits_three_cold_values():
    timeouts = Timeouts(TimeoutLimits(cold_ms=400))
    assert timeouts.mean_ms("s", "a") is None
    assert timeouts.timeout_ms("s", "a") == 1200


def test_the_timeout_is_three_means_between_floor_and_cap():
    timeouts = Timeouts(TimeoutLimits(floor_ms=50, cap_ms=900))
    timeouts.observe("s", "a", 100)
    assert timeouts.timeout_ms("s", "a") == 300
    timeouts.observe("s", "b", 1)
    assert timeouts.timeout_ms("s", "b") == 50
    timeouts.observe("s", "c", 5000)
    assert timeouts.timeout_ms("s", "c") == 900


def test_the_timeout_never_passes_the_deadline():
    timeouts = Timeouts()
    timeouts.observe("s", "a", 100)
    assert timeouts.timeout_ms("s", "a", remaining_ms=40) == 40
    assert timeouts.timeout_ms("s", "a", remaining_ms=-5) == 0


def test_a_node_four_times_slower_is_used_again_after_a_few_timeouts():
    """T51: without feeding time-outs back, every request would fail for ever."""
    timeouts = Timeouts(TimeoutLimits(floor_ms=1))
    for _ in range(50):
        timeouts.observe("s", "a", 10)
    failures = 0
    for _ in range(1000):
        if timeouts.timeout_ms("s", "a") < 40:
            failures += 1
            timeouts.observe_timeout("s", "a")
        else:
            timeouts.observe("s", "a", 40)
    assert failures == 2
    mean_ms = timeouts.mean_ms("s", "a")
    assert mean_ms is not None
    assert mean_ms == pytest.approx(40, rel=0.01)


@given(st.floats(0.1, 1000), st.floats(1, 50))
def test_any_slowdown_below_the_cap_recovers(base_ms, slowdown):
    timeouts = Timeouts(TimeoutLimits(floor_ms=0.01, cap_ms=1e9))
    timeouts.observe("s", "a", base_ms)
    for _ in range(40):
        if timeouts.timeout_ms("s", "a") >= base_ms * slowdown:
            return
        timeouts.observe_timeout("s", "a")
    pytest.fail("still too short after 40 time-outs")


def test_the_pair_unused_longest_is_forgotten_at_the_limit():
    timeouts = Timeouts(means_max=2)
    for node in "abc":
        timeouts.observe("s", node, 1)
    assert len(timeouts) == 2
    assert timeouts.mean_ms("s", "a") is None


def test_a_node_that_left_is_forgotten():
    timeouts = Timeouts()
    timeouts.observe("s", "a", 1)
    timeouts.observe("s", "b", 1)
    timeouts.forget_node("a")
    assert timeouts.mean_ms("s", "a") is None
    assert timeouts.mean_ms("s", "b") == 1


def test_times_that_cannot_be_are_dropped():
    timeouts = Timeouts()
    timeouts.observe("s", "a", -1)
    timeouts.observe("s", "a", float("nan"))
    assert len(timeouts) == 0


@pytest.mark.parametrize("wrong", [{"factor": 0.5}, {"weight": 0}, {"floor_ms": 9, "cap_ms": 3}])
def test_limits_that_make_no_sense_are_refused(wrong):
    with pytest.raises(Internal, match="make no sense"):
        TimeoutLimits(**wrong)
