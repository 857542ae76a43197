"""Counters and histograms as plain numbers, made into Prometheus families when somebody scrapes.

The library's own children take a lock for each value; the requests of a gateway are counted on one
event loop, a dozen values each, and need none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Tally:
    """One histogram: how many values lie in each bucket, and their sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """One more value; a bound belongs to the bucket below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def mean(self) -> float | None:
        """Of all values; None before the first."""
        number = sum(self._counts)
        return self._sum / number if number else None

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Put it into a family as one series."""
        total = 0.0
        buckets: list[tuple[str, float]] = []
        for bound, number in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += number
            buckets.append((floatToGoString(bound), total))
        family.add_metric(labels, buckets, self._sum)


class CounterFamily:
    """Counters by label values."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._facts = (name, text, labels)
        self.values: dict[tuple[str, ...], int] = {}

    def collect(self) -> Metric:
        """All series as they stand."""
        name, text, labels = self._facts
        family = CounterMetricFamily(name, text, labels=labels)
        for key, value in self.values.items():
            family.add_metric(key, value)
        return family


class HistogramFamily:
    """Histograms by label values."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> None:
        self._facts = (name, text, labels)
        self._bounds = bounds
        self.tallies: dict[tuple[str, ...], Tally] = {}

    def add(self, key: tuple[str, ...]) -> Tally:
        """A new series, empty."""
        tally = self.tallies[key] = Tally(self._bounds)
        return tally

    def collect(self) -> Metric:
        """All series as they stand."""
        name, text, labels = self._facts
        family = HistogramMetricFamily(name, text, labels=labels)
        for key, tally in self.tallies.items():
            tally.add_to(family, key)
        return family


class TallyCollector(Collector):
    """Shows families to a registry."""

    def __init__(self, collects: Sequence[Callable[[], Metric]]) -> None:
        self._collects = collects

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        for collect in self._collects:
            yield collect()
