"""Who decodes what somebody else wrote is ready for everything that decoding raises."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

from din.domain.malformed import MALFORMED

SOURCE = Path(__file__).parents[2] / "src" / "din"
ENDS = {"MsgspecError", "DecodeError", "MALFORMED"}
DEPTH = {"RecursionError", "MALFORMED"}


def names_in(handlers: list[ast.ExceptHandler]) -> set[str]:
    found = (each for handler in handlers if handler.type for each in ast.walk(handler.type))
    return {getattr(each, "attr", None) or getattr(each, "id", "") for each in found}


def decodes(block: list[ast.stmt]) -> bool:
    calls = (each for line in block for each in ast.walk(line) if isinstance(each, ast.Call))
    return any(getattr(call.func, "attr", "") == "decode" for call in calls)


def test_whoever_expects_malformed_bytes_expects_deep_ones_too() -> None:
    """msgspec goes down into fields that it passes over, and raises RecursionError there."""
    short = [
        f"{path.relative_to(SOURCE)}:{each.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.Try) and decodes(each.body)
        if (names := names_in(each.handlers)) & ENDS and not names & DEPTH
    ]
    assert short == [], "catch din.domain.malformed.MALFORMED there"


@pytest.mark.parametrize("data", [b'{"later": ' + b"[" * 5000, b'{"a": "\xff"}', b"", b"\xff"])
def test_what_is_malformed_is_one_of_three(data: bytes) -> None:
    with pytest.raises(MALFORMED):
        msgspec.json.decode(data, type=dict[str, str])
    with pytest.raises(MALFORMED):
        msgspec.msgpack.decode(b"\x92\xa1x" + b"\x91" * 5000 + data)
