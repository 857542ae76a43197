"""The demo as `make demo TLS=on` runs it, without the parts that show no more of TLS."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.road.processes import ENVIRONMENT

pytestmark = pytest.mark.system
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "demo.py"


def test_the_demo_passes_with_mutual_tls_on_every_way(tmp_path: Path, centerface: Path) -> None:
    assert centerface.exists()
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--tls", "on", "--short", "--output", str(tmp_path / "demo")],
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    for fact in (
        "every node has its link to the gateway by TLS",
        "nodes beat by signed datagrams",
        "without a certificate he has no link",
        "tensors go from node to node, not by the gateway",
        "optimisations off, one thread each: bit by bit",
        "0 lost",
    ):
        assert fact in said
    assert "FAILED" not in said


def test_the_demo_removes_no_folder_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--output", str(tmp_path)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "holds something else" in done.stderr
    assert (tmp_path / "letters.txt").read_text() == "dear"
