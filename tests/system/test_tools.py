"""Programs by name, as the shell finds them."""

import shutil
from pathlib import Path

import pytest

from din.system.tools import find_tool


def test_programs_are_found_as_the_standard_library_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tool").write_text("")
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("PATH", f"/nowhere:{tmp_path}:/bin")
    for name in ("sh", "tool", "folder", "no-such-program"):
        assert find_tool(name) == shutil.which(name)
    (tmp_path / "tool").chmod(0o755)
    assert find_tool("tool") == str(tmp_path / "tool")
