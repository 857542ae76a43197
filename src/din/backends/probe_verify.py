"""Whole against the slices, run one after the other in one process along their edges.

Without optimisation the same kernels run in the same order, so every tensor has to be equal bit for
bit, unless halves (FP16, BF16) cross: the engine keeps those in FP32 inside one session, and what
is made of them later differs by that rounding, whatever its datatype. At the model's own level
kernels are fused otherwise at a cut, so tolerances hold (probe_numbers). Where slices are to run on
other engines, they are run on these as well, within the same tolerances.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final

from din.backends.contract import Array, EngineSession
from din.backends.probe_models import Models, engine_words
from din.backends.probe_numbers import FLOATS, Distance, distance, incomparable
from din.domain.probe import (
    ENGINES,
    PROBED,
    ProbeOrder,
    ProbePart,
    TensorError,
    VerifyLevel,
    VerifyReport,
)
from din.errors import BadModel, BadTensor

HALVES: Final = frozenset({"FP16", "BF16"})

Tensors = dict[str, tuple[str, Array]]
"""Datatype word and value by name."""


class Sliced:
    """What the slices made, and for what they did not make, why."""

    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self.troubles: dict[str, str] = {}

    def fail(self, part: ProbePart, reason: str) -> None:
        """A slice made nothing."""
        self.troubles |= dict.fromkeys(part.outputs, f"slice {part.index}: {reason}")


def verify(models: Models, order: ProbeOrder, given: Mapping[str, Array]) -> VerifyReport:
    """Compare at both levels. Raises BadTensor, BadModel, ExecutionFailed."""
    if len(order.parts) < 2:
        raise BadTensor("there is nothing to verify: the order names no slices")
    names = _Names(order)
    session = models.open(0, "off", more_outputs=(*names.cuts, *names.borrowed))
    inputs = models.inputs_for(session, order, given)
    facts = models.facts(session, inputs)
    whole = _copied(models, session, inputs, names.all)
    is_exact = not any(dtype in HALVES for dtype, _ in whole.values())
    levels = [_compared(models, order, "off", inputs, whole, names, is_exact=is_exact)]
    if models.optimisation != "off":
        whole = _whole_at_own_level(models, order, inputs, names)
        levels.append(
            _compared(models, order, models.optimisation, inputs, whole, names, is_exact=False)
        )
    if any(part.backend != PROBED for part in order.parts[1:]):
        if models.optimisation == "off":
            whole = _whole_at_own_level(models, order, inputs, names)
        levels.append(_compared(models, order, ENGINES, inputs, whole, names, is_exact=False))
    return VerifyReport(
        inputs=facts, levels=tuple(levels), untested=order.untested, engine=engine_words()
    )


class _Names:
    """Which tensors are looked at."""

    def __init__(self, order: ProbeOrder) -> None:
        whole, slices = order.parts[0], order.parts[1:]
        self.made = {name: part.index for part in slices for name in part.outputs}
        """By slice."""
        tested = [name for name in self.made if name not in order.untested]
        self.cuts = [name for name in tested if name not in whole.outputs]
        self.outputs = [name for name in whole.outputs if name in tested]
        needed = {name: None for part in slices for name in part.inputs}
        self.borrowed = [n for n in needed if n not in self.made and n not in whole.inputs]
        """Made by slices that are not here: the whole's own value is taken."""
        self.all = [*self.outputs, *self.cuts, *self.borrowed]


def _whole_at_own_level(
    models: Models, order: ProbeOrder, inputs: Mapping[str, Array], names: _Names
) -> Tensors:
    """Outputs are those of the whole as it would run; what lies between is that of one which also
    gives it, since a value that has to be given is not fused away."""
    own = models.optimisation
    whole: Tensors = {}
    if names.outputs:
        whole |= _copied(models, models.open(0, own), inputs, names.outputs)
    inner = names.borrowed if order.is_quick else [*names.cuts, *names.borrowed]
    if inner:
        whole |= _copied(models, models.open(0, own, more_outputs=inner), inputs, inner)
    return whole


