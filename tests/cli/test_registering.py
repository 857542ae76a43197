"""`din model register`, its file, and `din infer`."""

import base64
import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import din
from din.cli.calibration import read_calibration
from din.cli.jsonc import parse_jsonc
from din.cli.model_file import read_model_file
from din.domain.cuts import ChosenSlice, CutChoice
from din.domain.node import NodeId
from din.domain.strategy import SliceSetting
from din.domain.views import RegisterModel
from din.errors import BadStrategy, UsageError
from tests.cli.conftest import Run
from tests.client.fake_gateway import (
    FakeGateway,
    Reply,
    Seen,
    document,
    failing,
    model_view,
    slice_view,
)
from tests.client.test_client import adapted, echo
from tests.client.test_saved import binary

FILE = """\
// as in the seeds
{
  "model_id": "yolov5s-2025-qat",
  "onnx_path": "./yolov5s_qat.onnx", /* relative
     to this file */
  "slicing_strategy": {
    "type": "graph_partition",
    "partition_points": ["model.10", "model.13"], // before the head
    "backend_map": {"model.0:model.9": "onnxruntime", "model.10:model.13": "openvino",},
    "slices": [{"name": "http://not-a-comment", "device_type": "x86_64"}, {}, {},],
  },
  "inputs": {"input.1": ["B", 3, "H", "W"]},
  "backend_options": {"threads": 1, "optimisation": "off", "spinning": false},
  "before": {"name": "image", "max_side": 640}, "after": "centerface",
  "workers": 2, "replicas": 1,
}
"""


def model_file(folder: Path, text: str = FILE) -> Path:
    path = folder / "model.json"
    path.write_text(text)
    (folder / "yolov5s_qat.onnx").write_bytes(b"onnx bytes")
    return path


def serve_registration(fake: FakeGateway, *views: Any, model_id: str = "centerface") -> None:
    fake.routes["POST", "/api/v1/models"] = document(views[0], 202)
    left = list(views[1:] or views)

    def answer(_: Seen) -> Reply:
        view = left.pop(0) if len(left) > 1 else left[0]
        return Reply(200, msgspec.json.encode(view))

    fake.routes["GET", f"/api/v1/models/{model_id}"] = answer
    for content in (b"onnx bytes", b"m"):
        sha256 = hashlib.sha256(content).hexdigest()
        fake.routes["PUT", f"/api/v1/artifacts/{sha256}"] = lambda _: Reply(201, b"{}")


def order_of(fake: FakeGateway) -> RegisterModel:
    posts = [seen for seen in fake.seen if (seen.method, seen.path) == ("POST", "/api/v1/models")]
    return msgspec.json.decode(posts[-1].body, type=RegisterModel)


def test_files_beside_the_model_are_sent_with_it(
    fake: FakeGateway, run: Run, tmp_path: Path
) -> None:
    from tests.client.test_beside import model_naming

    model = model_naming(tmp_path, "w.bin")
    (tmp_path / "w.bin").write_bytes(b"m")
    serve_registration(fake, model_view(state="ready"))
    sha256 = hashlib.sha256(model.read_bytes()).hexdigest()
    fake.routes["PUT", f"/api/v1/artifacts/{sha256}"] = lambda _: Reply(201, b"{}")
    ran = run("model", "register", str(model), "--model-id", "centerface")
    assert ran.exit_code == 0, ran.output
    order = order_of(fake)
    assert order.source_sha256 == sha256
    assert order.external == {"w.bin": hashlib.sha256(b"m").hexdigest()}


