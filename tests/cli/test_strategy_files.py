"""`din strategy`: what is wrong in a file, and where; what a strategy makes of its model."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from din.cli.file_form import ModelFile
from din.cli.jsonc import read_jsonc
from din.cli.model_file import check_model_file, read_model_file
from din.cli.strategy import schema_of_files
from din.domain.strategy import RangeSetting, SliceSetting, Strategy
from din.domain.views import PlanSlices, RegisterModel
from din.errors import BadStrategy, CannotPlace, NotFound, UsageError
from tests.cli.conftest import Run
from tests.client.fake_gateway import FakeGateway, Reply, document, failing, model_view, plan_view

ROOT = Path(__file__).parents[2]
SEEDS = """\
{
  "model_id": "yolov5s-2025-qat", // as in the seeds
  "onnx_path": "./yolov5s.onnx",
  "slicing_strategy": {
    "type": "graph_partition",
    "partition_points": ["model.10", "model.13"],
    "backend_map": {
      "model.0:model.9": "tensorrt",
      "model.10:model.13": "openvino"
    }
  }
}
"""
FINE = """\
{
  "$schema": "./din.schema.json",
  "model_id": "yolo", "onnx_path": "yolov5s.onnx",
  "slicing_strategy": {
    "partition_points": ["model.9", "model.13"],
    "slices": [{"name": "backbone"},
      {"name": "neck", "nodes": ["edge-1"]}, {"name": "detect_head"}],
    "ranges": [{"range": "model.0:model.1", "sensitive": true}],
  },
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a model of 25 operators, model.0 to model.24, named as in the seeds."""
    names = [f"model.{index}" for index in range(25)]
    nodes = [
        helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name) for i, name in enumerate(names)
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("t0", TensorProto.FLOAT, [2, 8])],
        [info("t25", TensorProto.FLOAT, [2, 8])],
    )
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "yolov5s.onnx")
    return tmp_path


def written(folder: Path, text: str) -> Path:
    path = folder / "m.json"
    path.write_text(text)
    return path


# Places.


def test_every_value_and_key_has_its_line_and_column() -> None:
    found = read_jsonc('\ufeff// x\n{\n  "a": [1, {"b": /* no */ true}],\n}', "f")
    assert found.value == {"a": [1, {"b": True}]}
    places = {(): "f:2:1", ("a",): "f:3:8", ("a", 0): "f:3:9", ("a", 1, "b"): "f:3:27"}
    assert {path: found.at(path) for path in places} == places
    assert found.at(("a", 1, "b"), is_key=True) == "f:3:13"
    assert found.at(("a", 1, "gone")) == "f:3:12"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1 "b": 2}', "f:1:9: ',' or '}' is missing before '\"'"),
        ("[1,\n 2", "f:2:3: ',' or ']' is missing before the end of the file"),
        ("[,]", "f:1:2: a value is missing before ','"),
        ('{"a" 1}', "f:1:6: ':' after 'a' is missing before '1'"),
        ("{\n a: 1}", "f:2:2: a name in double quotes is missing before 'a'"),
        ('{"a": 1,\n "a": 2}', "f:2:2: key 'a' is given twice"),
        ("[01]", "f:1:2: 01 is no JSON value"),
        ("[1e999]", "f:1:2: 1e999 is too large"),
        ("/* no end", "f:1:1: the comment has no end"),
        ('["x\n"]', "f:1:2: the text has no closing quote"),
        ('["\\q"]', "f:1:3: invalid \\escape"),
        ('[1, "\\ud83d"]', "f:1:5: the text holds half a character, \\ud83d"),
        ("[" * 80, "f:1:66: more than 64 levels"),
        ("{} x", "f:1:4: the end of the file is missing before 'x'"),
    ],
)
def test_what_is_no_json_is_named_with_line_and_column(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_jsonc(text, "f")
    assert caught.value.message.startswith(says)
    assert caught.value.hint


WRONG = [
    ('"partition_points"', '"partition_point"', '"partition_point"', "unknown key"),
    ("true", '"yes"', '"yes"', "ranges[0].sensitive is 'yes': expected true or false, got text"),
    (
        '"name": "neck"',
        '"title": "neck"',
        '"title"',
        "unknown key 'slicing_strategy.slices[1].title'",
    ),
    ('["edge-1"]', "[7]", "7]", "slices[1].nodes[0] is 7: expected text, got a whole"),
    ('{"range": "model.0:model.1", ', "{", '{"sensitive"', "key 'range' is missing"),
    ('"partition_points": [', '"type": "x", "y": [', '"y"', "unknown key 'slicing_strategy.y'"),
    ('"partition_points"', '"type": "magic", "partition_points"', '"magic"', "type is 'magic'"),
    ('"partition_points"', '"private": "x", "partition_points"', '"x"', "private is 'x'"),
    ('"yolo"', '""', '""', "model_id is '': expected text of length >= 1"),
    ('"model_id"', '"workers": 0, "model_id"', "0,", "workers is 0: expected a whole number >= 1"),
    ('"model_id"', '"inputs": {"a": [1], "b": 5}, "model_id"', "5}", "inputs.b is 5: expected"),
    ('"neck"', '"backbone"', '"backbone", "nodes"', "two slices are called 'backbone'"),
    ('"neck"', '""', '"", "nodes"', "'' can be no name"),
    ('"neck"', '"a\\nb"', '"a\\nb"', "'a\\nb' can be no name"),
    ('"neck"', f'"{"x" * 129}"', '"xxx', "can be no name"),
    ('"neck"', '"before"', '"before"', "'before' is what an adapter is called"),
    ('"neck"', '"slice-7"', '"slice-7"', "'slice-7' is what slice 7 is called"),
    ('"model_id"', f'"workers": {"9" * 400}, "model_id"', "999", f"workers is {'9' * 80}…: "),
    (', "model.13"]', "]", '{"name": "detect_head"}', "3 slices are described, but 1"),
    ('"partition_points"', '"rows_max": 3, "partition_points"', "3,", "means nothing for type"),
    ("true", "false", '{"range"', "says nothing of range 'model.0:model.1'"),
    ('"model.0:model.1"', f'"{"a:" * 600}a"', '"a:a', "expected text of length <= 1024"),
    ('"sensitive": true', '"nodes": ["a"], "not_nodes": ["a"]', '["a"]}', "node 'a' is in nodes"),
]


def place_in(text: str, path: Path, snippet: str) -> str:
    before = text[: text.index(snippet)]
    return f"{path}:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


@pytest.mark.parametrize(("old", "new", "snippet", "says"), WRONG)
def test_what_a_file_means_wrongly_is_named_with_line_and_column(
    folder: Path, old: str, new: str, snippet: str, says: str
) -> None:
    text = FINE.replace(old, new, 1)
    path = written(folder, text)
    (finding, *_) = check_model_file(path).findings
    assert finding.place == place_in(text, path, snippet), finding
    assert says in finding.message
    assert finding.hint
    with pytest.raises(UsageError, match=re.escape(f"{finding.place}: ")):
        read_model_file(path)


def test_several_mistakes_are_told_at_once(run: Run, folder: Path) -> None:
    text = FINE.replace('"name": "neck"', '"title": "neck"').replace('"ranges"', '"range"')
    told = run("strategy", "check", str(written(folder, text)))
    assert told.exit_code == 2
    lines = told.stdout.splitlines()
    assert [place_in(text, folder / "m.json", each) for each in ('"title"', '"range"')] == [
        each.partition(": ")[0] for each in lines
    ]
    assert "did you mean 'ranges'?" in told.stderr


def test_everything_that_is_wrong_in_form_is_told_and_the_rest_keeps_its_numbers(
    folder: Path,
) -> None:
    text = """{"model_id": 5, "replicas": "two", "inputs": {"a": [1, true], "b": 5},
 "slicing_strategy": {"type": "Auto", "partition_points": [1, "model.9", 2], "typ": 1,
  "slices": [5, {"name": 7, "labels": {"a": 1}}], "ranges": [{"nodes": [1]}, 3]}}"""
    found = check_model_file(written(folder, text)).findings
    assert sorted(each.message.partition(": ")[0] for each in found) == [
        "inputs.a[1] is true",
        "inputs.b is 5",
        "key 'onnx_path' is missing",
        "key 'range' is missing",
        "model_id is 5",
        "replicas is 'two'",
        "slicing_strategy.partition_points[0] is 1",
        "slicing_strategy.partition_points[2] is 2",
        "slicing_strategy.ranges[0].nodes[0] is 1",
        "slicing_strategy.ranges[1] is 3",
        "slicing_strategy.slices[0] is 5",
        "slicing_strategy.slices[1].labels.a is 1",
        "slicing_strategy.slices[1].name is 7",
        "slicing_strategy.type is 'Auto'",
        "unknown key 'slicing_strategy.typ'",
    ]
    with pytest.raises(UsageError) as caught:
        read_model_file(folder / "m.json")
    assert f"14 more, see din strategy check {folder / 'm.json'}" in caught.value.hint


def test_what_the_gateway_would_refuse_of_adapters_options_and_batches_is_told_with_its_line(
    run: Run, folder: Path
) -> None:
    head = '{"model_id": "m", "onnx_path": "yolov5s.onnx",\n '
    cases = {
        '"before": {"name": "imge"}}': '"imge"',
        '"after": {"name": "classify", "topk": 2}}': "2}",
        '"backend_options": {"optimization": "off"}}': '"off"',
        '"slicing_strategy": {"type": "input_tiles", "rows_max": 2}}': '"input_tiles"',
    }
    for tail, snippet in cases.items():
        text = head + tail
        path = written(folder, text)
        told = run("strategy", "check", str(path))
        assert told.exit_code == 2
        assert told.stdout.startswith(f"{place_in(text, path, snippet)}: "), told.stdout


def test_a_hash_is_told_how_comments_begin() -> None:
    with pytest.raises(UsageError) as caught:
        read_jsonc('{\n # no\n "a": 1}', "f")
    assert caught.value.message.startswith("f:2:2: ")
    assert "comments begin with //" in caught.value.hint


def test_a_model_in_the_place_of_a_file_is_told_so(run: Run, folder: Path) -> None:
    path = folder / "yolov5s.onnx"
    path.write_bytes(b"\x08\xff\xfe")
    told = run("strategy", "check", str(path))
    assert told.exit_code == 2
    assert f"hint: it is a model: din model register {path}" in told.stderr


# The seeds' own file.


def test_the_seeds_file_is_told_what_it_leaves_unmapped_and_where(run: Run, folder: Path) -> None:
    path = written(folder, SEEDS)
    told = run("strategy", "check", str(path))
    assert told.exit_code == 2
    assert told.stdout.startswith(
        f"{path}:7:20: backend_map leaves 11 of 25 operators unmapped: 'model.14', 'model.15'"
    )
    assert "hint: add a range that reaches up to 'model.24'" in told.stderr
    same = run("strategy", "explain", str(path))
    assert same.exit_code == 2
    assert f"error: {path}:7:20: backend_map leaves" in same.stderr


@pytest.mark.parametrize(
    ("old", "new", "snippet", "says"),
    [
        ('"model.13"]', '"model.133"]', '"model.133"', "'model.133' is neither a node"),
        ('["model.10", "model.13"]', '["model.99", "model.133"]', '"model.99"',
         "'model.99', 'model.133' are neither nodes"),
        ('"model.13"]', '"model.10"]', '"model.10", "model.10"', "cut at the same place"),
        ('"model.0:model.9"', '"model.0:model.99"', '"tensorrt"', "begins with 'model.99'"),
        ('"model.10:model.13"', '"model.9:model.24"', '"tensorrt"', "is in two backend ranges"),
        ('    "backend_map"', '    "ranges": [{"range": "nn", "sensitive": true}], "backend_map"',
         '"nn"', "range 'nn': no operator's name begins with 'nn'"),
    ],
)  # fmt: skip
def test_what_the_carver_finds_is_told_with_its_line(
    run: Run, folder: Path, old: str, new: str, snippet: str, says: str
) -> None:
    text = SEEDS.replace(old, new, 1).replace('"model.10:model.13"', '"model.10:model.24"')
    path = written(folder, text)
    told = run("strategy", "check", str(path), "-o", "json")
    assert told.exit_code == 2
    (finding,) = json.loads(told.stdout)["findings"]
    assert finding["place"] == place_in(text, path, snippet), finding
    assert says in finding["message"]
    assert finding["code"] == BadStrategy.code


def test_what_the_gateway_finds_is_told_with_its_line(
    run: Run, fake: FakeGateway, folder: Path
) -> None:
    error = BadStrategy("partition point 'model.13' leaves no operator after it", hint="remove it")
    fake.routes["POST", "/api/v1/models"] = failing(error)
    sha256 = hashlib.sha256((folder / "yolov5s.onnx").read_bytes()).hexdigest()
    fake.routes["PUT", f"/api/v1/artifacts/{sha256}"] = lambda _: Reply(201, b"{}")
    path = written(folder, FINE)
    told = run("model", "register", "--config", str(path))
    assert told.exit_code == 2
    place = place_in(FINE, path, '"model.13"')
    assert told.stderr.startswith(f"error: {place}: partition point 'model.13' leaves")


# Right files.


@pytest.mark.parametrize(
    "strategy",
    ["null", '{"slices": null, "ranges": null, "type": null}', '{"slices": [], "private": null}'],
)
def test_null_for_a_key_that_may_be_left_out_leaves_it_out(folder: Path, strategy: str) -> None:
    text = (
        f'{{"model_id": "m", "onnx_path": "yolov5s.onnx", "slicing_strategy": {strategy}, '
        '"inputs": null, "workers": null, "verify": null}'
    )
    plain = read_model_file(written(folder, '{"model_id": "m", "onnx_path": "yolov5s.onnx"}'))
    assert read_model_file(written(folder, text)).order == plain.order
    (finding,) = check_model_file(written(folder, text.replace('"m"', "null", 1))).findings
    assert "model_id" in finding.message


def test_a_right_file_says_its_slices(run: Run, folder: Path) -> None:
    told = run("strategy", "check", str(written(folder, FINE)))
    assert (told.exit_code, told.stdout) == (0, "backbone\nneck\ndetect_head\n")
    (folder / "yolov5s.onnx").unlink()
    alone = run("strategy", "check", str(folder / "m.json"), "-o", "json")
    assert alone.exit_code == 0
    found = json.loads(alone.stdout)
    assert (found["is_right"], found["is_model_checked"]) == (True, False)


@pytest.mark.parametrize(
    ("old", "new", "snippet"),
    [
        ('"model.10:model.13": "openvino"', '"model.10:model.24": "tensorrtt"', '"tensorrtt"'),
        (
            '"model.10:model.13": "openvino"\n    }',
            '"model.10:model.24": "openvino"\n    }, "slices": [{}, {"backend": "tensorrtt"}]',
            '"tensorrtt"',
        ),
    ],
)
def test_a_backend_that_nobody_knows_is_warned_of_with_its_place_and_stays_possible(
    run: Run, folder: Path, old: str, new: str, snippet: str
) -> None:
    text = SEEDS.replace(old, new, 1).replace('"model.10", "model.13"', '"model.9"')
    path = written(folder, text)
    told = run("strategy", "check", str(path))
    assert told.exit_code == 0, told.stderr
    assert "tensorrtt" not in told.stdout
    assert f"{place_in(text, path, snippet)}: warning: slicing_strategy." in told.stderr
    assert "hint: did you mean 'tensorrt'? " in told.stderr
    found = json.loads(run("strategy", "check", str(path), "-o", "json").stdout)
    assert (found["is_right"], found["findings"]) == (True, [])
    (warning,) = found["warnings"]
    assert warning["place"] == place_in(text, path, snippet)
    assert read_model_file(path).order.slicing_strategy.backend_map["model.0:model.9"] == "tensorrt"


def test_explaining_shows_slices_crossings_and_who_could_take_them(
    run: Run, fake: FakeGateway, folder: Path
) -> None:
    fake.routes["POST", "/api/v1/plan"] = document(plan_view())
    told = run("strategy", "explain", str(written(folder, FINE)))
    assert told.exit_code == 0, told.stderr
    lines = [re.sub(" {2,}", " | ", each.strip()) for each in told.stdout.splitlines()]
    assert lines[0] == "SLICE | NAME | OPERATORS | WEIGHTS | MEMORY | BACKEND | ASKS"
    assert "0 | backbone | 10 | 0 B | 41 MiB | onnxruntime | trust: high" in lines
    assert "1 | neck | 4 | 0 B | 41 MiB | onnxruntime | on edge-1" in lines
    assert "backbone -> neck: t10 (FP32 [2, 8], 64 B)" in lines
    assert "backbone | edge-gpu-01 | lowest_load" in lines
    assert "0 | edge-npu-02 | temperature | 89 C | < 75 C" in lines
    asked = msgspec.json.decode(fake.seen[-1].body, type=PlanSlices)
    assert [each.name for each in asked.slices] == ["backbone", "neck", "detect_head"]
    assert asked.slices[1].nodes == ("edge-1",)
    assert [seen.method for seen in fake.seen] == ["POST"]


def test_cuts_of_type_auto_are_explained_by_the_gateway(
    run: Run, fake: FakeGateway, folder: Path
) -> None:
    sha256 = hashlib.sha256((folder / "yolov5s.onnx").read_bytes()).hexdigest()
    fake.routes["PUT", f"/api/v1/artifacts/{sha256}"] = lambda _: Reply(201, b"{}")
    fake.routes["POST", "/api/v1/models"] = document(model_view(), 202)
    text = '{"model_id": "m", "onnx_path": "yolov5s.onnx", "slicing_strategy": {"type": "auto"}}'
    path = str(written(folder, text))
    told = run("strategy", "explain", path)
    assert told.exit_code == 0, told.stderr
    assert "cut after slice 0: 404 crosses (1.5 KiB)" in told.stdout
    order = msgspec.json.decode(fake.seen[-1].body, type=RegisterModel)
    assert (order.is_dry_run, order.slicing_strategy.type) == (True, "auto")
    count = len(fake.seen)
    local = run("strategy", "explain", path, "--local")
    assert "chosen by a gateway" in local.stderr
    assert run("strategy", "check", path).exit_code == 0
    assert len(fake.seen) == count


def test_weights_beside_the_model_are_found_and_missing_ones_named(run: Run, folder: Path) -> None:
    weight = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "mul")],
        "g",
        [info("x", TensorProto.FLOAT, [2, 64])],
        [info("y", TensorProto.FLOAT, [2, 64])],
        [weight],
    )
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
    path = folder / "yolov5s.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    file = written(folder, '{"model_id": "m", "onnx_path": "yolov5s.onnx"}')
    told = run("strategy", "explain", str(file), "--local")
    assert told.exit_code == 0, told.stderr
    assert "16.0 KiB" in told.stdout
    (folder / "w.bin").unlink()
    lost = run("strategy", "check", str(file))
    assert lost.exit_code == NotFound.exit_code
    assert "'w.bin', which is not in" in lost.stderr


def test_explaining_says_why_no_node_can_and_is_no_failure(
    run: Run, fake: FakeGateway, folder: Path
) -> None:
    refusal = CannotPlace("no node of 2 can take slice 'neck'", hint="start edge-1")
    fake.routes["POST", "/api/v1/plan"] = failing(refusal)
    told = run("strategy", "explain", str(written(folder, FINE)), "-o", "json")
    assert told.exit_code == 0
    found = json.loads(told.stdout)
    assert found["refusal"] == "no node of 2 can take slice 'neck'\nhint: start edge-1"
    assert [each["name"] for each in found["partition"]["slices"]][1] == "neck"
    local = run("strategy", "explain", str(folder / "m.json"), "--local", "-o", "name")
    assert local.stdout.split() == ["backbone", "neck", "detect_head"]
    assert len(fake.seen) == 1


def test_the_shipped_examples_are_right(run: Run) -> None:
    for path in sorted((ROOT / "examples").glob("*.json")):
        if path.name != "din.schema.json":
            told = run("strategy", "check", str(path))
            assert told.exit_code == 0, (path, told.stdout, told.stderr)


# The schema.


def accepts(schema: dict[str, Any], value: Any, whole: dict[str, Any]) -> bool:
    """The part of JSON Schema that msgspec writes."""
    if "$ref" in schema:
        return accepts(whole["$defs"][schema["$ref"].rpartition("/")[2]], value, whole)
    if "anyOf" in schema:
        return any(accepts(each, value, whole) for each in schema["anyOf"])
    if "enum" in schema and value not in schema["enum"]:
        return False
    kinds: dict[str, tuple[type, ...]] = {
        "object": (dict,), "array": (list,), "string": (str,), "integer": (int,),
        "number": (int, float), "boolean": (bool,), "null": (type(None),),
    }  # fmt: skip
    kind = schema.get("type")
    if kind and (not isinstance(value, kinds[kind]) or (
        isinstance(value, bool) and kind in ("integer", "number")
    )):  # fmt: skip
        return False
    if isinstance(value, int) and not schema.get("minimum", value) <= value:
        return False
    if isinstance(value, int) and not value <= schema.get("maximum", value):
        return False
    if isinstance(value, str | list):
        low, high = (
            ("minLength", "maxLength") if isinstance(value, str) else ("minItems", "maxItems")
        )
        if not schema.get(low, 0) <= len(value) <= schema.get(high, len(value)):
            return False
    if isinstance(value, list):
        return all(accepts(schema.get("items", {}), each, whole) for each in value)
    if isinstance(value, dict):
        properties, more = schema.get("properties", {}), schema.get("additionalProperties", {})
        if set(schema.get("required", ())) - set(value):
            return False
        if more is False and set(value) - set(properties):
            return False
        others = more if isinstance(more, dict) else {}
        return all(accepts(properties.get(key, others), value[key], whole) for key in value)
    return True


STRUCTURE = [FINE, SEEDS, *(FINE.replace(old, new, 1) for old, new, _, _ in WRONG[:11])]


@pytest.mark.parametrize("text", STRUCTURE)
def test_schema_and_reader_agree(folder: Path, text: str) -> None:
    schema = schema_of_files()
    found = check_model_file(written(folder, text))
    value = read_jsonc(text, "f").value
    assert accepts(schema, value, schema) == (not found.findings), found.findings


def test_the_schema_describes_every_key_and_its_example_is_right(run: Run, folder: Path) -> None:
    told = run("strategy", "schema")
    assert told.exit_code == 0
    schema = json.loads(told.stdout)
    for part in (schema, *schema["$defs"].values()):
        assert part["description"]
        for name, each in part["properties"].items():
            assert each.get("description"), name
    (example,) = schema["examples"]
    assert accepts(schema, example, schema)
    assert check_model_file(written(folder, json.dumps(example))).findings == ()
    shipped = json.loads((ROOT / "examples" / "din.schema.json").read_text())
    assert shipped == schema, "run: din strategy schema > examples/din.schema.json"


def test_the_manual_names_every_key() -> None:
    manual = (ROOT / "docs" / "models.md").read_text()
    for kind in (ModelFile, Strategy, SliceSetting, RangeSetting):
        for key in kind.__struct_encode_fields__:
            assert f"`{key}`" in manual, key
