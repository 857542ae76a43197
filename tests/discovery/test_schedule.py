"""Beat times: spread over the interval, silences that follow, warnings in words."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from din.discovery.schedule import FLEET, PIPELINE, BeatSchedule
from din.errors import UsageError


def test_the_silences_of_the_presets() -> None:
    assert (FLEET.suspect_after_ms, FLEET.lost_after_ms) == (6900, 9000)
    assert (PIPELINE.suspect_after_ms, PIPELINE.lost_after_ms) == (2300, 3000)


@given(seed=st.integers(), interval_ms=st.integers(50, 10_000), share=st.floats(0, 0.49))
def test_delays_stay_in_their_range(seed: int, interval_ms: int, share: float) -> None:
    schedule = BeatSchedule(interval_ms, int(interval_ms * share))
    random = Random(seed)
    assert 0 <= schedule.first_delay_ms(random) < interval_ms
    assert abs(schedule.next_delay_ms(random) - interval_ms) <= schedule.jitter_ms
    assert schedule.suspect_after_ms < schedule.lost_after_ms


def test_a_fleet_that_starts_together_does_not_beat_together() -> None:
    """The peak per second of 200 nodes stays near the mean of 67, not at 200."""
    random = Random(1)
    seconds: Counter[int] = Counter()
    for _ in range(200):
        at_ms = FLEET.first_delay_ms(random)
        while at_ms < 30_000:
            seconds[at_ms // 1000] += 1
            at_ms += FLEET.next_delay_ms(random)
    assert max(seconds.values()) < 100


@pytest.mark.parametrize(("jitter_ms", "effect"), [(299, "stay together"), (601, "silence")])
def test_a_jitter_outside_a_tenth_to_a_fifth_is_warned_about(jitter_ms: int, effect: str) -> None:
    warning = BeatSchedule(3000, jitter_ms).warning()
    assert warning is not None
    assert effect in warning
    assert "450 ms is 0.15" in warning


@pytest.mark.parametrize("jitter_ms", [300, 450, 500, 600])
def test_an_ordinary_jitter_is_not_warned_about(jitter_ms: int) -> None:
    assert BeatSchedule(3000, jitter_ms).warning() is None


@pytest.mark.parametrize(("interval_ms", "jitter_ms"), [(10, 1), (3000, 1500), (3000, -1)])
def test_a_schedule_that_cannot_work_is_refused(interval_ms: int, jitter_ms: int) -> None:
    with pytest.raises(UsageError, match="heartbeat"):
        BeatSchedule(interval_ms, jitter_ms)


def test_missed_beats_are_counted_with_slack() -> None:
    assert [FLEET.missed_in(gap) for gap in (0, 3000, 3750, 3751, 7500, 9000)] == [0, 0, 0, 1, 1, 2]
