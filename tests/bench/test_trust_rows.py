"""The rows of trust that need a gateway's process, with tiny efforts."""

from __future__ import annotations

import pytest

from din.bench import datagrams as datagrams_module
from din.bench import joining as joining_module
from din.bench import sealing as sealing_module
from din.bench.row import Effort
from din.bench.run import groups, is_complete, run

pytestmark = pytest.mark.system
TINY = Effort(rounds=1, window_s=0.1, repeats=5)


def test_joins_and_datagrams_are_measured_against_their_goals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joining_module, "JOINS", 1)
    monkeypatch.setattr(datagrams_module, "NODES", 2)
    monkeypatch.setattr(datagrams_module, "BURSTS", 5)
    rows = run(["join", "datagrams"], lambda row: None, TINY)
    assert is_complete(rows), rows
    assert [(row.name, row.unit, row.goal) for row in rows] == [
        ("node join", "ms", "<= 25"),
        ("node join, with its process", "ms", None),
        ("datagrams taken by a core", "per s", ">= 100000"),
    ]
    assert all(row.value is not None and row.value > 0 for row in rows)
    assert {"join", "datagrams"} <= set(groups()["trust"])


def test_opening_is_measured_against_loading_with_its_floor_and_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sealing_module, "MODELS", ())
    monkeypatch.setattr(sealing_module, "LAYERS", 1)
    monkeypatch.setattr(sealing_module, "BULK_BYTES", sealing_module.MIB)
    rows = run(["sealing"], lambda row: None, TINY)
    assert is_complete(rows), rows
    assert (rows[0].name, rows[0].unit, rows[0].goal) == (
        "decrypt + load / load, convolutions",
        "x load",
        "<= 1.1",
    )
    for words in ("9.0 MiB", "reading and decrypting alone", "peak memory of loading"):
        assert words in rows[0].how
    assert all(row.value is not None and row.value > 0 for row in rows)
