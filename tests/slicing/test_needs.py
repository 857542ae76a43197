"""What slices ask of backends, and that the table refuses nothing that runs."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from msgspec.structs import replace
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as state

from din.bench.carved import carved
from din.domain.encoding import Encoding
from din.domain.kernels import KERNELS, RELEASES
from din.domain.model import CarveRequest
from din.domain.numerics import computes_in_integers
from din.domain.strategy import Strategy
from din.domain.support import OPEN, Engine, Need, _kernels, _takes, lacks, told
from din.errors import BadModel, BadStrategy
from din.slicing.needs import needs_of
from din.slicing.operators import read_operators
from din.slicing.source import contents_of, settle_inputs

MODE = "coordinate_transformation_mode"
REWRITE = "resize_half_pixel_to_asymmetric"
HERE = Engine("onnxruntime", ort.__version__)
node = helper.make_node


def cut(model, **strategy):
    request = CarveRequest(model_path="", output_path="", strategy=Strategy(**strategy))
    return carved(model.SerializeToString(), request, {})


def needs_in(model, **strategy):
    return [part.needs for part in cut(model, **strategy).answer.slices]


def by_operator(needs) -> dict[str, Need]:
    return {each.operator: each for each in needs.operators}


@pytest.fixture
def resizing(build):
    """Relu, then a Resize to twice the size."""

    def make(opset: int = 13, **attributes):
        return build(
            [
                node("Relu", ["x"], ["r"], name="first"),
                node("Resize", ["r", "", "scales"], ["y"], name="/model.10/Resize", **attributes),
            ],
            ["x:FLOAT:1,1,3,3"],
            ["y:FLOAT:1,1,6,6"],
            {"scales": np.array([1, 1, 2, 2], np.float32)},
            opset_imports=[helper.make_opsetid("", opset)],
        )

    return make


def test_each_slice_says_what_it_asks_with_versions_and_deciding_attributes(resizing):
    first, second = needs_in(resizing(), partition_points=("first",))
    assert by_operator(first) == {"Relu": Need("Relu", 13, "first")}
    found = by_operator(second)["Resize"]
    assert (found.since, found.node) == (13, "/model.10/Resize")
    values = dict(found.attributes)
    assert (values[MODE], values["mode"]) == ("half_pixel", "nearest")  # ONNX's defaults
    assert (second.opset, second.ir_version) == (13, 8)


def test_one_use_by_many_nodes_is_one_need_and_another_use_is_another(build):
    model = build(
        [node("Relu", [f"t{number}"], [f"t{number + 1}"]) for number in range(20)],
        ["t0"],
        ["t20"],
    )
    (needs,) = needs_in(model)
    assert [each.operator for each in needs.operators] == ["Relu"]


def test_subgraphs_and_what_local_functions_are_made_of_count_too(build):
    inside = helper.make_graph(
        [node("Sin", ["x"], ["s"])], "then", [], [helper.make_tensor_value_info("s", 1, [2, 3])]
    )
    other = helper.make_graph(
        [node("Cos", ["x"], ["c"])], "else", [], [helper.make_tensor_value_info("c", 1, [2, 3])]
    )
    function = helper.make_function(
        "mine", "Half", ["a"], ["b"], [node("Tan", ["a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    model = build(
        [
            node("If", ["k"], ["i"], then_branch=inside, else_branch=other, name="if"),
            node("Half", ["i"], ["y"], domain="mine"),
        ],
        ["k:BOOL:", "x"],
        ["y"],
        functions=[function],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)],
    )
    (needs,) = needs_in(model)
    assert set(by_operator(needs)) == {"If", "Sin", "Cos", "Tan"}
    assert list(lacks(needs, HERE)) == []


def test_an_operator_of_ones_own_is_named_with_its_domain_and_refused(build):
    model = build(
        [node("Blur", ["x"], ["m"], domain="mine", name="b"), node("Relu", ["m"], ["y"])],
        ["x"],
        ["y"],
        is_checked=False,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("mine", 3)],
    )
    needs = needs_of(model, read_operators(contents_of(model)).operators, 17)
    (lack,) = lacks(needs, HERE)
    assert told(lack).startswith("OP not supported: mine.Blur at node 'b': onnxruntime")


def test_before_opset_11_resize_has_no_mode_to_refuse(build):
    model = build(
        [node("Resize", ["x", "scales"], ["y"])],
        ["x:FLOAT:1,1,3,3"],
        ["y:FLOAT:1,1,6,6"],
        {"scales": np.array([1, 1, 2, 2], np.float32)},
        opset_imports=[helper.make_opsetid("", 10)],
    )
    (needs,) = needs_in(model)
    assert MODE not in dict(by_operator(needs)["Resize"].attributes)
    assert list(lacks(needs, Engine("cann", "6.3"))) == []


# The table.


def test_the_table_is_what_this_release_says_of_itself():
    release = ".".join(ort.__version__.split(".")[:2])
    if release != list(RELEASES)[-1]:
        pytest.fail("write the table anew: python scripts/kernel_table.py, see there")
    said: dict[str, set[tuple[int, int]]] = {}
    for each in state.get_all_opkernel_def():
        if each.provider == "CPUExecutionProvider" and not each.domain.endswith("nchwc"):
            name = f"{each.domain}.{each.op_name}" if each.domain else each.op_name
            said.setdefault(name, set()).add(tuple(each.version_range))
    assert set(_kernels()) == set(said)
    newest = max(opset for _, opset in RELEASES.values())
    for name, ranges in said.items():
        for since in range(1, newest + 1):
            expected = any(_takes(low, high, since) for low, high in ranges)
            found = any(_takes(low, high, since) for low, high in _kernels()[name])
            assert found == expected, (name, since)
    assert max(high for _, high in said["Relu"]) == OPEN
    assert ";" in KERNELS


def test_nothing_that_plain_onnx_runtime_runs_is_refused(backend_cases, plain_failures):
    """Over ONNX's own suite: a wrong refusal would keep a good model from running."""
    foreseen = 0
    for case in backend_cases:
        model = case.model
        settle_inputs(model)
        opset = max((each.version for each in model.opset_import if not each.domain), default=1)
        found = list(
            lacks(needs_of(model, read_operators(contents_of(model)).operators, opset), HERE)
        )
        if case.name in plain_failures.names:
            foreseen += bool(found)
        else:
            assert not found, (case.name, told(found[0]))
    assert foreseen >= FORESEEN_MIN


