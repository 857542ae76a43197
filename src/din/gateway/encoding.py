"""How the tensors between the slices of a new version cross: calibrated, encoded, checked.

Everything is tried out by probes before the version is kept. What cannot be tried crosses exactly;
an encoding that the strategy names and that fails its check is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from msgspec.structs import replace

from din.domain.encoding import (
    SAMPLES_DEFAULT,
    EncodedTensor,
    Encoding,
    EncodingKind,
    OutputLoss,
    PrecisionCheck,
)
from din.domain.model import ARTIFACTS_MAX, GATEWAY, CarveAnswer, Slice
from din.domain.node import FleetNode
from din.domain.probe import CalibrateReport, PrecisionReport, ProbeOrder, TensorRange
from din.domain.tensor import DTYPE_BYTES, TensorSpec
from din.errors import BadStrategy, DinError, ExecutionFailed, TooLarge
from din.gateway.verification import Subject, behind_random, in_order, part_of, weights_in
from din.placement.precision import (
    Refused,
    encoded_bytes,
    encoding_of,
    exact_bytes,
    kinds_of,
    slow_enough,
    slowest_way,
    spread_warnings,
    tolerance_of,
    too_lossy,
)
from din.placement.ways import WayFacts

if TYPE_CHECKING:
    from din.gateway.probes import Probed

PROBE_MS_MAX: Final = 120_000
"""What one of the two runs may take, loading included."""
TENSORS_MAX: Final = 256
"""Of one version; what is over crosses exactly."""

Carve = Callable[[dict[str, Encoding]], Awaitable[CarveAnswer]]
"""The same cuts with encodings at them."""


class Examining(Protocol):
    """What is needed of the examiner."""

    def borrowing(self) -> AbstractContextManager[set[str]]:
        """Artifacts put into the set are kept until it is left."""
        ...

    async def whole(self, subject: Subject, made: set[str]) -> Slice:
        """The model in one slice."""
        ...

    async def ask(
        self, subject: Subject, order: ProbeOrder, parts: Sequence[Slice], timeout_ms: int
    ) -> Probed:
        """Run one probe over these parts. Raises DinError."""
        ...


@dataclass(frozen=True)
class EncodingRooms:
    """What is used of the gateway."""

    examiner: Examining
    fleet_nodes: Callable[[], Sequence[FleetNode]]
    wall_clock_iso: Callable[[], str]


class Encoded(NamedTuple):
    """The version as it will be kept, and why."""

    carved: CarveAnswer
    check: PrecisionCheck | None
    """None: everything was to cross exactly."""


class Encoder:
    """Decides about encodings; keeps nothing."""

    def __init__(self, rooms: EncodingRooms) -> None:
        self._rooms = rooms

    async def encode(self, subject: Subject, carved: CarveAnswer, carve: Carve) -> Encoded:
        """The cuts with the encodings that `slicing_strategy.precision` allows. Raises BadStrategy
        when one that it names loses too much, and what a probe raises for one that it names."""
        asked = subject.order.slicing_strategy.precision
        tensors = crossing(carved)
        if not tensors:
            return _exact(subject, carved, "nothing crosses between slices")
        if subject.order.is_dry_run:
            why = "a dry run measures nothing: encodings are decided when it is registered"
            return _exact(subject, carved, why)
        try:
            return await self._try(subject, carved, carve, tensors)
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

    async def _try(
        self,
        subject: Subject,
        carved: CarveAnswer,
        carve: Carve,
        tensors: Mapping[str, TensorSpec],
    ) -> Encoded:
        asked = subject.order.slicing_strategy.precision
        way = slowest_way(self._rooms.fleet_nodes()) if asked == "auto" else None
        reasons = dict.fromkeys(list(tensors)[TENSORS_MAX:], f"over {TENSORS_MAX} tensors cross")
        reasons |= {name: carved.exact_only[name] for name in tensors if name in carved.exact_only}
        open_ = {name: spec for name, spec in tensors.items() if name not in reasons}
        fixed = {name: size for name, spec in open_.items() if (size := exact_bytes(spec))}
        if way is not None:
            kind = kinds_of(asked)[0]
            for name, size in fixed.items():
                if fast := slow_enough(size, open_[name].dtype, kind, way):
                    reasons[name] = fast
                    del open_[name]
        if not open_:
            return _exact(subject, carved, "no tensor gains by an encoding", reasons)
        with self._rooms.examiner.borrowing() as made:
            whole = await self._rooms.examiner.whole(subject, made)
            trial = _Trial(self._rooms, subject, carved, carve, whole, tensors, reasons, made)
            await trial.calibrate(tuple(open_))
            for kind in kinds_of(asked):
                found = await trial.attempt(kind, open_, way)
                if found is not None:
                    return found
        return trial.failed()


class _Trial:
    """Of one version: what was calibrated, and how the kinds did."""

    def __init__(
        self,
        rooms: EncodingRooms,
        subject: Subject,
        carved: CarveAnswer,
        carve: Carve,
        whole: Slice,
        tensors: Mapping[str, TensorSpec],
        reasons: dict[str, str],
        made: set[str],
    ) -> None:
        self._rooms = rooms
        self._subject = subject
        self._carved = carved
        self._carve = carve
        self._whole = whole
        self._tensors = tensors
        self._reasons = reasons
        self._made = made
        self._ranges: dict[str, TensorRange] = {}
        self._warnings: tuple[str, ...] = ()
        self._samples = 0
        self._losses: tuple[OutputLoss, ...] = ()
        self._tolerance: float | None = None
        self._node = ""
        self._troubles: list[str] = []

    async def calibrate(self, names: tuple[str, ...]) -> None:
        """See what values the tensors have."""
        order = ProbeOrder(
            kind="calibrate",
            parts=(replace(part_of(self._whole), index=-1),),
            tensors=names,
            samples=SAMPLES_DEFAULT,
        )
        examiner = self._rooms.examiner
        probed = await examiner.ask(self._subject, order, (self._whole,), PROBE_MS_MAX)
        report = probed.report
        if not isinstance(report, CalibrateReport):
            raise ExecutionFailed(f"node {probed.node} answered with a report of another kind")
        self._ranges = {each.name: each for each in report.ranges}
        self._samples, self._node = report.samples, probed.node
        self._warnings = (
            "calibrated on made-up inputs, whose ranges are not those of real ones",
            *spread_warnings(report.ranges, report.samples),
        )

    async def attempt(
        self, kind: EncodingKind, open_: Mapping[str, TensorSpec], way: WayFacts | None
    ) -> Encoded | None:
        """One kind; None when it gives nothing or loses too much."""
        encodings = self._encodings(kind, open_, way)
        if not encodings:
            return None
        answer = await self._carve(encodings)
        artifacts = {each.sha256 for part in answer.slices for each in part.artifacts}
        self._made |= artifacts
        self._tolerance = tolerance_of(
            kind, self._subject.order.slicing_strategy.precision_tolerance
        )
        self._losses = await self._lost(answer)
        trouble = too_lossy(self._losses, self._tolerance)
        if trouble:
            self._troubles.append(f"{kind}: {trouble}")
            return None
        self._made -= artifacts
        worst = max((each.loss or 0.0 for each in self._losses), default=0.0)
        reason = (
            f"{kind} at {len(encodings)} of {len(self._tensors)} tensors: outputs are at most "
            f"{worst:.2%} of their largest magnitude off, of {self._tolerance:.2%} allowed"
        )
        return Encoded(answer, self._check(kind, reason, encodings))

    def failed(self) -> Encoded:
        """No kind was used. Raises BadStrategy where the strategy named one that loses too much."""
        asked = self._subject.order.slicing_strategy.precision
        if self._troubles and asked != "auto":
            raise BadStrategy(
                f"slicing_strategy.precision: {self._troubles[0]}",
                hint="give a precision_tolerance that you can live with, cut elsewhere, or use "
                '"precision": "auto" or "exact"',
            )
        reason = "; ".join(self._troubles) or "no tensor can be encoded"
        return Encoded(self._carved, self._check("exact", reason, {}))

    def _encodings(
        self, kind: EncodingKind, open_: Mapping[str, TensorSpec], way: WayFacts | None
    ) -> dict[str, Encoding]:
        encodings: dict[str, Encoding] = {}
        for name, spec in open_.items():
            seen = self._ranges[name]
            size = exact_bytes(spec, seen) or 0
            fast = slow_enough(size, spec.dtype, kind, way) if way is not None else ""
            made = Refused(fast) if fast else encoding_of(spec, seen, kind)
            if isinstance(made, Refused):
                self._reasons[name] = made.reason
            else:
                encodings[name] = made
        return encodings

    async def _lost(self, answer: CarveAnswer) -> tuple[OutputLoss, ...]:
        parts = (self._whole, *in_order(answer.slices, answer.edges))
        files = len(parts) + len(weights_in(parts))
        if files > ARTIFACTS_MAX:
            raise TooLarge(
                f"{len(answer.slices)} slices are {files} files, and a probe holds {ARTIFACTS_MAX}",
                hint="cut into fewer slices",
            )
        order = ProbeOrder(
            kind="precision",
            parts=(replace(part_of(self._whole), index=-1), *map(part_of, parts[1:])),
            samples=SAMPLES_DEFAULT,
            seed=SAMPLES_DEFAULT,  # others than calibration saw, so that saturating shows
            untested=behind_random(answer.slices, answer.edges),
        )
        probed = await self._rooms.examiner.ask(self._subject, order, parts, PROBE_MS_MAX)
        if not isinstance(probed.report, PrecisionReport):
            raise ExecutionFailed(f"node {probed.node} answered with a report of another kind")
        self._node = probed.node
        return probed.report.outputs

    def _check(
        self,
        kind: Literal["exact", "fp16", "uint8"],
        reason: str,
        encodings: Mapping[str, Encoding],
    ) -> PrecisionCheck:
        return PrecisionCheck(
            asked=self._subject.order.slicing_strategy.precision,
            kind=kind,
            reason=reason,
            tensors=tuple(
                _told(spec, encodings.get(name), self._ranges.get(name), self._reasons)
                for name, spec in self._tensors.items()
            ),
            outputs=self._losses,
            tolerance=self._tolerance,
            samples=self._samples,
            samples_from="made up" if self._samples else "",
            node=self._node,
            checked_at=self._rooms.wall_clock_iso(),
            warnings=self._warnings,
        )


def crossing(carved: CarveAnswer) -> dict[str, TensorSpec]:
    """Tensors that one slice makes and another reads."""
    specs = {spec.name: spec for part in carved.slices for spec in part.outputs}
    return {
        edge.tensor: specs[edge.tensor]
        for edge in carved.edges
        if edge.producer != GATEWAY and any(each != GATEWAY for each in edge.consumers)
    }


def _exact(
    subject: Subject, carved: CarveAnswer, reason: str, reasons: Mapping[str, str] | None = None
) -> Encoded:
    tensors = crossing(carved)
    check = PrecisionCheck(
        asked=subject.order.slicing_strategy.precision,
        kind="exact",
        reason=reason,
        tensors=tuple(_told(spec, None, None, reasons or {}) for spec in tensors.values()),
    )
    return Encoded(carved, check)


def _told(
    spec: TensorSpec,
    encoding: Encoding | None,
    seen: TensorRange | None,
    reasons: Mapping[str, str],
) -> EncodedTensor:
    """One tensor as people see it."""
    size = exact_bytes(spec, seen) if spec.dtype in DTYPE_BYTES else None
    if encoding is None:
        return EncodedTensor(
            tensor=spec.name,
            kind="exact",
            nbytes=size,
            nbytes_exact=size,
            reason=reasons.get(spec.name, ""),
        )
    return EncodedTensor(
        tensor=spec.name,
        kind=encoding.kind,
        nbytes=encoded_bytes(size, spec.dtype, encoding.kind) if size is not None else None,
        nbytes_exact=size,
        channels=len(encoding.scale) if encoding.axis is not None else 0,
    )
