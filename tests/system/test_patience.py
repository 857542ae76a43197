"""Calls that may never return."""

import threading

import pytest

from din.errors import DeadlineExceeded
from din.system.patience import answer_within


def test_the_answer_and_the_fault_come_through() -> None:
    assert answer_within(30, "it", lambda: 7) == 7
    assert answer_within(30, "it", lambda: None) is None
    with pytest.raises(OSError, match="gone"):
        answer_within(30, "it", lambda: (_ for _ in ()).throw(OSError("gone")))


def test_a_call_that_does_not_return_is_given_up_and_named() -> None:
    gate = threading.Event()
    try:
        with pytest.raises(DeadlineExceeded, match="the driver did not answer within"):
            answer_within(0.01, "the driver", lambda: gate.wait(30))
    finally:
        gate.set()
