"""How encodings are chosen for a new version, over an examiner that answers by a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gateway_fakes import chain_of, manifest_of, spec
from gateway_play import GatewayPlay
from msgspec.structs import replace
from stories import perform

from din.domain.calibration import FILE_BYTES_MAX, CalibrationFile, encode_calibration
from din.domain.encoding import Encoding, OutputLoss
from din.domain.model import Artifact, CarveAnswer, Partition, Slice
from din.domain.node import FleetNode, NodeHealth, NodeId, NodeProfile
from din.domain.probe import (
    REPORT_TENSOR,
    CalibrateReport,
    PrecisionReport,
    ProbeOrder,
    TensorRange,
)
from din.domain.profile import GivenTensor
from din.domain.strategy import Strategy
from din.domain.support import NOTHING, Need, Needs
from din.domain.tensor import TensorSpec
from din.domain.views import RegisterModel
from din.errors import BadStrategy, BadTensor, CannotPlace, ExecutionFailed, TooLarge, UsageError
from din.gateway.probing.probes import Probed
from din.gateway.registration.calibration import NOTHING_GIVEN, Given
from din.gateway.registration.encoding import Encoder, crossing
from din.gateway.registration.trial import Encoded, EncodingRooms
from din.gateway.registration.verification import Subject
from din.gateway.requests.precise import check_precision
from din.gateway.service import InferenceCall
from din.placement.ways import WayFacts

SHAPE = (1, 4, 512, 512)
CROSSING_BYTES = 4 * 4 * 512 * 512


def cut_in(count: int, **more: Any) -> Partition:
    """A chain whose tensors have four channels, and files."""
    partition = chain_of(count, **more)
    slices = [
        replace(
            part,
            artifacts=(Artifact(f"{part.index}-of-{count}", 1),),
            inputs=tuple(TensorSpec(each.name, "FP32", SHAPE) for each in part.inputs),
            outputs=tuple(TensorSpec(each.name, "FP32", SHAPE) for each in part.outputs),
        )
        for part in partition.slices
    ]
    return replace(partition, slices=tuple(slices))


def answer_of(partition: Partition, **more: Any) -> CarveAnswer:
    fields: dict[str, Any] = {
        "source_sha256": "0" * 64,
        "inputs": (spec("t0"),),
        "outputs": (spec("y"),),
        "slices": partition.slices,
        "edges": partition.edges,
        "cuts": (),
        "operators": 3,
        "opset": 17,
        "ir_version": 8,
    }
    return CarveAnswer(**(fields | more))


class Script:
    """An examiner whose probes see these ranges and lose that much, kind by kind."""

    def __init__(self, losses: dict[str, float | None], ranges: dict[str, Any] | None = None):
        self.losses = losses
        self.ranges = ranges or {}
        self.orders: list[ProbeOrder] = []
        self.parts: list[Sequence[Slice]] = []
        self.fault: Exception | None = None
        self.encodings: list[dict[str, Encoding]] = []
        self.dropped: set[str] = set()
        self.nodes: tuple[FleetNode, ...] = ()
        self.ways: dict[tuple[NodeId, NodeId], WayFacts] = {}
        self.uploaded: dict[str, bytes] = {}
        self.given: list[Given] = []

    @contextmanager
    def borrowing(self) -> Generator[set[str]]:
        made: set[str] = set()
        yield made
        self.dropped |= made

    async def read(self, sha256: str, nbytes_max: int) -> bytes:
        assert nbytes_max == FILE_BYTES_MAX
        return self.uploaded[sha256]

    async def whole(self, subject: Subject, made: set[str]) -> Slice:
        whole = cut_in(1).slices[0]
        made.update(each.sha256 for each in whole.artifacts)
        return whole

    async def ask(
        self,
        subject: Subject,
        order: ProbeOrder,
        parts: Sequence[Slice],
        timeout_ms: int,
        given: Given = NOTHING_GIVEN,
    ) -> Probed:
        self.orders.append(order)
        self.given.append(given)
        self.parts.append(parts)
        if self.fault is not None:
            raise self.fault
        return Probed(self.answer(order), NodeId("a"), "edge-1")

    def answer(self, order: ProbeOrder) -> CalibrateReport | PrecisionReport:
        if order.kind == "calibrate":
            found = tuple(self._range(name) for name in order.tensors)
            return CalibrateReport(inputs=(), ranges=found, samples=self._counted(order))
        kind = next(iter(self.encodings[-1].values())).kind
        loss = self.losses[kind]
        output = OutputLoss(name="y", max_absolute=1.0, mean_absolute=0.1, loss=loss)
        return PrecisionReport(inputs=(), outputs=(output,), samples=self._counted(order))

    def _counted(self, order: ProbeOrder) -> int:
        return self.given[-1].metas[0].shape[0] if order.is_stacked else order.samples

    def _range(self, name: str) -> TensorRange:
        fields: dict[str, Any] = {
            "name": name,
            "dtype": "FP32",
            "shape": SHAPE,
            "minimum": -1.0,
            "maximum": 1.0,
            "channel_minima": (-1.0,) * 4,
            "channel_maxima": (1.0,) * 4,
            "spread": 0.5,
        }
        return TensorRange(**(fields | self.ranges.get(name, {})))

    async def carve(self, encodings: dict[str, Encoding]) -> CarveAnswer:
        self.encodings.append(encodings)
        kind = next(iter(encodings.values())).kind
        partition = cut_in(2)
        slices = [
            replace(part, artifacts=(Artifact(f"{part.index}-{kind}", 1),))
            for part in partition.slices
        ]
        return answer_of(replace(partition, slices=tuple(slices)))

    def encode(self, precision: str, carved: CarveAnswer | None = None, **more: Any) -> Encoded:
        names = ("is_dry_run", "calibration_sha256")
        order: dict[str, Any] = {name: more.pop(name) for name in names if name in more}
        wished = more.pop("wished", {})
        strategy = Strategy(precision=precision, **more)
        carved = carved if carved is not None else answer_of(cut_in(2))
        subject = Subject(
            order=RegisterModel(
                model_id="m", source_sha256="0" * 64, slicing_strategy=strategy, **order
            ),
            slices=carved.slices,
            edges=carved.edges,
            inputs=carved.inputs,
            is_encrypted=False,
            tenant="default",
            wished=wished,
        )
        rooms = EncodingRooms(self, lambda: self.nodes, lambda: self.ways, self.read, lambda: "now")
        return asyncio.run(Encoder(rooms).encode(subject, carved, self.carve))


def node(name: str, mbit: str = "", **more: Any) -> FleetNode:
    fields: dict[str, Any] = {
        "node_id": NodeId(name),
        "session": 1,
        "name": name,
        "device_type": "x86_64-cpu",
        "cpu_model": "c",
        "cpu_isa": (),
        "cpu_cores": 1,
        "memory_mib": 1000,
        "backends": ("onnxruntime",),
        "labels": {"link_mbit": mbit} if mbit else {},
    }
    return FleetNode(
        profile=NodeProfile(**(fields | more)),
        health=NodeHealth(),
        status="ready",
    )


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    return partial(perform, tmp_path)


SLOW = (node("edge-1"), node("edge-2", "10"))
GOOD: dict[str, float | None] = {"uint8": 0.02, "fp16": 0.0001}


@pytest.mark.parametrize("kind", ["fp16", "uint8"])
def test_an_encoding_that_the_strategy_names_is_used_after_its_check(kind: str) -> None:
    script = Script(GOOD)
    found = script.encode(kind)
    assert [each.kind for each in script.orders] == ["calibrate", "precision"]
    assert [each.samples for each in script.orders] == [8, 8]
    assert [part.index for part in script.orders[1].parts] == [-1, 0, 1]
    assert found.carved.slices[0].artifacts[0].sha256 == f"0-{kind}"
    check = found.check
    assert check is not None
    assert (check.kind, check.asked, check.node, check.checked_at) == (kind, kind, "edge-1", "now")
    assert check.tolerance == {"fp16": 0.01, "uint8": 0.05}[kind]
    (tensor,) = check.tensors
    width = {"fp16": 2, "uint8": 4}[kind]
    assert (tensor.nbytes, tensor.nbytes_exact) == (CROSSING_BYTES // width, CROSSING_BYTES)
    assert tensor.channels == (4 if kind == "uint8" else 0)
    assert "made-up inputs" in check.warnings[0]
    assert script.dropped == {"0-of-1"}, "the whole goes, what is used stays"


def test_an_encoding_that_the_strategy_names_and_that_loses_too_much_is_refused() -> None:
    script = Script({"uint8": 0.2})
    with pytest.raises(BadStrategy, match=r"off by 20.00% .* over the tolerance of 5.00%"):
        script.encode("uint8")
    assert script.dropped == {"0-of-1", "0-uint8", "1-uint8"}
    assert script.encode("uint8", precision_tolerance=0.25).check is not None


def test_auto_takes_the_narrowest_encoding_that_is_accurate_enough_on_a_slow_way() -> None:
    for losses, kind in ((GOOD, "uint8"), ({"uint8": 0.2, "fp16": 0.001}, "fp16")):
        script = Script(losses)
        script.nodes = SLOW
        check = script.encode("auto").check
        assert check is not None
        assert check.kind == kind
    assert "0-uint8" in script.dropped


def test_auto_stays_exact_where_everything_loses_too_much_and_says_what() -> None:
    script = Script({"uint8": 0.2, "fp16": None})
    script.nodes = SLOW
    carved = answer_of(cut_in(2))
    found = script.encode("auto", carved)
    assert found.carved is carved
    assert found.check is not None
    assert found.check.kind == "exact"
    assert "uint8: output 'y' is off by 20.00%" in found.check.reason
    assert "fp16: output 'y' cannot be compared" in found.check.reason


def test_auto_measures_nothing_where_ways_are_fast() -> None:
    script = Script(GOOD)
    script.nodes = (node("edge-1", "10000"), node("edge-2"))
    found = script.encode("auto")
    assert not script.orders
    assert found.check is not None
    assert found.check.kind == "exact"
    assert "its way carries 500 MiB/s (assumed)" in found.check.tensors[0].reason


def test_what_was_measured_and_what_a_label_says_decide_by_the_lower_of_the_two() -> None:
    for labelled, measured, source in (
        ("", 5.0, "measured from edge-1 to edge-2"),
        ("1000", 5.0, "measured from edge-1 to edge-2"),
        ("10", 50.0, "label link_mbit of edge-2"),
    ):
        script = Script(GOOD)
        script.nodes = (node("edge-1"), node("edge-2", labelled))
        pair = (NodeId("edge-1"), NodeId("edge-2"))
        script.ways = {pair: WayFacts.measured(None, measured)}
        check = script.encode("auto").check
        assert check is not None
        assert (check.kind, check.tensors[0].way) == ("uint8", source)


def test_a_cut_between_chosen_nodes_is_encoded_by_the_way_between_these_alone() -> None:
    script = Script(GOOD)
    script.nodes = (node("edge-1"), node("edge-2"), node("edge-3", "10"))
    wished = {0: NodeId("edge-1"), 1: NodeId("edge-2"), 2: NodeId("edge-3"), 3: NodeId("edge-3")}
    check = script.encode("auto", answer_of(cut_in(4)), wished=wished).check
    assert check is not None
    told = {each.tensor: (each.kind, each.way) for each in check.tensors}
    assert told == {
        "t1": ("exact", "assumed"),
        "t2": ("uint8", "label link_mbit of edge-3"),
        "t3": ("exact", "within one node"),
    }


# Samples of the user's own.


def uploaded(script: Script, *shape: int, name: str = "t0", datatype: str = "FP32") -> str:
    data = bytes(range(256)) * (prod(shape) * 4 // 256)
    tensor = GivenTensor(name=name, datatype=datatype, shape=shape, data=data)
    script.uploaded["c" * 64] = encode_calibration(CalibrationFile(tensors=(tensor,)))
    return "c" * 64


def sampled() -> CarveAnswer:
    return answer_of(cut_in(2), inputs=(TensorSpec("t0", "FP32", (1, 4, 8, 8)),))


def test_every_second_sample_that_was_given_calibrates_and_the_others_check() -> None:
    script = Script(GOOD)
    sha256 = uploaded(script, 5, 1, 4, 8, 8)
    check = script.encode("uint8", sampled(), calibration_sha256=sha256).check
    assert check is not None
    assert [each.is_stacked for each in script.orders] == [True, True]
    assert [each.metas[0].shape for each in script.given] == [(3, 1, 4, 8, 8), (2, 1, 4, 8, 8)]
    assert [len(each.chunks[0]) for each in script.given] == [3, 2]
    assert (check.samples, check.samples_checked, check.samples_from) == (3, 2, "given")
    assert not check.warnings


def test_one_sample_calibrates_and_checks_which_is_doubtful() -> None:
    script = Script(GOOD)
    sha256 = uploaded(script, 1, 4, 8, 8)
    check = script.encode("fp16", sampled(), calibration_sha256=sha256).check
    assert check is not None
    assert (check.samples, check.samples_checked) == (1, 1)
    assert "give others to check" in check.warnings[0]


def test_an_input_without_samples_is_made_up_and_named() -> None:
    script = Script(GOOD)
    sha256 = uploaded(script, 2, 1, 4, 8, 8)
    whole = cut_in(1).slices[0]
    two = (TensorSpec("t0", "FP32", (1, 4, 8, 8)), TensorSpec("mask", "FP32", (1,)))

    async def whole_with_mask(subject: Subject, made: set[str]) -> Slice:
        return replace(whole, inputs=two)

    script.whole = whole_with_mask
    carved = replace(sampled(), inputs=two)
    check = script.encode("fp16", carved, calibration_sha256=sha256).check
    assert check is not None
    assert "made up, as no sample of it was given: mask" in check.warnings


@pytest.mark.parametrize("precision", ["auto", "uint8"])
@pytest.mark.parametrize("is_dry_run", [False, True])
def test_samples_that_the_model_does_not_take_are_refused_whatever_was_asked(
    precision: str, is_dry_run: bool
) -> None:
    script = Script(GOOD)
    sha256 = uploaded(script, 2, 1, 4, 8, 16)
    with pytest.raises(BadTensor, match=r"calibration inputs: .*'t0' has shape \[1, 4, 8, 16\]"):
        script.encode(precision, sampled(), calibration_sha256=sha256, is_dry_run=is_dry_run)
    assert not script.orders


def test_what_may_not_be_encoded_crosses_exactly_with_the_reason() -> None:
    script = Script(GOOD, {"t2": {"maximum": 70000.0}})
    partition = cut_in(4)
    carved = answer_of(partition, exact_only={"t1": "it is INT64"})
    check = script.encode("fp16", carved).check
    assert check is not None
    assert list(script.encodings[0]) == ["t3"]
    assert script.orders[0].tensors == ("t2", "t3")
    reasons = {each.tensor: each.reason for each in check.tensors}
    assert reasons["t1"] == "it is INT64"
    assert "FP16 ends at 65504" in reasons["t2"]
    assert reasons["t3"] == ""


def test_where_nothing_can_be_encoded_everything_crosses_exactly() -> None:
    script = Script(GOOD, {"t1": {"is_finite": False}})
    check = script.encode("uint8").check
    assert check is not None
    assert (check.kind, check.reason) == ("exact", "for no tensor an encoding fits and pays")
    assert "NaN or infinity" in check.tensors[0].reason
    assert [each.kind for each in script.orders] == ["calibrate"]


OLD_ENGINE = {"device_type": "x86_64-cuda-trt8.4", "backends": ("tensorrt",)}
CASTING = Needs(13, 8, (Need("Cast", 13, "t1.fp16.Cast", (("to", "FLOAT16"),)),))
QUANTISING = Needs(
    13, 8, (Need("QuantizeLinear", 13, "t1.uint8.QuantizeLinear", (("zero_point", "UINT8"),)),)
)


def on_an_old_engine(script: Script, count: int = 2) -> CarveAnswer:
    """Slice 1 is for a backend that does not take what quantises to UINT8."""
    script.nodes = (*SLOW, node("edge-3", "10", **OLD_ENGINE))
    carve = script.carve

    async def carve_with_needs(encodings: dict[str, Encoding]) -> CarveAnswer:
        answer = await carve(encodings)
        slices = list(cut_in(count).slices)
        touched = {"t1", "t2"} & set(encodings)
        kind = next(iter(encodings.values())).kind
        needs = {"fp16": CASTING, "uint8": QUANTISING}[kind] if touched else NOTHING
        slices[1] = replace(slices[1], backend="tensorrt", needs=needs)
        return replace(answer, slices=tuple(slices))

    script.carve = carve_with_needs
    carved = answer_of(cut_in(count))
    plain = replace(carved.slices[1], backend="tensorrt")
    return replace(carved, slices=(carved.slices[0], plain, *carved.slices[2:]))


def test_an_encoding_that_no_backend_could_run_is_told_before_anything_runs() -> None:
    script = Script(GOOD)
    carved = on_an_old_engine(script)
    with pytest.raises(
        BadStrategy, match=r"uint8: OP not supported: QuantizeLinear .*tensorrt 8.4 takes INT8"
    ):
        script.encode("uint8", carved)
    assert [each.kind for each in script.orders] == ["calibrate"]
    found = script.encode("fp16", carved).check
    assert found is not None
    assert found.kind == "fp16"


def test_auto_leaves_exact_only_what_touches_the_backend_that_could_not_run_it() -> None:
    script = Script(GOOD)
    check = script.encode("auto", on_an_old_engine(script, 4)).check
    assert check is not None
    assert [sorted(each) for each in script.encodings] == [["t1", "t2", "t3"], ["t3"]]
    kinds = {each.tensor: each.kind for each in check.tensors}
    assert kinds == {"t1": "exact", "t2": "exact", "t3": "uint8"}
    assert "OP not supported: QuantizeLinear" in check.tensors[0].reason


def test_without_a_node_that_could_hold_the_slice_anyway_encoding_is_not_to_blame() -> None:
    script = Script(GOOD)
    carved = on_an_old_engine(script)
    script.nodes = SLOW
    check = script.encode("uint8", carved).check
    assert check is not None
    assert check.kind == "uint8"


def test_one_slice_and_a_dry_run_need_no_probe() -> None:
    script = Script(GOOD)
    whole = script.encode("uint8", answer_of(cut_in(1))).check
    dry = script.encode("uint8", is_dry_run=True).check
    assert whole is not None
    assert dry is not None
    assert whole.reason == "nothing crosses between slices"
    assert dry.reason.startswith("a dry run measures nothing")
    assert not script.orders


def test_without_a_check_auto_is_exact_and_a_named_encoding_is_refused() -> None:
    script = Script(GOOD)
    script.nodes = SLOW
    script.fault = CannotPlace("no node is ready", hint="start one")
    check = script.encode("auto").check
    assert check is not None
    assert check.reason == "nothing could be checked: no node is ready"
    with pytest.raises(CannotPlace, match="precision fp16 cannot be checked: no node is ready"):
        script.encode("fp16")


def test_a_partition_of_more_files_than_a_probe_holds_cannot_be_checked() -> None:
    script = Script(GOOD)
    carved = answer_of(cut_in(40))

    async def carve(encodings: dict[str, Encoding]) -> CarveAnswer:
        return carved

    script.carve = carve
    with pytest.raises(TooLarge, match="40 slices are 41 files"):
        script.encode("fp16", carved)


def test_a_report_of_another_kind_is_an_error() -> None:
    script = Script(GOOD)

    async def ask(*_: Any) -> Probed:
        return Probed(PrecisionReport(inputs=(), outputs=()), NodeId("a"), "edge-1")

    script.ask = ask
    with pytest.raises(ExecutionFailed, match="a report of another kind"):
        script.encode("fp16")


def test_only_what_goes_from_slice_to_slice_crosses() -> None:
    assert list(crossing(answer_of(cut_in(3)))) == ["t1", "t2"]


def test_a_version_with_encodings_serves_by_them_and_keeps_its_check(run) -> None:
    async def story(play: GatewayPlay) -> None:
        answering = play.add()
        answering.output = REPORT_TENSOR
        script = Script(GOOD)
        script.encodings = [{"t1": Encoding(kind="fp16")}]

        def answers(body: bytes) -> bytes:
            kind = "calibrate" if b'"calibrate"' in body else "precision"
            order = ProbeOrder(kind=kind, parts=(), tensors=("t1",), samples=8)
            return msgspec.json.encode(script.answer(order))

        answering.answers = answers
        play.carving.whole = chain_of(1)
        play.carving.encoded = chain_of(2, labels={"encoded": "yes"})
        answering.labels = {"encoded": "yes"}
        view = await play.register(chain_of(2), precision="fp16")
        assert view.precision is not None
        assert view.precision.kind == "fp16"
        assert play.carving.requests[-1].encodings == {"t1": Encoding(kind="fp16")}
        record = play.gateway.models.record("faces")
        assert record.manifest.precision == "fp16"
        assert record.partition.slices[0].labels == {"encoded": "yes"}
        await play.crash()
        assert play.service.inspect_model("faces").precision == view.precision

    run(story)


@pytest.mark.parametrize(
    ("registered", "asked", "is_served"),
    [
        ("exact", "exact", True),
        ("uint8", None, True),
        ("uint8", "uint8", True),
        ("fp16", "uint8", True),
        ("uint8", "fp16", False),
        ("fp16", "exact", False),
    ],
)
def test_a_request_gets_the_precision_that_it_asks_for_or_a_better_one(
    registered: Any, asked: Any, is_served: bool
) -> None:
    manifest = manifest_of(chain_of(2), precision=registered)
    call = InferenceCall(model_id="faces", metas=(), chunks=(), is_adapted=False, precision=asked)
    if is_served:
        check_precision(manifest, call)
        return
    with pytest.raises(UsageError, match=f"tensors cross as {registered}"):
        check_precision(manifest, call)
