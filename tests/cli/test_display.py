"""What others wrote is one cell, one name, one value: never a row or a word to the terminal."""

from __future__ import annotations

import json

import msgspec
import pytest
import yaml

from din.cli.display import Column, show

FORGED = "model\n2026-01-01 00:00:00.000  key 0badcafe\x9b2J\u202e"
COLUMNS = (Column[str]("TIME", lambda _: "now"), Column[str]("TARGET", str))


@pytest.mark.parametrize("output", ["table", "name", "json", "yaml"])
def test_a_value_forges_no_row_and_steers_no_terminal(
    output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = msgspec.json.encode({"target": FORGED})
    show(output, body, [FORGED], COLUMNS, str)
    told = capsys.readouterr().out
    assert all(line.isprintable() for line in told.splitlines())
    lines = {"table": 2, "name": 1, "json": 3}
    assert len(told.splitlines()) == lines.get(output, len(told.splitlines()))
    if output == "json":
        assert json.loads(told) == {"target": FORGED}
    if output == "yaml":
        assert yaml.safe_load(told) == {"target": FORGED}
