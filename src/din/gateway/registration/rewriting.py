"""By how much the rewrites of a strategy change what a model computes: a probe runs the model as it
was given and as it was rewritten on the same inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as with_changes
from typing import Final

from msgspec.structs import replace

from din.domain.encoding import SAMPLES_DEFAULT, RewriteCheck
from din.domain.probe import PrecisionReport, ProbeOrder
from din.domain.strategy import Strategy
from din.errors import DinError, ExecutionFailed
from din.gateway.registration.calibration import NOTHING_GIVEN, Given
from din.gateway.registration.trial import Examining
from din.gateway.registration.verification import Subject, part_of

PROBE_MS_MAX: Final = 60_000
"""What a registration waits for its rewrites to be measured, loading included."""


class Rewriting:
    """Measures rewrites; keeps nothing."""

    def __init__(self, examiner: Examining, wall_clock_iso: Callable[[], str]) -> None:
        self._examiner = examiner
        self._wall_clock_iso = wall_clock_iso

    async def compare(
        self,
        subject: Subject,
        given: Given = NOTHING_GIVEN,
        *,
        shapes: dict[str, tuple[int, ...]] | None = None,
        seed: int = 0,
        timeout_ms: int = PROBE_MS_MAX,
    ) -> RewriteCheck | None:
        """None without a rewrite. What stands in the way of measuring is a reason why nothing is
        known, and no error."""
        rewrites = subject.order.slicing_strategy.rewrite
        if not rewrites:
            return None
        if subject.order.is_dry_run:
            return RewriteCheck(rewrites=rewrites, reason="a dry run measures nothing")
        samples = 1 if given.specs else SAMPLES_DEFAULT
        order = ProbeOrder(
            kind="precision", parts=(), shapes=shapes or {}, seed=seed, samples=samples
        )
        try:
            return await self._compare(subject, order, given, timeout_ms)
        except DinError as error:
            first = error.message.partition("\n")[0]
            return RewriteCheck(rewrites=rewrites, reason=f"it was not measured: {first}")

    async def _compare(
        self, subject: Subject, order: ProbeOrder, given: Given, timeout_ms: int
    ) -> RewriteCheck:
        rewrites = subject.order.slicing_strategy.rewrite
        plain = replace(subject.order, slicing_strategy=Strategy())
        with self._examiner.borrowing() as made:
            changed = await self._examiner.whole(subject, made)
            # Without slices, so that none of them is taken for the whole as it was given.
            unchanged = with_changes(subject, order=plain, slices=())
            given_one = await self._examiner.whole(unchanged, made)
            parts = (given_one, replace(changed, index=0))
            order = replace(
                order,
                parts=(replace(part_of(given_one), index=-1), part_of(parts[1])),
                untested=part_of(changed).outputs if changed.is_random else (),
            )
            probed = await self._examiner.ask(subject, order, parts, timeout_ms, given)
        report = probed.report
        if not isinstance(report, PrecisionReport):
            raise ExecutionFailed(f"node {probed.node} answered with a report of another kind")
        if not report.outputs:
            return RewriteCheck(
                rewrites=rewrites, reason="it cannot be measured: random operators make the outputs"
            )
        return RewriteCheck(
            rewrites=rewrites,
            outputs=report.outputs,
            samples=report.samples,
            samples_from="given" if given.specs else "made up",
            node=probed.node,
            checked_at=self._wall_clock_iso(),
        )
