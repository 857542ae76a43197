"""Tasks, workers and attempts of a node, and the ways in which a task ends.

Shared by the halves of the core: `core` decides what happens next, `sending` hands outputs on. Each
end of a task goes through here, so slots are freed once and every task has one outcome.
"""

from __future__ import annotations

import heapq
from collections import deque

from din.errors import Busy, DeadlineExceeded, DinError
from din.execution import checks
from din.execution.attempts import Attempts, Entry, RequestKey
from din.execution.events import Abort, FreeSlots, Instruction, Instructions, Tell
from din.execution.limits import RETRY_AFTER_MS_MAX, RETRY_AFTER_MS_MIN
from din.execution.loaded import LoadedSlice
from din.execution.marks import Marks
from din.execution.task import Task
from din.wire.messages import BusyNode, Failed, Run


class Worker:
    """One worker as the core sees it."""

    __slots__ = ("loaded", "queue", "running", "tasks")

    def __init__(self, loaded: LoadedSlice) -> None:
        self.loaded = loaded
        self.queue: deque[Task] = deque()
        self.running = 0
        """Submitted and not answered."""
        self.tasks: set[int] = set()
        """Bound to it and not answered yet."""


class Ledger:
    """Books of everything that is under way."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.workers: dict[int, Worker] = {}
        self.tasks: dict[int, Task] = {}
        self.attempts = Attempts()
        self.marks = Marks()
        self.sending = 0
        """Tasks that are computed and still here."""
        self.orders: list[Instruction] = []
        self._timers: list[tuple[float, int]] = []
        self._last_number = 0

    @property
    def queue_length(self) -> int:
        """Tasks accepted and not computed."""
        return len(self.tasks) - self.sending

    @property
    def due_ms(self) -> float | None:
        """The next deadline of a task, perhaps of one that has gone, or mark to send."""
        mark_ms = self.marks.due_ms
        if not self._timers:
            return mark_ms
        deadline_ms = self._timers[0][0]
        return deadline_ms if mark_ms is None or deadline_ms < mark_ms else mark_ms

    def take_orders(self) -> Instructions:
        """What was ordered since the last call."""
        taken, self.orders = tuple(self.orders), []
        return taken

    def find_task(self, now_ms: float, run: Run) -> Task | None:
        """The task that a frame belongs to."""
        entry = self.attempts.find((run.origin, run.request_id), now_ms)
        if entry is None or entry.attempt != run.attempt:
            return None
        number = entry.tasks.get(run.slice_index)
        return None if number is None else self.tasks[number]

    def open_entry(self, now_ms: float, key: RequestKey, attempt: int) -> Entry:
        """The entry of this attempt; tasks of an older one end."""
        entry = self.attempts.open(key, attempt, now_ms)
        if entry.attempt < attempt:
            for number in list(entry.tasks.values()):
                self.take_back(now_ms, self.tasks[number])
            entry = self.attempts.open(key, attempt, now_ms)
            entry.renew(attempt)
        return entry

    def create(
        self, now_ms: float, run: Run, loaded: LoadedSlice, worker: int, symbols: dict[str, int]
    ) -> Task:
        """A new task for the first frame of a slice."""
        entry = self.open_entry(now_ms, (run.origin, run.request_id), run.attempt)
        entry.remember(now_ms, run.remaining_ms)
        self._last_number += 1
        task = Task(self._last_number, run, loaded, worker, now_ms)
        task.symbols = symbols
        self.tasks[task.number] = task
        entry.tasks[run.slice_index] = task.number
        loaded.tasks.add(task.number)
        self.workers[worker].tasks.add(task.number)
        heapq.heappush(self._timers, (task.deadline_ms, task.number))
        return task

    # Ends.

    def take_back(self, now_ms: float, task: Task) -> None:
        """End a task of which nobody wants to hear again."""
        if task.settle("cancelled"):
            self.marks.withdraw(task)
            self._stop(now_ms, task)

    def fail(self, now_ms: float, task: Task, error: DinError) -> None:
        """End a task and tell its gateway; outputs that are leaving leave."""
        if task.state != "sending" and self.settle_failed(task, error, self.node_id):
            self._stop(now_ms, task)

    def settle_failed(self, task: Task, error: DinError, blamed: str) -> bool:
        """Set the outcome and tell the gateway; False when there is an outcome already."""
        if not task.settle("busy" if isinstance(error, Busy) else "failed"):
            return False
        self.marks.withdraw(task)
        index = task.loaded.slice.index
        about = Run(task.request_id, task.attempt, index, task.route, 0, (), task.origin)
        self.tell(about, error, blamed, task.loaded)
        return True

    def tell(self, run: Run, error: DinError, blamed: str, loaded: LoadedSlice | None) -> None:
        """FAILED or BUSY to the gateway that asked."""
        about = (run.request_id, run.attempt, *checks.culprit(run, error, blamed, loaded))
        if isinstance(error, Busy):
            depth = len(loaded.tasks) if loaded is not None else self.queue_length
            wait_ms = depth * loaded.mean_ms / max(len(loaded.workers), 1) if loaded else 0.0
            bounded_ms = min(max(int(wait_ms), RETRY_AFTER_MS_MIN), RETRY_AFTER_MS_MAX)
            self.orders.append(Tell(run.origin, BusyNode(*about, depth, bounded_ms)))
            return
        failed = Failed(*about, error.code, error.message, checks.is_retryable(error), error.hint)
        self.orders.append(Tell(run.origin, failed))

    def expire(self, now_ms: float, task: Task) -> None:
        """The deadline of a task has passed."""
        waited_ms = int(now_ms - task.arrived_ms)
        missing = ", ".join(sorted(f"{name!r}" for _, name in task.missing))
        why = {
            "gathering": f"while inputs were missing: {missing}",
            "queued": "in the queue",
        }.get(task.state, "while it ran")
        text = f"the deadline passed after {waited_ms} ms on the node, {why}"
        self.fail(now_ms, task, DeadlineExceeded(text))

    def expire_due(self, now_ms: float) -> None:
        """End every task whose deadline has come."""
        while self._timers and self._timers[0][0] <= now_ms:
            _, number = heapq.heappop(self._timers)
            task = self.tasks.get(number)
            if task is not None:
                self.expire(now_ms, task)

    def bury(self, now_ms: float, task: Task) -> None:
        """Forget a task that is gone; its slice of this attempt does not run again."""
        self.unbind(task)
        self.free_slots(task)
        del self.tasks[task.number]
        key: RequestKey = (task.origin, task.request_id)
        entry = self.attempts.find(key, now_ms)
        index = task.loaded.slice.index
        if entry is not None and entry.tasks.get(index) == task.number:
            del entry.tasks[index]
            entry.finished.add(index)
            self.attempts.rest(key, now_ms)
        task.loaded.busy_ms = now_ms
        # Timers of tasks that ended in time are left behind; keep them in proportion.
        if len(self._timers) > 64 + 2 * len(self.tasks):
            self._timers = [each for each in self._timers if each[1] in self.tasks]
            heapq.heapify(self._timers)

    def unbind(self, task: Task) -> None:
        """Its worker and its slice's queue have no more to do with it."""
        task.loaded.tasks.discard(task.number)
        worker = self.workers.get(task.worker)
        if worker is not None:
            worker.tasks.discard(task.number)

    def free_slots(self, task: Task) -> None:
        """Nobody reads the task's inputs any more."""
        if task.slots:
            self.orders.append(FreeSlots(tuple(task.slots)))
            task.slots.clear()

    def _stop(self, now_ms: float, task: Task) -> None:
        """The task has its outcome: free what may be freed now."""
        if task.state == "running":
            task.step("stopped")
            self.orders.append(Abort(task.number))
        elif task.state in ("gathering", "queued"):
            task.step("ended")
            self.bury(now_ms, task)
