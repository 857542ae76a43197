"""Results in binary: asked for, kept in files, read again."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

import din
from din.client.result import Inference
from din.client.saved import encode_inference, read_trace
from din.domain.request import TraceStep
from din.domain.result import CONTENT_TYPE, Result, result_of_trace
from din.domain.tensor import TensorMeta
from din.errors import TooLarge, UsageError
from din.wire.result import encode_result
from tests.client.fake_gateway import FakeGateway, Reply, Seen, trace
from tests.client.test_client import adapted

STEP = TraceStep(node="edge-gpu-01", phase="backbone", latency_ms=18.3)
NAMED = {
    "boxes": np.array([[1, 2, 3, np.nan]], np.float32),
    "scores": np.array([0.9], np.float32),
    "labels": np.array([b"face"], object),
    "none": np.empty((0, 4), np.int64),
}


def answer_of(outputs: dict, *, is_adapted: bool = True) -> Inference:
    return Inference(
        request_id="req-8a3f2b1c", model_id="m", version="1", result={}, outputs=outputs,
        execution_trace=(STEP,), is_adapted=is_adapted,
    )  # fmt: skip


def binary(seen: Seen) -> Reply:
    if seen.headers.get("accept") != CONTENT_TYPE:
        return adapted(seen)
    body = b"".join(encode_inference(answer_of(NAMED)))
    return Reply(200, body, {"content-type": CONTENT_TYPE})


def test_a_binary_answer_has_arrays_and_the_values_of_json(fake: FakeGateway) -> None:
    fake.routes["POST", "/infer"] = binary
    with din.Client(fake.url) as client:
        plain = client.infer("m", b"photo")
        answer = client.infer("m", b"photo", is_binary=True)
    assert plain.outputs == {}
    assert answer.result["scores"] == plain.result["scores"] == [0.9]
    assert answer.result["labels"] == plain.result["labels"] == ["face"]
    assert answer.result["none"] == []
    assert math.isnan(answer.result["boxes"][0][3])
    for name, array in NAMED.items():
        found = answer.outputs[name]
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tobytes() == array.tobytes() or name == "labels"
    assert answer.execution_trace == (STEP,)
    assert answer.is_adapted


def test_a_gateway_that_knows_no_binary_form_answers_as_ever(fake: FakeGateway) -> None:
    fake.routes["POST", "/infer"] = adapted
    with din.Client(fake.url) as client:
        answer = client.infer("m", b"photo", is_binary=True)
    assert answer.result["boxes"] == [[1.0, 2.0, 3.0, 4.0]]
    assert answer.outputs == {}


def test_a_kept_result_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "tensors.dinr"
    kept = answer_of({"y": np.array([np.inf, 1.5])}, is_adapted=False)
    path.write_bytes(b"".join(encode_inference(kept)))
    found = din.read_result(path)
    assert found.outputs["y"].tolist() == [math.inf, 1.5]
    assert found.result["y"] is found.outputs["y"]
    with pytest.raises(UsageError, match="no trace"):
        read_trace(path)


def test_a_kept_trace_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "slow.dinr"
    path.write_bytes(b"".join(encode_result(result_of_trace(trace()))))
    assert read_trace(path) == trace()


def test_files_that_are_none_of_ours_are_told_by_name(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(UsageError, match=r"none\.dinr"):
        din.read_result(tmp_path / "none.dinr")
    with pytest.raises(UsageError, match="cannot be read"):
        din.read_result("a\0b")
    path = tmp_path / "photo.dinr"
    path.write_bytes(b"\xff\xd8 a photo of 20 bytes")
    with pytest.raises(UsageError, match=r"photo\.dinr"):
        din.read_result(path)
    monkeypatch.setattr("din.client.saved.FILE_BYTES_MAX", 8)
    with pytest.raises(TooLarge):
        din.read_result(path)


@pytest.mark.parametrize(
    ("shape", "raw", "words"),
    [((2,), b"\x04\0\0\0face", "1 elements"), ((1,), b"\x05\0\0\0face", "cut short")],
)
def test_texts_that_do_not_add_up_are_refused(tmp_path: Path, shape, raw, words) -> None:
    meta = TensorMeta("labels", "BYTES", shape, len(raw))
    result = Result(request_id="r", model_id="m", version="1", outputs=(meta,))
    path = tmp_path / "labels.dinr"
    path.write_bytes(b"".join(encode_result(result, [memoryview(raw)])))
    with pytest.raises(UsageError, match=words):
        din.read_result(path)


def test_a_file_is_the_same_when_it_is_kept_again(tmp_path: Path) -> None:
    path = tmp_path / "all.dinr"
    path.write_bytes(b"".join(encode_inference(answer_of(NAMED))))
    again = b"".join(encode_inference(din.read_result(path)))
    assert again == path.read_bytes()
    assert msgspec.json.encode(din.read_result(path).execution_trace[0]).startswith(b'{"node"')
