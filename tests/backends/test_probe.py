"""Probes over real sessions of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnx_models import model
from probe_play import (
    FIRST_PART,
    LAST_PART,
    WHOLE_PART,
    ask,
    first,
    last,
    order,
    probe,
    scalar,
    step,
    value,
    weight,
    whole,
)

from din.backends import probe as probe_module
from din.backends import probe_models
from din.domain.probe import (
    CalibrateReport,
    OperatorTime,
    PrecisionReport,
    ProbePart,
    ProfileReport,
    TensorFacts,
    VerifyReport,
)
from din.errors import BadModel, BadTensor, ExecutionFailed, TooLarge, Unavailable, UsageError

CHAIN = (WHOLE_PART, FIRST_PART, LAST_PART)
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def profile_of(data: bytes, **more: Any) -> ProfileReport:
    found = ask(probe(data), order("profile", **more))
    assert isinstance(found, ProfileReport)
    return found


def verified(*files: bytes, parts: tuple[ProbePart, ...] = CHAIN, **more: Any) -> VerifyReport:
    found = ask(probe(*files), order("verify", *parts, **more), x=X)
    assert isinstance(found, VerifyReport)
    return found


def by_name(report: ProfileReport) -> dict[str, OperatorTime]:
    return {each.name: each for each in report.operators}


@pytest.mark.parametrize(("kind", "arena"), [("verify", {"off"}), ("profile", {"own"})])
def test_only_what_is_timed_has_the_arena_that_the_model_asks_for(
    monkeypatch: pytest.MonkeyPatch, kind: str, arena: set[str]
) -> None:
    opened: list[str] = []
    make = probe_models.session_options

    def recorded(options: Mapping[str, str]) -> Any:
        opened.append(options.get("arena", "own"))
        return make(options)

    monkeypatch.setattr(probe_models, "session_options", recorded)
    if kind == "profile":
        profile_of(whole(), shapes={"x": (3, 4)})
    else:
        verified(whole(), first(), last())
    # The first is the check of options as the probe is loaded.
    assert opened[0] == "own"
    assert set(opened[1:]) == arena


# Profiles.


def test_every_operator_has_a_time_and_the_times_add_up_to_the_whole() -> None:
    report = profile_of(whole(), shapes={"x": (3, 4)})
    assert [each.name for each in report.operators] == ["t", "y"]
    assert [each.kind for each in report.operators] == ["Add", "Mul"]
    assert report.coverage == 1.0
    assert report.whole_ms > 0
    assert report.plain_ms > 0
    assert sum(each.ms for each in report.operators) == pytest.approx(report.whole_ms)
    assert report.rounds == 7


def test_sizes_are_those_of_the_shape_that_was_asked_for() -> None:
    report = profile_of(whole(), shapes={"x": (3, 4)})
    assert report.inputs == (TensorFacts("x", "FP32", (3, 4), 48),)
    assert by_name(report)["t"].outputs == (TensorFacts("t", "FP32", (3, 4), 48),)


def test_given_inputs_are_used_as_they_are() -> None:
    found = ask(probe(whole()), order("profile"), x=X)
    assert isinstance(found, ProfileReport)
    assert found.inputs[0].shape == (2, 4)


def test_what_runs_in_a_subgraph_counts_for_the_operator_that_runs_it() -> None:
    body = parser.parse_graph(
        "body (int64 i, bool c, float[4] s) => (bool go, float[4] n) {"
        " go = Identity(c)  n = Add(s, s) }"
    )
    for number, node in enumerate(body.node):
        node.name = ("t", "y")[number]  # as operators of the top graph are called
    nodes = [
        helper.make_node("Loop", ["count", "going", "x"], ["y"], name="loop", body=body),
        step("Neg", ["y"], "t"),
    ]
    data = model(
        nodes,
        [value("x", shape=(4,))],
        [value("t", shape=(4,))],
        initializer=[scalar("count", 5), scalar("going", True)],
    )
    report = profile_of(data)
    assert [each.name for each in report.operators] == ["loop", "t"]
    assert report.coverage == 1.0
    assert by_name(report)["t"].outputs == (TensorFacts("t", "FP32", (4,), 16),)
    assert by_name(report)["loop"].ms > by_name(report)["t"].ms


def test_operators_that_the_engine_takes_apart_share_what_their_pieces_took() -> None:
    nodes = [step("Mish", ["x"], "t"), step("Neg", ["t"], "y")]
    report = profile_of(model(nodes, [value("x")], [value("y")], opset=18))
    mish = by_name(report)["t"]
    assert mish.is_estimated
    assert mish.ms > 0
    assert mish.outputs == (TensorFacts("t", "FP32", (1, 4), 16),)
    assert not by_name(report)["y"].is_estimated
    assert report.coverage == 0.5


def test_values_that_are_no_tensors_have_no_size_and_the_report_says_so() -> None:
    nodes = [
        step("SequenceConstruct", ["x", "x"], "pair"),
        step("ConcatFromSequence", ["pair"], "y", axis=0),
    ]
    report = profile_of(model(nodes, [value("x")], [value("y")]))
    assert by_name(report)["pair"].outputs == ()
    assert by_name(report)["y"].outputs == (TensorFacts("y", "FP32", (2, 4), 32),)
    assert report.notes == ("1 values are no tensors and have no size",)


def test_outputs_that_are_left_out_do_not_shift_the_sizes_of_others() -> None:
    node = helper.make_node("LSTM", ["x", "w", "r"], ["", "h"], name="lstm", hidden_size=2)
    weights = [
        numpy_helper.from_array(np.ones(shape, np.float32), name)
        for name, shape in (("w", (1, 8, 3)), ("r", (1, 8, 2)))
    ]
    ends = [value("x", shape=(5, 1, 3))], [value("h", shape=(1, 1, 2))]
    report = profile_of(model([node], *ends, initializer=weights))
    assert by_name(report)["lstm"].outputs == (TensorFacts("h", "FP32", (1, 1, 2), 8),)


def test_nothing_is_left_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    profile_of(whole())
    assert list(tmp_path.iterdir()) == []


def test_where_no_file_may_be_written_that_is_said_and_is_no_fault_of_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(Unavailable, match=r"cannot be timed on this node: .*din doctor"):
        profile_of(whole())


# Verifying.


def test_slices_that_are_right_are_equal_without_optimisation() -> None:
    report = verified(whole(), first(), last())
    assert report.is_right
    off, own = report.levels
    assert (off.optimisation, off.is_exact) == ("off", True)
    assert (own.optimisation, own.is_exact) == ("all", False)
    assert {(each.name, each.is_output, each.after_slice) for each in off.tensors} == {
        ("y", True, 1),
        ("t", False, 0),
    }
    assert all(each.is_equal and each.max_absolute == 0 for each in off.tensors)


def test_a_slice_that_computes_otherwise_is_found_with_its_distance() -> None:
    report = verified(whole(), first(), last(scale=3.5))
    assert not report.is_right
    found = {each.name: each for each in report.levels[0].tensors}
    assert found["t"].is_equal
    assert not found["y"].is_within
    assert found["y"].max_absolute == pytest.approx((X.max() + 4) / 2)
    assert found["y"].trouble == "8 of 8 elements differ"


def test_a_wrong_slice_makes_those_behind_it_wrong_too() -> None:
    wrong = model(
        [step("Sub", ["x", "w"], "t")],
        [value("x")],
        [value("t")],
        initializer=[weight("w", 1, 2, 3, 4)],
    )
    report = verified(whole(), wrong, last())
    assert [each.is_within for each in report.levels[0].tensors] == [False, False]


def test_another_shape_is_a_mismatch_in_words() -> None:
    wrong = model(
        [step("ReduceSum", ["x"], "t", keepdims=1)], [value("x")], [value("t", shape=(1, 1))]
    )
    y, t = verified(whole(), wrong, last()).levels[0].tensors
    assert t.trouble == "the whole makes float32 [2, 4], the slices float32 [1, 1]"
    assert not t.is_within
    assert y.trouble.startswith("slice 1: ONNX Runtime: ")
    assert (y.is_within, y.max_absolute) == (False, None)


def test_what_slices_that_are_not_here_would_make_is_taken_from_the_whole() -> None:
    report = verified(whole(), last(scale=9.0), parts=(WHOLE_PART, LAST_PART))
    assert [(each.name, each.is_within) for each in report.levels[0].tensors] == [("y", False)]
    assert verified(whole(), last(), parts=(WHOLE_PART, LAST_PART)).is_right
    assert verified(whole(), last(), parts=(WHOLE_PART, LAST_PART), is_quick=True).is_right


def test_a_slice_that_cannot_be_fed_is_told_by_what_it_lacks() -> None:
    y, t = verified(whole(), b"nonsense", last()).levels[0].tensors
    assert t.trouble.startswith("slice 0: ONNX Runtime")
    assert y.trouble == "slice 1: it lacks 't'"


def test_what_stands_behind_random_operators_is_not_compared() -> None:
    report = verified(whole(), first(), last(scale=9.0), untested=("y",))
    assert report.is_right
    assert report.untested == ("y",)
    assert [each.name for each in report.levels[0].tensors] == ["t"]


def test_a_quick_look_leaves_out_the_cuts_at_the_own_level() -> None:
    report = verified(whole(), first(), last(), is_quick=True)
    assert [len(each.tensors) for each in report.levels] == [2, 1]


def test_a_model_that_runs_without_optimisation_is_looked_at_once() -> None:
    session = probe(whole(), first(), last(), optimisation="off")
    found = ask(session, order("verify", *CHAIN), x=X)
    assert isinstance(found, VerifyReport)
    assert [each.optimisation for each in found.levels] == ["off"]


def test_halves_may_differ_where_the_engine_keeps_them_in_single() -> None:
    half = TensorProto.FLOAT16
    weights = [weight("w", 1, dtype=np.float16)]
    nodes = [step("Add", ["x", "w"], "t"), step("Mul", ["t", "w"], "y")]
    ends = [value("x", half)], [value("y", half)]
    data = model(nodes, *ends, initializer=weights)
    one = model(nodes[:1], ends[0], [value("t", half)], initializer=weights)
    two = model(nodes[1:], [value("t", half)], ends[1], initializer=weights)
    found = ask(probe(data, one, two), order("verify", *CHAIN))
    assert isinstance(found, VerifyReport)
    assert found.is_right
    assert not found.levels[0].is_exact


def halves_crossing(last: list[Any], kind: int) -> Any:
    """x -> FP16, x * w -> t, which crosses; then FP32 and what `last` makes of it."""
    half, weights = TensorProto.FLOAT16, [weight("w", 1.001, 1.7, 0.3, 3.3, dtype=np.float16)]
    nodes = [
        step("Cast", ["x"], "h", to=half),
        step("Mul", ["h", "w"], "t"),
        step("Cast", ["t"], "f", to=TensorProto.FLOAT),
        *last,
    ]
    ends = [value("x")], [value("y", kind)]
    data = model(nodes, *ends, initializer=weights)
    one = model(nodes[:2], ends[0], [value("t", half)], initializer=weights)
    return probe(data, one, model(nodes[2:], [value("t", half)], ends[1]))


NOISE = np.random.default_rng(1).random((64, 4), np.float32)


def test_floats_behind_halves_that_cross_are_held_to_what_halves_can_tell() -> None:
    session = halves_crossing([step("Exp", ["f"], "y")], TensorProto.FLOAT)
    found = ask(session, order("verify", *CHAIN), x=NOISE)
    assert isinstance(found, VerifyReport)
    output = found.levels[0].tensors[0]
    assert (output.is_equal, output.is_within) == (False, True)
    assert found.is_right


def test_an_order_turned_by_the_rounding_of_halves_is_told_and_no_proof() -> None:
    last = [
        step("Constant", [], "step", value=scalar("", np.float32(1e-4))),
        step("Mod", ["f", "step"], "m", fmod=1),
        step("ArgMax", ["m"], "y", axis=0, keepdims=1),
    ]
    found = ask(halves_crossing(last, TensorProto.INT64), order("verify", *CHAIN), x=NOISE)
    assert isinstance(found, VerifyReport)
    output = found.levels[0].tensors[0]
    assert (output.is_within, output.is_proof) == (False, False)
    assert "behind FP16 that crosses a cut" in output.trouble


def test_what_overflows_in_halves_alone_is_a_proof() -> None:
    session = halves_crossing([step("Neg", ["f"], "y")], TensorProto.FLOAT)
    found = ask(session, order("verify", *CHAIN), x=np.full((1, 4), 40_000, np.float32))
    assert isinstance(found, VerifyReport)
    output = found.levels[0].tensors[0]
    assert (output.is_within, output.is_proof) == (False, True)


# Calibrating.


def test_ranges_are_found_by_tensor_and_channel() -> None:
    found = ask(probe(whole()), order("calibrate", tensors=("t", "y")), x=X)
    assert isinstance(found, CalibrateReport)
    t, y = found.ranges
    assert (t.minimum, t.maximum) == (1.0, 11.0)
    assert t.channel_minima == (1.0, 3.0, 5.0, 7.0)
    assert t.channel_maxima == (5.0, 7.0, 9.0, 11.0)
    assert (y.minimum, y.maximum) == (3.0, 33.0)


def test_calibrating_nothing_is_an_error() -> None:
    with pytest.raises(BadTensor, match="0 tensors are to be calibrated"):
        ask(probe(whole()), order("calibrate"), x=X)


def test_ranges_grow_with_samples_and_tell_how_much_these_differ() -> None:
    alike = np.stack([X, X, X])
    far = np.stack([X, X + 100, X - 100])
    asked = order("calibrate", tensors=("t",), is_stacked=True)
    one = ask(probe(whole()), asked, x=alike)
    many = ask(probe(whole()), asked, x=far)
    assert isinstance(one, CalibrateReport)
    assert isinstance(many, CalibrateReport)
    assert (one.samples, one.ranges[0].minimum, one.ranges[0].maximum) == (3, 1.0, 11.0)
    assert (many.ranges[0].minimum, many.ranges[0].maximum) == (-99.0, 111.0)
    assert many.ranges[0].channel_minima == (-99.0, -97.0, -95.0, -93.0)
    assert one.ranges[0].spread == pytest.approx(0.0, abs=1e-6)
    assert many.ranges[0].spread == pytest.approx(1.0, abs=0.01)


def test_made_up_samples_differ_by_their_seeds_and_are_the_same_again() -> None:
    asked = order("calibrate", tensors=("t",), samples=4, shapes={"x": (2, 4)})
    found = [ask(probe(whole()), asked) for _ in range(2)]
    single = ask(probe(whole()), order("calibrate", tensors=("t",), shapes={"x": (2, 4)}))
    assert isinstance(found[0], CalibrateReport)
    assert isinstance(single, CalibrateReport)
    assert found[0] == found[1]
    assert found[0].samples == 4
    assert found[0].ranges[0].minimum < single.ranges[0].minimum
    assert single.ranges[0].spread is None


def test_what_is_not_finite_is_left_out_of_a_range_and_said() -> None:
    x = X.copy()
    x[0, 0] = np.nan
    found = ask(probe(whole()), order("calibrate", tensors=("t",)), x=x)
    assert isinstance(found, CalibrateReport)
    assert not found.ranges[0].is_finite
    assert found.ranges[0].channel_minima[0] == 5.0


@pytest.mark.parametrize("samples", [0, 17])
def test_samples_have_a_limit(samples: int) -> None:
    with pytest.raises(BadTensor, match=f"{samples} samples are asked for"):
        ask(probe(whole()), order("calibrate", tensors=("t",), samples=samples))


def test_slices_that_lose_something_are_held_to_the_whole_over_all_samples() -> None:
    exact = ask(probe(whole(), first(), last()), order("precision", *CHAIN, samples=3))
    other = ask(
        probe(whole(), first(), last(scale=3.3)),
        order("precision", *CHAIN, is_stacked=True),
        x=np.stack([X, X * 2]),
    )
    assert isinstance(exact, PrecisionReport)
    assert isinstance(other, PrecisionReport)
    assert (exact.samples, exact.outputs[0].loss) == (3, 0.0)
    (y,) = other.outputs
    assert other.samples == 2
    assert y.loss == pytest.approx(0.1, abs=1e-6)
    assert y.max_absolute == pytest.approx(0.3 * 18, abs=1e-5)


def test_an_output_that_is_infinite_on_one_side_has_no_loss() -> None:
    report = ask(probe(whole(), first(), last(scale=3e38)), order("precision", *CHAIN), x=X + 10)
    assert isinstance(report, PrecisionReport)
    assert report.outputs[0].loss is None
    assert "infinite on one side" in report.outputs[0].trouble


def test_precision_without_slices_is_an_error() -> None:
    with pytest.raises(BadTensor, match="names no slices"):
        ask(probe(whole()), order("precision"))


# What cannot be.


def test_an_order_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(BadTensor, match="order of a probe cannot be read"):
        ask(probe(whole()), b"{}")


def test_parts_and_models_have_to_add_up() -> None:
    with pytest.raises(BadTensor, match="speaks of 2 models, the probe holds 1"):
        ask(probe(whole()), order("verify", WHOLE_PART, FIRST_PART))


def test_an_unknown_input_is_named() -> None:
    with pytest.raises(BadTensor, match="no input 'z'"):
        ask(probe(whole()), order("profile", shapes={"z": (1,)}))


def test_a_shape_that_the_input_cannot_have_is_refused() -> None:
    with pytest.raises(BadTensor, match=r"'x' is \[N, 4\], \[1, 5\] was asked for"):
        ask(probe(whole()), order("profile", shapes={"x": (1, 5)}))


def test_a_model_that_computes_no_made_up_input_asks_for_inputs() -> None:
    data = model(
        [step("Gather", ["table", "x"], "y")],
        [value("x", TensorProto.INT64, (2,))],
        [value("y", shape=("a", "b"))],
        initializer=[weight("table", 1.0)],
    )
    with pytest.raises(BadTensor, match="computes none of the made-up inputs") as caught:
        ask(probe(data), order("profile"))
    assert "--input" in caught.value.hint


def test_free_sizes_that_do_not_fit_are_guessed_otherwise() -> None:
    """A convolution over three colours."""
    data = model(
        [step("Conv", ["x", "w"], "y")],
        [value("x", shape=("a", "b", "c", "d"))],
        [value("y", shape=("a", "b", "c", "d"))],
        initializer=[numpy_helper.from_array(np.ones((1, 3, 1, 1), np.float32), "w")],
    )
    assert profile_of(data, rounds=1).inputs[0].shape == (1, 3, 640, 640)


def test_a_file_that_is_no_model_is_told() -> None:
    with pytest.raises(BadModel):
        ask(probe(b"nonsense"), order("profile"))


def test_a_bad_option_is_told_while_loading() -> None:
    with pytest.raises(UsageError, match="optimisation"):
        probe(whole(), optimisation="most")


def test_a_report_over_its_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "REPORT_BYTES_MAX", 100)
    with pytest.raises(TooLarge, match="over 100"):
        ask(probe(whole()), order("profile"))


def test_a_stopped_probe_begins_no_further_run(monkeypatch: pytest.MonkeyPatch) -> None:
    session = probe(whole(), first(), last())
    models = session._models
    opened = models.open

    def open_and_stop(part: int, optimisation: str, **more: Any) -> Any:
        if part == 1:
            session.stop()
        return opened(part, optimisation, **more)

    monkeypatch.setattr(models, "open", open_and_stop)
    with pytest.raises(ExecutionFailed, match="stopped"):
        ask(session, order("verify", *CHAIN), x=X)
    monkeypatch.undo()
    assert isinstance(ask(session, order("verify", *CHAIN), x=X), VerifyReport)
