"""Rates by key and wrong keys by address, in given time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from din.access.limits import FailureLimiter, TokenBucket, WaitingRoom, network_of


def test_a_bucket_gives_its_burst_then_its_rate() -> None:
    bucket = TokenBucket(10.0, 3, now_ms=0)
    assert [bucket.take(0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert bucket.take(0) == 100.0
    assert bucket.take(99) > 0
    assert bucket.take(100) == 0.0
    assert bucket.take(100) > 0


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    bucket = TokenBucket(10.0, 2, now_ms=0)
    taken = [bucket.take(1_000_000) for _ in range(3)]
    assert taken[:2] == [0.0, 0.0]
    assert taken[2] > 0


def test_a_slow_rate_without_a_burst_still_lets_one_through() -> None:
    bucket = TokenBucket(0.1, None, now_ms=0)
    assert bucket.take(0) == 0.0
    assert bucket.take(0) == 10_000.0


@given(st.lists(st.integers(0, 50), max_size=200))
def test_no_stretch_of_time_gets_more_than_burst_and_rate(steps: list[int]) -> None:
    bucket, now_ms, taken = TokenBucket(20.0, 5, now_ms=0), 0, 0
    for step in steps:
        now_ms += step
        taken += bucket.take(now_ms) == 0
    assert taken <= 5 + now_ms * 20 / 1000 + 1e-6


def test_a_clock_that_steps_back_gives_nothing_away() -> None:
    bucket = TokenBucket(1.0, 1, now_ms=1_000)
    assert bucket.take(1_000) == 0.0
    assert bucket.take(0) > 0
    assert bucket.take(1_500) > 0


def test_an_address_that_fails_too_often_is_told_to_wait_until_its_window_ends() -> None:
    limiter = FailureLimiter(failures_max=3, window_ms=1_000)
    assert [limiter.fail("10.0.0.1", each) for each in (0, 10, 20)] == [0, 0, 0]
    assert limiter.fail("10.0.0.1", 400) == 600
    assert limiter.fail("10.0.0.2", 400) == 0
    assert limiter.fail("10.0.0.1", 1_000) == 0


def test_the_table_of_addresses_is_bounded_and_forgets_the_oldest() -> None:
    limiter = FailureLimiter(failures_max=1, window_ms=1_000, addresses_max=2)
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
        assert limiter.fail(address, 0) == 0
    assert limiter.fail("10.0.0.3", 1) > 0
    assert limiter.fail("10.0.0.1", 1) == 0
    assert len(limiter._windows) == 2


def test_a_network_of_ipv6_addresses_is_one() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff") == "2001:db8::/64"
    assert network_of("2001:db8:0:1::1") != network_of("2001:db8::1")
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1") == "10.0.0.1"
    assert network_of("fe80::1%eth0") == "fe80::/64"
    assert network_of("") == ""


def test_a_full_room_is_left_by_the_oldest_of_whoever_takes_the_most_places() -> None:
    room = WaitingRoom[str](4)
    assert [room.enter(f"a{number}", "10.0.0.1") for number in range(3)] == [None] * 3
    assert room.enter("b0", "10.0.0.2") is None
    assert room.enter("b1", "10.0.0.2") == "a0"
    assert room.enter("a3", "10.0.0.1") == "a1"
    assert (len(room), sorted(room)) == (4, ["a2", "a3", "b0", "b1"])
    room.leave("a2")
    room.leave("a2")
    assert "a2" not in room
    assert room.enter("c0", "10.0.0.3") is None
    assert room.enter("c1", "10.0.0.3") == "b0"


def test_in_the_waiting_room_a_whole_ipv6_network_is_one() -> None:
    room = WaitingRoom[int](3)
    for number in range(9):
        room.enter(number, f"2001:db8::{number + 1:x}")
    assert room.enter(10, "10.0.0.1") == 6
    assert room.enter(11, "10.0.0.2") == 7
    assert list(room) == [8, 10, 11]