FORESEEN_MIN = 90
"""Of the cases that fail, those that fail for want of a kernel and not of a type."""


# Rewrites.


def test_a_resize_is_rewritten_only_when_the_strategy_says_so(resizing):
    """T33."""
    model = resizing(mode="linear")
    plain = cut(model)
    changed = cut(model, rewrite=(REWRITE,))
    assert plain.answer.warnings == ()
    (warning,) = changed.answer.warnings
    assert "changed 1 operator ('/model.10/Resize')" in warning
    assert "computes other numbers than the file" in warning
    assert plain.answer.slices[0].slice_id != changed.answer.slices[0].slice_id
    asks = by_operator(changed.answer.slices[0].needs)["Resize"]
    assert dict(asks.attributes)[MODE] == "asymmetric"
    assert list(lacks(plain.answer.slices[0].needs, Engine("cann", "6.3")))
    assert not list(lacks(changed.answer.slices[0].needs, Engine("cann", "6.3")))
    feed = {"x": np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)}
    (before,) = run(plain, feed)
    (after,) = run(changed, feed)
    assert before.shape == after.shape
    assert not np.array_equal(before, after)  # it changes the numbers: that is why it is asked for


def run(sliced, feed):
    (data,) = sliced.files.values()
    return ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feed)


@pytest.mark.parametrize("opset", [13, 19])
def test_what_is_asymmetric_or_aligned_already_is_left_alone(resizing, opset: int):
    for mode in ("asymmetric", "align_corners"):
        model = resizing(opset, mode="linear", **{MODE: mode})
        with pytest.raises(BadStrategy, match="finds nothing to change"):
            cut(model, rewrite=(REWRITE,))


def test_a_rewrite_that_nobody_knows_is_refused_when_it_is_read():
    import msgspec

    with pytest.raises(msgspec.ValidationError, match="rewrite"):
        msgspec.convert({"rewrite": ["softmax_to_relu"]}, Strategy)


# What encodings append.


def crossing(resizing, kind: str):
    model = resizing(mode="linear", **{MODE: "asymmetric"})
    more = {"scale": (0.5,), "zero_point": (3,)} if kind == "uint8" else {}
    encoding = Encoding(kind=kind, **more)
    strategy = Strategy(partition_points=("first",))
    plain = CarveRequest(model_path="", output_path="", strategy=strategy)
    (name,) = carved(model.SerializeToString(), plain).answer.cuts[0].tensors
    request = replace(plain, encodings={name: encoding})
    return [each.needs for each in carved(model.SerializeToString(), request).answer.slices]


@pytest.mark.parametrize(
    ("kind", "made_by", "read_by"),
    [("fp16", "Cast", "Cast"), ("uint8", "QuantizeLinear", "DequantizeLinear")],
)
def test_what_encodes_and_decodes_is_asked_of_the_backends_on_both_sides(
    resizing, kind: str, made_by: str, read_by: str
):
    first, second = crossing(resizing, kind)
    assert made_by in by_operator(first)
    assert read_by in by_operator(second)
    assert by_operator(first)[made_by].node.endswith(made_by)
    assert list(lacks(first, HERE)) == list(lacks(second, HERE)) == []
    assert not computes_in_integers(first)
    assert not computes_in_integers(second)
    old = Engine("tensorrt", "8.4")
    said = [told(each) for needs in (first, second) for each in lacks(needs, old)]
    assert len(said) == (2 if kind == "uint8" else 0)
    assert all("takes INT8" in each for each in said)
    assert made_by not in by_operator(needs_in(resizing(), partition_points=("first",))[0])


@pytest.mark.parametrize("place", ["kind", "domain", "value"])
def test_words_of_a_damaged_file_that_are_no_text_are_refused(place):
    kind, domain, value = "Sigmoid", "made.up", "somewhere"
    graph = helper.make_graph(
        [node("Sigmoid", ["x"], [value], domain=domain), node("Relu", [value], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [1])],
        [helper.make_tensor_value_info("y", 1, [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.opset_import.add(domain=domain, version=1)
    word = {"kind": kind, "domain": domain, "value": value}[place].encode()
    damaged = model.SerializeToString().replace(word, b"\xe4" + word[1:])
    request = CarveRequest(model_path="", output_path="", strategy=Strategy())
    with pytest.raises(BadModel, match="no text in UTF-8") as refusal:
        carved(damaged, request, {})
    assert "xe4" in refusal.value.message
