"""One slice of one attempt on this node: a task, and the life it leads.

A task is born with the first frame that names it and is bound to one worker at once, because the
frame's tensors are received straight into that worker's memory. It gathers the other inputs, waits
its turn, runs, sends its outputs on, and is gone. Whatever ends it early ends it in the state that
its memory allows: slots may be freed at once unless a worker reads them, so a task that is taken
back while it runs is `stopping` until the worker has answered; outputs may be overwritten once
every copy of them has left, so `sending` cannot be cut short at all.

Each task has exactly one outcome, set once, on the way out of gathering, queued or running, or when
the last of its outputs left.
"""

from __future__ import annotations

from typing import Final, Literal

from din.domain.deployment import Route
from din.domain.request import SliceTiming
from din.errors import Internal
from din.execution.events import Input
from din.execution.limits import REMAINING_MS_MAX, TIMINGS_MAX
from din.execution.loaded import LoadedSlice
from din.wire.messages import Run

TaskState = Literal["gathering", "queued", "running", "stopping", "sending", "gone"]
TaskStep = Literal["gathered", "submitted", "computed", "answered", "stopped", "sent", "ended"]
Outcome = Literal["", "sent", "failed", "busy", "cancelled"]

TRANSITIONS: Final[dict[TaskState, dict[TaskStep, TaskState]]] = {
    "gathering": {"gathered": "queued", "ended": "gone"},
    "queued": {"submitted": "running", "ended": "gone"},
    "running": {"computed": "sending", "stopped": "stopping", "answered": "gone"},
    "stopping": {"answered": "gone"},
    "sending": {"sent": "gone"},
    "gone": {},
}


class Task:
    """State and facts of one slice of one attempt."""

    __slots__ = (
        "arrived_ms", "attempt", "complete_ms", "deadline_ms", "inputs", "loaded", "missing",
        "number", "origin", "outcome", "request_id", "route", "slots", "state", "symbols",
        "timings", "unsent", "way", "worker",
    )  # fmt: skip

    def __init__(
        self, number: int, run: Run, loaded: LoadedSlice, worker: int, now_ms: float
    ) -> None:
        self.number = number
        self.origin = run.origin
        self.request_id = run.request_id
        self.attempt = run.attempt
        self.route: Route = run.route
        self.loaded = loaded
        self.worker = worker
        self.state: TaskState = "gathering"
        self.outcome: Outcome = ""
        self.arrived_ms = now_ms
        self.complete_ms = now_ms
        self.deadline_ms = now_ms + min(run.remaining_ms, REMAINING_MS_MAX)
        self.way = loaded.way(run.route)
        self.missing = set(self.way.awaited)
        self.inputs: list[Input] = []
        self.slots: list[int] = []
        self.symbols: dict[str, int] = {}
        self.timings: dict[int, SliceTiming] = {}
        self.unsent = 0
        """Deliveries that have not been answered."""

    def step(self, step: TaskStep) -> None:
        """Go where the table says. Raises Internal, which is a mistake of this program."""
        state = TRANSITIONS[self.state].get(step)
        if state is None:
            raise Internal(f"{self.story()}: a task that is {self.state} cannot be {step}")
        self.state = state

    def settle(self, outcome: Outcome) -> bool:
        """Set the outcome; False when there is one already."""
        if self.outcome:
            return False
        self.outcome = outcome
        return True

    def take_timings(self, timings: tuple[SliceTiming, ...]) -> None:
        """Keep what upstream slices measured, each slice once."""
        if not timings:
            return
        for timing in timings[:TIMINGS_MAX]:
            if 0 <= timing.slice_index < len(self.route.nodes):
                self.timings[timing.slice_index] = timing

    def remaining_ms(self, now_ms: float) -> int:
        """Whole milliseconds until the deadline, 0 when it has passed."""
        return max(int(self.deadline_ms - now_ms), 0)

    def story(self) -> str:
        """Who this is, for messages."""
        return (
            f"request {self.request_id} attempt {self.attempt} slice {self.loaded.slice.index} "
            f"({self.loaded.slice.name})"
        )
