"""Ranges that are pinned, forbidden or sensitive, and cutting at operators or blocks."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from din.domain.strategy import RangeSetting, SliceSetting
from din.errors import BadStrategy

node = helper.make_node
FRONT = RangeSetting(range="model.0:model.1", sensitive=True)
BACK = RangeSetting(range="model.10:head", sensitive=True, nodes=("home",))


@pytest.fixture
def chain(build):
    """model.0 .. model.11, one operator each, then `head`."""
    names = [f"/model.{index}/act/Relu" for index in range(12)] + ["head"]
    nodes = [node("Relu", [f"t{i}"], [f"t{i + 1}"], name) for i, name in enumerate(names)]
    return build(nodes, ["t0"], ["t13"])


def asked_of(answer):
    return [(e.operators, e.is_sensitive, e.nodes, e.not_nodes) for e in answer.slices]


def test_a_private_prefix_and_suffix_become_slices_of_their_own(bench, chain):
    feeds = {"t0": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)}
    answer = bench.check(chain, feeds, ranges=(FRONT, BACK)).answer
    assert asked_of(answer) == [
        (2, True, (), ()),
        (8, False, (), ()),
        (3, True, ("home",), ()),
    ]


def test_a_slice_between_named_points_inherits_from_the_ranges_in_it(bench, chain):
    off = RangeSetting(range="model.4", not_nodes=("edge-2",))
    slices = (SliceSetting(name="stem"), SliceSetting(nodes=("edge-1", "edge-2")))
    answer = bench.cut(chain, "t4", ranges=(FRONT, off), slices=slices).answer
    assert asked_of(answer) == [(4, True, (), ()), (9, False, ("edge-1",), ("edge-2",))]
    assert [each.name for each in answer.slices] == ["stem", "slice-1"]


@pytest.mark.parametrize(
    ("points", "strategy", "says"),
    [
        (
            ("t12",),
            {"ranges": (RangeSetting(range="model.0", nodes=("a",)),
                        RangeSetting(range="model.3", nodes=("b", "c")))},
            "no node may hold slice 'slice-0': range 'model.0' pins it to a, "
            "range 'model.3' pins it to b, c",
        ),
        (
            ("t12",),
            {"ranges": (RangeSetting(range="model.3", not_nodes=("a",)),),
             "slices": (SliceSetting(nodes=("a",)),)},
            "slices[0] pins it to a, range 'model.3' keeps it off a",
        ),
        (
            (),
            {"ranges": (RangeSetting(range="model.0:model.4", nodes=("a",)),
                        RangeSetting(range="model.3", nodes=("b",)))},
            "no node may hold operator '/model.3/act/Relu'",
        ),
        ((), {"ranges": (RangeSetting(range="model.44", sensitive=True),)},
         "range 'model.44': no operator's name begins with 'model.44'"),
        ((), {"ranges": (RangeSetting(range="model.4:model.1", sensitive=True),)},
         "range 'model.4:model.1' ends before it begins"),
    ],
)  # fmt: skip
def test_ranges_that_cannot_be_had_are_refused_by_both_names(bench, chain, points, strategy, says):
    with pytest.raises(BadStrategy) as failed:
        bench.cut(chain, *points, **strategy)
    assert says in failed.value.message
    assert failed.value.hint


def test_a_cut_by_memory_ends_as_well_where_ranges_change(bench, build):
    weights = {f"w{i}": np.ones((400, 400), np.float32) for i in range(4)}
    nodes = [node("MatMul", [f"t{i}", f"w{i}"], [f"t{i + 1}"], f"m{i}") for i in range(4)]
    model = build(nodes, ["t0"], ["t4"], weights)
    del model.graph.input[0].type.tensor_type.shape.dim[:]
    shape = model.graph.input[0].type.tensor_type.shape
    shape.dim.add().dim_value = 1
    shape.dim.add().dim_value = 400
    plain = bench.cut(model, memory_mib_max=44).answer
    assert [each.operators for each in plain.slices] == [2, 2]
    pinned = RangeSetting(range="m0", nodes=("a",))
    cut = bench.cut(model, memory_mib_max=44, ranges=(pinned,)).answer
    assert [(each.operators, each.nodes) for each in cut.slices] == [(1, ("a",)), (1, ()), (2, ())]


def branching(build, count):
    """`count` times: one tensor, two operators beside each other, one tensor again."""
    nodes = []
    for i in range(count):
        nodes += [
            node("Relu", [f"t{i}"], [f"a{i}"], f"relu{i}"),
            node("Exp", [f"t{i}"], [f"b{i}"], f"exp{i}"),
            node("Add", [f"a{i}", f"b{i}"], [f"t{i + 1}"], f"add{i}"),
        ]
    return build(nodes, ["t0"], [f"t{count}"])


def test_operators_are_grouped_to_blocks_between_single_tensors_or_stand_alone(bench, build):
    model = branching(build, 3)
    feeds = {"t0": np.linspace(-1, 0.1, 6, dtype=np.float32).reshape(2, 3)}
    blocks = bench.check(model, feeds, type="operator").answer
    # The input goes to both slices from the gateway: it is no tensor between them.
    assert [each.operators for each in blocks.slices] == [1, 2, 3, 3]
    alone = bench.check(model, feeds, type="operator", granularity="operator").answer
    assert [each.operators for each in alone.slices] == [1] * 9


def test_blocks_end_as_well_where_the_backend_or_a_range_changes(bench, build):
    model = branching(build, 2)
    answer = bench.cut(
        model,
        type="operator",
        backend_map={"relu0:relu1": "onnxruntime", "exp1:add1": "openvino"},
        ranges=(RangeSetting(range="relu0", not_nodes=("edge-2",)),),
    ).answer
    assert [(e.operators, e.backend, e.not_nodes) for e in answer.slices] == [
        (1, "onnxruntime", ("edge-2",)),
        (2, "onnxruntime", ()),
        (1, "onnxruntime", ()),
        (2, "openvino", ()),
    ]


def test_what_cannot_travel_stays_in_one_slice_at_operator_level(bench, build):
    model = build(
        [
            node("Relu", ["x"], ["a"], "first"),
            node("SequenceConstruct", ["a", "a"], ["s"], "pack"),
            node("ConcatFromSequence", ["s"], ["c"], "join", axis=0),
            node("Neg", ["c"], ["y"], "last"),
        ],
        ["x"],
        ["y"],
    )
    answer = bench.cut(model, type="operator", granularity="operator").answer
    assert [each.operators for each in answer.slices] == [1, 2, 1]


def test_a_quantised_operator_is_not_parted_from_its_scales(bench, build):
    scales = {"s": np.float32(0.1), "z": np.uint8(0), "w": np.ones((3, 3), np.float32)}
    model = build(
        [
            node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
            node("DequantizeLinear", ["q", "s", "z"], ["d"], "dq"),
            node("MatMul", ["d", "w"], ["m"], "mul"),
            node("QuantizeLinear", ["m", "s", "z"], ["n"], "q2"),
            node("DequantizeLinear", ["n", "s", "z"], ["y"], "dq2"),
        ],
        ["x"],
        ["y"],
        scales,
    )
    answer = bench.cut(model, type="operator", granularity="operator").answer
    assert [each.operators for each in answer.slices] == [1, 3, 1]


def test_too_many_slices_for_operators_are_refused_with_what_to_use_instead(bench, build):
    with pytest.raises(BadStrategy, match=r"300 operators .* more than 256") as failed:
        bench.cut(branching(build, 100), type="operator", granularity="operator")
    assert '"granularity": "block", which makes 101 slices' in failed.value.hint
    names = [node("Relu", [f"t{i}"], [f"t{i + 1}"], f"r{i}") for i in range(257)]
    with pytest.raises(BadStrategy, match="257 blocks") as failed:
        bench.cut(build(names, ["t0"], ["t257"]), type="operator")
    assert "auto" in failed.value.hint
    fine = build(names[:256], ["t0"], ["t256"])
    assert len(bench.cut(fine, type="operator").answer.slices) == 256
