"""The ratchet: lengths, docstrings, names, errors. It only tightens."""

import ast
import statistics
from pathlib import Path

import pytest

from din.errors import DinError, every_error

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "din"
MODULE_LINES_MAX = 400
MODULE_LINES_MEDIAN_MAX = 200
FUNCTION_LINES_MAX = 50
FUNCTION_LINES_MEDIAN_MAX = 9
BANNED_NAMES = {"utils", "helpers", "common", "manager", "base", "misc", "util", "helper"}

MODULES = sorted(SOURCE.rglob("*.py"))
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def functions() -> list[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef, int]]:
    found = []
    for module in MODULES:
        found.extend(
            (module, node, node.end_lineno - node.lineno + 1)
            for node in ast.walk(ast.parse(module.read_text()))
            if isinstance(node, FUNCTION) and node.end_lineno is not None
        )
    return found


def test_no_module_outgrows_reading() -> None:
    lengths = {str(m.relative_to(ROOT)): len(m.read_text().splitlines()) for m in MODULES}
    assert {name: n for name, n in lengths.items() if n > MODULE_LINES_MAX} == {}
    assert statistics.median(n for n in lengths.values() if n > 3) <= MODULE_LINES_MEDIAN_MAX


def test_no_function_outgrows_a_screen() -> None:
    found = functions()
    long = [f"{m.relative_to(ROOT)}:{f.name} {n}" for m, f, n in found if n > FUNCTION_LINES_MAX]
    assert long == []
    assert statistics.median(n for _, _, n in found) <= FUNCTION_LINES_MEDIAN_MAX


def test_every_parameter_and_answer_is_typed() -> None:
    bare = []
    for module, function, _ in functions():
        arguments = function.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        untyped = [a.arg for a in named if a.annotation is None and a.arg not in ("self", "cls")]
        if untyped or function.returns is None:
            bare.append(f"{module.relative_to(ROOT)}:{function.name} {untyped}")
    assert bare == []


def test_files_are_named_for_what_they_define() -> None:
    assert [
        str(m) for m in MODULES if m.stem in BANNED_NAMES or m.parent.name in BANNED_NAMES
    ] == []


@pytest.mark.parametrize("error", every_error(), ids=lambda each: each.__name__)
def test_every_error_has_its_own_place_in_the_tree(error: type[DinError]) -> None:
    made = error("what happened", hint="what to do")
    assert made.code.startswith("DIN-")
    assert 400 <= made.http_status <= 599
    assert 1 <= made.exit_code <= 8
    assert made.story() == "what happened\nhint: what to do"
    assert error.__doc__ is not None
    assert error.__name__ in (DinError.__module__ and __import__("din.errors").errors.__doc__)


def test_error_codes_are_unique() -> None:
    codes = [each.code for each in every_error()]
    assert len(codes) == len(set(codes))


def test_no_committed_file_holds_a_model_or_a_path_of_a_machine() -> None:
    suspicious = []
    for path in ROOT.rglob("*"):
        parts = set(path.relative_to(ROOT).parts)
        if parts & {".git", ".venv", ".cache", "demo-output", "__pycache__", ".hypothesis"}:
            continue
        if path.suffix in {".onnx", ".gguf", ".pt"}:
            suspicious.append(str(path))
    assert suspicious == []


def test_no_program_of_ours_imports_what_lies_where_somebody_stands() -> None:
    """`python -m` puts the current folder first, where a file may be called like one of ours."""
    bare = []
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text())):
            if not isinstance(node, (ast.List, ast.Tuple, ast.Call)):
                continue
            words = node.args if isinstance(node, ast.Call) else node.elts
            values = [word.value if isinstance(word, ast.Constant) else None for word in words]
            if "-m" in values and values[values.index("-m") - 1] != "-P":
                bare.append(f"{module.relative_to(ROOT)}:{node.lineno}")
    assert bare == []
