"""Rewrites measured by a probe: as it was given against as it was rewritten."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from gateway_fakes import chain_of
from msgspec.structs import replace

from din.domain.encoding import OutputLoss, RewriteCheck
from din.domain.model import Slice
from din.domain.node import NodeId
from din.domain.probe import CalibrateReport, PrecisionReport, ProbeOrder
from din.domain.profile import GivenTensor
from din.domain.strategy import Strategy
from din.domain.tensor import TensorSpec
from din.domain.views import RegisterModel
from din.errors import CannotPlace, DinError
from din.gateway.probing.examining import given_of
from din.gateway.probing.probes import Probed
from din.gateway.registration.calibration import NOTHING_GIVEN, Given
from din.gateway.registration.rewriting import Rewriting
from din.gateway.registration.verification import Subject

NAME = "resize_half_pixel_to_asymmetric"
IMAGE = TensorSpec("image", "UINT8", ("N", 3))
LOSS = OutputLoss(name="y", max_absolute=0.5, mean_absolute=0.1, loss=0.25)


class Script:
    """An examiner whose probe answers this."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer or PrecisionReport(inputs=(), outputs=(LOSS,), samples=8)
        self.order = ProbeOrder(kind="verify", parts=())
        self.given = NOTHING_GIVEN
        self.parts: Sequence[Slice] = ()
        self.is_random = False
        self.wholes: list[Subject] = []

    @contextmanager
    def borrowing(self) -> Generator[set[str]]:
        yield set()

    async def whole(self, subject: Subject, made: set[str]) -> Slice:
        self.wholes.append(subject)
        whole = chain_of(1).slices[0]
        name = "rewritten" if subject.order.slicing_strategy.rewrite else "given"
        return replace(whole, name=name, is_random=self.is_random)

    async def ask(
        self,
        subject: Subject,
        order: ProbeOrder,
        parts: Sequence[Slice],
        timeout_ms: int,
        given: Given = NOTHING_GIVEN,
    ) -> Probed:
        self.order, self.parts, self.given = order, parts, given
        if isinstance(self.answer, DinError):
            raise self.answer
        return Probed(self.answer, NodeId("a"), "edge-1")


def compared(
    script: Script, given: Given = NOTHING_GIVEN, *, is_dry_run: bool = False, **strategy: Any
) -> Any:
    partition = chain_of(2)
    order = RegisterModel(
        model_id="m",
        source_sha256="0" * 64,
        slicing_strategy=Strategy(**({"rewrite": (NAME,)} | strategy)),
        is_dry_run=is_dry_run,
    )
    subject = Subject(order, partition.slices, partition.edges, (IMAGE,), False, "default")
    return asyncio.run(Rewriting(script, lambda: "now").compare(subject, given))


def test_the_model_as_it_was_given_runs_first_and_the_rewritten_one_on_the_same_inputs() -> None:
    script = Script()
    found = compared(script)
    assert [each.name for each in script.parts] == ["given", "rewritten"]
    assert [each.index for each in script.order.parts] == [-1, 0]
    assert (script.order.kind, script.order.samples) == ("precision", 8)
    assert script.wholes[1].slices == (), "no slice may be taken for the model as it was given"
    assert found == RewriteCheck(
        rewrites=(NAME,),
        outputs=(LOSS,),
        samples=8,
        samples_from="made up",
        node="edge-1",
        checked_at="now",
    )


def test_inputs_that_are_given_are_one_sample() -> None:
    script = Script()
    image = GivenTensor(name="image", datatype="UINT8", shape=(2, 3), data=bytes(6))
    given = given_of([image], (IMAGE,))
    assert compared(script, given).samples_from == "given"
    assert (script.order.samples, script.given) == (1, given)


def test_without_a_rewrite_nothing_is_measured() -> None:
    script = Script()
    assert compared(script, rewrite=()) is None
    assert not script.wholes


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (CannotPlace("no node is ready\nreally"), "it was not measured: no node is ready"),
        (CalibrateReport(inputs=(), ranges=()), "a report of another kind"),
        (PrecisionReport(inputs=(), outputs=()), "random operators make the outputs"),
    ],
)
def test_what_stands_in_the_way_is_told_and_no_error(answer: Any, reason: str) -> None:
    found = compared(Script(answer))
    assert reason in found.reason
    assert "\n" not in found.reason
    assert not found.outputs


def test_a_dry_run_measures_nothing_and_says_so() -> None:
    script = Script()
    assert compared(script, is_dry_run=True).reason == "a dry run measures nothing"
    assert not script.wholes


def test_outputs_of_a_random_model_are_not_compared() -> None:
    script = Script()
    script.is_random = True
    compared(script)
    assert script.order.untested == script.order.parts[1].outputs
