"""Log lines of the agent."""

from __future__ import annotations

import io
import json

import pytest

from din.agent.log import Log
from din.system.log import TEXT_CHARACTERS_MAX, is_read_by_a_person


def test_a_line_is_json_with_time_level_event_and_facts() -> None:
    stream = io.StringIO()
    Log(stream, lambda: "now").report("slice_loaded", slice="a/1", memory_mib=3, path=object)
    line = json.loads(stream.getvalue())
    assert list(line)[:3] == ["time", "level", "event"]
    assert (line["level"], line["memory_mib"]) == ("info", 3)


def test_a_person_at_a_terminal_reads_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, is_person in ((Terminal(), True), (io.StringIO(), False), (None, False)):
        monkeypatch.setattr("sys.stderr", stream)
        assert is_read_by_a_person() == is_person
    stream = io.StringIO()
    Log(stream, lambda: "now", is_plain=True).report("joined", gateway="http://10.0.0.5:8000")
    assert stream.getvalue() == 'now  info     joined  gateway="http://10.0.0.5:8000"\n'


@pytest.mark.parametrize("is_plain", [True, False])
def test_what_others_wrote_steers_no_terminal(is_plain: bool) -> None:
    stream = io.StringIO()
    Log(stream, lambda: "now", is_plain=is_plain).report("peer", reason="\x9b2J\u202e\n\x7f")
    assert stream.getvalue().removesuffix("\n").isprintable()
    assert r"\u009b2J\u202e\n\u007f" in stream.getvalue()


def test_words_of_trouble_make_a_warning_and_long_texts_are_cut() -> None:
    stream = io.StringIO()
    Log(stream, lambda: "now").report("heartbeat_failed", reason="x" * 9999)
    line = json.loads(stream.getvalue())
    assert line["level"] == "warning"
    assert len(line["reason"]) == TEXT_CHARACTERS_MAX


def test_a_stream_that_is_gone_kills_nobody() -> None:
    stream = io.StringIO()
    stream.close()
    Log(stream, lambda: "now").report("started")
