"""Programs that the agent starts."""

import sys
from pathlib import Path

import pytest

from din.agent.child import start_child
from din.errors import Unavailable


def test_a_program_that_cannot_be_started_is_named_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    before = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(Unavailable, match=r"din\.worker cannot be started: No such file") as told:
        start_child("din.worker")
    assert told.value.hint
    assert sorted(Path("/proc/self/fd").iterdir()) == before
