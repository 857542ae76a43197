"""Weights in the model, in files beside it, and in packs."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from din.domain.model import MODEL_FILE
from din.errors import BadModel, TooLarge
from din.slicing import packs, weights
from din.slicing.externals import external_locations
from din.slicing.packs import ALIGNMENT_BYTES, PACKS_MAX, packs_of
from din.slicing.weights import Place

node = helper.make_node
DIM = 24
X = {"x": np.linspace(-1, 1, DIM, dtype=np.float32).reshape(1, DIM)}
IO = (f"x:FLOAT:1,{DIM}", f"y:FLOAT:1,{DIM}")


def random(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((DIM, DIM), np.float32) / DIM


@pytest.fixture
def three(build):
    """Three products in a row; the first and the last share their weights."""
    return build(
        [
            node("MatMul", ["x", "shared"], ["a"], "first"),
            node("MatMul", ["a", "own"], ["b"], "second"),
            node("MatMul", ["b", "shared"], ["y"], "third"),
        ],
        [IO[0]],
        [IO[1]],
        {"shared": random(1), "own": random(2)},
    )


def moved_out(model, files: dict[str, str], gap: int = 0):
    """The model with these initialisers in files, and the files."""
    made, beside = onnx.ModelProto(), {}
    made.CopyFrom(model)
    for tensor in made.graph.initializer:
        if tensor.name in files:
            move(tensor, files[tensor.name], beside, gap)
    return made, beside


def move(tensor, file: str, beside: dict[str, bytes], gap: int = 0) -> None:
    content = beside.get(file, b"") + bytes(gap)
    entries = {"location": file, "offset": str(len(content)), "length": str(len(tensor.raw_data))}
    beside[file] = content + tensor.raw_data
    tensor.ClearField("raw_data")
    weights.refer(tensor, entries)


def places_in(sliced, index):
    model, *given = sliced.answer.slices[index].artifacts
    found = {}
    for tensor in onnx.ModelProto.FromString(sliced.files[model.sha256]).graph.initializer:
        entries = {each.key: each.value for each in tensor.external_data}
        found[tensor.name] = entries["location"], int(entries["offset"]), int(entries["length"])
    assert {file for file, _, _ in found.values()} == {each.sha256 for each in given}
    assert all(each.role == "weights" for each in given)
    return found


def test_what_two_slices_share_is_in_one_pack_that_both_name(bench, three):
    sliced = bench.check(three, X, "first", "second")
    first, second, third = (places_in(sliced, index) for index in range(3))
    assert first == third
    assert set(first) == {"shared"}
    assert set(second) == {"own"}
    assert len(sliced.files) == 5
    file, offset, length = second["own"]
    assert sliced.files[file][offset : offset + length] == random(2).tobytes()


def test_packs_are_named_by_their_hash_and_their_weights_are_aligned(bench, build):
    names = [f"w{number}" for number in range(5)]
    stored = {name: np.full(300 + place, place, np.float32) for place, name in enumerate(names)}
    nodes = [node("ReduceSum", [name], [f"s{name}"], f"n{name}", keepdims=0) for name in names]
    nodes.append(node("Sum", ["x", *(f"s{name}" for name in names)], ["y"], "sum"))
    model = build(nodes, [IO[0]], [IO[1]], stored)
    sliced = bench.check(model, X)
    found = places_in(sliced, 0)
    assert set(found) == set(names)
    assert all(offset % ALIGNMENT_BYTES == 0 for _, offset, _ in found.values())
    for name, content in sliced.files.items():
        assert hashlib.sha256(content).hexdigest() == name


@pytest.mark.parametrize("points", [(), ("first",), ("first", "second")])
def test_the_same_content_has_the_same_slices_wherever_it_lies(bench, three, points):
    inside = bench.check(three, X, *points)
    for files in ({"shared": "w.bin"}, {"shared": "a/w.bin", "own": "v.bin"}):
        model, beside = moved_out(three, files, gap=100)
        outside = bench.cut(model, *points, beside=beside)
        for one, other in zip(inside.answer.slices, outside.answer.slices, strict=True):
            assert one.slice_id == other.slice_id
            assert [each.role for each in one.artifacts] == [each.role for each in other.artifacts]
            assert one.artifacts[1:] == other.artifacts[1:]
            assert (one.memory_mib, one.bytes_weights) == (other.memory_mib, other.bytes_weights)
        expected = bench.run_sliced(inside, X, is_optimised=False)["y"]
        assert bench.run_sliced(outside, X, is_optimised=False)["y"].tobytes() == expected.tobytes()


def test_a_file_that_one_slice_needs_nearly_whole_serves_as_it_is(bench, three):
    model, beside = moved_out(three, {"shared": "w.bin", "own": "w.bin"}, gap=100)
    as_is = (MODEL_FILE, "w.bin")
    whole = bench.cut(model, beside=beside, as_is=as_is)
    name = hashlib.sha256(beside["w.bin"]).hexdigest()
    (artifact,) = whole.answer.slices[0].artifacts[1:]
    assert (artifact.sha256, artifact.nbytes) == (name, len(beside["w.bin"]))
    assert places_in(whole, 0)["shared"] == (name, 100, DIM * DIM * 4)
    found = bench.run_sliced(whole, X, is_optimised=False)["y"]
    expected = bench.run_whole(three.SerializeToString(), X, is_optimised=False)["y"]
    assert found.tobytes() == expected.tobytes()
    cut = bench.cut(model, "first", beside=beside, as_is=as_is)
    given = {each.sha256 for part in cut.answer.slices for each in part.artifacts}
    assert name not in given, "a node with one slice would get the weights of others"
    inside = bench.cut(three, as_is=(MODEL_FILE,))
    assert inside.answer.slices[0].slice_id == whole.answer.slices[0].slice_id
    source = hashlib.sha256(three.SerializeToString()).hexdigest()
    assert [each.sha256 for each in inside.answer.slices[0].artifacts[1:]] == [source]


def test_small_weights_of_other_files_and_those_of_subgraphs_are_taken_in(bench, build):
    large = numpy_helper.from_array(random(3), "w")
    body = helper.make_graph(
        [node("MatMul", ["a", "w"], ["o"])], "b",
        [], [helper.make_tensor_value_info("o", TensorProto.FLOAT, [1, DIM])], [large],
    )  # fmt: skip
    model = build(
        [
            node("Add", ["x", "small"], ["a"], "first"),
            node("ReduceSum", ["x"], ["s"], "sum", keepdims=0),
            node("Greater", ["s", "zero"], ["c"], "compare"),
            node("If", ["c"], ["y"], "choose", then_branch=body, else_branch=body),
        ],
        [IO[0]],
        [IO[1]],
        {"small": np.ones(DIM, np.float32), "zero": np.float32(0)},
    )
    inside = bench.check(model, X, "first")
    beside: dict[str, bytes] = {}
    moved = onnx.ModelProto()
    moved.CopyFrom(model)
    move(moved.graph.initializer[0], "w.bin", beside)
    for attribute in moved.graph.node[3].attribute:
        move(attribute.g.initializer[0], "w.bin", beside)
    outside = bench.cut(moved, "first", beside=beside)
    assert external_locations(memoryview(moved.SerializeToString())) == ("w.bin",)
    same = [[(e.slice_id, e.artifacts) for e in cut.answer.slices] for cut in (inside, outside)]
    assert [slice_id for slice_id, _ in same[0]] == [slice_id for slice_id, _ in same[1]]
    assert all(len(artifacts) == 1 for _, artifacts in same[0])


def entry(**changes: str | None):
    def change(tensor, _):
        entries = {each.key: each.value for each in tensor.external_data} | changes
        weights.refer(tensor, {key: value for key, value in entries.items() if value is not None})

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (entry(location="other.bin"), "lie in the file 'other.bin', which did not come"),
        (entry(location=None), "lie in the file '', which did not come"),
        (entry(location="../../etc/passwd"), "did not come with the model"),
        (entry(length="2300"), "have 2300 bytes, its type and shape ask for 2304"),
        (entry(offset="1"), "up to byte 2305, and it has 2304"),
        (entry(offset="-1"), "lie at '-1' of 'w.bin'"),
        (entry(offset="9" * 30), "lie at"),
        (entry(length="x"), "length 'x'"),
        (entry(length=""), "length ''"),
        (lambda tensor, _: setattr(tensor, "raw_data", b"abcd"), "and in the model as well"),
        (lambda tensor, _: setattr(tensor, "data_type", TensorProto.STRING), "size is not known"),
        (lambda tensor, _: setattr(tensor, "data_type", 99), "element type 99"),
        (lambda tensor, _: tensor.dims.append(2), "ask for 4608"),
        (lambda _, beside: beside.update({"w.bin": b""}), "and it has 0"),
        (entry(**{"din.weight": "0"}), "which is DIN's own"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(bench, three, change, says):
    model, beside = moved_out(three, {"own": "w.bin"})
    tensor = next(each for each in model.graph.initializer if each.name == "own")
    change(tensor, beside)
    with pytest.raises(BadModel) as failed:
        bench.cut(model, beside=beside)
    assert says in failed.value.message
    assert failed.value.hint


def test_without_a_length_a_tensor_is_as_long_as_its_shape_says(bench, three):
    model, beside = moved_out(three, {"own": "w.bin"})
    entry(length=None, offset=None, checksum="00")(
        next(each for each in model.graph.initializer if each.name == "own"), None
    )
    found = bench.run_sliced(bench.cut(model, beside=beside), X, is_optimised=False)["y"]
    expected = bench.run_whole(three.SerializeToString(), X, is_optimised=False)["y"]
    assert found.tobytes() == expected.tobytes()


def test_raw_data_that_its_shape_does_not_ask_for_is_refused(bench, three):
    three.graph.initializer[0].raw_data += b"more"
    with pytest.raises(BadModel, match="have 2308 bytes, its type and shape ask for 2304"):
        bench.cut(three)


def test_a_model_that_carries_the_mark_of_a_reference_is_refused(bench, three):
    for number in ("0", "1", "7", "x"):
        forged = three.graph.initializer.add(name="f", data_type=1, dims=[DIM, DIM])
        weights.refer(forged, {"din.weight": number})
        with pytest.raises(BadModel, match="DIN's own"):
            bench.cut(three)
        del three.graph.initializer[-1]


def test_what_has_to_be_taken_in_is_limited(bench, three, monkeypatch):
    monkeypatch.setattr(weights, "SKELETON_BYTES_MAX", 100)
    three.graph.initializer.add(name="small", data_type=1, dims=[30], raw_data=bytes(120))
    model, beside = moved_out(three, {"small": "w.bin"})
    with pytest.raises(TooLarge, match="over 100 bytes"):
        bench.cut(model, beside=beside)


def place(number: int, nbytes: int = 2000, file: str = "") -> Place:
    return Place(file, number * 10_000, nbytes)


def test_a_slice_has_few_packs_however_its_weights_are_shared():
    uses = [[] for _ in range(40)]
    for number in range(1, 40):
        uses[0].append(place(number))
        uses[number] += [place(number), place(100 + number)]
    uses[0] += [place(200), place(201)]
    found = packs_of(uses, {})
    for index, used in enumerate(uses):
        own = [pack for pack in found if index in pack.users]
        assert len(own) <= PACKS_MAX
        assert set(used) <= {each for pack in own for each in pack.offsets}
    assert sum(len(pack.offsets) for pack in found) == 39 * 2 + 2, "each is stored once"
    assert found == packs_of(uses, {})


def test_a_file_serves_as_it_is_only_where_it_spares_a_copy():
    used = [[place(1, 900), place(2, 95)], [place(1, 900), place(2, 95)]]
    assert [pack.as_is for pack in packs_of(used, {"": 1000})] == [""]
    assert [pack.as_is for pack in packs_of(used, {"": 2000})] == [None]
    assert [pack.as_is for pack in packs_of([*used, []], {"": 1000})] == [None]
    many = [[place(1, 900, str(number)) for number in range(packs.AS_IS_MAX + 3)]]
    files = {str(number): 900 for number in range(packs.AS_IS_MAX + 3)}
    kinds = [pack.as_is is None for pack in packs_of(many, files)]
    assert kinds == [False] * packs.AS_IS_MAX + [True]


def test_locations_are_found_wherever_a_tensor_may_be():
    def tensor(location: str) -> TensorProto:
        made = TensorProto(name=location, data_type=1, dims=[4])
        weights.refer(made, {"location": location, "offset": "0"})
        return made

    inner = helper.make_graph([], "g", [], [], [tensor("subgraph")])
    sparse = helper.make_sparse_tensor(tensor("values"), tensor("indices"), [4])
    nodes = [
        node("Constant", [], ["c"], value=tensor("constant")),
        node("If", ["c"], ["d"], then_branch=inner, else_branch=inner),
        node("Other", [], ["e"], domain="mine", many=[tensor("list"), tensor("other")]),
        node("Constant", [], ["f"], sparse_value=sparse),
    ]
    function = helper.make_function(
        "mine", "F", [], [], [node("Constant", [], ["c"], value=tensor("function"))], []
    )
    graph = helper.make_graph(nodes, "g", [], [], [tensor("top"), tensor("top")])
    graph.initializer.add(name="inside", raw_data=bytes(5000))
    data = helper.make_model(graph, functions=[function]).SerializeToString()
    expected = {"constant", "function", "indices", "list", "other", "subgraph", "top", "values"}
    assert set(external_locations(memoryview(data))) == expected
    assert external_locations(memoryview(data)) == tuple(sorted(expected))


@pytest.mark.parametrize("text", [b"\xff\xfe", b"x" * 5000])
def test_a_location_that_cannot_be_one_is_refused(text):
    made = TensorProto(name="w")
    weights.refer(made, {"location": "LOCATION"})
    data = helper.make_model(helper.make_graph([], "g", [], [], [made])).SerializeToString()
    if len(text) == 2:
        data = data.replace(b"LOCATION", text * 4)
    else:
        weights.refer(made, {"location": text.decode()})
        data = helper.make_model(helper.make_graph([], "g", [], [], [made])).SerializeToString()
    with pytest.raises(BadModel):
        external_locations(memoryview(data))


def test_the_files_that_a_model_may_name_are_limited(monkeypatch):
    monkeypatch.setattr("din.slicing.externals.EXTERNAL_FILES_MAX", 2)
    tensors = []
    for number in range(3):
        tensors.append(TensorProto(name=f"w{number}"))
        weights.refer(tensors[-1], {"location": f"w{number}"})
    data = helper.make_model(helper.make_graph([], "g", [], [], tensors)).SerializeToString()
    with pytest.raises(TooLarge, match="more than 2 files"):
        external_locations(memoryview(data))
