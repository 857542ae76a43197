"""`din trace show FILE.dinr` of a result: what it holds, and what is said of damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from din.domain.request import TraceStep
from din.domain.result import Result
from din.domain.tensor import TensorMeta
from din.wire.result import encode_result
from tests.cli.conftest import Run

STEP = TraceStep(node="edge-1", phase="slice-0", latency_ms=12.34, gpu_util=None)
BFLOAT = (np.array([1.5, -2.0], "<f4").view("<u4") >> 16).astype("<u2")
FLOATS = np.array([[np.nan, 0.25, np.inf], [-3.5, 1e6, 2.0]], "<f4")
TENSORS = (
    ("y", "FP32", (2, 3), FLOATS.tobytes()),
    ("half", "BF16", (2,), BFLOAT.tobytes()),
    ("count", "INT64", (2,), np.array([7, -9], "<i8").tobytes()),
    ("label", "BYTES", (1,), b"\x03\0\0\0cat"),
    ("none", "FP64", (0, 4), b""),
    ("lost", "FP16", (1,), np.array([np.nan], "<f2").tobytes()),
)
SHOWN = """\
req-1  centerface version 3  completed
OUTPUT  TYPE   SHAPE   SIZE   MIN    MAX  NAN/INF
y       FP32   [2, 3]  24 B  -3.5  1e+06        2
half    BF16   [2]      4 B    -2    1.5        0
count   INT64  [2]     16 B    -9      7        0
label   BYTES  [1]      7 B     -      -        -
none    FP64   [0, 4]   0 B     -      -        0
lost    FP16   [1]      2 B     -      -        1

PHASE    NODE      MS  QUEUE MS  GPU %
slice-0  edge-1  12.3       0.0      -
"""


def message(tensors: tuple[tuple[str, str, tuple[int, ...], bytes], ...]) -> bytes:
    metas = tuple(TensorMeta(name, word, shape, len(raw)) for name, word, shape, raw in tensors)
    result = Result(
        request_id="req-1",
        model_id="centerface",
        version="3",
        outputs=metas,
        execution_trace=(STEP,),
    )
    return b"".join(encode_result(result, [memoryview(raw) for *_, raw in tensors]))


def test_a_kept_result_is_shown_without_a_gateway(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "all.dinr"
    path.write_bytes(message(TENSORS))
    told = run("trace", "show", str(path))
    assert (told.exit_code, told.stdout) == (0, SHOWN)
    assert run("trace", "show", str(path), "-o", "name").stdout == "req-1\n"
    found = json.loads(run("trace", "show", str(path), "-o", "json").stdout)
    assert found["schema"] == "din.result/1"
    assert found["outputs"][0] == {
        "name": "y", "dtype": "FP32", "shape": [2, 3], "nbytes": 24,
        "minimum": -3.5, "maximum": 1e6, "nonfinite": 2,
    }  # fmt: skip
    assert found["outputs"][3]["nonfinite"] is None
    assert found["execution_trace"][0]["node"] == "edge-1"


def test_names_of_a_file_steer_no_terminal(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rude.dinr"
    path.write_bytes(message((("\x1b[2Jy\n", "UINT8", (1,), b"\x01"),)))
    told = run("trace", "show", str(path)).stdout
    assert "\x1b" not in told
    assert len(told.splitlines()) == len(SHOWN.splitlines()) - len(TENSORS) + 1


def test_every_damage_of_a_file_is_an_error_of_one_kind_that_names_it(
    run: Run, tmp_path: Path
) -> None:
    whole = message(TENSORS)
    path = tmp_path / "torn.dinr"
    for length in (0, 3, 8, len(whole) // 3, len(whole) // 2, len(whole) - 64):
        path.write_bytes(whole[:length])
        told = run("trace", "show", str(path))
        assert told.exit_code == 2, length
        assert (told.stdout, "torn.dinr" in told.stderr) == ("", True), length
        assert "hint: " in told.stderr, length


@pytest.mark.parametrize(
    ("word", "shape", "raw"), [("FP32", (3,), bytes(8)), ("BYTES", (2,), b"\x04\0\0\0face")]
)
def test_tensors_whose_bytes_are_not_those_of_their_shape_are_told(
    run: Run, tmp_path: Path, word: str, shape: tuple[int, ...], raw: bytes
) -> None:
    path = tmp_path / "wrong.dinr"
    path.write_bytes(message((("y", word, shape, raw),)))
    told = run("trace", "show", str(path))
    assert told.exit_code == 2
    assert "wrong.dinr" in told.stderr
    assert "'y'" in told.stderr
