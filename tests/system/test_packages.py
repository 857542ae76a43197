"""Installed packages by the names of their folders."""

import sys
from importlib import metadata
from pathlib import Path

import pytest

from din.system.packages import installed_versions


def test_it_agrees_with_the_library_that_is_too_large_for_an_agent() -> None:
    names = ("numpy", "onnxruntime", "ml-dtypes", "no-such-package")
    known = {name: metadata.version(name) for name in names[:3]}
    assert installed_versions(names) == known


def test_the_first_on_the_path_counts_and_bad_folders_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, version in (("a", "1.0"), ("b", "2.0")):
        (tmp_path / folder / f"My_Package-{version}.dist-info").mkdir(parents=True)
    path = [str(tmp_path / "missing"), str(tmp_path / "a"), str(tmp_path / "b")]
    monkeypatch.setattr(sys, "path", path)
    assert installed_versions(("my-package",)) == {"my-package": "1.0"}
