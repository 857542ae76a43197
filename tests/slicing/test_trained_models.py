"""Models that scikit-learn trained and skl2onnx exported, and the padding of EfficientNet.

EfficientNet's own weights need torch to be exported; what is hard in that file is kept: each
convolution is padded by what a dozen operators on constants compute.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from onnx import TensorProto, helper
from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.ensemble import IsolationForest, RandomForestClassifier
from sklearn.neural_network import MLPClassifier

from din.bench.composed import Composed
from din.errors import BadModel
from din.slicing.slicer import analyse

TARGET = {"": 17, "ai.onnx.ml": 3}
BLOCKS = ((8, 8, 3, 1), (8, 12, 3, 2), (12, 12, 5, 1), (12, 16, 5, 2), (16, 16, 3, 1))
"""Channels in and out, kernel and stride of each block."""


@pytest.fixture(scope="module")
def digits():
    values, numbers = load_digits(return_X_y=True)
    return values[:400].astype(np.float32), numbers[:400]


@pytest.fixture(scope="module")
def forest(digits):
    """A classifier of one operator: votes and labels leave it together."""
    made = RandomForestClassifier(10, max_depth=5, random_state=7).fit(*digits)
    return made, exported(made, digits)


@pytest.fixture(scope="module")
def network(digits):
    made = MLPClassifier((32, 16), max_iter=500, tol=0.1, n_iter_no_change=2, random_state=7)
    return made.fit(*digits), exported(made, digits)


@pytest.fixture(scope="module")
def outliers(digits):
    made = IsolationForest(n_estimators=8, random_state=7).fit(digits[0])
    return made, to_onnx(made, digits[0][:1], target_opset=TARGET).SerializeToString()


def exported(made, digits):
    options = {id(made): {"zipmap": False}}
    model = to_onnx(made, digits[0][:1], options=options, target_opset=TARGET)
    return model.SerializeToString()


def cut_at_random(data, feeds, *ways):
    """The answer of the whole, which every way of cutting gave bit by bit."""
    found = analyse(data, {})
    dynamic = found.graph.dynamic
    expected = Composed(found, {each.index: 0 for each in dynamic}, "off").run(feeds)
    draw = random.Random(len(dynamic))
    for count in ways:
        ends = sorted(draw.sample(range(1, len(dynamic)), count - 1))
        slice_of = {each.index: sum(at >= end for end in ends) for at, each in enumerate(dynamic)}
        composed = Composed(found, slice_of, "off")
        answer = composed.run(feeds)
        assert len(composed.parts) == count
        assert set(answer) == set(expected)
        for name, value in expected.items():
            assert answer[name].tobytes() == value.tobytes(), name
    return expected


def test_a_network_of_scikit_learn_cut_anywhere_answers_what_it_predicts(network, digits):
    made, data = network
    expected = cut_at_random(data, {"X": digits[0][:20]}, 2, 3, 5, 8)
    assert expected["label"].tolist() == made.predict(digits[0][:20]).tolist()
    probabilities = made.predict_proba(digits[0][:20])
    np.testing.assert_allclose(expected["probabilities"], probabilities, rtol=1e-4, atol=1e-6)


def test_an_isolation_forest_cut_anywhere_answers_what_it_predicts(outliers, digits):
    made, data = outliers
    expected = cut_at_random(data, {"X": digits[0][:20]}, 2, 3, 5, 8)
    assert expected["label"].ravel().tolist() == made.predict(digits[0][:20]).tolist()
    scores = made.decision_function(digits[0][:20])
    np.testing.assert_allclose(expected["scores"].ravel(), scores, rtol=1e-4, atol=1e-5)


def test_a_forest_is_one_operator_and_stays_whole(bench, forest, digits):
    made, data = forest
    sliced = bench.check(data, {"X": digits[0][:20]})
    assert sliced.answer.operators == len(sliced.answer.slices) == 1
    whole = bench.run_whole(data, {"X": digits[0][:20]}, is_optimised=True)
    assert whole["label"].tolist() == made.predict(digits[0][:20]).tolist()


def test_a_classifier_whose_answer_is_a_list_of_maps_is_refused_with_the_way_out(
    bench, network, digits
):
    data = to_onnx(network[0], digits[0][:1], target_opset=TARGET).SerializeToString()
    with pytest.raises(BadModel) as caught:
        bench.cut(data)
    assert "output_probability" in caught.value.story()
    assert "zipmap=False" in caught.value.story()


class Padded:
    """EfficientNet-lite as torch exports it, small: every convolution pads first, by as much as
    operators on constants say."""

    def __init__(self):
        self.nodes, self.stored, self.last = [], {}, "x"
        self.values = np.random.default_rng(7)

    def add(self, kind, *reads, **attributes):
        self.last = f"{kind}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, reads, [self.last], name=self.last, **attributes))
        return self.last

    def number(self, *values):
        tensor = helper.make_tensor("", TensorProto.INT64, [len(values)], values)
        return self.add("Constant", value=tensor)

    def pad(self, before, after):
        source = self.last
        given = self.number(before, after, before, after)
        length = self.number(4)
        rest = helper.make_tensor("", TensorProto.INT64, [1], [0])
        zeros = self.add("ConstantOfShape", length, value=rest)
        both = self.add("Concat", given, zeros, axis=0)
        pairs = self.add("Reshape", both, self.number(-1, 2))
        reach = self.number(-1), self.number(-(2**63) + 1), self.number(0), self.number(-1)
        turned = self.add("Transpose", self.add("Slice", pairs, *reach), perm=[1, 0])
        flat = self.add("Reshape", turned, self.number(-1))
        value = helper.make_tensor("", TensorProto.FLOAT, [], [0.0])
        amount = self.add("Cast", flat, to=TensorProto.INT64)
        self.add("Pad", source, amount, self.add("Constant", value=value), mode="constant")

    def convolve(self, outputs, inputs, kernel, stride=1, group=1):
        reach = kernel - stride
        if reach > 0:
            self.pad(reach // 2, reach - reach // 2)
        weights = f"w{len(self.stored)}"
        shape = outputs, inputs // group, kernel, kernel
        spread = np.sqrt(2 / (inputs // group * kernel**2))
        self.stored[weights] = (self.values.standard_normal(shape) * spread).astype(np.float32)
        self.add("Conv", self.last, weights, strides=[stride] * 2, group=group)

    def clip(self):
        limits = [
            self.add("Constant", value=helper.make_tensor("", TensorProto.FLOAT, [], [limit]))
            for limit in (0.0, 6.0)
        ]
        self.add("Clip", self.nodes[-3].output[0], *limits)

    def block(self, inputs, outputs, kernel, stride):
        start = self.last
        self.convolve(inputs * 4, inputs, 1)
        self.clip()
        self.convolve(inputs * 4, inputs * 4, kernel, stride, group=inputs * 4)
        self.clip()
        self.convolve(outputs, inputs * 4, 1)
        if stride == 1 and inputs == outputs:
            self.add("Add", self.last, start)


def test_convolutions_padded_by_constant_operators_cut_anywhere_answer_as_the_whole(build):
    made = Padded()
    made.convolve(8, 3, 3, stride=2)
    made.clip()
    for block in BLOCKS:
        made.block(*block)
    pooled = made.add("GlobalAveragePool", made.last)
    made.stored["head"] = made.values.standard_normal((16, 10)).astype(np.float32)
    made.add("Gemm", made.add("Flatten", pooled), "head")
    model = build(made.nodes, ["x:FLOAT:N,3,32,32"], [f"{made.last}:FLOAT:N,10"], made.stored)
    feeds = {"x": made.values.uniform(-1, 1, (2, 3, 32, 32)).astype(np.float32)}
    answer = cut_at_random(model.SerializeToString(), feeds, 2, 3, 5, 8)
    assert answer[made.last].std() > 0
