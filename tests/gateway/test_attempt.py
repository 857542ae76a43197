"""What an attempt waits for, what it believes, and whom it blames."""

from gateway_fakes import (
    BOXES,
    LABELS,
    NODE_A,
    NODE_B,
    NODE_C,
    SKIP_ROUTE,
    SKIP_SHAPE,
    SLICE_FIRST,
    SLICE_LAST,
    SLICE_MIDDLE,
    timing,
)

from din.domain.deployment import Route
from din.domain.tensor import TensorMeta
from din.gateway.requests.attempt import Attempt
from din.wire.messages import Progress, Result

REQUEST, NUMBER = 5, 2


def attempt(*outputs: str) -> Attempt:
    return Attempt(REQUEST, NUMBER, SKIP_ROUTE, SKIP_SHAPE, outputs, 0.0)


def result(index: int, *metas: TensorMeta, number: int = NUMBER, timings=()) -> Result:
    return Result(REQUEST, number, index, metas, timings, 0)


def mark(index: int, step: str, number: int = NUMBER) -> Progress:
    return Progress(REQUEST, number, index, step)


def blamed(of: Attempt) -> list[tuple[int, str]]:
    return [(index, node) for index, node, _ in of.suspects()]


def test_outputs_of_several_slices_complete_it_in_any_order():
    it = attempt()
    it.take(result(SLICE_LAST, BOXES), memoryview(b"b" * 64))
    assert not it.is_complete
    it.take(result(SLICE_MIDDLE, LABELS), memoryview(b"l" * 64))
    assert it.is_complete
    assert [meta.name for meta, _ in it.outputs()] == ["labels", "boxes"]
    assert bytes(it.outputs()[0][1]) == b"l" * 16


def test_only_the_wanted_outputs_are_awaited():
    it = attempt("labels")
    it.take(result(SLICE_MIDDLE, LABELS), memoryview(b"l" * 64))
    assert it.is_complete
    assert [meta.name for meta, _ in it.outputs()] == ["labels"]


def test_outputs_come_in_the_order_in_which_they_were_asked_for():
    it = attempt("boxes", "labels")
    it.take(result(SLICE_MIDDLE, LABELS), memoryview(b"l" * 64))
    it.take(result(SLICE_LAST, BOXES), memoryview(b"b" * 64))
    assert it.is_complete
    assert [meta.name for meta, _ in it.outputs()] == ["boxes", "labels"]


def test_results_of_another_attempt_or_of_the_wrong_slice_are_not_expected():
    it = attempt()
    assert it.expects(result(SLICE_LAST, BOXES))
    assert not it.expects(result(SLICE_LAST, BOXES, number=NUMBER - 1))
    assert not it.expects(result(SLICE_FIRST, BOXES))
    assert not it.expects(result(SLICE_LAST, BOXES, TensorMeta("heads", "FP32", (1,), 4)))


def test_a_result_of_a_slice_that_does_not_exist_is_not_expected():
    assert not attempt().expects(result(99))
    assert not attempt().expects(result(-1))


def test_timings_of_strangers_are_not_kept():
    it = attempt()
    stray = (timing(99, NODE_A), timing(SLICE_FIRST, NODE_C), timing(SLICE_FIRST, NODE_A))
    it.take(result(SLICE_LAST, BOXES, timings=stray), memoryview(b"b" * 64))
    assert it.timings == {SLICE_FIRST: timing(SLICE_FIRST, NODE_A)}


def test_a_slice_that_never_confirmed_is_blamed_and_those_behind_it_are_not():
    assert attempt().suspects() == ((SLICE_FIRST, NODE_A, "never confirmed its inputs"),)


def test_a_slice_that_accepted_and_fell_silent_is_blamed():
    it = attempt()
    it.mark(mark(SLICE_FIRST, "accepted"))
    assert it.suspects() == ((SLICE_FIRST, NODE_A, "accepted the inputs and fell silent"),)


def test_when_everything_upstream_was_forwarded_the_next_slice_is_blamed():
    it = attempt()
    it.mark(mark(SLICE_FIRST, "forwarded"))
    assert blamed(it) == [(SLICE_MIDDLE, NODE_B)]


def test_a_join_is_not_blamed_before_both_of_its_producers_forwarded():
    it = attempt()
    it.mark(mark(SLICE_FIRST, "forwarded"))
    it.mark(mark(SLICE_MIDDLE, "forwarded"))
    assert blamed(it) == [(SLICE_LAST, NODE_C)]


def test_a_slice_that_has_its_inputs_proves_that_those_before_it_did_their_part():
    it = attempt()
    it.mark(mark(SLICE_LAST, "accepted"))
    assert it.suspects() == ((SLICE_LAST, NODE_C, "accepted the inputs and fell silent"),)


def test_a_result_proves_the_whole_way_to_it():
    it = attempt()
    it.take(result(SLICE_MIDDLE, LABELS), memoryview(b"l" * 64))
    assert blamed(it) == [(SLICE_LAST, NODE_C)]


def test_when_all_say_that_they_sent_the_makers_of_missing_outputs_are_blamed():
    it = attempt()
    it.take(result(SLICE_MIDDLE, LABELS), memoryview(b"l" * 64))
    it.mark(mark(SLICE_LAST, "forwarded"))
    assert it.suspects() == ((SLICE_LAST, NODE_C, "sent outputs that never arrived"),)


def test_marks_of_other_attempts_and_unknown_slices_change_nothing():
    it = attempt()
    it.mark(mark(SLICE_FIRST, "forwarded", number=NUMBER - 1))
    it.mark(mark(99, "forwarded"))
    assert blamed(it) == [(SLICE_FIRST, NODE_A)]


def test_a_node_of_a_slice_left_out_is_not_used():
    it = Attempt(REQUEST, NUMBER, Route(SKIP_ROUTE.epoch, False, (NODE_A, "")), SKIP_SHAPE, (), 0.0)
    assert it.uses(NODE_A)
    assert not it.uses("")
