"""What a verify probe is asked, and what its report means in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from din.domain.model import ARTIFACTS_MAX, GATEWAY, Edge, Slice
from din.domain.node import NodeId
from din.domain.probe import (
    ENGINES,
    ProbeOrder,
    ProbePart,
    TensorError,
    VerifyLevel,
    VerifyReport,
)
from din.domain.profile import Verification
from din.domain.tensor import TensorSpec
from din.domain.views import RegisterModel
from din.gateway.registration.record import ModelRecord

RIGHT: Final = "right"
WRONG: Final = "wrong"
WHOLE: Final = "whole"
UNKNOWN: Final = "unknown"
NAMES_SHOWN_MAX: Final = 3


@dataclass(frozen=True)
class Subject:
    """A model that is looked at."""

    order: RegisterModel
    slices: tuple[Slice, ...]
    """Of the model alone, without adapters."""
    edges: tuple[Edge, ...]
    inputs: tuple[TensorSpec, ...]
    is_encrypted: bool
    tenant: str
    wished: Mapping[int, NodeId] = field(default_factory=dict[int, NodeId])
    """Where slices shall lie by a choice of cuts."""

    @staticmethod
    def of(record: ModelRecord) -> Subject:
        """A registered version."""
        manifest = record.manifest
        return Subject(
            order=record.order,
            slices=tuple(part for part in record.partition.slices if part.kind == "model"),
            edges=record.partition.edges,
            inputs=manifest.inputs,
            is_encrypted=manifest.is_encrypted,
            tenant=manifest.tenant,
        )


def behind_random(slices: Sequence[Slice], edges: Sequence[Edge]) -> tuple[str, ...]:
    """Tensors made by slices with random operators or by slices behind them: a second run makes
    others."""
    random = {part.index for part in slices if part.is_random}
    while True:
        reached = {
            consumer
            for edge in edges
            if edge.producer in random
            for consumer in edge.consumers
            if consumer not in (GATEWAY, *random)
        }
        if not reached:
            return tuple(edge.tensor for edge in edges if edge.producer in random)
        random |= reached


def in_order(slices: Sequence[Slice], edges: Sequence[Edge]) -> tuple[Slice, ...]:
    """Producers before consumers; a partition has no cycle."""
    needs = {
        part.index: {
            edge.producer
            for edge in edges
            if part.index in edge.consumers and edge.producer not in (GATEWAY, part.index)
        }
        for part in slices
    }
    left = {part.index: part for part in slices}
    ordered: list[Slice] = []
    while left:
        free = [index for index in left if needs[index].isdisjoint(left)]
        assert free, "the carver checks for cycles"
        ordered.extend(left.pop(index) for index in free)
    return tuple(ordered)


def windows_of(whole: Slice, slices: Sequence[Slice]) -> Iterator[tuple[Slice, ...]]:
    """Runs of slices whose files, with those of the whole, one probe can hold. A window gets from
    the whole what the windows before it made, which was compared there."""
    window: list[Slice] = []
    weights = weights_in((whole,))
    for part in slices:
        more = weights | weights_in((part,))
        if window and len(more) + len(window) + 2 > ARTIFACTS_MAX:
            yield tuple(window)
            window, more = [], weights_in((whole, part))
        window.append(part)
        weights = more
    if window:
        yield tuple(window)


def weights_in(parts: Iterable[Slice]) -> set[str]:
    """Files of weights, each once."""
    return {each.sha256 for part in parts for each in part.artifacts if each.role == "weights"}


def verify_order(
    whole: Slice,
    window: Sequence[Slice],
    untested: Collection[str],
    *,
    shapes: dict[str, tuple[int, ...]],
    seed: int,
    is_quick: bool,
) -> ProbeOrder:
    """What one probe is asked."""
    return ProbeOrder(
        kind="verify",
        parts=(replace(part_of(whole), index=-1), *map(part_of, window)),
        shapes=shapes,
        seed=seed,
        untested=tuple(sorted(untested)),
        is_quick=is_quick,
    )


def part_of(part: Slice) -> ProbePart:
    """A slice as an order names it."""
    return ProbePart(
        index=part.index,
        inputs=tuple(each.name for each in part.inputs),
        outputs=tuple(each.name for each in part.outputs),
        backend=part.backend,
    )


def merged(reports: Sequence[VerifyReport]) -> VerifyReport:
    """The reports of all windows as one."""
    first = reports[0]
    levels: dict[str, VerifyLevel] = {}
    for report in reports:
        for level in report.levels:
            known = levels.get(level.optimisation)
            levels[level.optimisation] = (
                level
                if known is None
                else replace(
                    level,
                    is_exact=known.is_exact and level.is_exact,
                    tensors=(*known.tensors, *level.tensors),
                )
            )
    return replace(first, levels=tuple(levels.values()))


def verdict(report: VerifyReport, node: str, checked_at: str) -> Verification:
    """A report with what it means."""
    return Verification(
        state=RIGHT if report.is_right else WRONG,
        summary=_summary(report, node),
        node=node,
        checked_at=checked_at,
        report=report,
    )


def faults_of(report: VerifyReport) -> tuple[TensorError, ...]:
    """Tensors that prove a cut wrong, or an engine unfit for a slice: those without optimisation,
    those by the slices' own engines, and not for the rounding of halves. Optimised kernels may be
    fused otherwise, which changes figures and not the meaning."""
    return tuple(
        each
        for level in report.levels
        if level.optimisation in ("off", ENGINES)
        for each in level.tensors
        if each.is_proof and not each.is_within
    )


def is_of_engines(report: VerifyReport) -> bool:
    """The cut is right, and what differs is what the engines of the slices make of it."""
    return bool(faults_of(report)) and all(
        level.is_right for level in report.levels if level.optimisation == "off"
    )


def _summary(report: VerifyReport, node: str) -> str:
    tensors = [each for level in report.levels for each in level.tensors]
    skipped = f"; {len(report.untested)} behind random operators" if report.untested else ""
    if not tensors:
        return f"nothing could be compared on {node}{skipped}"
    bad = [(level, each) for level in report.levels for each in level.tensors if not each.is_within]
    if not bad:
        off = report.levels[0]
        how = "equal bit for bit" if off.is_exact else "within their tolerance"
        own = [each for each in report.levels if each.optimisation != ENGINES][-1]
        worst = max((each.max_relative or 0.0 for each in own.tensors), default=0.0)
        apart = f"at most {worst:.1e} apart" if worst else "as well"
        last = f", with optimisation {own.optimisation} {apart}" if own is not off else ""
        other = "".join(map(_by_engines, report.levels))
        told = f"{len(off.tensors)} tensors of the slices were {how}{last}{other}"
        return f"{told} (on {node}){skipped}"
    shown = "; ".join(_words(level, each) for level, each in bad[:NAMES_SHOWN_MAX])
    more = f"; and {len(bad) - NAMES_SHOWN_MAX} more" if len(bad) > NAMES_SHOWN_MAX else ""
    return f"the slices differ from the whole on {node}: {shown}{more}{skipped}"


def _by_engines(level: VerifyLevel) -> str:
    if level.optimisation != ENGINES:
        return ""
    worst = max((each.max_relative or 0.0 for each in level.tensors), default=0.0)
    return f", by the engines of their slices at most {worst:.1e} apart"


def _words(level: VerifyLevel, error: TensorError) -> str:
    what = "output" if error.is_output else f"what crosses after slice {error.after_slice},"
    apart = "" if error.max_absolute is None else f" by up to {error.max_absolute:.3g}"
    if level.optimisation == ENGINES:
        return f"{what} {error.name!r}{apart} by the engines of the slices ({error.trouble})"
    return f"{what} {error.name!r}{apart} at optimisation {level.optimisation} ({error.trouble})"
