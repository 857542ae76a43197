"""What a verify probe is asked and what its report means; and registrations that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gateway_fakes import chain_of, outcome_of
from gateway_play import FakeNode, GatewayPlay
from msgspec.structs import replace
from stories import perform

from din.domain.model import ARTIFACTS_MAX, GATEWAY, Artifact, Edge, Slice
from din.domain.node import FleetNode, NodeHealth, NodeId, NodeProfile
from din.domain.probe import (
    ENGINES,
    REPORT_TENSOR,
    ProbeOrder,
    ProbePart,
    TensorError,
    VerifyLevel,
    VerifyReport,
)
from din.domain.profile import GivenTensor, VerifyModel
from din.domain.tensor import TensorSpec
from din.errors import BadTensor, ExecutionFailed, Internal, NotFound
from din.gateway.probing.examining import files_of, given_of
from din.gateway.registration.engines import able_node, on_engines, with_engines
from din.gateway.registration.verification import (
    behind_random,
    faults_of,
    in_order,
    is_of_engines,
    merged,
    verdict,
    windows_of,
)


def error(name: str = "y", *, is_within: bool = True, **more: Any) -> TensorError:
    fields: dict[str, Any] = {
        "name": name,
        "after_slice": 1,
        "is_output": True,
        "dtype": "FP32",
        "shape": (1,),
        "max_absolute": 0.0 if is_within else 0.5,
        "max_relative": 0.0 if is_within else 0.1,
        "is_equal": is_within,
        "is_within": is_within,
        "trouble": "" if is_within else "1 of 1 elements differ",
    }
    return TensorError(**(fields | more))


def report(off: tuple[TensorError, ...], own: tuple[TensorError, ...] = (), **more: Any) -> Any:
    levels = [VerifyLevel(optimisation="off", is_exact=True, tensors=off)]
    levels += [VerifyLevel(optimisation="all", is_exact=False, tensors=own)] if own else []
    return VerifyReport(inputs=(), levels=tuple(levels), **more)


# Pure.


def test_an_engine_that_is_off_is_no_fault_of_the_cut() -> None:
    engines = VerifyLevel(optimisation=ENGINES, is_exact=False, tensors=(error(is_within=False),))
    found = report((error(),), (error(),))
    found = replace(found, levels=(*found.levels, engines))
    assert is_of_engines(found)
    summary = verdict(found, "edge", "now").summary
    assert "output 'y' by up to 0.5 by the engines of the slices" in summary
    good = replace(engines, tensors=(error(max_relative=2e-6),))
    summary = verdict(replace(found, levels=(*found.levels[:2], good)), "edge", "now").summary
    assert "by the engines of their slices at most 2.0e-06 apart (on edge)" in summary
    assert not is_of_engines(report((error(is_within=False),)))


def test_engines_are_compared_on_a_node_that_has_them_and_onnx_runtime() -> None:
    def node(name: str, *backends: str, score: float = 1.0, status: Any = "ready") -> FleetNode:
        profile = NodeProfile(
            node_id=NodeId(name), session=1, name=name, device_type="x86_64-cpu", cpu_model="",
            cpu_isa=(), cpu_cores=1, memory_mib=1, backends=backends,
        )  # fmt: skip
        return FleetNode(profile=profile, health=NodeHealth(), status=status, health_score=score)

    both = ("onnxruntime", "openvino")
    fleet = [
        node("plain", "onnxruntime"),
        node("only", "openvino"),
        node("weak", *both, score=0.5),
        node("good", *both),
        node("lost", *both, score=2.0, status="lost"),
    ]
    assert able_node(fleet, ("openvino",), None) == "good"
    assert able_node(fleet, ("openvino",), NodeId("weak")) == "weak"
    assert able_node(fleet, ("openvino",), NodeId("plain")) is None
    assert able_node(fleet, ("ncnn",), None) is None
    assert able_node(fleet, (), None) is None
    asked = ProbeOrder(kind="verify", parts=(ProbePart(), ProbePart(index=0, backend="openvino")))
    assert with_engines({"threads": "1"}, asked) == {"threads": "1", "engines": "openvino"}
    plain = on_engines(asked, ())
    assert with_engines({"threads": "1"}, plain) == {"threads": "1"}
    assert on_engines(asked, ("openvino",)) == asked


def test_what_random_slices_reach_is_not_compared() -> None:
    partition = chain_of(4)
    slices = [replace(p, is_random=p.index == 1) for p in partition.slices]
    assert behind_random(slices, partition.edges) == ("t2", "t3", "t4")
    assert behind_random(partition.slices, partition.edges) == ()


def test_slices_come_in_the_order_in_which_they_can_run() -> None:
    partition = chain_of(3)
    first, second, last = partition.slices
    assert in_order((last, second, first), partition.edges) == (first, second, last)


def test_one_whose_input_is_its_own_output_to_others_waits_for_nobody() -> None:
    edges = (Edge("x", GATEWAY, (0, GATEWAY)), Edge("y", 0, (GATEWAY,)))
    part = chain_of(1).slices[0]
    assert in_order((part,), edges) == (part,)


def with_files(part: Slice, *weights: str) -> Slice:
    model = Artifact(f"model-{part.index}-{part.name}", 1)
    return replace(part, artifacts=(model, *(Artifact(each, 1, "weights") for each in weights)))


def test_a_probe_gets_each_file_of_weights_once_and_the_models_in_order() -> None:
    first, second = chain_of(2).slices
    whole = with_files(replace(first, name="whole"), "w1", "w2")
    files = files_of((whole, with_files(first, "w1"), with_files(second, "w2")))
    assert [each.sha256 for each in files] == [
        "model-0-whole",
        "model-0-part0",
        "model-1-part1",
        "w1",
        "w2",
    ]


def test_windows_hold_every_slice_once_within_the_limit_of_files() -> None:
    slices = [with_files(part, f"w{part.index}") for part in chain_of(40).slices]
    whole = with_files(replace(slices[0], name="whole"), "w0")
    windows = list(windows_of(whole, slices))
    assert [part for window in windows for part in window] == slices
    sizes = [len(files_of((whole, *window))) for window in windows]
    assert max(sizes) <= ARTIFACTS_MAX
    assert max(sizes) > ARTIFACTS_MAX - 2
    few = [with_files(part) for part in chain_of(ARTIFACTS_MAX - 1).slices]
    assert len(list(windows_of(with_files(few[0]), few))) == 1


def test_the_reports_of_windows_become_one() -> None:
    found = merged([report((error("a"),), (error("a"),)), report((error("b"),), (error("b"),))])
    assert [[each.name for each in level.tensors] for level in found.levels] == [["a", "b"]] * 2


def test_a_right_report_is_told_in_a_sentence() -> None:
    own = (error(max_relative=3e-6, is_equal=False),)
    found = verdict(report((error(),), own), "edge-1", "now")
    assert (found.state, found.node, found.checked_at) == ("right", "edge-1", "now")
    assert found.summary == (
        "1 tensors of the slices were equal bit for bit, with optimisation all at most "
        "3.0e-06 apart (on edge-1)"
    )
    only = verdict(report((error(),), untested=("z",)), "edge-1", "now")
    assert only.summary.endswith("bit for bit (on edge-1); 1 behind random operators")


def test_a_wrong_report_names_what_differs() -> None:
    cut = error("t", is_within=False, is_output=False, after_slice=0)
    found = verdict(report((cut, error("y", is_within=False))), "edge-1", "now")
    assert found.state == "wrong"
    assert found.summary == (
        "the slices differ from the whole on edge-1: what crosses after slice 0, 't' by up to 0.5 "
        "at optimisation off (1 of 1 elements differ); output 'y' by up to 0.5 at optimisation off "
        "(1 of 1 elements differ)"
    )
    many = verdict(report(tuple(error(str(n), is_within=False) for n in range(5))), "e", "now")
    assert many.summary.endswith("; and 2 more")


def test_only_what_differs_without_optimisation_proves_a_cut_wrong() -> None:
    wrong = error("y", is_within=False)
    assert faults_of(report((error(),), (wrong,))) == ()
    assert faults_of(report((wrong,), (wrong,))) == (wrong,)


def test_where_nothing_could_be_compared_that_is_said() -> None:
    found = verdict(report((), untested=("y",)), "edge-1", "now")
    assert found.summary == "nothing could be compared on edge-1; 1 behind random operators"


SPECS = (TensorSpec("x", "FP32", ("N", 2)), TensorSpec("z", "FP32", ("N", 3)))


def given(name: str, rows: int, columns: int, datatype: str = "FP32") -> GivenTensor:
    data = bytes(4 * rows * columns)
    return GivenTensor(name=name, datatype=datatype, shape=(rows, columns), data=data)


def test_given_inputs_are_held_against_the_signature() -> None:
    specs, metas, chunks = given_of((given("z", 2, 3), given("x", 2, 2)), SPECS)
    assert [each.name for each in specs] == ["z", "x"]
    assert [each.nbytes for each in metas] == [24, 16]
    assert [len(b"".join(each)) for each in chunks] == [24, 16]


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ((given("q", 1, 2),), "has no input 'q'"),
        ((given("x", 1, 2), given("x", 1, 2)), "was given twice its input 'x'"),
        ((given("x", 1, 2, "FP16"),), "is FP16 but the model takes FP32"),
        ((given("x", 1, 3),), "has shape"),
        ((given("x", 1, 2), given("z", 2, 3)), "has shape"),
    ],
)
def test_given_inputs_that_do_not_fit_are_refused(
    tensors: tuple[GivenTensor, ...], words: str
) -> None:
    with pytest.raises(BadTensor, match=words):
        given_of(tensors, SPECS)


# Registrations.


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    return partial(perform, tmp_path)


def judging(play: GatewayPlay, found: Any) -> FakeNode:
    node = play.add()
    node.output = REPORT_TENSOR
    node.answers = lambda _: msgspec.json.encode(found)
    play.carving.whole = chain_of(1)
    return node


def probes_of(node: FakeNode) -> list[Slice]:
    return [each.slice for each in node.prepares if each.slice.backend == "probe"]


def test_a_right_cut_serves_and_says_that_it_was_verified(run):
    async def story(play: GatewayPlay) -> None:
        node = judging(play, report((error(),)))
        view = await play.register(chain_of(2), verify=True)
        assert view.verification is not None
        assert view.verification.state == "right"
        assert view.verification.report is None
        await play.until_ready()
        assert len(probes_of(node)) == 1
        order = msgspec.json.decode(_order_in(node), type=ProbeOrder)
        assert order.is_quick
        assert [part.index for part in order.parts] == [-1, 0, 1]
        await play.crash()
        kept = play.service.inspect_model("faces").verification
        assert kept == view.verification
        assert len(probes_of(node)) == 1

    run(story)


def _order_in(node: FakeNode) -> bytes:
    (meta,) = node.runs[0].tensors
    return node.bodies[0][: meta.nbytes]


def test_a_wrong_cut_is_not_registered_and_never_serves(run):
    async def story(play: GatewayPlay) -> None:
        node = judging(play, report((error(is_within=False),)))
        refused = await outcome_of(play.register(chain_of(2), verify=True))
        assert isinstance(refused, Internal)
        assert refused.message.startswith("this cut is wrong and was not registered: the slices")
        assert play.service.list_models().items == ()
        await asyncio.sleep(2)
        assert not node.held
        assert [each.slice.backend for each in node.prepares] == ["probe"]

    run(story)


def test_a_difference_by_optimisation_alone_is_noted_and_serves(run):
    async def story(play: GatewayPlay) -> None:
        judging(play, report((error(),), (error(is_within=False),)))
        view = await play.register(chain_of(2), verify=True)
        assert view.verification is not None
        assert view.verification.state == "wrong"
        await play.until_ready()

    run(story)


def test_without_a_node_a_registration_goes_on_and_says_why_nothing_is_known(run):
    async def story(play: GatewayPlay) -> None:
        play.carving.whole = chain_of(1)
        view = await play.register(chain_of(2), verify=True)
        assert view.verification is not None
        assert view.verification.state == "unknown"
        assert view.verification.summary.startswith("the slices were not verified: ")
        play.add()
        await play.until_ready()

    run(story)


def test_a_probe_that_dies_does_not_stop_a_registration(run):
    async def story(play: GatewayPlay) -> None:
        node = judging(play, None)
        node.answers = lambda _: ExecutionFailed("the worker died: killed by signal 9")
        view = await play.register(chain_of(2), verify=True)
        assert view.verification is not None
        assert "killed by signal 9" in view.verification.summary
        await play.until_ready()

    run(story)


def test_a_model_in_one_slice_needs_no_probe(run):
    async def story(play: GatewayPlay) -> None:
        node = judging(play, report(()))
        view = await play.register(chain_of(1), verify=True)
        assert view.verification is not None
        assert view.verification.state == "whole"
        await play.until_ready()
        assert not probes_of(node)

    run(story)


def test_verifying_can_be_switched_off_and_a_dry_run_touches_no_node(run):
    async def story(play: GatewayPlay) -> None:
        node = judging(play, report((error(),)))
        view = await play.register(chain_of(2), verify=False)
        assert view.verification is not None
        assert view.verification.summary == "the registration switched verifying off"
        dry = await play.register(chain_of(2), "other", verify=True, is_dry_run=True)
        assert dry.verification is None
        assert not probes_of(node)

    run(story)


def test_a_sensitive_model_is_verified_on_trusted_nodes_alone(run):
    async def story(play: GatewayPlay) -> None:
        node = judging(play, report((error(),)))
        view = await play.register(chain_of(2, is_sensitive=True), verify=True)
        assert view.verification is not None
        assert view.verification.state == "unknown"
        assert not probes_of(node)

    run(story)


def test_a_node_that_nobody_is_called_is_told_with_those_that_can(run):
    async def story(play: GatewayPlay) -> None:
        node = judging(play, report((error(),)))
        await play.register(chain_of(2), verify=False)
        record = play.gateway.models.record("faces")
        with pytest.raises(NotFound, match="no node is called 'edge-9'") as caught:
            await play.gateway.examiner.verify(record, VerifyModel(node="edge-9"))
        assert caught.value.hint == f"nodes that can: {node.name}"

    run(story)


def test_what_is_asked_for_later_replaces_what_was_found(run):
    async def story(play: GatewayPlay) -> None:
        node = judging(play, report((error(is_within=False),)))
        await play.register(chain_of(2), verify=False)
        await play.until_ready()
        record = play.gateway.models.record("faces")
        found = await play.gateway.examiner.verify(record, VerifyModel(seed=7))
        assert found.state == "wrong"
        await play.gateway.models.verified(record, replace(found, report=None))
        view = play.service.inspect_model("faces")
        assert view.verification == replace(found, report=None)
        assert view.state == "ready"
        assert play.holders(0) == {node.name}
        await play.crash()
        assert play.service.inspect_model("faces").verification == replace(found, report=None)
        await play.gateway.models.verified(record, found)  # of an older record: not taken
        assert play.service.inspect_model("faces").verification == replace(found, report=None)

    run(story)
