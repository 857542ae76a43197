"""Profiles corrected by live slices."""

from __future__ import annotations

import math
from typing import Any

import pytest

from din.domain.cuts import CutTable, OperatorFacts
from din.domain.probe import OperatorTime, ProfileReport
from din.domain.profile import DeviceClass, Profile
from din.placement.correction import FACTOR_MAX, live_factor, slice_ms, times_for


def profile(*names: str) -> Any:
    operators = tuple(
        OperatorTime(name=name, kind="Relu", ms=float(n)) for n, name in enumerate(names, 1)
    )
    report = ProfileReport(
        inputs=(),
        operators=operators,
        whole_ms=1.0,
        plain_ms=1.0,
        rounds=1,
        coverage=1.0,
        engine="e",
    )
    device = DeviceClass("x86_64", "", (), 1.0, "onnxruntime 1")
    return Profile(
        source_sha256="s",
        device=device,
        bucket="typical",
        node="edge-1",
        measured_at="now",
        report=report,
    )


def table(*names: str) -> CutTable:
    operators = tuple(OperatorFacts(name, "Relu", 1, 1, 1) for name in names)
    return CutTable(source_sha256="s", operators=operators, values=())


def test_times_come_in_the_order_of_the_table_whatever_the_profile_has_beside_them() -> None:
    assert times_for(profile("constant", "a", "b"), table("b", "a")) == (3.0, 2.0)


def test_a_profile_of_other_operators_or_of_two_with_one_name_is_no_use() -> None:
    assert times_for(profile("a"), table("a", "b")) is None
    assert times_for(profile("a", "a"), table("a")) is None


def test_a_slice_takes_what_its_operators_take() -> None:
    assert slice_ms((1.0, 2.0, 4.0), (0, 1, 0)) == {0: 5.0, 1: 2.0}


def test_nothing_is_known_before_a_slice_has_run() -> None:
    assert live_factor(()) is None


def test_twice_as_slow_and_twice_as_fast_weigh_alike() -> None:
    assert live_factor([(10, 20)]) == pytest.approx(2)
    assert live_factor([(10, 20), (10, 5)]) == pytest.approx(1)


def test_a_factor_is_bounded_both_ways() -> None:
    assert live_factor([(1, 1e9)]) == pytest.approx(FACTOR_MAX)
    assert live_factor([(1e9, 1)]) == pytest.approx(1 / FACTOR_MAX)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_time_is_left_out(bad: float) -> None:
    assert live_factor([(bad, 1), (1, bad)]) is None
