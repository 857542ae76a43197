"""Ranges of tensors over samples, without optimisation, and how much the samples differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec.structs import replace

from din.backends.contract import Array
from din.backends.probe_models import Models
from din.backends.probe_numbers import FLOATS, as_numbers, range_of
from din.domain.probe import CalibrateReport, ProbeOrder, TensorRange
from din.errors import BadTensor

TENSORS_MAX: Final = 256
"""Of one order to calibrate."""
TENSORS_AT_ONCE: Final = 16
"""What all of them hold together may not fit into memory."""


class Observed:
    """One tensor over the samples so far."""

    def __init__(self, name: str, dtype: str) -> None:
        self._name = name
        self._dtype = dtype
        self._range: TensorRange | None = None
        self._means: list[float] = []
        self._squares: list[float] = []
        self._is_finite = True

    def add(self, array: Array) -> None:
        """Take one sample in. Raises BadTensor for what has no range."""
        found = range_of(self._name, self._dtype, array)
        self._range = found if self._range is None else widened(self._range, found)
        numbers = as_numbers(self._dtype, array).astype(np.float64).reshape(-1)
        finite = numbers[np.isfinite(numbers)] if self._dtype in FLOATS else numbers
        self._is_finite = self._is_finite and finite.size == numbers.size
        if finite.size:
            self._means.append(float(finite.mean()))
            self._squares.append(float(np.square(finite).mean()))

    def result(self) -> TensorRange:
        """The range over all samples, at least one."""
        assert self._range is not None, "a session gives at least one sample"
        return replace(self._range, is_finite=self._is_finite, spread=self._spread())

    def _spread(self) -> float | None:
        if len(self._means) < 2:
            return None
        means = np.asarray(self._means)
        variance = float(np.mean(self._squares) - np.square(means.mean()))
        if not variance > 0:
            return None
        return min(float(means.std() / np.sqrt(variance)), 1.0)


def calibrate(models: Models, order: ProbeOrder, given: Mapping[str, Array]) -> CalibrateReport:
    """Ranges of the named tensors. Raises BadTensor, BadModel, ExecutionFailed."""
    if not 0 < len(order.tensors) <= TENSORS_MAX:
        raise BadTensor(
            f"{len(order.tensors)} tensors are to be calibrated",
            hint=f"between 1 and {TENSORS_MAX} at once",
        )
    session = models.open(0, "off", more_outputs=order.tensors)
    dtypes = {spec.name: spec.dtype for spec in session.outputs}
    observed = {name: Observed(name, dtypes[name]) for name in order.tensors}
    inputs: dict[str, Array] = {}
    samples = 0
    for inputs in models.samples_for(session, order, given):
        samples += 1
        for first in range(0, len(order.tensors), TENSORS_AT_ONCE):
            names = order.tensors[first : first + TENSORS_AT_ONCE]
            made = models.run(session, inputs, names)
            for name in names:
                observed[name].add(made[name])
    return CalibrateReport(
        inputs=models.facts(session, inputs),
        ranges=tuple(each.result() for each in observed.values()),
        samples=samples,
    )


def widened(one: TensorRange, other: TensorRange) -> TensorRange:
    """The range that holds both. Channels are dropped where the two have not the same number."""
    pairs = zip(one.channel_minima, other.channel_minima, strict=False)
    minima = tuple(_lower(*pair) for pair in pairs)
    pairs = zip(one.channel_maxima, other.channel_maxima, strict=False)
    maxima = tuple(_upper(*pair) for pair in pairs)
    is_same = len(one.channel_minima) == len(other.channel_minima)
    return replace(
        one,
        minimum=_lower(one.minimum, other.minimum),
        maximum=_upper(one.maximum, other.maximum),
        channel_minima=minima if is_same else (),
        channel_maxima=maxima if is_same else (),
    )


def _lower(one: float | None, other: float | None) -> float | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _upper(one: float | None, other: float | None) -> float | None:
    return max((each for each in (one, other) if each is not None), default=None)
