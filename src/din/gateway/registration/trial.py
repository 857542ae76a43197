"""One version's encodings tried out by probes: ranges first, then what each kind costs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
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
from din.domain.model import ARTIFACTS_MAX, CarveAnswer, Slice
from din.domain.node import FleetNode
from din.domain.probe import CalibrateReport, PrecisionReport, ProbeOrder, TensorRange
from din.domain.tensor import DTYPE_BYTES, TensorSpec
from din.errors import BadStrategy, ExecutionFailed, TooLarge
from din.gateway.registration.calibration import NOTHING_GIVEN, Given, Samples
from din.gateway.registration.verification import (
    Subject,
    behind_random,
    in_order,
    part_of,
    weights_in,
)
from din.placement.capability import capability_of
from din.placement.precision import (
    Refused,
    encoded_bytes,
    encoding_of,
    exact_bytes,
    slow_enough,
    spread_warnings,
    tolerance_of,
    too_lossy,
    unsupported,
)
from din.placement.rates import KnownWays, Rate

if TYPE_CHECKING:
    from din.gateway.probing.probes import Probed

PROBE_MS_MAX: Final = 120_000
"""What one of the two runs may take, loading included."""

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
        self,
        subject: Subject,
        order: ProbeOrder,
        parts: Sequence[Slice],
        timeout_ms: int,
        given: Given = NOTHING_GIVEN,
    ) -> Probed:
        """Run one probe over these parts on these inputs. Raises DinError."""
        ...


@dataclass(frozen=True)
class EncodingRooms:
    """What is used of the gateway."""

    examiner: Examining
    fleet_nodes: Callable[[], Sequence[FleetNode]]
    known_ways: Callable[[], KnownWays]
    read: Callable[[str, int], Awaitable[bytes]]
    """An artifact by its hash, of so many bytes at most."""
    wall_clock_iso: Callable[[], str]


class Encoded(NamedTuple):
    """The version as it will be kept, and why."""

    carved: CarveAnswer
    check: PrecisionCheck | None
    """None: everything was to cross exactly."""


class Trial:
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
        rates: Mapping[str, Rate],
        samples: Samples,
        made: set[str],
    ) -> None:
        """`rates`: of the ways of tensors, where a tensor is to be encoded on slow ones only."""
        self._rooms = rooms
        self._subject = subject
        self._carved = carved
        self._carve = carve
        self._whole = whole
        self._tensors = tensors
        self._reasons = reasons
        self._rates = rates
        self._given = samples
        self._made = made
        self._ranges: dict[str, TensorRange] = {}
        self._warnings: tuple[str, ...] = ()
        self._samples = self._samples_checked = 0
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
            is_stacked=self._is_given,
        )
        given = self._given.to_calibrate
        probed = await self._rooms.examiner.ask(
            self._subject, order, (self._whole,), PROBE_MS_MAX, given
        )
        report = probed.report
        if not isinstance(report, CalibrateReport):
            raise ExecutionFailed(f"node {probed.node} answered with a report of another kind")
        self._ranges = {each.name: each for each in report.ranges}
        self._samples, self._node = report.samples, probed.node
        self._warnings = (
            *self._doubts_of_samples(),
            *spread_warnings(report.ranges, report.samples),
        )

    @property
    def _is_given(self) -> bool:
        """Whether the model reads anything of what was given."""
        return any(spec.name in self._given.rows for spec in self._whole.inputs)

    def _doubts_of_samples(self) -> Iterator[str]:
        if not self._is_given:
            yield "calibrated on made-up inputs, whose ranges are not those of real ones"
            return
        if self._given.count == 1:
            yield "the one sample that was given calibrated and checked: give others to check"
        read = {each.name for each in self._whole.inputs}
        if missing := [name for name in self._given.missing if name in read]:
            yield f"made up, as no sample of it was given: {', '.join(missing)}"

    async def attempt(self, kind: EncodingKind, open_: Mapping[str, TensorSpec]) -> Encoded | None:
        """One kind; None when it gives nothing or loses too much."""
        found = await self._carved_for(kind, self._encodings(kind, open_))
        if found is None:
            return None
        answer, encodings = found
        artifacts = {each.sha256 for part in answer.slices for each in part.artifacts}
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

    async def _carved_for(
        self, kind: EncodingKind, encodings: dict[str, Encoding]
    ) -> tuple[CarveAnswer, dict[str, Encoding]] | None:
        """Slices with these encodings but those that keep every node from holding a slice; these
        are taken out. None without any left. Raises BadStrategy for a kind that was named."""
        ready = [each for each in self._rooms.fleet_nodes() if each.status == "ready"]
        kinds = set(map(capability_of, ready))
        plain = {part.index: part for part in self._carved.slices}
        while encodings:
            answer = await self._carve(encodings)
            self._made |= {each.sha256 for part in answer.slices for each in part.artifacts}
            barred = {
                part.index: reason
                for part in answer.slices
                if (reason := unsupported(plain[part.index], part, kinds))
            }
            touching = {
                edge.tensor: barred[index]
                for edge in self._carved.edges
                for index in (edge.producer, *edge.consumers)
                if edge.tensor in encodings and index in barred
            }
            if not touching:
                return answer, encodings
            if self._subject.order.slicing_strategy.precision != "auto":
                raise BadStrategy(
                    f"slicing_strategy.precision {kind}: {next(iter(touching.values()))}",
                    hint='name a backend that can, or use "precision": "auto" or "exact"',
                )
            self._reasons |= touching
            encodings = {name: each for name, each in encodings.items() if name not in touching}
        return None

    def failed(self) -> Encoded:
        """No kind was used. Raises BadStrategy where the strategy named one that loses too much."""
        asked = self._subject.order.slicing_strategy.precision
        if self._troubles and asked != "auto":
            raise BadStrategy(
                f"slicing_strategy.precision: {self._troubles[0]}",
                hint="give a precision_tolerance that you can live with, cut elsewhere, or use "
                '"precision": "auto" or "exact"',
            )
        reason = "; ".join(self._troubles) or "for no tensor an encoding fits and pays"
        return Encoded(self._carved, self._check("exact", reason, {}))

    def _encodings(
        self, kind: EncodingKind, open_: Mapping[str, TensorSpec]
    ) -> dict[str, Encoding]:
        encodings: dict[str, Encoding] = {}
        for name, spec in open_.items():
            seen = self._ranges[name]
            size = exact_bytes(spec, seen) or 0
            rate = self._rates.get(name)
            fast = slow_enough(size, spec.dtype, kind, rate) if rate is not None else ""
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
            is_stacked=self._is_given,
            seed=SAMPLES_DEFAULT,  # others than calibration saw, so that saturating shows
            untested=behind_random(answer.slices, answer.edges),
        )
        probed = await self._rooms.examiner.ask(
            self._subject, order, parts, PROBE_MS_MAX, self._given.to_check
        )
        if not isinstance(probed.report, PrecisionReport):
            raise ExecutionFailed(f"node {probed.node} answered with a report of another kind")
        self._node, self._samples_checked = probed.node, probed.report.samples
        return probed.report.outputs

    def _check(
        self,
        kind: Literal["exact", "fp16", "uint8"],
        reason: str,
        encodings: Mapping[str, Encoding],
    ) -> PrecisionCheck:
        why = (self._reasons, self._rates)
        return PrecisionCheck(
            asked=self._subject.order.slicing_strategy.precision,
            kind=kind,
            reason=reason,
            tensors=tuple(
                told_of(spec, encodings.get(name), self._ranges.get(name), *why)
                for name, spec in self._tensors.items()
            ),
            outputs=self._losses,
            tolerance=self._tolerance,
            samples=self._samples,
            samples_checked=self._samples_checked,
            samples_from="" if not self._samples else "given" if self._is_given else "made up",
            node=self._node,
            checked_at=self._rooms.wall_clock_iso(),
            warnings=self._warnings if encodings else (),
        )


def told_of(
    spec: TensorSpec,
    encoding: Encoding | None,
    seen: TensorRange | None,
    reasons: Mapping[str, str],
    rates: Mapping[str, Rate],
) -> EncodedTensor:
    """One tensor as people see it."""
    rate = rates.get(spec.name)
    size = exact_bytes(spec, seen) if spec.dtype in DTYPE_BYTES else None
    if encoding is None:
        return EncodedTensor(
            tensor=spec.name,
            kind="exact",
            nbytes=size,
            nbytes_exact=size,
            reason=reasons.get(spec.name, ""),
            mib_per_second=rate.mib_per_second if rate is not None else None,
            way=rate.source if rate is not None else "",
        )
    return EncodedTensor(
        tensor=spec.name,
        kind=encoding.kind,
        nbytes=encoded_bytes(size, spec.dtype, encoding.kind) if size is not None else None,
        nbytes_exact=size,
        channels=len(encoding.scale) if encoding.axis is not None else 0,
        mib_per_second=rate.mib_per_second if rate is not None else None,
        way=rate.source if rate is not None else "",
    )
