"""Which lines of a log are written, and in which form, as the operator wants them."""

import io
import json
import os
from collections.abc import Iterator

import pytest

from din.system.log import LogLines, choose_log


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    choose_log("info", "auto")


def written(*, is_plain: bool = False) -> str:
    stream = io.StringIO()
    log = LogLines(stream, lambda: "2026-06-01T00:00:00Z", is_plain=is_plain)
    log.write("info", "joined", {"name": "edge-1"})
    log.write("error", "died", {})
    return stream.getvalue()


def test_lines_below_the_level_are_left_out() -> None:
    choose_log("warning", "auto")
    assert [json.loads(each)["event"] for each in written().splitlines()] == ["died"]
    choose_log("info", "auto")
    assert len(written().splitlines()) == 2


def test_a_form_that_was_asked_for_stands_above_what_the_terminal_suggests() -> None:
    choose_log("info", "json")
    assert json.loads(written(is_plain=True).splitlines()[0])["name"] == "edge-1"
    choose_log("info", "text")
    assert written().splitlines()[0] == '2026-06-01T00:00:00Z  info     joined  name="edge-1"'


def test_the_journal_is_told_each_lines_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
    choose_log("info", "auto")
    assert [each[:4] for each in written().splitlines()] == ["<6>{", "<3>{"]
    # Another stream than the one that systemd made is no journal.
    monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino + 1}")
    choose_log("info", "auto")
    assert written().startswith("{")
