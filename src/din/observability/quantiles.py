"""Quantiles of a stream in bounded memory: counts in buckets whose edges grow by a fixed ratio.

A quantile is off by at most half a bucket, 2.5 % at the default ratio, however many samples came.
Values below the first edge share one bucket, values above the last another; the exact minimum and
maximum are kept beside.
"""

from __future__ import annotations

from math import ceil, exp, log
from typing import Final

from din.errors import UsageError

RATIO: Final = 1.05
LOWEST: Final = 0.001
HIGHEST: Final = 10_000_000.0


class Quantiles:
    """Counts of positive values in logarithmic buckets. Mergeable when made alike."""

    __slots__ = ("_counts", "_log_ratio", "_lowest", "_maximum", "_minimum", "_total", "count")

    def __init__(
        self, lowest: float = LOWEST, highest: float = HIGHEST, ratio: float = RATIO
    ) -> None:
        if not (0 < lowest < highest and ratio > 1):
            raise UsageError(
                f"buckets from {lowest} to {highest} by {ratio} do not exist",
                hint="give 0 < lowest < highest and a ratio above 1",
            )
        self._lowest = lowest
        self._log_ratio = log(ratio)
        self._counts = [0] * (ceil(log(highest / lowest) / self._log_ratio) + 2)
        self._minimum = float("inf")
        self._maximum = 0.0
        self._total = 0.0
        self.count = 0

    @property
    def mean(self) -> float | None:
        """Exact mean, or None without a sample."""
        return self._total / self.count if self.count else None

    def add(self, value: float) -> None:
        """Take one sample; negative ones and NaN are dropped."""
        if not value >= 0:
            return
        self._counts[self._bucket(value)] += 1
        self.count += 1
        self._total += value
        self._minimum = min(self._minimum, value)
        self._maximum = max(self._maximum, value)

    def quantile(self, share: float) -> float | None:
        """The value that `share` (0..1) of the samples do not exceed; None without a sample."""
        if not 0 <= share <= 1:
            raise UsageError(
                f"there is no quantile {share}", hint="a quantile is a share between 0 and 1"
            )
        if not self.count:
            return None
        wanted = max(ceil(share * self.count), 1)
        seen = 0
        for number, count in enumerate(self._counts):
            seen += count
            if seen >= wanted:
                return min(max(self._middle(number), self._minimum), self._maximum)
        return self._maximum

    def merge(self, other: Quantiles) -> None:
        """Add the samples of another one of the same buckets. Raises UsageError."""
        if (self._lowest, self._log_ratio, len(self._counts)) != (
            other._lowest,
            other._log_ratio,
            len(other._counts),
        ):
            raise UsageError("quantiles of different buckets do not merge", hint="make both alike")
        self._counts = [
            mine + theirs for mine, theirs in zip(self._counts, other._counts, strict=True)
        ]
        self.count += other.count
        self._total += other._total
        self._minimum = min(self._minimum, other._minimum)
        self._maximum = max(self._maximum, other._maximum)

    def _bucket(self, value: float) -> int:
        if value <= self._lowest:
            return 0
        return min(ceil(log(value / self._lowest) / self._log_ratio), len(self._counts) - 1)

    def _middle(self, number: int) -> float:
        """Geometric middle of a bucket; the outer two answer with the extremes."""
        if number == 0:
            return self._minimum
        if number == len(self._counts) - 1:
            return self._maximum
        return self._lowest * exp((number - 0.5) * self._log_ratio)