def test_the_seeds_file_becomes_an_order(tmp_path: Path) -> None:
    found = read_model_file(model_file(tmp_path))
    assert found.model_path == tmp_path / "yolov5s_qat.onnx"
    order = found.order
    assert order.model_id == "yolov5s-2025-qat"
    strategy = order.slicing_strategy
    assert strategy.partition_points == ("model.10", "model.13")
    assert strategy.backend_map["model.10:model.13"] == "openvino"
    assert strategy.slices[0] == SliceSetting(name="http://not-a-comment", device_type="x86_64")
    assert order.inputs == {"input.1": ("B", 3, "H", "W")}
    assert order.backend_options == {"threads": "1", "optimisation": "off", "spinning": "false"}
    assert order.before == {"name": "image", "max_side": 640}
    assert order.after == {"name": "centerface"}
    assert (order.workers, order.replicas) == (2, 1)


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ('"model_id"', '"modelid"', "unknown key 'modelid'", "did you mean 'model_id'?"),
        ('"partition_points"', '"partition_point"', "'slicing_strategy.partition_point'", "points"),
        ('"device_type"', '"devicetype"', "'slicing_strategy.slices[0].devicetype'", "device_type"),
        (
            '"workers": 2',
            '"workers": "two"',
            "workers is 'two': expected a whole number",
            "",
        ),
        ('"model_id": "yolov5s-2025-qat",', "", "key 'model_id' is missing", "at least"),
        ('"graph_partition"', '"by_magic"', "type is 'by_magic'", "graph_partition"),
        ("{}, {},", "{}, {}, {},", "4 slices are described, but 2 partition points make 3", "{}"),
        ('"replicas": 1', '"replicas": 1 "x"', "model.json:15:", "comments"),
        ('"replicas": 1', '"workers": 1', "key 'workers' is given twice", ""),
        ('"replicas": 1', '"replicas": NaN', "NaN is no JSON value", ""),
    ],
)
def test_a_mistake_in_the_file_is_named_with_file_key_and_value(
    tmp_path: Path, old: str, new: str, message: str, hint: str
) -> None:
    path = model_file(tmp_path, FILE.replace(old, new, 1))
    with pytest.raises((UsageError, BadStrategy)) as caught:
        read_model_file(path)
    assert str(path) in caught.value.message
    assert message in caught.value.message
    assert hint in caught.value.hint


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_any_json_is_jsonc_and_texts_with_slashes_stay(value: Any) -> None:
    text = json.dumps(value, indent=1)
    assert parse_jsonc(text, "x") == value
    assert parse_jsonc(f"// a\n{text} /* , ] */\n// b", "x") == value


