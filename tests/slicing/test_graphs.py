"""Small graphs, each with one thing that slicers get wrong."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from din.domain.model import GATEWAY, Edge
from din.errors import BadModel, TooLarge

node = helper.make_node
X = {"x": np.arange(6, dtype=np.float32).reshape(2, 3) - 2}
LOOP_BODY_INPUTS = (("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []))


def branch(name, *nodes, stored=()):
    out = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, [2, 3])
    return helper.make_graph(list(nodes), name, [], [out], list(stored))


def names_in(sliced, index):
    data = sliced.files[sliced.answer.slices[index].artifacts[0].sha256]
    model = onnx.load_from_string(data)
    return {each.op_type for each in model.graph.node}, {e.name for e in model.graph.initializer}


def test_a_tensor_that_skips_a_slice_goes_straight_to_its_reader(bench, build):
    model = build(
        [
            node("Relu", ["x"], ["a"], "first"),
            node("Exp", ["a"], ["b"], "second"),
            node("Add", ["b", "a"], ["y"], "third"),
        ],
        ["x"],
        ["y"],
    )
    answer = bench.check(model, X, "first", "second").answer
    assert Edge("a", 0, (1, 2)) in answer.edges
    assert answer.cuts[1].tensors == ("a", "b")
    assert answer.cuts[1].nbytes == 48


def test_an_output_of_an_early_slice_that_is_also_read_later_reaches_both(bench, build):
    model = build(
        [node("Relu", ["x"], ["a"], "first"), node("Exp", ["a"], ["y"], "second")],
        ["x"],
        ["y", "a"],
    )
    answer = bench.check(model, X, "first").answer
    assert Edge("a", 0, (GATEWAY, 1)) in answer.edges
    assert [each.name for each in answer.outputs] == ["y", "a"]


def test_if_captures_an_outer_value_made_in_an_earlier_slice(bench, build):
    model = build(
        [
            node("Relu", ["x"], ["a"], "first"),
            node("ReduceSum", ["x"], ["total"], "sum", keepdims=0),
            node("Greater", ["total", "zero"], ["cond"], "compare"),
            node(
                "If",
                ["cond"],
                ["y"],
                "choose",
                then_branch=branch("t", node("Exp", ["a"], ["t_out"])),
                else_branch=branch("e", node("Neg", ["a"], ["e_out"])),
            ),
        ],
        ["x"],
        ["y"],
        {"zero": np.float32(0)},
    )
    answer = bench.check(model, X, "first", "compare").answer
    assert Edge("a", 0, (2,)) in answer.edges


def test_if_captures_an_initialiser_that_goes_with_it(bench, build):
    model = build(
        [
            node("Relu", ["x"], ["a"], "first"),
            node("ReduceSum", ["a"], ["total"], "sum", keepdims=0),
            node("Greater", ["total", "zero"], ["cond"], "compare"),
            node(
                "If",
                ["cond"],
                ["y"],
                "choose",
                then_branch=branch("t", node("Add", ["a", "weight"], ["t_out"])),
                else_branch=branch("e", node("Neg", ["a"], ["e_out"])),
            ),
        ],
        ["x"],
        ["y"],
        {"zero": np.float32(0), "weight": np.ones((2, 3), np.float32)},
    )
    sliced = bench.check(model, X, "compare")
    assert names_in(sliced, 1)[1] == {"weight"}


def test_loop_captures_an_outer_value(bench, build):
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["go_out"]),
            node("Add", ["state", "a"], ["state_out"]),
        ],
        "body",
        [
            *(info(name, kind, shape) for name, kind, shape in LOOP_BODY_INPUTS),
            info("state", TensorProto.FLOAT, [2, 3]),
        ],
        [info("go_out", TensorProto.BOOL, []), info("state_out", TensorProto.FLOAT, [2, 3])],
    )
    model = build(
        [
            node("Relu", ["x"], ["a"], "first"),
            node("Exp", ["x"], ["b"], "second"),
            node("Loop", ["times", "", "b"], ["y"], "loop", body=body),
        ],
        ["x"],
        ["y"],
        {"times": np.int64(3)},
    )
    answer = bench.check(model, X, "first", "second").answer
    assert Edge("a", 0, (2,)) in answer.edges


def _function(name, op_type, domain="own"):
    return helper.make_function(
        domain, name, ["v"], ["w"], [node(op_type, ["v"], ["w"])], [helper.make_opsetid("", 17)]
    )


OWN = {"opset_imports": [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]}


def test_local_functions_go_only_where_they_are_called(bench, build):
    model = build(
        [
            node("F", ["x"], ["a"], "first", domain="own"),
            node("G", ["a"], ["y"], "second", domain="own"),
        ],
        ["x"],
        ["y"],
        functions=[_function("F", "Relu"), _function("G", "Exp")],
        **OWN,
    )
    sliced = bench.check(model, X, "first")
    for index, expected in enumerate("FG"):
        data = sliced.files[sliced.answer.slices[index].artifacts[0].sha256]
        assert [each.name for each in onnx.load_from_string(data).functions] == [expected]


def test_functions_that_differ_by_their_overload_only_keep_what_each_calls(bench, build):
    functions = [_function("Inner1", "Relu"), _function("Inner2", "Exp")]
    for overload in "12":
        outer = helper.make_function(
            "own",
            "F",
            ["v"],
            ["w"],
            [node(f"Inner{overload}", ["v"], ["w"], domain="own")],
            [helper.make_opsetid("own", 1)],
        )
        outer.overload = overload
        functions.append(outer)
    calls = [node("F", ["x"], ["a"], "first", domain="own")]
    calls.append(node("F", ["a"], ["y"], "second", domain="own"))
    for call, overload in zip(calls, "12", strict=True):
        call.overload = overload
    model = build(calls, ["x"], ["y"], functions=functions, is_checked=False, **OWN)
    model.ir_version = 10
    for points in ([], ["first"]):
        bench.check(model, X, *points)
    sliced = bench.cut(model, "first")
    for index, inner in enumerate(("Inner1", "Inner2")):
        data = sliced.files[sliced.answer.slices[index].artifacts[0].sha256]
        assert [each.name for each in onnx.load_from_string(data).functions] == [inner, "F"]


def calling(name, *called):
    values = ["v", *(f"u{place}" for place in range(len(called) - 1)), "w"]
    nodes = [
        node(each, [given], [made], domain="" if each == "Relu" else "own")
        for each, given, made in zip(called, values[:-1], values[1:], strict=True)
    ]
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["v"], ["w"], nodes, sets)


@pytest.mark.parametrize("called", [("F",), ("G", "F")])
def test_functions_that_call_themselves_are_refused_by_name(bench, build, called):
    functions = [calling("F", "G"), calling("G", "Relu", *called), calling("H", "Relu")]
    calls = [node("H", ["x"], ["a"], domain="own"), node("F", ["a"], ["y"], domain="own")]
    model = build(calls, ["x"], ["y"], functions=functions, is_checked=False, **OWN)
    with pytest.raises(BadModel, match=r"call themselves.*own\.F.*own\.G") as failed:
        bench.cut(model)
    assert "own.H" not in failed.value.message


def test_a_few_functions_that_stand_for_billions_of_operators_are_refused(bench, build):
    functions = [calling("F0", "Relu")]
    functions += [calling(f"F{number}", *[f"F{number - 1}"] * 2) for number in range(1, 40)]
    for called in ("F39", "F3"):
        calls = [node(called, ["x"], ["y"], domain="own")]
        model = build(calls, ["x"], ["y"], functions=functions, is_checked=False, **OWN)
        if called == "F3":
            bench.cut(model)
            continue
        with pytest.raises(TooLarge, match="over 200000 operators"):
            bench.cut(model)


def test_a_function_called_only_inside_an_if_is_found(bench, build):
    model = build(
        [
            node("Relu", ["x"], ["a"], "first"),
            node("ReduceSum", ["a"], ["total"], "sum", keepdims=0),
            node("Greater", ["total", "zero"], ["cond"], "compare"),
            node(
                "If",
                ["cond"],
                ["y"],
                "choose",
                then_branch=branch("t", node("F", ["a"], ["t_out"], domain="own")),
                else_branch=branch("e", node("Neg", ["a"], ["e_out"])),
            ),
        ],
        ["x"],
        ["y"],
        {"zero": np.float32(0)},
        functions=[_function("F", "Exp")],
        **OWN,
    )
    bench.check(model, X, "compare")


def test_random_operators_are_never_constants_and_mark_their_slice(bench, build):
    model = build(
        [
            node("RandomNormal", [], ["noise"], "draw", shape=[2, 3]),
            node("Relu", ["x"], ["a"], "first"),
            node("Exp", ["a"], ["b"], "second"),
            node("Add", ["b", "noise"], ["y"], "third"),
        ],
        ["x"],
        ["y"],
    )
    answer = bench.cut(model, "first", "second").answer
    assert [each.is_random for each in answer.slices] == [True, False, False]
    assert Edge("noise", 0, (2,)) in answer.edges


def test_a_function_that_draws_is_random_too(bench, build):
    draw = helper.make_function(
        "own",
        "Noise",
        ["v"],
        ["w"],
        [node("RandomNormalLike", ["v"], ["w"])],
        [helper.make_opsetid("", 17)],
    )
    model = build(
        [
            node("Noise", ["weight"], ["noise"], "draw", domain="own"),
            node("Add", ["x", "noise"], ["y"], "add"),
        ],
        ["x"],
        ["y"],
        {"weight": np.ones((2, 3), np.float32)},
        functions=[draw],
        **OWN,
    )
    answer = bench.cut(model, "draw").answer
    assert answer.slices[0].is_random
    assert answer.edges[0] == Edge("x", GATEWAY, (1,))


def test_a_dropout_in_a_function_is_switched_by_the_function_s_own_values(bench, build):
    drop = helper.make_function(
        "own",
        "Drop",
        ["v"],
        ["w"],
        [
            node("Constant", [], ["half"], value=numpy_helper.from_array(np.float32(0.5))),
            node("Constant", [], ["mode"], value=numpy_helper.from_array(np.bool_(True))),
            node("Dropout", ["v", "half", "mode"], ["w"]),
        ],
        [helper.make_opsetid("", 17)],
    )
    model = build(
        [
            node("Drop", ["weight"], ["noise"], "draw", domain="own"),
            node("Not", ["mode"], ["is_on"], "switch"),
            node("Where", ["is_on", "noise", "x"], ["y"], "choose"),
        ],
        ["x"],
        ["y"],
        {"weight": np.ones((2, 3), np.float32), "mode": np.bool_(False)},
        functions=[drop],
        **OWN,
    )
    assert bench.cut(model).answer.slices[0].is_random


def test_what_constants_make_moves_into_every_slice_that_needs_it(bench, build):
    weight = numpy_helper.from_array(np.full((2, 3), 5, np.int8), "c")
    model = build(
        [
            node("Constant", [], ["small"], "constant", value=weight),
            node("Cast", ["small"], ["large"], "cast", to=TensorProto.FLOAT),
            node("Mul", ["large", "scale"], ["w"], "scale-it"),
            node("Add", ["x", "w"], ["a"], "first"),
            node("Exp", ["a"], ["b"], "second"),
            node("Mul", ["b", "w"], ["y"], "third"),
        ],
        ["x"],
        ["y"],
        {"scale": np.float32(0.5)},
    )
    sliced = bench.check(model, X, "first", "second")
    assert names_in(sliced, 0) == ({"Constant", "Cast", "Mul", "Add"}, {"scale"})
    assert names_in(sliced, 1) == ({"Exp"}, set())
    assert names_in(sliced, 2) == ({"Constant", "Cast", "Mul"}, {"scale"})
    assert [each.operators for each in sliced.answer.slices] == [1, 1, 1]


def test_outputs_that_no_input_changes_come_from_the_first_slice(bench, build):
    constant = numpy_helper.from_array(np.full((2, 3), 5, np.float32), "c")
    model = build(
        [
            node("Constant", [], ["fixed"], "constant", value=constant),
            node("Relu", ["x"], ["a"], "first"),
            node("Exp", ["a"], ["y"], "second"),
        ],
        ["x"],
        ["fixed", "y"],
    )
    answer = bench.check(model, X, "first").answer
    assert Edge("fixed", 0, (GATEWAY,)) in answer.edges


def test_unnamed_and_doubled_nodes_get_fixed_names_and_can_be_cut_by_tensor(bench, build):
    """T29."""
    model = build(
        [
            node("Relu", ["x"], ["a"]),
            node("Exp", ["a"], ["b"], "same"),
            node("Neg", ["b"], ["c"], "same"),
            node("Relu", ["c"], ["y"]),
        ],
        ["x"],
        ["y"],
    )
    plain = next(iter(bench.cut(model).files.values()))  # the runtime refuses doubled names
    sliced = bench.cut(model, "a", "b", "same_2")
    expected = bench.run_whole(plain, X, is_optimised=False)["y"]
    assert bench.run_sliced(sliced, X, is_optimised=False)["y"].tobytes() == expected.tobytes()
    named = [
        each.name
        for part in sliced.answer.slices
        for each in onnx.load_from_string(sliced.files[part.artifacts[0].sha256]).graph.node
    ]
    assert named == ["Relu_0", "same_1", "same_2", "Relu_3"]


def test_inputs_that_nothing_reads_are_reported(bench, build):
    """T28."""
    model = build(
        [node("Relu", ["x"], ["a"], "first"), node("Exp", ["a"], ["y"], "second")],
        ["x", "spare"],
        ["y"],
    )
    answer = bench.cut(model, "first").answer
    assert answer.unused_inputs == ("spare",)
    assert [each.name for each in answer.inputs] == ["x", "spare"]
    assert all("spare" not in [i.name for i in each.inputs] for each in answer.slices)


def test_names_in_any_script_stay_as_they_are(bench, build):
    """T42."""
    model = build(
        [node("Relu", ["输入"], ["中间 50%"], "第一层"), node("Exp", ["中间 50%"], ["🙂"], "🧩")],
        ["输入"],
        ["🙂"],
    )
    for point in ("第一层", "中间 50%"):
        sliced = bench.check(model, {"输入": X["x"]}, point)
        assert sliced.answer.slices[0].outputs[0].name == "中间 50%"
        assert sliced.answer.slices[1].outputs[0].name == "🙂"


@pytest.mark.parametrize("kind", ["initialiser", "constant"])
def test_what_a_sparse_weight_makes_can_cross(bench, build, kind):
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("w", TensorProto.FLOAT, [2], [2.0, 3.0]),
        helper.make_tensor("", TensorProto.INT64, [2], [1, 5]),
        [3, 3],
    )
    nodes = [node("Relu", ["x"], ["a"], "first")]
    if kind == "constant":
        nodes.append(node("Constant", [], ["w"], sparse_value=sparse))
    nodes.append(node("MatMul", ["a", "w"], ["b"], "second"))
    nodes.append(node("MatMul", ["b", "w"], ["y"], "third"))
    model = build(nodes, ["x"], ["y"], is_checked=False)
    if kind == "initialiser":
        model.graph.sparse_initializer.append(sparse)
    answer = bench.check(model, X, "first", "second").answer
    assert answer.cuts[1].nbytes == 24


def test_dims_of_size_zero_pass_through(bench, build):
    """T38."""
    model = build(
        [node("Relu", ["x"], ["a"], "first"), node("Exp", ["a"], ["y"], "second")],
        ["x:FLOAT:0,3"],
        ["y:FLOAT:0,3"],
    )
    answer = bench.check(model, {"x": np.zeros((0, 3), np.float32)}, "first").answer
    assert answer.slices[1].inputs[0].shape == (0, 3)
    assert answer.cuts[0].nbytes == 0


def _quantised(build):
    stored = {"scale": np.float32(0.02), "zero": np.uint8(128)}
    return build(
        [
            node("Relu", ["x"], ["a"], "first"),
            node("QuantizeLinear", ["a", "scale", "zero"], ["q"], "quantise"),
            node("DequantizeLinear", ["q", "scale", "zero"], ["d"], "dequantise"),
            node("Exp", ["d"], ["y"], "second"),
        ],
        ["x"],
        ["y"],
        stored,
    )


def test_a_cut_between_quantise_and_dequantise_carries_the_small_type(bench, build):
    answer = bench.check(_quantised(build), X, "quantise").answer
    assert answer.slices[1].inputs[0].dtype == "UINT8"
    assert answer.warnings == ()


def test_a_cut_that_parts_an_operator_from_its_scale_is_warned_of(bench, build):
    answer = bench.cut(_quantised(build), "dequantise").answer
    assert "'" not in answer.warnings[0].split("at ")[1].split(":")[0]
    assert " d:" in answer.warnings[0]


def test_wide_types_cross_with_their_own_words(bench, build):
    """T36."""
    for kind, word in ((TensorProto.BFLOAT16, "BF16"), (TensorProto.FLOAT8E4M3FN, "FP8")):
        model = build(
            [
                node("Cast", ["x"], ["a"], "first", to=kind),
                node("Cast", ["a"], ["y"], "second", to=TensorProto.FLOAT),
            ],
            ["x"],
            ["y"],
            opset_imports=[helper.make_opsetid("", 19)],
        )
        answer = bench.cut(model, "first").answer
        assert answer.slices[1].inputs[0].dtype == word


def test_nodes_out_of_order_are_put_in_order(bench, build):
    ordered = [
        node("Relu", ["x"], ["a"], "first"),
        node("Exp", ["a"], ["b"], "second"),
        node("Neg", ["b"], ["y"], "third"),
    ]
    right = build(ordered, ["x"], ["y"])
    mixed = build(ordered[::-1], ["x"], ["y"], is_checked=False)
    ids = [
        [each.slice_id for each in bench.cut(model, "second").answer.slices]
        for model in (right, mixed)
    ]
    assert ids[0] == ids[1]


def test_operators_that_lead_nowhere_are_left_out(bench, build):
    model = build(
        [
            node("Relu", ["x"], ["a"], "first"),
            node("Neg", ["a"], ["unused"], "dead"),
            node("Exp", ["a"], ["y"], "second"),
        ],
        ["x"],
        ["y"],
    )
    sliced = bench.check(model, X, "first")
    assert "1 operators lead to no output" in sliced.answer.warnings[0]
    assert names_in(sliced, 1)[0] == {"Exp"}


def test_a_shared_weight_is_in_each_slice_that_reads_it(bench, build):
    model = build(
        [
            node("Add", ["x", "w"], ["a"], "first"),
            node("Exp", ["a"], ["b"], "second"),
            node("Mul", ["b", "w"], ["y"], "third"),
        ],
        ["x"],
        ["y"],
        {"w": np.ones((2, 3), np.float32)},
    )
    answer = bench.check(model, X, "first", "second").answer
    assert [each.bytes_weights for each in answer.slices] == [24, 0, 24]


def test_attributes_and_metadata_stay_and_facts_are_stamped(bench, build):
    model = build(
        [
            node("LeakyRelu", ["x"], ["a"], "first", alpha=0.3),
            node("Exp", ["a"], ["y"], "second"),
        ],
        ["x"],
        ["y"],
        producer_name="somebody",
        model_version=7,
    )
    helper.set_model_props(model, {"character": "abc", "din.slice.index": "9"})
    sliced = bench.check(model, X, "first")
    part = sliced.answer.slices[0]
    found = onnx.load_from_string(sliced.files[part.artifacts[0].sha256])
    assert (found.producer_name, found.model_version, found.ir_version) == ("somebody", 7, 8)
    assert round(found.graph.node[0].attribute[0].f, 6) == 0.3
    facts = {each.key: each.value for each in found.metadata_props}
    assert facts["character"] == "abc"
    assert facts["din.parent_sha256"] == sliced.answer.source_sha256
    assert facts["din.slice.index"] == "0"
    assert facts["din.slice.count"] == "2"
    assert facts["din.slice.inputs"] == '["x"]'
    assert facts["din.slice.outputs"] == '["a"]'
    assert facts["din.slice.id"] == part.slice_id
    assert len(facts["din.strategy_hash"]) == 64
    assert facts["din.din_version"] == "bench"


@pytest.mark.parametrize("symbol", ["-1", "?", ""])
def test_symbols_that_say_any_size_do_not_tie_two_dims_together(bench, build, symbol):
    model = build(
        [node("Relu", ["x"], ["a"], "first"), node("Exp", ["a"], ["y"], "second")],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [symbol or None] * 2)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])],
    )
    answer = bench.check(model, X, "first").answer
    assert answer.inputs[0].shape == (None, None)
