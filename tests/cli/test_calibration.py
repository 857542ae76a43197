"""Samples for calibrating, from files to what is uploaded with a registration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from din.cli import calibration
from din.cli.calibration import read_calibration
from din.domain.calibration import GIVEN_MAX, decode_calibration
from din.errors import UsageError


def tensors(path: Path):
    return {each.name: each for each in decode_calibration(read_calibration(path)).tensors}


def test_a_folder_holds_one_sample_in_each_file_in_the_order_of_their_names(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        sample = np.full((1, 3), number, np.float32)
        np.savez(tmp_path / f"{number}.npz", x=sample, size=np.int64([number, 7]))
    (tmp_path / "notes.txt").write_text("not a sample")
    found = tensors(tmp_path)
    assert (found["x"].datatype, found["x"].shape) == ("FP32", (3, 1, 3))
    assert np.frombuffer(found["x"].data, np.float32).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert np.frombuffer(found["size"].data, np.int64).tolist() == [0, 7, 1, 7, 2, 7]


def test_arrays_by_themselves_are_for_the_only_input(tmp_path: Path) -> None:
    for number in range(2):
        np.save(tmp_path / f"{number}.npy", np.full((2,), number, np.uint8))
    assert tensors(tmp_path)[""].shape == (2, 2)
    assert tensors(tmp_path / "1.npy")[""].shape == (2,)


def test_one_file_holds_all_samples_as_they_are(tmp_path: Path) -> None:
    samples = np.arange(24, dtype=np.float16).reshape(4, 1, 6).transpose(0, 2, 1)
    np.savez(tmp_path / "all.npz", x=samples)
    (found,) = tensors(tmp_path / "all.npz").values()
    assert (found.datatype, found.shape) == ("FP16", (4, 6, 1))
    assert found.data == samples.tobytes()


def test_what_is_no_sample_is_refused_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="holds 0 samples"):
        read_calibration(tmp_path)
    (tmp_path / "photo.jpg").write_bytes(b"photo")
    with pytest.raises(UsageError, match=r"photo.jpg' are no file of numpy"):
        read_calibration(tmp_path / "photo.jpg")
    with pytest.raises(UsageError, match=r"none.npz' cannot be read"):
        read_calibration(tmp_path / "none.npz")
    np.savez(tmp_path / "empty.npz")
    with pytest.raises(UsageError, match=r"empty.npz holds no array"):
        read_calibration(tmp_path / "empty.npz")
    (tmp_path / "empty.npz").unlink()
    np.savez(tmp_path / "a.npz", x=np.zeros((1, 3), np.float32))
    np.savez(tmp_path / "b.npz", x=np.zeros((1, 4), np.float32))
    with pytest.raises(UsageError, match=r"b.npz holds x float32 \[1, 4\], and a.npz x float32"):
        read_calibration(tmp_path)
    monkeypatch.setattr(calibration, "FILE_BYTES_MAX", 11)
    with pytest.raises(UsageError, match="have 12 bytes, over 11"):
        read_calibration(tmp_path / "a.npz")


def test_more_samples_than_are_looked_at_are_refused(tmp_path: Path) -> None:
    for number in range(GIVEN_MAX + 1):
        np.save(tmp_path / f"{number:02}.npy", np.zeros(1, np.uint8))
    with pytest.raises(UsageError, match=f"holds {GIVEN_MAX + 1} samples"):
        read_calibration(tmp_path)
    (tmp_path / "00.npy").unlink()
    assert tensors(tmp_path)[""].shape == (GIVEN_MAX, 1)
