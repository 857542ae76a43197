import pytest
from hypothesis import given
from hypothesis import strategies as st

from din.errors import UsageError
from din.observability.metrics import METRICS
from din.observability.quantiles import Quantiles


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=300), st.floats(0, 1))
def test_a_quantile_is_off_by_at_most_a_bucket(values, share):
    stream = Quantiles()
    for value in values:
        stream.add(value)
    exact = sorted(values)[max(-(-share * len(values) // 1), 1).__int__() - 1]
    found = stream.quantile(share)
    assert found is not None
    assert exact / 1.06 <= found <= exact * 1.06


def test_nothing_measured_is_none():
    assert Quantiles().quantile(0.5) is None
    assert Quantiles().mean is None


def test_negative_values_and_nan_are_dropped():
    stream = Quantiles()
    stream.add(-1.0)
    stream.add(float("nan"))
    assert stream.count == 0


def test_values_outside_the_buckets_answer_with_the_extremes():
    stream = Quantiles(1.0, 10.0)
    for value in (0.25, 5_000.0):
        stream.add(value)
    assert stream.quantile(0.0) == 0.25
    assert stream.quantile(1.0) == 5_000.0


def test_merging_is_the_same_as_adding_all():
    left, right, both = Quantiles(), Quantiles(), Quantiles()
    for number in range(1, 101):
        (left if number % 3 else right).add(number)
        both.add(number)
    left.merge(right)
    assert [left.quantile(s / 10) for s in range(11)] == [both.quantile(s / 10) for s in range(11)]
    assert left.mean == both.mean
    with pytest.raises(UsageError):
        left.merge(Quantiles(1.0, 2.0))


def test_impossible_buckets_and_shares_are_refused():
    with pytest.raises(UsageError):
        Quantiles(0.0)
    with pytest.raises(UsageError):
        Quantiles().quantile(1.5)


def test_metric_names_follow_the_conventions():
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        assert metric.name.startswith("din_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.name.endswith("_info") == (metric.kind == "info")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert list(metric.buckets) == sorted(metric.buckets)
        assert metric.help.endswith(".")
        assert not any("id" in label.split("_") for label in metric.labels)
