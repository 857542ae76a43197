"""Programs that the agent starts."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from din.agent.child import end_child, start_child
from din.errors import Unavailable


def test_a_program_that_cannot_be_started_is_named_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    before = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(Unavailable, match=r"din\.worker cannot be started: No such file") as told:
        start_child("din.worker")
    assert told.value.hint
    assert sorted(Path("/proc/self/fd").iterdir()) == before


TELLER = """
import argparse, json, os, socket
parser = argparse.ArgumentParser()
parser.add_argument("--control-fd", type=int)
parser.add_argument("--parent-pid")
with socket.socket(fileno=parser.parse_args().control_fd) as control:
    control.send(json.dumps(sorted(os.environ)).encode())
"""


def test_a_program_is_not_told_the_secrets_in_our_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "din_teller.py").write_text(TELLER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("DATABASE_PASSWORD", "hush")
    process, control = start_child("din_teller")
    with control:
        control.settimeout(30)
        told = json.loads(control.recv(65_536))
    asyncio.run(end_child(process, 30))
    assert "DATABASE_PASSWORD" not in told
    assert "PYTHONPATH" in told
