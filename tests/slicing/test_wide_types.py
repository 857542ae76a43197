"""Tensors of types that numpy lacks, over cuts that really run: BF16 and every FP8 (T36).

numpy has no such types, so slices run as a worker runs them: in the engine's backend, which hands
out the bits.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from din.backends.contract import NUMPY_TYPES
from din.backends.onnxruntime_backend import load
from din.domain.model import GATEWAY

FP8 = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
WORDS = {"BFLOAT16": "BF16"} | dict.fromkeys(FP8, "FP8")
VALUES = (0.0, -0.0, 1.0, -1.5, 3.14159, 1e-3, 240.0, -57344.0, 1e30, np.inf, -np.inf, np.nan)
"""What each type keeps, rounds, has no room for, and tells apart only by its bits."""
FEEDS = {"x": np.array(VALUES, np.float32).reshape(3, 4)}


def node(kind, reads, writes, name, **attributes):
    return helper.make_node(kind, reads, writes, name=name, **attributes)


def narrowing(build, kind):
    """x to the narrow type, which skips a slice and leaves as an output, and back."""
    return build(
        [
            node("Cast", ["x"], ["narrow"], "narrow", to=TensorProto.DataType.Value(kind)),
            node("Identity", ["narrow"], ["moved"], "move"),
            node("Cast", ["moved"], ["wide"], "widen", to=TensorProto.FLOAT),
            node("Cast", ["narrow"], ["again"], "again", to=TensorProto.FLOAT),
        ],
        ["x:FLOAT:3,4"],
        [f"moved:{kind}:3,4", "wide:FLOAT:3,4", "again:FLOAT:3,4"],
        opset_imports=[helper.make_opsetid("", 19)],
    )


def run(data, feeds, packs):
    session = load(data, {"optimisation": "off"}, packs)
    names = [each.name for each in session.outputs]
    # What is returned lies in the session and is gone with it.
    return {name: value.copy() for name, value in session.run(feeds, names, {}).items()}


def run_sliced(sliced, feeds):
    inboxes = {each.index: {} for each in sliced.answer.slices} | {GATEWAY: {}}
    crossed = {}

    def send(producer, values):
        for edge in sliced.answer.edges:
            if edge.producer == producer:
                crossed.update({edge.tensor: values[edge.tensor]})
                for consumer in edge.consumers:
                    inboxes[consumer][edge.tensor] = values[edge.tensor]

    send(GATEWAY, feeds)
    for part in sliced.answer.slices:
        model, *packs = [each.sha256 for each in part.artifacts]
        weights = {each: memoryview(sliced.files[each]) for each in packs}
        send(part.index, run(sliced.files[model], inboxes[part.index], weights))
    return inboxes[GATEWAY], crossed


@pytest.mark.parametrize("kind", WORDS)
def test_a_cut_of_each_type_answers_bit_by_bit_what_the_whole_does(bench, build, kind):
    model, word = narrowing(build, kind), WORDS[kind]
    whole = run(model.SerializeToString(), FEEDS, {})
    sliced = bench.cut(model, "narrow", "move")
    answer, crossed = run_sliced(sliced, FEEDS)
    assert len(sliced.answer.slices) == 3
    assert [each.dtype for each in sliced.answer.slices[1].inputs] == [word]
    assert crossed["narrow"].dtype == NUMPY_TYPES[word]
    assert crossed["narrow"].any()
    assert set(answer) == set(whole) == {"moved", "wide", "again"}
    for name, value in whole.items():
        assert answer[name].dtype == value.dtype
        assert answer[name].tobytes() == value.tobytes(), name
    assert np.isnan(answer["wide"].ravel()[-1])
    assert answer["wide"].ravel()[2] == 1.0
