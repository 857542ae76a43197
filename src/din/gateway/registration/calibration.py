"""Samples of the user's own, held against the model that they are for. Pure.

Every second sample calibrates, the others check: what saturates outside the calibrated ranges has
to show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, NamedTuple

from din.domain.calibration import GIVEN_MAX, decode_calibration
from din.domain.profile import GivenTensor
from din.domain.tensor import DTYPE_BYTES, TensorMeta, TensorSpec, check_tensor
from din.errors import BadTensor
from din.gateway.service import Buffer

WHERE: Final = "calibration inputs"


class Given(NamedTuple):
    """Inputs that go with the order of a probe, tensor by tensor."""

    specs: tuple[TensorSpec, ...] = ()
    metas: tuple[TensorMeta, ...] = ()
    chunks: tuple[Sequence[Buffer], ...] = ()

    def only(self, names: Iterable[str]) -> Given:
        """Those with these names."""
        wanted = set(names)
        kept = [place for place, spec in enumerate(self.specs) if spec.name in wanted]
        return Given(
            tuple(self.specs[place] for place in kept),
            tuple(self.metas[place] for place in kept),
            tuple(self.chunks[place] for place in kept),
        )


NOTHING_GIVEN: Final = Given()


@dataclass(frozen=True)
class Samples:
    """Samples of one model; none = they are made up."""

    rows: Mapping[str, Sequence[Buffer]]
    """By input, one for each sample."""
    metas: Mapping[str, TensorMeta]
    """Of one sample."""
    missing: tuple[str, ...] = ()
    """Inputs of the model that are made up."""

    @property
    def count(self) -> int:
        """How many were given."""
        return min(map(len, self.rows.values()), default=0)

    @property
    def to_calibrate(self) -> Given:
        """Every second one."""
        return self._stacked(slice(0, None, 2))

    @property
    def to_check(self) -> Given:
        """The others; a single one does both."""
        return self._stacked(slice(1, None, 2) if self.count > 1 else slice(None))

    def _stacked(self, which: slice) -> Given:
        rows = {name: each[which] for name, each in self.rows.items()}
        specs: list[TensorSpec] = []
        metas: list[TensorMeta] = []
        for name, one in self.metas.items():
            count = len(rows[name])
            shape = (count, *one.shape)
            specs.append(TensorSpec(name, one.dtype, shape))
            metas.append(TensorMeta(name, one.dtype, shape, count * one.nbytes))
        return Given(tuple(specs), tuple(metas), tuple(rows.values()))


MADE_UP: Final = Samples({}, {})


def samples_of(data: bytes, inputs: Iterable[TensorSpec]) -> Samples:
    """What a calibration file holds for a model with these inputs. Raises BadTensor naming the
    input, and what is wrong with its datatype, shape or number of samples."""
    known = {spec.name: spec for spec in inputs}
    rows: dict[str, Sequence[Buffer]] = {}
    metas: dict[str, TensorMeta] = {}
    symbols: dict[str, int] = {}
    for each in decode_calibration(data).tensors:
        spec = _spec_of(each, known)
        if spec.name in rows:
            raise BadTensor(f"{WHERE}: input {spec.name!r} was given twice", hint="once is enough")
        rows[spec.name], metas[spec.name] = _rows_of(each, spec, symbols)
    counts = {name: len(each) for name, each in rows.items()}
    if len(set(counts.values())) != 1:
        told = ", ".join(f"{count} of {name!r}" for name, count in counts.items()) or "none"
        raise BadTensor(
            f"{WHERE}: there are samples {told}", hint="give as many of each input, one at least"
        )
    return Samples(rows, metas, tuple(name for name in known if name not in rows))


def _spec_of(tensor: GivenTensor, known: Mapping[str, TensorSpec]) -> TensorSpec:
    if not tensor.name and len(known) == 1:
        return next(iter(known.values()))
    spec = known.get(tensor.name)
    if spec is None:
        names = ", ".join(known) or "none"
        what = f"has no input {tensor.name!r}" if tensor.name else f"has {len(known)} inputs"
        raise BadTensor(
            f"{WHERE}: the model {what}",
            hint=f"name each array as an input of the model; its inputs are {names}",
        )
    return spec


def _rows_of(
    tensor: GivenTensor, spec: TensorSpec, symbols: dict[str, int]
) -> tuple[Sequence[Buffer], TensorMeta]:
    """The samples of one input, and what each of them is."""
    shape = tensor.shape
    if spec.shape is not None and len(shape) == len(spec.shape):
        shape = (1, *shape)  # one sample, as it is
    if tensor.datatype not in DTYPE_BYTES or not shape or min(shape) < 0:
        raise BadTensor(
            f"{WHERE}: {spec.name!r} is {tensor.datatype} of shape {list(tensor.shape)}",
            hint="samples are arrays of numbers, whose first axis counts the samples",
        )
    count, nbytes = shape[0], DTYPE_BYTES[tensor.datatype] * prod(shape)
    if not 1 <= count <= GIVEN_MAX:
        raise BadTensor(
            f"{WHERE}: {count} samples of {spec.name!r} are given",
            hint=f"from 1 to {GIVEN_MAX}: choose some that differ, many alike tell no more",
        )
    if len(tensor.data) != nbytes:
        raise BadTensor(
            f"{WHERE}: {spec.name!r} of shape {list(tensor.shape)} {tensor.datatype} needs "
            f"{nbytes} bytes, got {len(tensor.data)}",
            hint="the file is damaged: give the inputs again",
        )
    row_nbytes = nbytes // count
    meta = TensorMeta(spec.name, tensor.datatype, shape[1:], row_nbytes)
    try:
        check_tensor(spec, meta, symbols)
    except BadTensor as error:
        hint = f"{error.hint}; the first axis of {list(tensor.shape)} counts the samples"
        raise BadTensor(f"{WHERE}: {error.message}", hint=hint) from None
    view = memoryview(tensor.data)
    rows = [view[place * row_nbytes : (place + 1) * row_nbytes] for place in range(count)]
    return rows, meta
