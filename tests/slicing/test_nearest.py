"""Which names a person may have meant, in graphs with very many and very long ones."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import pytest

from din.slicing import nearest as room
from din.slicing.nearest import COMPARED_CHARACTERS_MAX, COMPARED_MAX, nearest


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was compared letter by letter."""
    seen: list[str] = []

    def watched(wanted: str, names: Sequence[str], n: int, cutoff: float) -> list[str]:
        seen.extend((wanted, *names))
        return get_close_matches(wanted, names, n, cutoff)

    monkeypatch.setattr(room, "get_close_matches", watched)
    return seen


def test_of_many_long_names_few_are_compared_and_the_nearest_is_found(compared: list[str]) -> None:
    names = [
        f"/model/decoder/layers.{layer}/self_attention/projection_{part}/MatMul_output_{layer}"
        for layer in range(5_000)
        for part in ("query", "key", "value", "out")
    ]
    meant = "/model/decoder/layers.3127/self_attention/projection_value/MatMul_output_3127"
    told = nearest(meant.replace("tt", "t"), names)
    assert told.startswith(repr(meant))
    assert len(compared) == 1 + COMPARED_MAX


def test_names_of_any_length_are_compared_by_their_ends(compared: list[str]) -> None:
    long = "a" * 100_000
    told = nearest(f"{long}/Conv_2", [f"{long}/Relu_1", f"{long}/Conv_1", "b"])
    assert told.startswith("'aaaa")
    assert max(map(len, compared)) == COMPARED_CHARACTERS_MAX
    assert nearest("", ["x", "y"]) == "'x', 'y'"


def test_few_names_are_told_as_letter_by_letter() -> None:
    names = ["model.0", "model.10", "model.13", "head", "stem"]
    for wanted in ("model.133", "haed", "steem", "odel", "x"):
        found = get_close_matches(wanted, names, n=5, cutoff=0.5)
        assert nearest(wanted, names) == ", ".join(map(repr, found or names))
