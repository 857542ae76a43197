"""Files beside a model: found by what the model names, and never outside of its folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from din.client.beside import opened_beside
from din.errors import NotFound, UsageError


def model_naming(folder: Path, *locations: str) -> Path:
    tensors = []
    for location in locations:
        tensor = TensorProto(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=location)
        tensors.append(tensor)
    path = folder / "model.onnx"
    graph = helper.make_graph([], "g", [], [], tensors)
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


def found(path: Path) -> dict[str, bytes]:
    with path.open("rb") as model:
        return {location: file.read() for location, file in opened_beside(model)}


def test_each_file_is_opened_once_by_the_location_that_the_model_gives(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "w.bin").write_bytes(b"deep")
    (tmp_path / "v.bin").write_bytes(b"flat")
    path = model_naming(tmp_path, "deep/w.bin", "./v.bin", "deep/w.bin")
    assert found(path) == {"./v.bin": b"flat", "deep/w.bin": b"deep"}


@pytest.mark.parametrize("content", [b"", b"no model at all", bytes(100)])
def test_what_is_no_model_names_no_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert found(path) == {}


def test_a_missing_file_is_named_with_its_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=f"'w.bin', which is not in {tmp_path}"):
        found(model_naming(tmp_path, "w.bin"))


def test_the_folder_is_named_whole_when_a_model_is_given_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_naming(tmp_path, "w.bin")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound, match=f"'w.bin', which is not in {tmp_path}"):
        found(Path(path.name))


@pytest.mark.parametrize(
    "location", ["../secret", "a/../../secret", "/etc/passwd", "a\0b", "..", ".", "/", "//secret"]
)
def test_a_location_outside_of_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "inside" / "a").mkdir(parents=True)
    with pytest.raises(UsageError, match="does not lie in the model's folder"):
        found(model_naming(tmp_path / "inside", location))


def test_links_and_what_is_no_ordinary_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "symbolic").symlink_to(tmp_path / "secret")
    (inside / "folder").symlink_to(tmp_path)
    (inside / "hard").hardlink_to(tmp_path / "secret")
    (inside / "directory").mkdir()
    os.mkfifo(inside / "pipe")
    for location, says in (
        ("symbolic", "without following a link"),
        ("folder/secret", "without following a link"),
        ("hard", "has 2 names on this disk"),
        ("directory", "is no ordinary file"),
        ("pipe", "is no ordinary file"),
    ):
        with pytest.raises(UsageError, match=says) as failed:
            found(model_naming(inside, location))
        assert repr(location) in failed.value.message
        assert "is not sent" in failed.value.hint
