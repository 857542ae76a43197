import pytest
from hypothesis import given
from hypothesis import strategies as st

from din.flow.health import HALF_LIFE_MS, ReplicaHealth


def test_four_failures_in_a_row_take_a_replica_out():
    health = ReplicaHealth(0)
    for _ in range(3):
        health.fail(0)
    assert health.value(0) > 0.3
    health.fail(0)
    assert health.value(0) < 0.3


def test_a_replica_without_work_heals_by_time():
    health = ReplicaHealth(0, 0.2)
    assert health.value(HALF_LIFE_MS) == pytest.approx(0.6)
    assert health.value(100 * HALF_LIFE_MS) == pytest.approx(1)


def test_success_heals():
    health = ReplicaHealth(0, 0.5)
    health.succeed(0)
    assert health.value(0) == pytest.approx(0.55)


@given(st.lists(st.tuples(st.sampled_from(["succeed", "fail"]), st.floats(-5, 50_000))))
def test_the_score_stays_between_0_and_1_even_if_time_goes_back(steps):
    health = ReplicaHealth(0)
    for step, now_ms in steps:
        getattr(health, step)(now_ms)
        assert 0 <= health.value(now_ms) <= 1
