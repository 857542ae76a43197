"""What others wrote is shown as it is, and cannot act as what we wrote."""

from __future__ import annotations

import json

import pytest

from din.observability.printable import one_line, printable, printable_json

STEERING = "\x1b[2J", "\x9b31m", "\x7f", "\u202e", "\u2028", "\U000e0041"


@pytest.mark.parametrize("text", STEERING)
def test_nothing_steers_a_terminal(text: str) -> None:
    document = json.dumps({text: [text]}, ensure_ascii=False, indent=2)
    for shown in (printable(text), one_line(text), *printable_json(document).split("\n")):
        assert shown.isprintable()


@pytest.mark.parametrize("text", [*STEERING, "größe", "模型", "a\nb\tc", 'say "hi"', "\U0001f600"])
def test_a_document_says_the_same(text: str) -> None:
    document = json.dumps({text: text}, ensure_ascii=False)
    assert json.loads(printable_json(document)) == {text: text}


def test_what_steers_nothing_stays_as_it_is() -> None:
    text = "größe 模型 \U0001f600"
    assert (printable(text), one_line(text), printable_json(text)) == (text, text, text)
    assert printable("a\n\tb") == "a\n\tb"


def test_one_line_stays_one_and_is_cut() -> None:
    assert one_line("a\nb\r\tc") == "a\\x0ab\\x0d\\x09c"
    assert one_line("abcd", 3) == "abc…"
    assert one_line("abc", 3) == "abc"
