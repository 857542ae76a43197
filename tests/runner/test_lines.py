"""A server's log comes whole, and never all at once."""

from __future__ import annotations

import os

from din.runner.lines import BURST, WAITING_MAX, Lines
from din.wire.runner import LINE_CHARACTERS_MAX


def read(data: bytes, lines: Lines | None = None) -> Lines:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    lines = lines or Lines()
    try:
        for start in range(0, len(data), 30_000):
            os.write(writing, data[start : start + 30_000])
            lines.read(reading)
        os.close(writing)
        assert not lines.read(reading)
    finally:
        os.close(reading)
    return lines


def test_lines_are_cut_to_their_limit_and_made_printable() -> None:
    said = read(b"\x1b[31mred\n\n" + b"x" * 50_000 + b"\nlast").due(0)
    assert said is not None
    red, long, last = said.lines
    assert (red, last) == ("[31mred", "last")
    assert len(long) == LINE_CHARACTERS_MAX


def test_a_flood_is_dropped_from_its_front_and_counted() -> None:
    lines = read(b"".join(b"line %d\n" % number for number in range(WAITING_MAX + 5)))
    first = lines.due(0)
    assert first is not None
    assert (first.dropped, first.lines[0]) == (5, "line 5")
    assert lines.last().endswith(f"line {WAITING_MAX + 4}")


def test_so_many_lines_go_in_a_second_and_no_more() -> None:
    lines = read(b"x\n" * WAITING_MAX)
    sent = 0
    while said := lines.due(100):
        sent += len(said.lines)
    assert sent == BURST
    read(b"x\n" * WAITING_MAX, lines)
    assert lines.due(100) is None
    assert lines.due(101) is not None