@given(st.text(alphabet='{}[],"/*\\ \na:1', max_size=60))
def test_no_text_breaks_the_parser(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse_jsonc(text, "x")


def test_registering_uploads_orders_waits_and_shows_nodes(
    fake: FakeGateway, run: Run, tmp_path: Path
) -> None:
    placing = model_view(state="placing", slices=())
    serve_registration(fake, placing, model_view(state="loading"), model_view())
    told = run("model", "register", "--config", str(model_file(tmp_path)))
    assert told.exit_code == 0, told.stderr
    assert "backbone" in told.stdout
    assert "edge-gpu-01" in told.stdout
    assert "cut after slice 0: 404 crosses (1.5 KiB)" in told.stderr
    assert told.stderr.endswith(
        "it takes input.1 FP32 [1, 3, H, ?]\nnext: din infer centerface --input TENSOR.npy\n"
    )
    assert order_of(fake).source_sha256 == hashlib.sha256(b"onnx bytes").hexdigest()
    assert [seen.method for seen in fake.seen[:3]] == ["HEAD", "PUT", "POST"]


def test_a_cut_that_nothing_crosses_says_so(fake: FakeGateway, run: Run, tmp_path: Path) -> None:
    """A slice that reads inputs of the model alone."""
    (cut, *_) = model_view().cuts
    apart = msgspec.structs.replace(cut, tensors=(), nbytes=0)
    serve_registration(fake, msgspec.structs.replace(model_view(), cuts=(apart,)))
    told = run("model", "register", "--config", str(model_file(tmp_path)))
    assert told.exit_code == 0, told.stderr
    assert "cut after slice 0: nothing crosses\n" in told.stderr


def test_samples_for_calibrating_go_with_the_model_by_their_hash(
    fake: FakeGateway, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "samples").mkdir()
    np.save(tmp_path / "samples" / "0.npy", np.zeros((1, 3), np.float32))
    wished = '"calibration_inputs": "samples",\n  "workers"'
    path = model_file(tmp_path, FILE.replace('"workers"', wished))
    one = tmp_path / "one.npz"
    np.savez(one, x=np.ones((1, 3), np.float32))
    for words, samples in (((), tmp_path / "samples"), (("--calibration-inputs", str(one)), one)):
        fake.seen.clear()
        serve_registration(fake, model_view(), model_view(), model_view())
        uploaded = read_calibration(samples)
        sha256 = hashlib.sha256(uploaded).hexdigest()
        fake.routes["PUT", f"/api/v1/artifacts/{sha256}"] = lambda _: Reply(201, b"{}")
        told = run("model", "register", "--config", str(path), *words)
        assert told.exit_code == 0, told.stderr
        assert order_of(fake).calibration_sha256 == sha256
        assert uploaded in [seen.body for seen in fake.seen if seen.method == "PUT"]


def test_samples_that_are_none_are_told_before_anything_is_uploaded(
    fake: FakeGateway, run: Run, tmp_path: Path
) -> None:
    path = str(model_file(tmp_path))
    told = run("model", "register", "--config", path, "--calibration-inputs", str(tmp_path))
    assert told.exit_code == 2
    assert "holds 0 samples" in told.stderr
    assert not fake.seen


def test_with_auto_the_cuts_are_left_to_din(fake: FakeGateway, run: Run, tmp_path: Path) -> None:
    serve_registration(fake, model_view(), model_view(), model_view())
    path = tmp_path / "detector.onnx"
    path.write_bytes(b"onnx bytes")
    told = run("model", "register", str(path), "--auto", "--objective", "throughput")
    assert told.exit_code == 0, told.stderr
    strategy = order_of(fake).slicing_strategy
    assert (strategy.type, strategy.objective) == ("auto", "throughput")


def test_auto_and_named_cuts_exclude_each_other(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "detector.onnx"
    path.write_bytes(b"onnx bytes")
    assert run("model", "register", str(path), "--objective", "bytes").exit_code == 2
    told = run("model", "register", "--config", str(model_file(tmp_path)), "--auto")
    assert told.exit_code == 2
    assert "exclude each other" in told.stderr


def test_a_bare_model_is_named_after_its_file(fake: FakeGateway, run: Run, tmp_path: Path) -> None:
    """T42."""
    model = tmp_path / "\u7f51\u7edc 50%.onnx"
    model.write_bytes(b"m")
    serve_registration(fake, model_view())
    told = run("model", "register", str(model), "--no-wait", "--backend-option", "threads=1",
               "--backend-option", "optimisation=off", "-o", "json")  # fmt: skip
    assert told.exit_code == 0, told.stderr
    assert json.loads(told.stdout)["schema"] == "din.model/1"
    order = order_of(fake)
    assert order.model_id == "\u7f51\u7edc 50%"
    assert order.backend_options == {"threads": "1", "optimisation": "off"}
    assert not order.is_dry_run


def test_a_dry_run_is_said_to_the_gateway_and_waits_for_nothing(
    fake: FakeGateway, run: Run, tmp_path: Path
) -> None:
    serve_registration(fake, model_view(state="placing"))
    told = run("model", "register", "--config", str(model_file(tmp_path)), "--dry-run")
    assert told.exit_code == 0
    assert order_of(fake).is_dry_run
    assert "was cut and not registered" in told.stderr


def test_a_model_that_din_left_whole_says_why(fake: FakeGateway, run: Run, tmp_path: Path) -> None:
    why = "whole on edge-1, 9.6 ms: splitting does not pay, the best split would be 10.2 ms"
    part = ChosenSlice(node_id=NodeId("n1"), node="edge-1", operators=9, first="a", last="b",
                       compute_ms=9.6, memory_mib=60)  # fmt: skip
    choice = CutChoice(objective="latency", unit="ms", cost=9.6, slices=(part,), alone=None,
                       is_split_refused=True, best_split=10.2, reason=why, times_from="flops",
                       nodes_considered=2, blocks=4)  # fmt: skip
    serve_registration(fake, model_view(choice=choice))
    told = run("model", "register", "--config", str(model_file(tmp_path)))
    assert f"DIN does not cut it: {why}" in told.stderr


def test_no_node_that_fits_is_exit_code_3_with_the_reason(
    fake: FakeGateway, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("din.cli.register.UNPLACED_S", 0.0)
    monkeypatch.setattr("din.cli.register.POLL_S", 0.0)
    reason = "no compatible device found for backend openvino"
    serve_registration(fake, model_view(state="placing", reason=reason, hint="start one"))
    told = run("model", "register", "--config", str(model_file(tmp_path)))
    assert told.exit_code == 3
    stays = "centerface version 1 stays registered, placed when a node fits it"
    assert told.stderr == f"error: {reason}\nhint: start one; {stays}\n"


def test_a_slice_that_could_not_be_loaded_is_exit_code_4(
    fake: FakeGateway, run: Run, tmp_path: Path
) -> None:
    part = slice_view("failed", "OP not supported: Resize")
    serve_registration(fake, model_view(state="failed", slices=(part,)))
    told = run("model", "register", "--config", str(model_file(tmp_path)))
    assert told.exit_code == 4
    assert "slice backbone on edge-gpu-01: OP not supported: Resize" in told.stderr


def test_a_deployment_that_takes_too_long_is_exit_code_5(
    fake: FakeGateway, run: Run, tmp_path: Path
) -> None:
    serve_registration(fake, model_view(state="loading"))
    told = run("model", "register", "--config", str(model_file(tmp_path)), "--timeout-ms", "1")
    assert told.exit_code == 5
    assert "is still loading after 0.001 s" in told.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["model", "register"],
        ["model", "register", "a.onnx", "--config", "b.json"],
        ["model", "register", "/nowhere/a.onnx"],
        ["model", "register", "--config", "/nowhere/b.json"],
    ],
    ids=" ".join,
)
def test_a_registration_that_cannot_be_meant_is_exit_code_2(run: Run, words: list[str]) -> None:
    assert run(*words).exit_code == 2


def test_a_configuration_given_as_the_model_is_told_apart(run: Run, tmp_path: Path) -> None:
    path = model_file(tmp_path)
    told = run("model", "register", str(path))
    assert told.exit_code == 2
    assert told.stderr.endswith(f"hint: din model register --config {path}\n")


def test_an_option_that_is_no_pair_is_refused(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"m")
    told = run("model", "register", str(model), "--backend-option", "threads")
    assert told.exit_code == 2
    assert "'threads' is not NAME=VALUE" in told.stderr


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    Image.new("RGB", (32, 32), (0, 0, 0)).save(path)
    return path


def test_a_photo_gives_boxes_and_a_picture(
    fake: FakeGateway, run: Run, photo: Path, tmp_path: Path
) -> None:
    fake.routes["POST", "/infer"] = adapted
    drawn = tmp_path / "boxes.png"
    told = run("infer", "centerface", "--input", str(photo), "--output", str(drawn))
    assert told.exit_code == 0, told.stderr
    assert "face   0.900  1, 2, 3, 4" in told.stdout
    assert "backbone  edge-gpu-01        18.3       0.0      -" in told.stdout
    assert "next: din trace show req-8a3f2b1c" in told.stderr
    assert fake.seen[-1].body == photo.read_bytes()
    with Image.open(drawn) as image:
        assert image.getpixel((1, 2)) == (255, 64, 32)


def test_a_result_is_json_yaml_or_raw(fake: FakeGateway, run: Run, photo: Path) -> None:
    fake.routes["POST", "/infer"] = adapted
    told = json.loads(run("infer", "m", "-i", str(photo), "-o", "json").stdout)
    assert told["result"]["labels"] == ["face"]
    assert told["execution_trace"][0]["gpu_util"] is None
    assert json.loads(run("infer", "m", "-i", str(photo), "--raw").stdout) == told["result"]
    assert "labels:" in run("infer", "m", "-i", str(photo), "-o", "yaml").stdout


def test_a_photo_whose_answer_is_tensors_is_told_their_shapes(
    fake: FakeGateway, run: Run, photo: Path
) -> None:
    body = json.loads(adapted(Seen("POST", "/infer", {}, b"")).body)
    body["result"] = {"heat": [[[0.5] * 40] * 30], "classes": [3, 1], "text": "x" * 300}
    fake.routes["POST", "/infer"] = lambda _: Reply(200, json.dumps(body).encode())
    lines = run("infer", "m", "-i", str(photo)).stdout.splitlines()
    shape = "[1, 30, 40]; all of them: -o json, or --output FILE.npz"
    assert lines[0] == f"heat: numbers of shape {shape}"
    assert lines[1] == "classes: [3, 1]"
    assert lines[2].endswith("xxx ...; all of it: -o json")


def test_tensors_go_in_by_name_and_come_out_as_a_file(
    fake: FakeGateway, run: Run, tmp_path: Path
) -> None:
    fake.routes["POST", "/v2/models/m/infer"] = echo
    one, two = tmp_path / "one.npy", tmp_path / "two.npy"
    np.save(one, np.arange(6, dtype=np.float32).reshape(2, 3))
    np.save(two, np.arange(3))
    out = tmp_path / "out.npz"
    told = run("infer", "m", "-i", f"a={one}", "-i", f"b={two}", "--output", str(out))
    assert told.exit_code == 0, told.stderr
    assert "a: float32 [2, 3], values 0 to 5" in told.stdout
    with np.load(out) as loaded:
        assert np.array_equal(loaded["a"], np.load(one))
        assert np.array_equal(loaded["b"], np.load(two))
    again = run("infer", "m", "-i", str(out), "-o", "json")
    assert json.loads(again.stdout)["result"]["b"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["/nowhere.jpg"], "cannot be read: No such file"),
        (["{npy}", "{npy}"], "names no input"),
        (["{npy}", "{png}"], "names no input"),
        (["a={npy}", "{png}"], "is no tensor, and only one file can be sent"),
        (["{bad}"], "is no array file of numpy"),
    ],
    ids=str,
)
def test_an_input_that_cannot_be_sent_is_exit_code_2(
    run: Run, photo: Path, tmp_path: Path, inputs: list[str], message: str
) -> None:
    np.save(tmp_path / "x.npy", np.zeros(1))
    (tmp_path / "bad.npy").write_bytes(b"not numpy")
    names = {"npy": tmp_path / "x.npy", "png": photo, "bad": tmp_path / "bad.npy"}
    words = [word for each in inputs for word in ("-i", each.format(**names))]
    told = run("infer", "m", *words)
    assert told.exit_code == 2
    assert message in told.stderr


