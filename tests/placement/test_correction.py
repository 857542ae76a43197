"""Profiles corrected by live slices."""

from __future__ import annotations

import math

import pytest

from din.placement.correction import FACTOR_MAX, Corrections


def test_nothing_is_known_before_a_slice_has_run() -> None:
    assert Corrections().factor("a") is None


def test_the_first_measurement_counts_whole_and_later_ones_smoothly() -> None:
    found = Corrections()
    found.observe("a", 10, 20)
    assert found.factor("a") == pytest.approx(2)
    found.observe("a", 10, 10)
    assert found.factor("a") == pytest.approx(2 ** (7 / 8))


def test_twice_as_slow_and_twice_as_fast_weigh_alike() -> None:
    slow, fast = Corrections(), Corrections()
    for each, measured in ((slow, 20.0), (fast, 5.0)):
        each.observe("a", 10, 10)
        each.observe("a", 10, measured)
    product = (slow.factor("a") or 0) * (fast.factor("a") or 0)
    assert product == pytest.approx(1)


def test_it_settles_where_measurements_stay() -> None:
    found = Corrections()
    found.observe("a", 10, 10)
    for _ in range(100):
        found.observe("a", 10, 30)
    assert found.factor("a") == pytest.approx(3, rel=1e-3)


def test_a_factor_is_bounded_both_ways() -> None:
    found = Corrections()
    found.observe("slow", 1, 1e9)
    found.observe("fast", 1e9, 1)
    assert found.factor("slow") == pytest.approx(FACTOR_MAX)
    assert found.factor("fast") == pytest.approx(1 / FACTOR_MAX)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_time_is_left_out(bad: float) -> None:
    found = Corrections()
    found.observe("a", bad, 1)
    found.observe("a", 1, bad)
    assert found.factor("a") is None


def test_classes_are_bounded_and_the_one_unseen_longest_goes() -> None:
    found = Corrections(classes_max=2)
    for name in ("a", "b", "a", "c"):
        found.observe(name, 1, 2)
    assert found.factor("b") is None
    assert found.factor("a") is not None
    assert found.factor("c") is not None
