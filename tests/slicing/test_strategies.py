"""What the strategy says, and every way in which it can be wrong."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from onnx import TensorProto, ValueInfoProto, helper

from din.domain.estimates import memory_mib
from din.domain.strategy import SliceSetting
from din.domain.tensor import TENSORS_MAX
from din.errors import BadModel, BadStrategy, DinError, TooLarge
from din.slicing.cutting import boundaries_of, slices_by_memory
from din.slicing.parts import divide
from din.slicing.points import backends_by_ranges
from din.slicing.slicer import analyse

node = helper.make_node


@pytest.fixture
def chain(build):
    """model.0 .. model.11, one operator each, then `head`."""
    names = [f"/model.{index}/act/Relu" for index in range(12)] + ["head"]
    nodes = [node("Relu", [f"t{i}"], [f"t{i + 1}"], name) for i, name in enumerate(names)]
    return build(nodes, ["t0"], ["t13"])


def test_points_may_come_in_any_order(bench, chain):
    one = bench.cut(chain, "t8", "t3").answer
    other = bench.cut(chain, "t3", "/model.7/act/Relu").answer
    assert [e.slice_id for e in one.slices] == [e.slice_id for e in other.slices]
    assert [each.operators for each in one.slices] == [3, 5, 5]


@pytest.mark.parametrize(
    ("points", "says"),
    [
        (("t33",), "neither a node nor an output tensor"),
        (("t0",), "is an input of the model"),
        (("t3", "/model.2/act/Relu"), "cut at the same place"),
        (("t3", "t3"), "cut at the same place"),
        (("head",), "leaves no operator after it"),
    ],
)
def test_a_wrong_point_is_refused_by_name(bench, chain, points, says):
    with pytest.raises(BadStrategy) as failed:
        bench.cut(chain, *points)
    assert says in failed.value.message
    assert repr(points[-1]) in failed.value.message
    assert failed.value.hint


def test_an_unknown_point_shows_the_nearest_names(bench, chain):
    with pytest.raises(BadStrategy) as failed:
        bench.cut(chain, "/model.7/act/Rulu")
    assert "'/model.7/act/Relu'" in failed.value.hint


def test_names_without_end_are_cut_where_they_are_shown(bench, build):
    nodes = [node("Relu", ["x"], ["a"], "a" * 9_999), node("Exp", ["a"], ["y"], "second")]
    with pytest.raises(BadStrategy, match="is neither a node") as failed:
        bench.cut(build(nodes, ["x"], ["y"]), "third")
    assert failed.value.hint
    assert len(failed.value.hint) < 999


def test_a_point_on_a_constant_or_weight_is_refused(bench, build):
    model = build(
        [node("Neg", ["w"], ["v"], "fixed"), node("Add", ["x", "v"], ["y"], "add")],
        ["x"],
        ["y"],
        {"w": np.ones((2, 3), np.float32)},
    )
    with pytest.raises(BadStrategy, match="computed from constants alone"):
        bench.cut(model, "fixed")
    with pytest.raises(BadStrategy, match="is a weight of the model"):
        bench.cut(model, "w")


def test_a_point_that_names_two_things_is_refused(bench, build):
    model = build(
        [
            node("Relu", ["x"], ["a"], "b"),
            node("Exp", ["a"], ["b"], "second"),
            node("Neg", ["b"], ["c"], "same"),
            node("Exp", ["c"], ["y"], "same"),
        ],
        ["x"],
        ["y"],
    )
    with pytest.raises(BadStrategy, match="names one operator and the output of another"):
        bench.cut(model, "b")
    with pytest.raises(BadStrategy, match="names 2 operators"):
        bench.cut(model, "same")


def test_backend_ranges_are_prefixes_in_topological_order(chain):
    graph = analyse(chain.SerializeToString(), {}).graph
    found = backends_by_ranges(
        graph, {"model.0:model.1": "a", "model.2:model.11": "b", "head": "c"}
    )
    assert list(found.values()) == ["a"] * 2 + ["b"] * 10 + ["c"]


def test_backend_ranges_without_points_cut_where_the_backend_changes(bench, chain):
    ranges = {"model.0:model.7": "onnxruntime", "model.8:head": "openvino"}
    answer = bench.cut(chain, backend_map=ranges).answer
    assert [(e.operators, e.backend) for e in answer.slices] == [
        (8, "onnxruntime"),
        (5, "openvino"),
    ]


@pytest.mark.parametrize(
    ("ranges", "says"),
    [
        ({"model.0:model.7": "a"}, "leaves 5 of 13 operators unmapped: '/model.8/act/Relu'"),
        ({"model.0:model.77": "a"}, "begins with 'model.77'"),
        ({"model.5:model.1": "a"}, "ends before it begins"),
        ({"model.0:model.7": "a", "model.7:head": "b"}, "in two backend ranges"),
        ({":": "a"}, "no operator's name begins with ''"),
    ],
)
def test_a_wrong_backend_map_says_what_is_wrong(bench, chain, ranges, says):
    with pytest.raises(BadStrategy) as failed:
        bench.cut(chain, backend_map=ranges)
    assert says in failed.value.message


def test_a_slice_of_two_backends_is_refused(bench, chain):
    ranges = {"model.0:model.7": "a", "model.8:head": "b"}
    with pytest.raises(BadStrategy, match="slice 1 mixes backends"):
        bench.cut(chain, "t4", backend_map=ranges)


def test_settings_apply_by_position_and_none_may_be_left_over(bench, chain):
    settings = (SliceSetting(name="stem", device_type="x86_64-cpu", labels={"zone": "a"}),)
    slices = bench.cut(chain, "t4", slices=settings).answer.slices
    assert (slices[0].name, slices[0].device_type, slices[1].name) == (
        "stem",
        "x86_64-cpu",
        "slice-1",
    )
    with pytest.raises(BadStrategy, match="3 slices are described"):
        bench.cut(chain, "t4", slices=settings * 3)


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"t00": (2, 3)}, "'t00', which is no input"),
        ({"t0": (2, 3, 4)}, "has 2 dims"),
        ({"t0": (-2, 3)}, "the size -2"),
    ],
)
def test_a_wrong_input_shape_is_refused(bench, chain, shapes, says):
    with pytest.raises(BadStrategy, match=says):
        bench.cut(chain, input_shapes=shapes)


def test_slices_that_wait_for_each_other_are_refused_with_the_cycle(build):
    model = build(
        [
            node("Relu", ["x"], ["a"], "first"),
            node("Exp", ["a"], ["b"], "second"),
            node("Neg", ["b"], ["y"], "third"),
        ],
        ["x"],
        ["y"],
    )
    found = analyse(model.SerializeToString(), {})
    with pytest.raises(BadStrategy) as failed:
        divide(found.graph, found.shapes, {0: 0, 1: 1, 2: 0}, 2)
    assert "slice 0 -> slice 1 by 'a'" in failed.value.message
    assert "slice 1 -> slice 0 by 'b'" in failed.value.message


def test_branches_may_be_slices_of_their_own(build):
    model = build(
        [
            node("Relu", ["x"], ["a"], "stem"),
            node("Exp", ["a"], ["b"], "left"),
            node("Neg", ["a"], ["c"], "right"),
            node("Exp", ["b"], ["y"], "left-end"),
            node("Exp", ["c"], ["z"], "right-end"),
        ],
        ["x"],
        ["y", "z"],
    )
    found = analyse(model.SerializeToString(), {})
    parts, edges = divide(found.graph, found.shapes, {0: 0, 1: 1, 2: 2, 3: 1, 4: 2}, 3)
    assert [each.inputs for each in parts] == [("x",), ("a",), ("a",)]
    assert (1, 2) in [each.consumers for each in edges]


def test_a_sequence_cannot_cross_or_be_an_output(bench, build):
    nodes = [
        node("SplitToSequence", ["x"], ["parts"], "split", axis=0),
        node("ConcatFromSequence", ["parts"], ["y"], "join", axis=0),
    ]
    with pytest.raises(BadStrategy, match="is a sequence and cannot leave its slice"):
        bench.cut(build(nodes, ["x"], ["y"]), "split")
    sequence = helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None)
    with pytest.raises(BadModel, match="output 'parts' is a sequence"):
        bench.cut(build(nodes, ["x"], ["y", sequence]))


def _weighted(build, count=8, mib=4):
    """MatMul chain of `mib` MiB of weights each, with narrow and wide places between."""
    stored = {}
    nodes = []
    side = 1024
    for i in range(count):
        stored[f"w{i}"] = np.zeros((side, mib * 256), np.float32)
        nodes.append(node("MatMul", [f"t{i}", f"w{i}"], [f"m{i}"], f"mul{i}"))
        nodes.append(node("Slice", [f"m{i}", "from", "to", "axis"], [f"t{i + 1}"], f"cut{i}"))
    stored |= {"from": np.array([0]), "to": np.array([side]), "axis": np.array([1])}
    return build(nodes, [f"t0:FLOAT:1,{side}"], [f"t{count}:FLOAT:1,{side}"], stored)


def test_memory_cuts_are_the_fewest_and_cheapest_of_all_cuts(build):
    found = analyse(_weighted(build, count=5).SerializeToString(), {})
    graph, sizes = found.graph, found.sizes
    bounds = boundaries_of(graph, sizes)
    count = len(graph.dynamic)
    limit = 62

    def fits(start, end):
        group = list(graph.dynamic[start:end])
        reads = [name for each in group for name in each.reads]
        weights = sizes.weights(*graph.constants_behind(reads), group)
        return memory_mib(weights, sizes.peak(group)) <= limit

    best = None
    for mask in range(1 << (count - 1)):
        cuts = [0, *(i for i in range(1, count) if mask >> (i - 1) & 1), count]
        if all(fits(a, b) for a, b in itertools.pairwise(cuts)):
            cost = (len(cuts) - 1, sum(bounds.nbytes[each] for each in cuts[1:-1]))
            best = cost if best is None else min(best, cost)
    slice_of = slices_by_memory(graph, sizes, limit)
    starts = [i for i in range(1, count) if slice_of[i] != slice_of[i - 1]]
    assert (len(starts) + 1, sum(bounds.nbytes[each] for each in starts)) == best


def test_an_operator_that_cannot_fit_is_named(bench, build):
    with pytest.raises(BadStrategy, match="MatMul 'mul0' alone needs"):
        bench.cut(_weighted(build, count=2), memory_mib_max=45)


def test_slice_ids_follow_the_content_and_nothing_else(bench, build):
    """Another strategy that makes the same slice gives it the same id; another weight does not."""

    def model(value):
        return build(
            [node("Add", ["x", "w"], ["a"], "first"), node("Exp", ["a"], ["y"], "second")],
            ["x"],
            ["y"],
            {"w": np.full((2, 3), value, np.float32)},
        )

    one, same = bench.cut(model(1), "first"), bench.cut(model(1), "a")
    other = bench.cut(model(2), "first")
    ids = [[each.slice_id for each in sliced.answer.slices] for sliced in (one, same, other)]
    assert ids[0] == ids[1]
    assert ids[0][0] != ids[2][0]
    assert ids[0][1] == ids[2][1]


def test_the_encoding_of_slice_ids_is_pinned(bench, build):
    """Should protobuf ever write other bytes, SLICE_ENCODING gets another number and this an id."""
    nodes = [
        node("Selu", ["x"], ["a"], "first", alpha=1.5, gamma=-0.0),
        node("Clip", ["a", "", "top"], ["b"], ""),
        node("Transpose", ["b"], ["y"], "häuschen", perm=[1, 0]),
    ]
    model = build(nodes, ["x"], ["y"], {"top": np.array(3, np.float32)})
    model.metadata_props.add(key="author", value="")
    found = [each.slice_id for each in bench.cut(model, "first").answer.slices]
    assert found == [
        "20ae3664c82e87a64628760ab3367c0332003deee1a930d07f7b617187dfcb1c",
        "06f7acf0fedd7c1c5f0ed517142bb1b3ec2ad454883e94881d623ce43d49de4b",
    ]


def test_slices_are_the_same_bytes_in_every_process(fetched, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(fetched("ppocr-cls"))
    program = (
        "import sys; from din.bench.carved import carved; from din.slicing.slicer import analyse\n"
        "from din.domain.model import CarveRequest\n"
        "from din.domain.strategy import Strategy\n"
        "data = open(sys.argv[1], 'rb').read(); g = analyse(data, {}).graph.dynamic\n"
        "s = Strategy(partition_points=(g[80].name,))\n"
        "r = CarveRequest(model_path='', output_path='', strategy=s)\n"
        "s = carved(data, r); print([e.slice_id for e in s.answer.slices], list(s.files))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(said) == 1


def _broken(build, **changes):
    model = build([node("Relu", ["x"], ["y"], "only")], ["x"], ["y"])
    for change in changes.values():
        change(model)
    return model


def _nameless(model):
    value = ValueInfoProto()
    value.CopyFrom(model.graph.input[0])
    value.name = ""
    return value


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.graph.node[0].input.append("ghost"), "reads 'ghost'"),
        (lambda m: m.graph.node.add().CopyFrom(m.graph.node[0]), "defines 'y' more than once"),
        (lambda m: m.graph.output[0].CopyFrom(m.graph.input[0]), "there is nothing to compute"),
        (lambda m: m.graph.output.add(name="z"), "nothing in the graph makes the output 'z'"),
        (lambda m: m.graph.input.add().CopyFrom(_nameless(m)), "an input has no name"),
        (lambda m: m.graph.ClearField("output"), "no outputs"),
        (lambda m: m.graph.ClearField("node"), "no ONNX graph"),
        (lambda m: m.ClearField("opset_import"), "0 operator sets"),
        (
            lambda m: m.graph.node.extend(
                [node("Add", ["x", "q"], ["p"], "one"), node("Neg", ["p"], ["q"], "two")]
            ),
            "cycle: 'one', 'two'",
        ),
        (
            lambda m: m.graph.initializer.add(name="w", data_location=TensorProto.EXTERNAL),
            "did not come with the model",
        ),
        (lambda m: m.graph.initializer.add(name="w", dims=[-3]), "has shape [-3]"),
    ],
)
def test_a_graph_that_breaks_the_rules_is_refused(bench, build, change, says):
    with pytest.raises(BadModel) as failed:
        bench.cut(_broken(build, change=change))
    assert says in failed.value.message


def test_the_number_of_operators_is_limited(bench, build):
    def grow(model):
        model.graph.node.extend(node("Relu", ["x"], [f"n{i}"]) for i in range(20_000))

    with pytest.raises(TooLarge, match="more than 20000 operators"):
        bench.cut(_broken(build, grow=grow))


@pytest.mark.parametrize("data", [b"", b"\x00", b"GGUF and more", b"PK\x03\x04", b"{}" * 99])
def test_bytes_that_are_no_model_are_refused(bench, data):
    with pytest.raises(BadModel):
        bench.cut(data)


def test_damaged_models_fail_with_a_din_error_or_not_at_all(bench, fetched):
    data = fetched("basic-pitch")
    draw = random.Random(11)
    for turn in range(60):
        broken = bytearray(data[: draw.randrange(len(data))] if turn % 3 == 0 else data)
        for _ in range(draw.randrange(1, 20)):
            # Names and structure lie outside the weights, which fill most of the file.
            place = draw.randrange(min(len(broken), 4000)) if turn % 2 else -draw.randrange(1, 9000)
            if len(broken) > 9000:
                broken[place] = draw.randrange(256)
        with contextlib.suppress(DinError):
            bench.cut(bytes(broken))


def _parallel(build, count, is_summed=False):
    """`count` tensors side by side, from as many inputs or from one, to as many outputs or one."""
    nodes = [node("Neg", ["x" if is_summed else f"x{i}"], [f"n{i}"]) for i in range(count)]
    if is_summed:
        nodes += [node("Sum", [f"n{i}" for i in range(count)], ["y"])]
        return build(nodes, ["x"], ["y"])
    return build(nodes, [f"x{i}" for i in range(count)], [f"n{i}" for i in range(count)])


def test_a_model_has_as_many_inputs_and_outputs_as_can_be_asked_and_no_more(bench, build):
    whole = bench.cut(_parallel(build, TENSORS_MAX)).answer
    assert (len(whole.inputs), len(whole.outputs)) == (TENSORS_MAX, TENSORS_MAX)
    with pytest.raises(BadModel, match=f"{TENSORS_MAX + 1} inputs; the limit is {TENSORS_MAX}"):
        bench.cut(_parallel(build, TENSORS_MAX + 1))


def test_a_cut_that_more_tensors_cross_than_a_slice_may_have_is_refused(bench, build):
    def cut(count):
        return bench.cut(_parallel(build, count, is_summed=True), f"n{count - 1}").answer

    assert len(cut(TENSORS_MAX).slices[1].inputs) == TENSORS_MAX
    with pytest.raises(BadStrategy, match=f"slice 0 would have {TENSORS_MAX + 1} outputs"):
        cut(TENSORS_MAX + 1)
