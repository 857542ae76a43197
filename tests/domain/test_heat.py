"""Heat of cores: the two named patterns, and no pattern out of nothing."""

import pytest

from din.domain.heat import CORES_MAX, CoreHeat, HeatView, core_mask_of, pattern_of, with_runs
from din.errors import UsageError


@pytest.mark.parametrize(
    ("percent", "bandwidth", "ratio", "pattern"),
    [
        (95.0, 85.0, 1.0, "bandwidth-bound"),
        (70.0, 70.0, None, "bandwidth-bound"),
        (95.0, 69.0, 9.0, ""),
        (95.0, None, 9.0, ""),
        (5.0, None, 2.0, "compute-idle"),
        (30.0, 90.0, 3.0, "compute-idle"),
        (5.0, 10.0, 1.9, ""),
        (5.0, 10.0, None, ""),
        (50.0, 90.0, 9.0, ""),
        (None, 90.0, 9.0, ""),
    ],
)
def test_patterns(
    percent: float | None, bandwidth: float | None, ratio: float | None, pattern: str
) -> None:
    assert pattern_of(percent, bandwidth, ratio) == pattern


def test_runs_give_each_core_its_pattern_and_their_absence_a_reason() -> None:
    cores = (CoreHeat(core=0, percent=10.0), CoreHeat(core=1, percent=90.0, bandwidth_percent=80.0))
    view = HeatView(node="edge-1", window_ms=100, core_mask="all", cores=cores)
    slow = with_runs(view, 3, 42_000.0, 2.54)
    assert [each.pattern for each in slow.cores] == ["compute-idle", "bandwidth-bound"]
    assert [each.latency_us_peak for each in slow.cores] == [42_000.0, 42_000.0]
    assert (slow.runs, slow.latency_ratio_peak, slow.unknown) == (3, 2.54, {})
    idle = with_runs(view, 0, None, None)
    assert [each.pattern for each in idle.cores] == ["", "bandwidth-bound"]
    assert idle.unknown == {"latency_us_peak": "no run of a slice ended in the window"}


@pytest.mark.parametrize(
    ("text", "mask"), [(None, 0), ("0xFF", 0xFF), ("ff", 0xFF), ("f" * (CORES_MAX // 4), None)]
)
def test_masks(text: str | None, mask: int | None) -> None:
    assert core_mask_of(text) == (mask if mask is not None else (1 << CORES_MAX) - 1)


@pytest.mark.parametrize("text", ["", "0x", "0", "0x0", "-1", "0xg", " 1", "1_0", "f" * 257])
def test_a_mask_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="core_mask"):
        core_mask_of(text)
