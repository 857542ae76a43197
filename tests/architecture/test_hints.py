"""Whoever meets an error is told what to do about it."""

import ast
import inspect
from pathlib import Path

import din
from din.errors import Internal, every_error

ROOT = Path(inspect.getfile(din)).parent
NAMES = {each.__name__ for each in every_error() if each is not Internal}
ROOMS = ("api", "cli")
"""Where errors are made of what people sent."""


def without_hint(source: str) -> list[str]:
    """Line and name of each error that is made without a hint."""
    found = []
    for node in ast.walk(ast.parse(source)):
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if not is_call or node.func.id not in NAMES or len(node.args) != 1:
            continue
        if not any(each.arg in ("hint", None) for each in node.keywords):
            found.append(f"{node.lineno} {node.func.id}")
    return found


def test_errors_for_people_carry_a_hint() -> None:
    paths = [path for room in ROOMS for path in (ROOT / room).glob("*.py")]
    found = {path.name: without_hint(path.read_text()) for path in paths}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_what_is_searched_for_is_found() -> None:
    assert without_hint('raise UsageError("x")') == ["1 UsageError"]
    assert without_hint('raise UsageError("x", hint="do y")') == []
