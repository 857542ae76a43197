"""How the tensors between the slices of a new version cross: calibrated, encoded, checked.

Everything is tried out by probes before the version is kept. What cannot be tried crosses exactly;
an encoding that the strategy names and that fails its check is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from din.domain.calibration import FILE_BYTES_MAX
from din.domain.encoding import PrecisionCheck
from din.domain.model import GATEWAY, CarveAnswer
from din.domain.tensor import TensorSpec
from din.errors import BadStrategy, DinError
from din.gateway.registration.calibration import MADE_UP, Samples, samples_of
from din.gateway.registration.trial import Carve, Encoded, EncodingRooms, Trial, told_of
from din.gateway.registration.verification import Subject
from din.placement.precision import (
    exact_bytes,
    kinds_of,
    slow_enough,
)
from din.placement.rates import Rate, rates_of

TENSORS_MAX: Final = 256
"""Of one version; what is over crosses exactly."""


class Encoder:
    """Decides about encodings; keeps nothing."""

    def __init__(self, rooms: EncodingRooms) -> None:
        self._rooms = rooms

    async def encode(self, subject: Subject, carved: CarveAnswer, carve: Carve) -> Encoded:
        """The cuts with the encodings that `slicing_strategy.precision` allows. Raises BadStrategy
        when one that it names loses too much, what a probe raises for one that it names, BadTensor
        for calibration inputs that the model does not take."""
        asked = subject.order.slicing_strategy.precision
        samples = await self._samples(subject)
        tensors = crossing(carved)
        if not tensors:
            return _exact(subject, carved, "nothing crosses between slices")
        if subject.order.is_dry_run:
            why = "a dry run measures nothing: encodings are decided when it is registered"
            return _exact(subject, carved, why)
        try:
            return await self._try(subject, carved, carve, tensors, samples)
        except BadStrategy:
            raise
        except DinError as error:
            if asked == "auto":
                first = error.message.partition("\n")[0]
                return _exact(subject, carved, f"nothing could be checked: {first}")
            hint = 'an encoding is used only after a check; "precision": "auto" goes without'
            raise type(error)(
                f"precision {asked} cannot be checked: {error.message}", hint=hint
            ) from None

    async def _samples(self, subject: Subject) -> Samples:
        sha256 = subject.order.calibration_sha256
        if not sha256:
            return MADE_UP
        return samples_of(await self._rooms.read(sha256, FILE_BYTES_MAX), subject.inputs)

    async def _rates(self, subject: Subject, carved: CarveAnswer) -> dict[str, Rate]:
        """What the ways of all tensors between slices carry."""
        nodes = [each for each in self._rooms.fleet_nodes() if each.status == "ready"]
        known = self._rooms.known_ways()
        # Among thousands of nodes it takes a moment; beats and requests go on meanwhile.
        return await asyncio.to_thread(
            rates_of, carved.slices, carved.edges, nodes, known, subject.wished
        )

    async def _try(
        self,
        subject: Subject,
        carved: CarveAnswer,
        carve: Carve,
        tensors: Mapping[str, TensorSpec],
        samples: Samples,
    ) -> Encoded:
        asked = subject.order.slicing_strategy.precision
        rates = await self._rates(subject, carved) if asked == "auto" else {}
        reasons = dict.fromkeys(list(tensors)[TENSORS_MAX:], f"over {TENSORS_MAX} tensors cross")
        reasons |= {name: carved.exact_only[name] for name in tensors if name in carved.exact_only}
        open_ = {name: spec for name, spec in tensors.items() if name not in reasons}
        fixed = {name: size for name, spec in open_.items() if (size := exact_bytes(spec))}
        if asked == "auto":
            kind = kinds_of(asked)[0]
            for name, size in fixed.items():
                if fast := slow_enough(size, open_[name].dtype, kind, rates[name]):
                    reasons[name] = fast
                    del open_[name]
        if not open_:
            return _exact(subject, carved, "no tensor gains by an encoding", reasons, rates)
        with self._rooms.examiner.borrowing() as made:
            whole = await self._rooms.examiner.whole(subject, made)
            trial = Trial(
                self._rooms, subject, carved, carve, whole, tensors, reasons, rates, samples, made
            )
            await trial.calibrate(tuple(open_))
            for kind in kinds_of(asked):
                found = await trial.attempt(kind, open_)
                if found is not None:
                    return found
        return trial.failed()


def crossing(carved: CarveAnswer) -> dict[str, TensorSpec]:
    """Tensors that one slice makes and another reads."""
    specs = {spec.name: spec for part in carved.slices for spec in part.outputs}
    return {
        edge.tensor: specs[edge.tensor]
        for edge in carved.edges
        if edge.producer != GATEWAY and any(each != GATEWAY for each in edge.consumers)
    }


def _exact(
    subject: Subject,
    carved: CarveAnswer,
    reason: str,
    reasons: Mapping[str, str] = MappingProxyType({}),
    rates: Mapping[str, Rate] = MappingProxyType({}),
) -> Encoded:
    tensors = crossing(carved)
    check = PrecisionCheck(
        asked=subject.order.slicing_strategy.precision,
        kind="exact",
        reason=reason,
        tensors=tuple(told_of(spec, None, None, reasons, rates) for spec in tensors.values()),
    )
    return Encoded(carved, check)
