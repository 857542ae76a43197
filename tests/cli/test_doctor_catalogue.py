"""Every row of `din doctor` can be good and can be bad, and its JSON keeps its form."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from din.cli import doctor_machine, doctor_versions
from din.cli.doctor_machine import check_backends, check_memory, check_temperature
from din.cli.doctor_versions import check_python
from din.domain.audit import AuditCheck
from din.domain.keys import KeyList
from tests.cli.conftest import Run
from tests.client.fake_gateway import FakeGateway, Reply
from tests.client.fake_gateway import document as document_of

FOLDER = Path(doctor_machine.__file__).parent
WHOLE = AuditCheck(is_whole=True, first_seq=1, last_seq=3, head_sha256="ab" * 32)
STATES = {"ok", "warn", "fail"}
ALWAYS_GOOD = {
    "accelerators": "most machines have none",
    "engines of makers": "most machines have none",
    "tls": "whether it should be on is the row `listening`",
    "require_key": "either is a choice",
    "services": "each unit that is there has a row of its own",
}


def rows_in_the_code() -> dict[str, set[str]]:
    """By literal name; a state that is worked out counts as bad ones."""
    found: dict[str, set[str]] = {}
    for path in FOLDER.glob("doctor*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id == "Check" and isinstance(node.args[0], ast.Constant):
                states = found.setdefault(str(node.args[0].value), set())
                state = node.args[1]
                words = {str(state.value)} if isinstance(state, ast.Constant) else {"warn", "fail"}
                states |= words
    return found


def test_every_row_can_be_good_and_can_be_bad() -> None:
    found = rows_in_the_code()
    assert len(found) > 20
    assert {name for name, states in found.items() if "ok" not in states} == set()
    assert {name for name, states in found.items() if states == {"ok"}} == set(ALWAYS_GOOD)


def test_its_json_keeps_its_form(run: Run, fake: FakeGateway) -> None:
    fake.routes["GET", "/v2/health/live"] = lambda _: Reply(200, b"{}")
    fake.routes["GET", "/api/v1/keys"] = document_of(KeyList(items=()))
    fake.routes["GET", "/api/v1/audit/check"] = document_of(WHOLE)
    document = json.loads(run("doctor", "-o", "json").stdout)
    assert document.keys() == {"schema", "items"}
    assert document["schema"] == "din.doctor/1"
    names = [each["name"] for each in document["items"]]
    assert sorted(set(names)) == sorted(names)
    for each in document["items"]:
        assert each.keys() == {"name", "state", "seen", "fix"}
        assert each["state"] in STATES
        assert all(isinstance(text, str) for text in each.values())


def test_an_old_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_python().state == "ok"
    monkeypatch.setattr(doctor_versions.sys, "version_info", (3, 10, 1))
    found = check_python()
    assert (found.state, "3.11 is needed" in found.seen, bool(found.fix)) == ("fail", True, True)


@pytest.mark.parametrize(("available_mib", "state"), [(255, "warn"), (256, "ok"), (9000, "ok")])
def test_little_memory_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, available_mib: int, state: str
) -> None:
    class Memory:
        available = available_mib * 1024 * 1024
        total = 16_000 * 1024 * 1024

    monkeypatch.setattr("psutil.virtual_memory", Memory)
    found = check_memory()
    assert (found.state, bool(found.fix)) == (state, state != "ok")
    assert f"{available_mib} MiB of 16000 MiB" in found.seen


class Engine:
    """What was heard of one."""

    def __init__(self, backend: str, *, is_usable: bool) -> None:
        self.backend = backend
        self.is_usable = is_usable

    def __str__(self) -> str:
        return self.backend


@pytest.mark.parametrize(
    ("engines", "state"),
    [
        ({"onnxruntime": True}, "ok"),
        ({"onnxruntime": True, "openvino": False}, "warn"),
        ({"onnxruntime": False}, "fail"),
        ({}, "fail"),
    ],
)
def test_engines_that_cannot_be_used_are_named(
    monkeypatch: pytest.MonkeyPatch, engines: dict[str, bool], state: str
) -> None:
    async def heard() -> dict[str, Any]:
        return {name: Engine(name, is_usable=each) for name, each in engines.items()}

    monkeypatch.setattr("din.backends.asking.ask_engines", heard)
    found = check_backends()
    assert (found.state, bool(found.fix)) == (state, state != "ok")
    broken = [name for name, is_usable in engines.items() if not is_usable]
    assert not broken or broken[0] in found.fix


def test_a_sensor_that_can_be_read_is_shown_and_one_that_cannot_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    zones = [tmp_path / "broken", tmp_path / "good"]
    zones[0].write_text("hot\n")
    monkeypatch.setattr(doctor_machine, "temperature_sensors", lambda: zones)
    assert check_temperature().state == "warn"
    zones[1].write_text("41500\n")
    found = check_temperature()
    assert (found.state, found.seen) == ("ok", f"{zones[1]} 42 C")
