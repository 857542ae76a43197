"""The first run of a session, on made-up input, before its worker is ready."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from din.errors import BadTensor, DeadlineExceeded, ExecutionFailed
from din.wire.worker import Fork
from din.worker import process
from din.worker.load import LoadedSession

ORDER = Fork(worker_id=1, backend="onnxruntime", backend_options={}, inputs=(), outputs=(), artifacts=(), channels=())  # fmt: skip  # noqa: E501


class Session:
    """Its first run lasts until it is stopped, or fails by itself."""

    inputs = outputs = ()

    def __init__(self, *, fails: bool = False) -> None:
        self._stopped = threading.Event()
        self._fails = fails

    def stop(self) -> None:
        self._stopped.set()

    def warm(self) -> bool:
        if self._fails:
            raise BadTensor("no such size")
        assert self._stopped.wait(20)
        raise ExecutionFailed("the run was stopped")


def prepare(monkeypatch: pytest.MonkeyPatch, session: Any) -> None:
    monkeypatch.setattr(process, "WARM_MS_MAX", 30)
    monkeypatch.setattr(process, "load", lambda *_: LoadedSession(session, 1.0, ""))
    process._prepare(ORDER, (), (), -1, -1)


def test_a_first_run_that_does_not_end_is_stopped_and_told_as_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(DeadlineExceeded, match="a first run on made-up input did not end") as error:
        prepare(monkeypatch, Session())
    assert "faster node" in error.value.hint


def test_a_first_run_that_fails_by_itself_is_told_as_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(BadTensor, match="no such size"):
        prepare(monkeypatch, Session(fails=True))
