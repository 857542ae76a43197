"""ncnn through the same protocol as every engine, held to what numpy computes."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from din.backends import ncnn_backend
from din.errors import BadModel, BadTensor

CONVOLUTION = b"""7767517
3 3
Input            data   0 1 x 0=5 1=4 2=2
Convolution      conv   1 1 x h 0=3 1=1 5=1 6=6
Sigmoid          act    1 1 h y
"""


def convolution() -> tuple[bytes, np.ndarray, np.ndarray]:
    """A .bin for CONVOLUTION, which mixes 2 channels into 3; weights and bias."""
    chance = np.random.default_rng(3)
    weight = chance.standard_normal((3, 2)).astype(np.float32)
    bias = chance.standard_normal(3).astype(np.float32)
    return struct.pack("<I", 0) + weight.tobytes() + bias.tobytes(), weight, bias


def test_a_convolution_gives_what_numpy_gives() -> None:
    data, weight, bias = convolution()
    session = ncnn_backend.load(CONVOLUTION, {"threads": "2"}, {"net.bin": memoryview(data)})
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((2, 4, 5)).astype(np.float32)
        mixed = np.einsum("oc,chw->ohw", weight, x) + bias[:, None, None]
        found = session.run({"x": x}, ("y",), {})["y"]
        assert found.shape == (3, 4, 5)
        assert np.allclose(found, 1 / (1 + np.exp(-mixed)), atol=1e-6)


def test_bad_inputs_are_refused_before_the_library_reads_beside_them() -> None:
    data, _, _ = convolution()
    session = ncnn_backend.load(CONVOLUTION, {}, {"net.bin": memoryview(data)})
    for given, said in (
        ({}, "'x' is missing"),
        ({"x": np.ones((1, 4, 5), np.float32)}, "has shape"),
        ({"x": np.ones((2, 4, 5), np.float64)}, "is float64"),
    ):
        with pytest.raises(BadTensor, match=said):
            session.run(given, (), {})
    assert session.warm()


def test_files_that_do_not_belong_together_are_refused() -> None:
    data, _, _ = convolution()
    for param, weights, said in (
        (CONVOLUTION, data[:-20], "does not hold the weights"),
        (CONVOLUTION.replace(b"Sigmoid", b"Unheard"), data, "not known to it"),
    ):
        with pytest.raises(BadModel, match=said):
            ncnn_backend.load(param, {}, {"net.bin": memoryview(weights)})


def test_it_describes_itself_after_a_right_answer_and_starts_no_thread() -> None:
    before = len(list(Path("/proc/self/task").iterdir()))
    assert ncnn_backend.describe().is_usable
    assert len(list(Path("/proc/self/task").iterdir())) <= before