def _compared(
    models: Models,
    order: ProbeOrder,
    optimisation: str,
    inputs: Mapping[str, Array],
    whole: Tensors,
    names: _Names,
    *,
    is_exact: bool,
) -> VerifyLevel:
    """The slices at one level against what the whole made at it."""
    feeds = dict(inputs) | {name: whole[name][1] for name in names.borrowed}
    tested = {name: each for name, each in whole.items() if name in names.made}
    sliced = _sliced(models, order.parts[1:], optimisation, feeds, tested)
    behind = _behind_halves(order.parts[1:], {name: dtype for name, (dtype, _) in whole.items()})
    errors: list[TensorError] = []
    for name, (dtype, array) in tested.items():
        trouble, halves = sliced.troubles.get(name), behind.get(name)
        is_proof = halves is None or trouble is not None
        if trouble is None:
            made = sliced.tensors[name][1]
            found = distance(dtype, array, made, is_exact=is_exact, behind=halves)
            is_proof = is_proof or _is_lost(dtype, array, made, found)
        else:
            found = incomparable(trouble)
        told = "" if is_proof or found.is_within else f", behind {halves} that crosses a cut"
        errors.append(
            TensorError(
                name=name,
                after_slice=names.made[name],
                is_output=name in names.outputs,
                dtype=dtype,
                shape=tuple(int(size) for size in array.shape),
                max_absolute=found.max_absolute,
                max_relative=found.max_relative,
                is_equal=found.is_equal,
                is_within=found.is_within,
                trouble=found.trouble + told,
                is_proof=is_proof,
            )
        )
    return VerifyLevel(optimisation=optimisation, is_exact=is_exact, tensors=tuple(errors))


def _opened(models: Models, part: ProbePart, place: int, optimisation: str) -> EngineSession:
    if optimisation != ENGINES:
        return models.open(place, optimisation)
    if part.backend == PROBED:
        return models.open(place, models.optimisation)
    return models.open_on(place, part.backend)


def _behind_halves(slices: Sequence[ProbePart], dtypes: Mapping[str, str]) -> dict[str, str]:
    """The datatype of halves that crossed on the way to a tensor, the coarser where both did."""
    found: dict[str, str] = {}
    for part in slices:
        crossed = {found.get(name) or dtypes.get(name, "") for name in part.inputs} & HALVES
        if crossed:
            found |= dict.fromkeys(part.outputs, min(crossed))
    return found


def _is_lost(dtype: str, whole: Array, sliced: Array, found: Distance) -> bool:
    """Numbers on one side that are none on the other: no rounding, but what it led to."""
    return dtype in FLOATS and whole.shape == sliced.shape and found.max_absolute is None


def _copied(
    models: Models, session: EngineSession, inputs: Mapping[str, Array], names: Sequence[str]
) -> Tensors:
    """Outputs that outlive their session."""
    dtypes = {spec.name: spec.dtype for spec in session.outputs}
    made = models.run(session, inputs, names)
    return {name: (dtypes[name], made[name].copy()) for name in names}


def _sliced(
    models: Models,
    slices: Sequence[ProbePart],
    optimisation: str,
    inputs: Mapping[str, Array],
    wanted: Container[str],
) -> Sliced:
    """The slices one after the other, each fed by those before it; values that nobody needs any
    more are let go."""
    last = {name: place for place, part in enumerate(slices) for name in part.inputs}
    alive: Tensors = {}
    kept = Sliced()
    for place, part in enumerate(slices):
        feeds = {name: alive[name][1] for name in part.inputs if name in alive}
        feeds |= {name: inputs[name] for name in part.inputs if name in inputs}
        lacking = [name for name in part.inputs if name not in feeds]
        if lacking:
            kept.fail(part, f"it lacks {lacking[0]!r}")
            continue
        try:
            session = _opened(models, part, place + 1, optimisation)
            made = _copied(models, session, feeds, part.outputs)
        except (BadModel, BadTensor) as error:  # the whole can and the slice cannot: a finding
            kept.fail(part, error.message)
            continue
        kept.tensors |= {name: made[name] for name in made if name in wanted}
        alive |= made
        alive = {name: each for name, each in alive.items() if last.get(name, -1) > place}
    return kept
