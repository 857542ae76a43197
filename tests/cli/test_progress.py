"""What a person hears while something takes long."""

import sys
import threading

import pytest

from din.cli import progress


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_person_who_waits_is_told_and_a_pipe_is_not(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    said: list[str] = []
    has_said = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        has_said.set()

    monkeypatch.setattr(progress, "say", say)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    with progress.told_when_slow("no answer yet", after_s=0):
        if is_terminal:
            assert has_said.wait(20)
    assert said == (["no answer yet"] if is_terminal else [])


def test_who_is_answered_at_once_hears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(progress, "say", said.append)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    before = threading.active_count()
    with progress.told_when_slow("no answer yet", after_s=3600):
        pass
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(20)
    assert threading.active_count() == before
    assert said == []
