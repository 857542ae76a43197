"""The thermal governor: caps before the hardware throttles, and does not swing."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from din.execution.governor import (
    CALM_MS,
    CALM_MS_MAX,
    STALE_MS,
    STEP_MS,
    Governor,
    limit_of,
    steps_of,
)

FOUR = steps_of(4)


def shares(governor: Governor, temperatures: list[float | None], every_ms: int = 1000) -> list:
    """(second, share) of each change."""
    found = []
    for second, temperature_c in enumerate(temperatures):
        change = governor.take(second * every_ms, temperature_c)
        if change is not None:
            found.append((second, change.share))
    return found


def test_steps_are_those_that_differ() -> None:
    assert steps_of(8) == (1.0, 0.75, 0.5, 0.25)
    assert FOUR == (1.0, 0.75, 0.5, 0.25)
    assert steps_of(3) == (1.0, 2 / 3, 1 / 3)
    assert steps_of(2) == (1.0, 0.5)
    assert steps_of(1) == (1.0, 0.5)


@pytest.mark.parametrize(
    ("throttle_c", "is_critical", "limit_c"),
    [(None, False, 75.0), (85.0, False, 80.0), (100.0, True, 85.0), (50.0, True, 40.0),
     (125.0, False, 110.0)],
)  # fmt: skip
def test_the_limit_lies_below_where_the_hardware_helps_itself(
    throttle_c, is_critical: bool, limit_c: float
) -> None:
    assert limit_of(throttle_c, is_critical=is_critical) == limit_c


def test_a_cool_machine_keeps_everything() -> None:
    governor = Governor(80.0, FOUR)
    assert shares(governor, [40.0, 74.9, 60.0] * 100) == []
    assert (governor.share, governor.is_capping) == (1.0, False)


def test_it_steps_down_one_by_one_while_it_stays_hot_and_never_below_the_last() -> None:
    governor = Governor(80.0, FOUR)
    assert shares(governor, [81.0] * 40) == [(0, 0.75), (5, 0.5), (10, 0.25)]


def test_far_above_the_limit_it_takes_two_steps_at_once() -> None:
    assert shares(Governor(80.0, FOUR), [85.0] * 12) == [(0, 0.5), (5, 0.25)]


def test_it_acts_before_the_limit_when_the_temperature_is_about_to_reach_it() -> None:
    """A rise of half a degree a second: caps at 77.5 C, so the hardware never sees 80."""
    rising = [70.0 + second / 2 for second in range(20)]
    (second, share), *_ = shares(Governor(80.0, FOUR), rising)
    assert share == 0.75
    assert rising[second] <= 78.0


def test_cores_come_back_one_step_after_each_calm_time() -> None:
    governor = Governor(80.0, FOUR)
    calm = CALM_MS // 1000
    found = shares(governor, [85.0] * 6 + [70.0] * (3 * calm + 10))
    assert found == [
        (0, 0.5),
        (5, 0.25),
        (6 + calm, 0.5),
        (6 + 2 * calm, 0.75),
        (6 + 3 * calm, 1.0),
    ]


def test_between_limit_and_hysteresis_nothing_changes() -> None:
    governor = Governor(80.0, FOUR)
    assert shares(governor, [81.0] + [77.0] * 300) == [(0, 0.75)]


def test_a_machine_that_gets_hot_whenever_cores_come_back_does_so_ever_more_seldom() -> None:
    """A plant that is at 82 C with all cores and at 70 C without one."""
    governor, changes = Governor(80.0, FOUR), []
    for second in range(3600):
        heat_c = 82.0 if governor.share == 1.0 else 70.0
        if governor.take(second * 1000, heat_c) is not None:
            changes.append(second)
    downs = changes[::2]
    gaps = [after - before for before, after in pairwise(downs)]
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 4 * gaps[0]
    assert len(changes) <= 20, "of some 240 without the doubling"


def test_the_calm_time_has_a_limit_and_shrinks_in_peace() -> None:
    governor = Governor(80.0, FOUR)
    now_ms = 0
    for _ in range(40):
        while not governor.is_capping:
            governor.take(now_ms, 81.0)
            now_ms += STEP_MS
        began_ms = now_ms
        while governor.is_capping:
            governor.take(now_ms, 60.0)
            now_ms += 1000
        assert now_ms - began_ms <= CALM_MS_MAX + 2000
    peace_ms = now_ms + 20 * CALM_MS_MAX
    while now_ms < peace_ms:
        governor.take(now_ms, 60.0)
        now_ms += 5000
    governor.take(now_ms, 81.0)
    began_ms = now_ms
    while governor.is_capping:
        now_ms += 1000
        governor.take(now_ms, 60.0)
    assert now_ms - began_ms <= CALM_MS + 2000


def test_without_a_temperature_for_a_minute_everything_is_given_back() -> None:
    governor = Governor(80.0, FOUR)
    stale = STALE_MS // 1000
    found = shares(governor, [81.0] + [None] * (stale + 5))
    assert found == [(0, 0.75), (stale, 1.0)]
    assert Governor(80.0, FOUR).take(0, None) is None


@given(
    temperatures=st.lists(st.none() | st.floats(-40, 150), max_size=300),
    cores=st.integers(1, 128),
)
def test_it_never_leaves_its_steps_and_never_moves_faster_than_it_may(temperatures, cores) -> None:
    steps = steps_of(cores)
    governor = Governor(80.0, steps)
    before_ms: int | None = None
    for second, temperature_c in enumerate(temperatures):
        was = governor.share
        change = governor.take(second * 1000, temperature_c)
        assert governor.share in steps
        if change is None:
            assert governor.share == was
            continue
        if change.share < was and before_ms is not None:
            assert second * 1000 - before_ms >= STEP_MS
        before_ms = second * 1000
