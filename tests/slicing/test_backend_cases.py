"""ONNX's own test suite, whole and cut in half: DIN passes what plain ONNX Runtime passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from din.bench.backend_cases import WAYS, failure, halved, plainly, versions
from din.bench.composed import Composed, engine
from din.slicing.slicer import analyse

LOCK = Path(__file__).parents[2] / "requirements-test.lock"
CASES = 2024
CASES_CUT_MIN = 420
"""Of those that pass: with at least two operators that depend on the inputs."""

ROUNDED_OTHERWISE = {
    "test_attention_4d_fp16_expanded",
    "test_attention_4d_gqa_with_past_and_present_fp16_expanded",
    "test_attention_4d_causal_fp16_expanded",
}
"""Within one session the CPU keeps chains of FP16 in FP32; a cut rounds to FP16 there."""


def test_the_ratchet_holds_for_the_versions_that_the_lock_pins(plain_failures):
    pins = {line.split()[0] for line in LOCK.read_text().splitlines() if "==" in line}
    assert plain_failures.versions == versions(), plain_failures.HOW
    assert set(plain_failures.versions.split()) <= pins, plain_failures.HOW


def test_whole_models_pass_what_plain_onnx_runtime_passes(backend_cases, plain_failures):
    failed = {each.name: failure(each, WAYS["whole"]) for each in backend_cases}
    assert len(failed) == CASES
    plain_failures.check({name: reason for name, reason in failed.items() if reason})


def test_models_cut_in_half_pass_what_plain_onnx_runtime_passes(cuttable_cases, plain_failures):
    failed = {each.name: failure(each, WAYS["cut in half"]) for each in cuttable_cases}
    assert len(failed) - len(plain_failures.names & set(failed)) >= CASES_CUT_MIN
    plain_failures.check(
        {name: reason for name, reason in failed.items() if reason}, among=set(failed)
    )


def test_without_optimisations_the_halves_answer_bit_by_bit_as_the_whole(
    cuttable_cases, plain_failures
):
    different, compared = set(), 0
    for case in cuttable_cases:
        if case.name in plain_failures.names:
            continue
        found = analyse(case.model.SerializeToString(), {}, is_served=False)
        plain = engine(case.model.SerializeToString(), "off")
        feeds = dict(
            zip([e.name for e in case.model.graph.input], case.data_sets[0][0], strict=False)
        )
        if not all(isinstance(each, np.ndarray) for each in feeds.values()):
            continue
        names = [each.name for each in plain.get_outputs()]
        answer = Composed(found, halved(found), "off").run(feeds)
        compared += 1
        for name, value in zip(names, plain.run(names, feeds), strict=True):
            if isinstance(value, np.ndarray) and not _equal(answer[name], value):
                different.add(case.name)
    assert compared >= CASES_CUT_MIN - 30
    assert different <= ROUNDED_OTHERWISE


def test_a_case_that_fails_plainly_is_told_with_its_reason(backend_cases, plain_failures):
    case = next(each for each in backend_cases if each.name in plain_failures.names)
    assert failure(case, plainly)


def test_the_ratchet_fails_when_a_case_starts_to_fail_and_when_one_starts_to_pass(plain_failures):
    expected = dict.fromkeys(plain_failures.names, "reason")
    plain_failures.check(expected)
    with pytest.raises(AssertionError, match="test_abs"):
        plain_failures.check(expected | {"test_abs": "reason"})
    passing = next(iter(expected))
    with pytest.raises(AssertionError, match=passing):
        plain_failures.check({name: "" for name in expected if name != passing})


def _equal(one, other):
    is_float = one.dtype.kind == "f"
    return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=is_float)
