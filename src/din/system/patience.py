"""Calls that may never return, because the kernel or a driver does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from din.errors import DeadlineExceeded

_Answer = TypeVar("_Answer")


def answer_within(seconds: float, what: str, call: Callable[[], _Answer]) -> _Answer:
    """What `call` answers; raises what it raises, and DeadlineExceeded when it takes too long. It
    then goes on in a thread of its own, which does not hold the exit."""
    answers: list[_Answer] = []
    faults: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as fault:  # raised again by who waits
            faults.append(fault)

    thread = threading.Thread(target=run, name=what, daemon=True)
    thread.start()
    thread.join(seconds)
    if faults:
        raise faults[0]
    if not answers:
        raise DeadlineExceeded(f"{what} did not answer within {seconds:g} s")
    return answers[0]
