"""What encodings at the cuts cost: outputs of the slices, one after the other along their edges,
against those of the whole on the same samples, both as they would serve."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from din.backends.contract import Array
from din.backends.probe_models import Models, engine_words
from din.backends.probe_numbers import FLOATS, as_numbers
from din.domain.encoding import OutputLoss
from din.domain.probe import PrecisionReport, ProbeOrder
from din.errors import BadTensor

Tensors = dict[str, Array]


def precision(models: Models, order: ProbeOrder, given: Mapping[str, Array]) -> PrecisionReport:
    """Compare over all samples. Raises BadTensor, BadModel, ExecutionFailed."""
    if len(order.parts) < 2:
        raise BadTensor("there is nothing to compare: the order names no slices")
    session = models.open(0, models.optimisation)
    specs = [each for each in session.outputs if each.name not in order.untested]
    names = [each.name for each in specs]
    feeds: list[Tensors] = []
    whole: list[Tensors] = []
    for inputs in models.samples_for(session, order, given):
        feeds.append(dict(inputs))
        whole.append(_copied(models.run(session, inputs, names)))
    facts = models.facts(session, feeds[0])
    sliced = _sliced(models, order, feeds)
    losses: list[OutputLoss] = []
    for spec in specs:
        pairs = [
            (one[spec.name], other[spec.name])
            for one, other in zip(whole, sliced, strict=True)
            if spec.name in other
        ]
        losses.append(loss_of(spec.name, spec.dtype, pairs))
    return PrecisionReport(
        inputs=facts, outputs=tuple(losses), samples=len(feeds), engine=engine_words()
    )


def loss_of(name: str, dtype: str, pairs: list[tuple[Array, Array]]) -> OutputLoss:
    """Of one output over (whole, sliced) of all samples."""
    if not pairs:
        return _unknown(name, "it is an input that is handed through")
    largest = magnitude = total = 0.0
    count = 0
    for one, other in pairs:
        if one.shape != other.shape:
            return _unknown(name, f"its shape is {list(other.shape)}, not {list(one.shape)}")
        if one.dtype.kind not in "fiub":
            if not np.array_equal(one, other):
                return _unknown(name, "texts differ")
            continue
        first = as_numbers(dtype, one).astype(np.float64)
        second = as_numbers(dtype, other).astype(np.float64)
        if dtype in FLOATS and not _same_strange(first, second):
            return _unknown(name, "it is NaN or infinite on one side")
        finite = np.isfinite(first)
        difference = np.abs(first[finite] - second[finite])
        largest = max(largest, float(difference.max(initial=0.0)))
        magnitude = max(magnitude, float(np.abs(first[finite]).max(initial=0.0)))
        total += float(difference.sum())
        count += int(finite.sum())
    loss = largest / magnitude if magnitude else (0.0 if not largest else None)
    mean = total / count if count else 0.0
    trouble = "" if loss is not None else "the whole's output is zero everywhere"
    return OutputLoss(
        name=name, max_absolute=largest, mean_absolute=mean, loss=loss, trouble=trouble
    )


def _same_strange(first: Array, second: Array) -> bool:
    """Whether NaN and infinities stand at the same places."""
    strange = ~np.isfinite(first)
    if not np.array_equal(strange, ~np.isfinite(second)):
        return False
    return bool(np.array_equal(first[strange], second[strange], equal_nan=True))


def _unknown(name: str, trouble: str) -> OutputLoss:
    return OutputLoss(name=name, max_absolute=None, mean_absolute=None, loss=None, trouble=trouble)


def _copied(made: Mapping[str, Array]) -> Tensors:
    return {name: array.copy() for name, array in made.items()}


def _sliced(models: Models, order: ProbeOrder, feeds: list[Tensors]) -> list[Tensors]:
    """Every slice is opened once and runs all samples; values that nobody needs any more go."""
    slices = order.parts[1:]
    last = {name: place for place, part in enumerate(slices) for name in part.inputs}
    wanted = set(order.parts[0].outputs)
    alive: list[Tensors] = [dict(each) for each in feeds]
    kept: list[Tensors] = [{} for _ in feeds]
    for place, part in enumerate(slices):
        session = models.open(place + 1, models.optimisation)
        for number, values in enumerate(alive):
            taken = {name: values[name] for name in part.inputs if name in values}
            made = _copied(models.run(session, taken, part.outputs))
            kept[number] |= {name: each for name, each in made.items() if name in wanted}
            values.update(made)
            for name in [each for each in values if last.get(each, -1) <= place]:
                del values[name]
    return kept
