from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from din.errors import Internal
from din.flow.backoff import Backoff
from din.flow.retry import ATTEMPTS_MAX, REMAINING_MS_MIN, Outcome, decide_retry


@given(st.integers(-3, 10_000), st.integers(0, 2**32))
def test_a_delay_lies_between_half_and_the_whole_of_the_doubled_base(attempt, seed):
    backoff = Backoff(base_ms=10, cap_ms=1000, jitter=0.5)
    full = min(10 * 2 ** min(max(attempt, 0), 32), 1000)
    assert full / 2 <= backoff.delay_ms(attempt, Random(seed)) <= full


def test_the_same_seed_gives_the_same_delays():
    first, second = Random(7), Random(7)
    backoff = Backoff()
    assert [backoff.delay_ms(n, first) for n in range(9)] == [
        backoff.delay_ms(n, second) for n in range(9)
    ]


@pytest.mark.parametrize("wrong", [{"base_ms": 0}, {"cap_ms": 1}, {"factor": 0.9}, {"jitter": 2}])
def test_a_backoff_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(Internal, match="makes no sense"):
        Backoff(**wrong)


def outcome(**changes: object) -> Outcome:
    return Outcome(**{"attempts": 1, "remaining_ms": 1000.0, "is_retryable": True, **changes})  # pyright: ignore[reportArgumentType]


def test_a_pure_route_with_time_left_is_tried_again():
    assert decide_retry(outcome()).is_allowed


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"is_retryable": False}, "the same way"),
        ({"is_random": True}, "random"),
        ({"remaining_ms": REMAINING_MS_MIN - 1}, "ms were left"),
        ({"remaining_ms": -20.0}, "only 0 ms"),
        ({"attempts": ATTEMPTS_MAX}, "the most allowed"),
    ],
)
def test_a_retry_is_refused_with_its_reason(changes, word):
    decision = decide_retry(outcome(**changes))
    assert not decision.is_allowed
    assert word in decision.reason


def test_a_random_route_is_tried_again_when_asked_or_when_nothing_ran():
    assert decide_retry(outcome(is_random=True, is_retry_of_random_allowed=True)).is_allowed
    assert decide_retry(outcome(is_random=True, is_busy=True)).is_allowed


def test_busy_nodes_do_not_use_up_the_attempts_but_the_deadline_holds():
    """T51: bounded by the deadline, not stuck in back-off."""
    assert decide_retry(outcome(attempts=50, is_busy=True)).is_allowed
    assert not decide_retry(outcome(attempts=50, is_busy=True, remaining_ms=1.0)).is_allowed
