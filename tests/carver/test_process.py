"""The carver as a process: JSON in, JSON out, slices as files by their hash."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from din.carver import files
from din.domain.cuts import CutTable
from din.domain.gateway_view import ErrorView
from din.domain.model import AnalyseRequest, CarveAnswer, CarveRequest
from din.domain.strategy import Strategy
from din.errors import BadModel, Denied, NotFound, Unavailable

pytestmark = pytest.mark.system


def small_model() -> bytes:
    info = helper.make_tensor_value_info
    weight = numpy_helper.from_array(np.ones((2, 3), np.float32), "w")
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "w"], ["a"], "first"),
            helper.make_node("Exp", ["a"], ["y"], "second"),
        ],
        "g",
        [info("x", TensorProto.FLOAT, [2, 3])],
        [info("y", TensorProto.FLOAT, [2, 3])],
        [weight],
    )
    return helper.make_model(
        graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]
    ).SerializeToString()


def run(asked: bytes, **environment: str) -> tuple[int, bytes]:
    done = subprocess.run(
        [sys.executable, "-m", "din.carver"],
        input=asked,
        capture_output=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


def ask(path: Path, out: Path, *points: str) -> bytes:
    return msgspec.json.encode(
        CarveRequest(
            model_path=str(path),
            output_path=str(out),
            strategy=Strategy(partition_points=points),
        )
    )


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "模型 50%.onnx"
    path.write_bytes(small_model())
    (tmp_path / "out").mkdir()
    return path


def test_it_answers_and_writes_each_slice_under_its_hash(model, tmp_path):
    out = tmp_path / "out"
    exit_code, said = run(ask(model, out, "first"))
    assert exit_code == 0
    answer = msgspec.json.decode(said, type=CarveAnswer)
    artifacts = [artifact for each in answer.slices for artifact in each.artifacts]
    assert len(artifacts) == 2
    assert {each.name for each in out.iterdir()} == {each.sha256 for each in artifacts}
    for artifact in artifacts:
        data = (out / artifact.sha256).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (artifact.sha256, artifact.nbytes)


@pytest.mark.parametrize(
    ("content", "code", "exit_status"),
    [(b"", "DIN-120", 2), (b"not onnx", "DIN-120", 2), (small_model()[:-9], "DIN-120", 2)],
)
def test_a_bad_file_is_named_in_a_json_error(tmp_path, content, code, exit_status):
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    exit_code, said = run(ask(path, tmp_path))
    error = msgspec.json.decode(said, type=ErrorView)
    assert (exit_code, error.code) == (exit_status, code)
    assert str(path) in error.message
    assert error.hint


def test_a_wrong_point_a_missing_file_and_a_folder_each_get_their_error(model, tmp_path):
    for asked, code in (
        (ask(model, tmp_path / "out", "ghost"), "DIN-130"),
        (ask(tmp_path / "none.onnx", tmp_path), "DIN-500"),
        (ask(tmp_path, tmp_path), "DIN-120"),
        (ask(model, tmp_path / "nowhere"), "DIN-500"),
        (b"{]", "DIN-100"),
        (b'{"model_path": 3}', "DIN-100"),
        (b'"' + b" " * (4 * 1024 * 1024 + 1), "DIN-140"),
    ):
        exit_code, said = run(asked)
        error = msgspec.json.decode(said, type=ErrorView)
        assert error.code == code
        assert exit_code != 0


WATCHED = (
    "import json, resource, sys\n"
    "from din.carver import parting\n"
    "from din.carver.carve import carve, read_request\n"
    "def watched(request, contents, store, version):\n"
    "    kinds = (resource.RLIMIT_CORE, resource.RLIMIT_AS, resource.RLIMIT_CPU)\n"
    "    before = [resource.getrlimit(kind)[0] for kind in kinds]\n"
    "    answer = carve(request, contents, store, version)\n"
    "    bad = sorted({'onnxruntime', 'asyncio'} & set(sys.modules))\n"
    "    raise RuntimeError(json.dumps([bad, before]))\n"
    "parting.carve = watched\n"
    "try:\n"
    "    parting.carry_out(read_request(sys.stdin.buffer.read()))\n"
    "except parting.DinError as error:\n"
    "    print(error.message.partition('RuntimeError: ')[2], 'onnx' in sys.modules)\n"
)


def test_what_reads_a_model_has_limits_and_no_engine_and_the_keeper_holds_no_parser(
    model, tmp_path
):
    done = subprocess.run(
        [sys.executable, "-c", WATCHED],
        input=ask(model, tmp_path / "out"),
        capture_output=True,
        check=True,
    )
    said, _, keeper_has_onnx = done.stdout.decode().rpartition(" ")
    bad, (core, space, seconds) = msgspec.json.decode(said)
    assert bad == []
    assert core == 0
    assert 0 < space < 4 * 1024**3
    assert 0 < seconds <= 240
    assert keeper_has_onnx.strip() == "False"


def test_it_ends_with_whoever_started_it():
    program = (
        "import ctypes, sys\n"
        "from din.carver.__main__ import main\n"
        "main()\n"
        "found = ctypes.c_int()\n"
        "ctypes.CDLL(None).prctl(2, ctypes.byref(found))\n"
        "print(found.value, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False, input=b""
    )
    assert done.stderr.split()[-1] == b"9"


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(Unavailable, match="no room for a file of 3 bytes"):
        files.store_file(tmp_path, [b"abc"], 3)
    assert list(tmp_path.iterdir()) == []


def test_what_may_not_be_read_or_written_is_denied(tmp_path, monkeypatch):
    def denied(*_given: object, **_named: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "m.onnx"
    path.write_bytes(b"x")
    with monkeypatch.context() as patched:
        patched.setattr(files.os, "open", denied)
        with pytest.raises(Denied):
            files.map_file(path, 1)
    monkeypatch.setattr(files.tempfile, "mkstemp", denied)
    with pytest.raises(Denied):
        files.store_file(tmp_path, [b"abc"], 3)


def test_a_pipe_is_no_model(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadModel, match="no ordinary file"):
        files.map_file(tmp_path / "pipe", 1)
    with pytest.raises(NotFound):
        files.map_file(tmp_path / "none", 1)


def test_an_analysis_is_one_request_and_one_answer_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(small_model())
    code, said = run(msgspec.json.encode(AnalyseRequest(model_path=str(path))))
    assert code == 0
    table = msgspec.json.decode(said, type=CutTable)
    assert [each.name for each in table.operators] == ["first", "second"]
    assert table.source_sha256 == hashlib.sha256(small_model()).hexdigest()
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]


def test_a_request_that_asks_for_nothing_known_is_refused() -> None:
    code, said = run(b'{"ask": "dance", "model_path": "m"}')
    assert code == 2
    assert "dance" in msgspec.json.decode(said, type=ErrorView).message