def test_an_object_array_is_never_unpickled(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "evil.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    told = run("infer", "m", "-i", str(path))
    assert told.exit_code == 2


def test_nothing_to_draw_is_said(fake: FakeGateway, run: Run, photo: Path, tmp_path: Path) -> None:
    def classes(_: Seen) -> Reply:
        body = {"request_id": "r", "model_id": "m", "result": {"labels": ["cat"]}}
        return Reply(200, json.dumps(body).encode())

    fake.routes["POST", "/infer"] = classes
    told = run("infer", "m", "-i", str(photo), "--output", str(tmp_path / "x.png"))
    assert told.exit_code == 2
    assert "holds no boxes" in told.stderr
    assert run("infer", "m", "-i", str(photo), "--output", "x.bmp").exit_code == 2
    lost = run("infer", "m", "-i", str(photo), "--output", "/nowhere/x.json")
    assert lost.exit_code == 4


def test_an_unknown_model_is_exit_code_6(fake: FakeGateway, run: Run, photo: Path) -> None:
    from din.errors import NotFound

    fake.routes["POST", "/infer"] = failing(NotFound("no model 'm'", hint="there is centerface"))
    told = run("infer", "m", "-i", str(photo))
    assert told.exit_code == 6
    assert told.stderr == "error: no model 'm'\nhint: there is centerface\n"
    assert base64.b64encode(fake.seen[-1].body)


def test_all_of_a_result_is_kept_in_binary(
    fake: FakeGateway, run: Run, photo: Path, tmp_path: Path
) -> None:
    fake.routes["POST", "/infer"] = binary
    kept = tmp_path / "all.dinr"
    told = run("infer", "m", "-i", str(photo), "--output", str(kept))
    assert told.exit_code == 0, told.stderr
    assert "face   0.900  1, 2, 3, nan" in told.stdout
    found = din.read_result(kept)
    assert found.request_id == "req-8a3f2b1c"
    assert found.outputs["scores"].dtype == np.float32
