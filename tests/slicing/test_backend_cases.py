"""ONNX's own node cases: what plain ONNX Runtime answers, the cut case answers, bit by bit."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from din.errors import BadModel
from din.slicing.slicer import analyse

CASES_CUT_MIN = 390
"""Ratchet: cases with at least two dynamic operators that the plain runtime answers."""

ROUNDED_OTHERWISE = {
    "test_attention_4d_fp16_expanded",
    "test_attention_4d_gqa_with_past_and_present_fp16_expanded",
    "test_attention_4d_causal_fp16_expanded",
}
"""Within one session the CPU keeps chains of FP16 in FP32; a cut rounds to FP16 there."""


def _cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return [each for each in collect_testcases(None) if each.model is not None]


def _plain(bench, case):
    inputs, _ = case.data_sets[0]
    names = [each.name for each in case.model.graph.input]
    feeds = {name: np.asarray(value) for name, value in zip(names, inputs, strict=True)}
    return feeds, bench.run_whole(case.model.SerializeToString(), feeds, is_optimised=False)


@pytest.mark.filterwarnings("ignore")
def test_node_cases_cut_in_the_middle_answer_as_the_whole(bench):
    cut, different = 0, set()
    for case in _cases():
        try:
            dynamic = analyse(case.model.SerializeToString(), {}).graph.dynamic
        except BadModel:
            continue  # sequences and optionals at the border
        if len(dynamic) < 2:
            continue
        try:
            feeds, expected = _plain(bench, case)
        except Exception:  # the plain runtime cannot do it either
            continue
        point = dynamic[len(dynamic) // 2 - 1].name
        found = bench.run_sliced(bench.cut(case.model, point), feeds, is_optimised=False)
        cut += 1
        if any(not _equal(found[name], value) for name, value in expected.items()):
            different.add(case.name)
    assert different <= ROUNDED_OTHERWISE
    assert cut >= CASES_CUT_MIN


def _equal(one, other):
    is_float = one.dtype.kind == "f"
    return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=is_float)
