"""Marks of progress, batched: a slice that answers soon enough is never mentioned."""

from __future__ import annotations

from typing import Literal

from din.execution.events import Tell
from din.execution.limits import MARK_DELAY_MS, MARKS_PER_MESSAGE_MAX
from din.execution.task import Task
from din.wire.messages import Accepted, Progress

Step = Literal["accepted", "forwarded"]


class Marks:
    """Marks that wait to be sent."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Task, Step]] = {}
        """By number of the task; most are withdrawn, so what is said of them is made late."""
        self.due_ms: float | None = None
        """When `take` has something to say; None = nothing waits."""

    def put(self, task: Task, step: Step, now_ms: float) -> None:
        """Mention a step soon; a later step of the same task replaces it."""
        self._waiting[task.number] = (task, step)
        if self.due_ms is None:
            self.due_ms = now_ms + MARK_DELAY_MS

    def withdraw(self, task: Task) -> None:
        """The slice has answered, or nobody wants to know any more."""
        if self._waiting:
            self._waiting.pop(task.number, None)
            if not self._waiting:
                self.due_ms = None

    def take(self, now_ms: float) -> list[Tell]:
        """What is due, one message for each gateway and as many as the limit asks."""
        if self.due_ms is None or now_ms < self.due_ms:
            return []
        by_origin: dict[str, list[Progress]] = {}
        for task, step in self._waiting.values():
            progress = Progress(task.request_id, task.attempt, task.loaded.slice.index, step)
            by_origin.setdefault(task.origin, []).append(progress)
        self._waiting.clear()
        self.due_ms = None
        return [
            Tell(origin, Accepted(tuple(marks[start : start + MARKS_PER_MESSAGE_MAX])))
            for origin, marks in by_origin.items()
            for start in range(0, len(marks), MARKS_PER_MESSAGE_MAX)
        ]
