"""The gateway's log: a stream that is gone costs lines and nothing else."""

from __future__ import annotations

import os
import sys

import pytest

from din.bootstrap.log import Log


def test_a_broken_pipe_ends_no_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", stream)
    log = Log("gateway")
    log("ready", url="http://127.0.0.1:8000")
    log("node lost", error="link closed")
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_a_program_without_standard_error_logs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    Log("gateway")("ready")
