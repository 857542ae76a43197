"""Which cores other processes may use: set from outside, on every thread they have now.

A worker cannot undo it, since its system calls are filtered, and its engine needs no new session.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import psutil

DESCENDANTS_MAX: Final = 1024
THREADS_MAX: Final = 4096


def own_cores() -> tuple[int, ...]:
    """Cores that this process may use, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def descendants(pid: int) -> list[int]:
    """Processes below one, not itself; empty when it is gone."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []
    return [each.pid for each in found[:DESCENDANTS_MAX]]


def confine(pids: Iterable[int], cores: Collection[int]) -> int:
    """Let every thread of these processes run on these cores only; how many threads were moved.
    What ended meanwhile, or belongs to somebody else, is passed over."""
    moved = 0
    for pid in pids:
        for thread in _threads(pid):
            if moved >= THREADS_MAX:
                return moved
            try:
                os.sched_setaffinity(thread, cores)
            except (ProcessLookupError, PermissionError):
                continue
            moved += 1
    return moved


def _threads(pid: int) -> list[int]:
    try:
        return sorted(int(each.name) for each in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
