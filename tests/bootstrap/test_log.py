"""The gateway's log: a stream that is gone costs lines and nothing else."""

from __future__ import annotations

import io
import json
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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_plain_text_that_cannot_steer_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    Log("gateway")("node lost", node="edge\x1b[2J", error="link\nclosed")
    line = stream.getvalue()
    assert "warning" in line
    assert "node lost" in line
    assert line.endswith('node="edge\\u001b[2J"  error="link\\nclosed"\n')
    assert "\x1b" not in line


def test_a_file_gets_one_json_object_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    Log("gateway")("ready", port=8000)
    line = json.loads(stream.getvalue())
    assert list(line) == ["time", "level", "event", "program", "port"]
    assert (line["level"], line["port"]) == ("info", 8000)
