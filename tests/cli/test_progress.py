"""What a person hears while something takes long."""

import io
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


class Clock:
    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Screen(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(("is_terminal", "level"), [(True, 0), (False, 0), (True, -1)])
def test_a_step_of_over_a_second_has_a_bar_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, level: int
) -> None:
    screen, clock = Screen(is_terminal=is_terminal), Clock()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(progress, "verbosity", lambda: level)
    with progress.Progress("uploading") as shown:
        shown.sent(1, 4)
        assert screen.getvalue() == ""
        clock.now_s += 1.5
        shown.sent(2 * 1024 * 1024, 4 * 1024 * 1024)
        shown.sent(3 * 1024 * 1024, 4 * 1024 * 1024)  # too soon to draw again
        drawn = screen.getvalue()
    if not is_terminal or level < 0:
        assert screen.getvalue() == ""
        return
    assert drawn == f"\r\x1b[Kuploading [{'#' * 12}{' ' * 12}] 2.0 MiB of 4.0 MiB"
    assert screen.getvalue() == drawn + "\r\x1b[K"
