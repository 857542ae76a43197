"""Models of other people, cut in many ways: the sliced answer is the whole's answer."""

from __future__ import annotations

import random

import onnx
import pytest

from din.bench.examples import CENTERFACE_SHAPES, EXAMPLES, feeds_of, shapes_of
from din.domain.model import GATEWAY, Edge
from din.slicing.slicer import analyse


def test_centerface_cut_at_404_and_474_is_bitwise_the_whole(bench, fetched):
    sliced = bench.check(
        fetched("centerface"), feeds_of("centerface"), "404", "474", input_shapes=CENTERFACE_SHAPES
    )
    answer = sliced.answer
    assert len(answer.slices) == 3
    assert [each.name for each in answer.outputs] == ["537", "538", "539", "540"]
    assert answer.inputs[0].shape == ("B", 3, "H", "W")
    assert answer.operators == sum(each.operators for each in answer.slices) == 122
    assert Edge("387", 0, (2,)) in answer.edges, "a tensor skips the middle slice"
    assert Edge("input.1", GATEWAY, (0,)) in answer.edges
    assert "387" in answer.cuts[0].tensors
    assert "387" in answer.cuts[1].tensors
    assert answer.cuts[0].nbytes is None
    assert sum(each.bytes_weights for each in answer.slices) < len(fetched("centerface"))
    assert all(each.memory_mib > 40 and each.flops > 0 for each in answer.slices)
    assert answer.opset == 9


def test_centerface_at_a_fixed_size_knows_its_crossings(bench, fetched):
    shapes = {"input.1": (1, 3, 512, 512)}
    answer = bench.cut(fetched("centerface"), "404", "474", input_shapes=shapes).answer
    skipping = next(each for each in answer.slices[0].outputs if each.name == "387")
    assert skipping.shape == (1, 24, 128, 128)
    assert answer.cuts[0].nbytes == 4 * (24 * 128 * 128 + 32 * 64 * 64)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("ways", [2, 3, 5])
def test_cut_anywhere_the_answer_is_the_whole_models(bench, fetched, tmp_path, name, ways):
    data, shapes = fetched(name), shapes_of(name)
    dynamic = analyse(data, shapes).graph.dynamic
    draw = random.Random(f"{name}{ways}")
    points = [each.writes[0] for each in draw.sample(dynamic[:-1], ways - 1)]
    sliced = bench.check(data, feeds_of(name), *points, input_shapes=shapes)
    assert len(sliced.answer.slices) == ways
    for sha256, content in sliced.files.items():
        (tmp_path / sha256).write_bytes(content)
    for part in sliced.answer.slices:
        if any(each.shape is None for each in (*part.inputs, *part.outputs)):
            continue  # the checker wants a rank; the runtime does not, and none can be known here
        onnx.checker.check_model(str(tmp_path / part.artifacts[0].sha256))


@pytest.mark.parametrize("name", ["ppocr-rec", "ppocr-det"])
def test_weights_that_are_constant_nodes_never_cross(bench, fetched, name):
    data = fetched(name)
    dynamic = analyse(data, {}).graph.dynamic
    middle = dynamic[len(dynamic) // 2].writes[0]
    answer = bench.cut(data, middle).answer
    assert all(each.bytes_weights > 0 for each in answer.slices)
    made_by_input = {name for each in dynamic for name in each.writes}
    assert {name for cut in answer.cuts for name in cut.tensors} <= made_by_input


def test_memory_limit_cuts_into_the_fewest_slices_that_fit(bench, fetched):
    data = fetched("ppocr-rec")
    whole = bench.cut(data).answer.slices[0]
    limit = whole.memory_mib - 20
    sliced = bench.check(data, feeds_of("ppocr-rec"), memory_mib_max=limit)
    assert len(sliced.answer.slices) >= 2
    assert all(each.memory_mib <= limit for each in sliced.answer.slices)
    generous = bench.cut(data, memory_mib_max=whole.memory_mib).answer
    assert len(generous.slices) == 1


def test_every_operator_of_a_model_can_be_a_slice_of_its_own(bench, fetched):
    data = fetched("magika")
    dynamic = analyse(data, {}).graph.dynamic
    points = [each.name for each in dynamic[:-1]]
    sliced = bench.check(data, feeds_of("magika"), *points)
    assert len(sliced.answer.slices) == len(dynamic)
