"""Engines are asked in processes of their own: whatever these do, the asker lives and says why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from din.backends import asking, registry
from din.backends.asking import FILE_NAME, ask_engine, ask_engines, missing, offered
from din.backends.registry import BackendEntry
from din.domain.engine import EngineFacts

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def acting(program: str) -> tuple[str, ...]:
    """Stands in for a child in which an engine does this."""
    return (sys.executable, "-c", f"import os, signal, sys, time\n{program}")


async def test_the_installed_engine_tells_its_version_and_its_devices() -> None:
    facts = await ask_engine("onnxruntime")
    assert facts.is_usable, facts
    assert facts.version.startswith("1.")
    assert "CPU" in facts.devices


async def test_an_illegal_instruction_is_told_in_words_and_kills_nobody_else() -> None:
    facts = await ask_engine(
        "onnxruntime", "1.32.0", command=acting("os.kill(os.getpid(), signal.SIGILL)")
    )
    assert not facts.is_usable
    assert "illegal instruction" in facts.trouble
    assert facts.version == "1.32.0"
    assert "processor" in facts.hint


async def test_an_engine_that_hangs_is_stopped_in_time() -> None:
    facts = await ask_engine("onnxruntime", patience_s=0.3, command=acting("time.sleep(600)"))
    assert "did not answer within 0.3 s" in facts.trouble


async def test_a_grandchild_that_keeps_the_pipe_does_not_keep_the_asker() -> None:
    program = "if os.fork() == 0:\n    time.sleep(20)\nos._exit(0)"
    facts = await ask_engine("onnxruntime", patience_s=1.0, command=acting(program))
    assert not facts.is_usable


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("raise SystemExit('no driver')", "no driver"),
        ("print('{')", "cannot be read"),
        ("pass", "cannot be read"),
        ("print('x' * 1_000_000)", "cannot be read"),
    ],
)
async def test_what_ends_the_child_is_the_trouble(program: str, words: str) -> None:
    facts = await ask_engine("onnxruntime", command=acting(program))
    assert words in facts.trouble


async def test_lines_that_a_library_prints_before_do_not_matter() -> None:
    program = """print('loading kernels ...'); print('{"backend":"onnxruntime","version":"9"}')"""
    assert (await ask_engine("onnxruntime", command=acting(program))).version == "9"


async def test_a_usable_engine_is_asked_once_and_a_broken_one_at_each_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    troubles = {"broken": "it is broken", "good": ""}

    async def answer(name: str, version: str = "") -> EngineFacts:
        asked.append(name)
        return EngineFacts(backend=name, version=version, trouble=troubles[name])

    monkeypatch.setattr(asking, "ask_engine", answer)
    monkeypatch.setattr(asking, "detect_backends", lambda: {"good": "1", "broken": "2"})
    first = await ask_engines(folder=tmp_path, machine="board")
    assert asked == ["good", "broken"]
    assert await ask_engines(folder=tmp_path, machine="board") == first
    assert asked == ["good", "broken", "broken"]
    await ask_engines(folder=tmp_path, machine="another board")
    assert asked[3:] == ["good", "broken"]
    monkeypatch.setattr(asking, "detect_backends", lambda: {"good": "1.1"})
    await ask_engines(folder=tmp_path, machine="another board")
    assert asked[5:] == ["good"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"facts": {"good": 3}}', b"\xff" * 100])
async def test_what_is_kept_may_be_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    async def answer(name: str, version: str = "") -> EngineFacts:
        return EngineFacts(backend=name, version=version)

    monkeypatch.setattr(asking, "ask_engine", answer)
    monkeypatch.setattr(asking, "detect_backends", lambda: {"good": "1"})
    (tmp_path / FILE_NAME).write_bytes(content)
    assert (await ask_engines(folder=tmp_path))["good"].version == "1"


def test_a_missing_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = BackendEntry(module="x", packages=("ghost-engine",), imports="ghost")
    monkeypatch.setitem(registry.BACKENDS, "ghost", entry)
    facts = missing("ghost")
    assert facts.trouble == "ghost-engine is not installed"
    assert offered({"ghost": facts}) == ()
