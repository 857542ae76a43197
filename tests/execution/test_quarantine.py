"""What a node keeps out, and for how long."""

from __future__ import annotations

from din.execution.quarantine import (
    FORGET_MS,
    NAMES_MAX,
    OUT_MS_MAX,
    OUT_MS_MIN,
    WINDOW_MS,
    Quarantine,
)

A, B = "a" * 64, "b" * 64


def crash_twice(it: Quarantine, now_ms: float) -> bool:
    it.crashed(A, now_ms, "first")
    return it.crashed(A, now_ms, "second")


def test_the_second_crash_puts_a_slice_out_and_no_other() -> None:
    it = Quarantine()
    assert not it.crashed(A, 0.0, "killed by signal 11 (SIGSEGV)")
    assert it.refusal(A, 0.0, "head") is None
    assert not it.crashed(B, 0.0, "x")
    assert it.crashed(A, 1.0, "killed by signal 6 (SIGABRT)")
    refused = it.refusal(A, 1.0, "head")
    assert refused is not None
    assert "'head' ended its workers here 2 times" in refused.message
    assert "for 10 s more; the last: killed by signal 6 (SIGABRT)" in refused.message
    assert "din node lift" in refused.hint
    assert it.refusal(B, 1.0, "tail") is None


def test_it_may_come_back_after_a_while_that_doubles_and_has_an_end() -> None:
    it, now_ms, waits = Quarantine(), 0.0, []
    assert crash_twice(it, now_ms)
    for _ in range(14):
        began_ms, step_ms = now_ms, OUT_MS_MIN
        while it.refusal(A, now_ms, "a") is not None:
            now_ms += step_ms
        waits.append(now_ms - began_ms)
        it.crashed(A, now_ms, "again")
        if it.refusal(A, now_ms, "a") is None:
            it.crashed(A, now_ms, "again")
    assert waits[:4] == [OUT_MS_MIN, 2 * OUT_MS_MIN, 4 * OUT_MS_MIN, 8 * OUT_MS_MIN]
    assert max(waits) == OUT_MS_MAX


def test_crashes_far_apart_are_two_troubles() -> None:
    it = Quarantine()
    assert not it.crashed(A, 0.0, "x")
    assert not it.crashed(A, WINDOW_MS + 1, "x")
    assert it.crashed(A, WINDOW_MS + 2, "x")


def test_an_hour_without_a_crash_is_a_new_beginning() -> None:
    it = Quarantine()
    crash_twice(it, 0.0)
    crash_twice(it, OUT_MS_MIN + FORGET_MS + 1)
    assert it.refusal(A, OUT_MS_MIN + FORGET_MS + 1 + OUT_MS_MIN, "a") is None


def test_lifting_forgets() -> None:
    it = Quarantine()
    crash_twice(it, 0.0)
    assert it.lift() == 1
    assert it.refusal(A, 0.0, "a") is None
    assert not it.crashed(A, 0.0, "x")


def test_what_is_remembered_is_bounded() -> None:
    it = Quarantine()
    for number in range(NAMES_MAX + 1):
        it.crashed(str(number), 0.0, "x")
    assert it.lift() == NAMES_MAX
