"""The execution core of a node: events in, instructions out. Knows no clock, socket or process.

A frame goes through two doors. `admit` is asked when its head is there: it judges the frame, binds
the task to a worker and so says into whose memory the body is received. When the body lies there,
`FrameArrived` completes the input. A frame that is not wanted has no body received at all: it is
stale (silence), wrong (FAILED) or too many (BUSY).

    frame -> admit -> gathering -> queued -> Submit -> RunEnded -> Forward / Return -> Delivered
    Cancel, a newer attempt, the deadline, a dead worker: the task ends, see `din.execution.task`

Whoever performs the instructions answers Submit with one RunEnded, Forward and Return with one
Delivered each, and calls `Woke` when `next_wakeup_ms` is reached.
"""

from __future__ import annotations

from din.domain.tensor import offsets_of
from din.errors import Busy, DinError, Unavailable, WorkerLost
from din.execution import checks
from din.execution.attempts import RequestKey
from din.execution.events import (
    Admission,
    CancelArrived,
    Delivered,
    DropSlice,
    Event,
    FrameArrived,
    FrameRefused,
    FreeSlots,
    Input,
    Instructions,
    Outputs,
    ReleaseOutputs,
    RunEnded,
    SliceKey,
    SliceLoaded,
    SliceUnloaded,
    Submit,
    Woke,
    WorkerDown,
    WorkerLeaving,
    WorkerUp,
)
from din.execution.ledger import Ledger, Worker
from din.execution.limits import DRAIN_MS_MAX, DRAIN_QUIET_MS, INFLIGHT_PER_WORKER_MAX, QUEUE_MAX
from din.execution.loaded import LoadedSlice
from din.execution.sending import on_delivered, send_outputs
from din.execution.task import Task
from din.wire.messages import Cancel, Run


class Execution:
    """Everything that this node is asked to compute."""

    def __init__(self, node_id: str) -> None:
        self._books = Ledger(node_id)
        self._slices: dict[SliceKey, LoadedSlice] = {}
        self._draining: dict[SliceKey, float] = {}
        """Unloaded slices and when each goes at the latest."""

    @property
    def queue_length(self) -> int:
        """Tasks accepted and not computed: what heartbeats and results report."""
        return self._books.queue_length

    @property
    def is_idle(self) -> bool:
        """Whether nothing is accepted and unfinished."""
        return not self._books.tasks

    def next_wakeup_ms(self) -> float | None:
        """When `Woke` is due; None = not before something else happens."""
        due_ms = self._books.due_ms
        for key in self._draining:
            drained_ms = self._drained_ms(key)
            due_ms = drained_ms if due_ms is None else min(due_ms, drained_ms)
        return due_ms

    def admit(self, now_ms: float, run: Run, nbytes: int) -> Admission:
        """Judge a frame whose body of `nbytes` bytes is about to be received."""
        key: RequestKey = (run.origin, run.request_id)
        if self._books.attempts.is_stale(key, run.attempt, run.slice_index, now_ms):
            return Admission(None)
        try:
            checks.check_address(run, self._books.node_id)
            loaded = checks.find_slice(run, self._slices)
            task = self._task_for(now_ms, run, loaded, nbytes)
        except DinError as error:
            self._refuse(now_ms, run, error)
            return Admission(None, self._books.take_orders())
        worker = task.worker if task.state == "gathering" else None
        return Admission(worker, self._books.take_orders())

    def handle(self, now_ms: float, event: Event) -> Instructions:
        """What follows from an event."""
        match event:
            case FrameArrived():
                self._on_frame(now_ms, event)
            case RunEnded():
                self._on_run_ended(now_ms, event)
            case Delivered():
                on_delivered(self._books, now_ms, event)
            case Woke():
                self._on_woke(now_ms)
            case FrameRefused():
                self._on_frame_refused(now_ms, event)
            case CancelArrived():
                self._on_cancel(now_ms, event.cancel)
            case WorkerUp():
                self._on_worker_up(event)
            case WorkerDown():
                self._on_worker_down(now_ms, event)
            case WorkerLeaving():
                self._on_worker_leaving(event.worker)
            case SliceLoaded():
                self._on_slice_loaded(event)
            case SliceUnloaded():
                self._on_slice_unloaded(now_ms, event.key)
        return self._books.take_orders()

    # Frames.

    def _task_for(self, now_ms: float, run: Run, loaded: LoadedSlice, nbytes: int) -> Task:
        """The task that the frame belongs to, made when it is the first. Raises DinError."""
        task = self._books.find_task(now_ms, run)
        symbols = task.symbols if task is not None else {}
        checks.check_tensors(run, loaded if task is None else task.loaded, symbols, nbytes)
        if task is not None:
            return task
        worker = self._choose_worker(loaded)
        return self._books.create(now_ms, run, loaded, worker, symbols)

    def _choose_worker(self, loaded: LoadedSlice) -> int:
        if not loaded.workers:
            # Nothing ran, and the next worker is being started: whoever asked comes again.
            raise Busy(f"slice {loaded.slice.name!r} has no live worker now")
        if len(loaded.tasks) >= QUEUE_MAX:
            raise Busy(f"{QUEUE_MAX} requests wait for slice {loaded.slice.name!r}")
        workers = self._books.workers
        return min(loaded.workers, key=lambda each: (len(workers[each].tasks), each))

    def _on_frame(self, now_ms: float, event: FrameArrived) -> None:
        run = event.run
        task = self._books.find_task(now_ms, run)
        if task is None or task.state != "gathering" or task.worker != event.worker:
            self._books.orders.append(FreeSlots((event.slot,)))
            return
        task.take_timings(run.timings)
        known = len(task.inputs)
        for meta, offset in zip(run.tensors, offsets_of(run.tensors)[0], strict=True):
            pair = (run.producer, meta.name)
            if pair in task.missing:
                task.missing.remove(pair)
                task.inputs.append(Input(event.slot, meta, offset))
        if run.tensors and len(task.inputs) == known:
            self._books.orders.append(FreeSlots((event.slot,)))
            return
        task.slots.append(event.slot)
        if not task.missing:
            task.step("gathered")
            task.complete_ms = now_ms
            self._books.marks.put(task, "accepted", now_ms)
            self._books.workers[task.worker].queue.append(task)
            self._pump(now_ms, task.worker)

    def _on_frame_refused(self, now_ms: float, event: FrameRefused) -> None:
        task = self._books.find_task(now_ms, event.run)
        if task is not None and task.state == "gathering":
            self._refuse(now_ms, event.run, event.error)

    def _refuse(self, now_ms: float, run: Run, error: DinError) -> None:
        """Answer a frame; what else comes of this attempt is thrown away without a word."""
        key: RequestKey = (run.origin, run.request_id)
        entry = self._books.open_entry(now_ms, key, run.attempt)
        entry.remember(now_ms, run.remaining_ms)
        entry.is_over = True
        number = entry.tasks.get(run.slice_index)
        if number is not None:
            self._books.fail(now_ms, self._books.tasks[number], error)
        else:
            loaded = self._slices.get((run.route.epoch, run.slice_index))
            self._books.tell(run, error, self._books.node_id, loaded)
        self._books.attempts.rest(key, now_ms)

    def _on_cancel(self, now_ms: float, cancel: Cancel) -> None:
        key: RequestKey = (cancel.origin, cancel.request_id)
        known = self._books.attempts.find(key, now_ms)
        if known is not None and known.attempt > cancel.attempt:
            return
        entry = self._books.open_entry(now_ms, key, cancel.attempt)
        entry.is_over = True
        entry.remember(now_ms, cancel.remaining_ms)
        for number in list(entry.tasks.values()):
            self._books.take_back(now_ms, self._books.tasks[number])
        self._books.attempts.rest(key, now_ms)

    # Workers.

    def _on_worker_up(self, event: WorkerUp) -> None:
        loaded = self._slices.get(event.key)
        if loaded is not None and event.worker not in self._books.workers:
            self._books.workers[event.worker] = Worker(loaded)
            loaded.workers.add(event.worker)

    def _on_worker_down(self, now_ms: float, event: WorkerDown) -> None:
        worker = self._books.workers.get(event.worker)
        if worker is None:
            return
        worker.loaded.workers.discard(event.worker)
        worker.queue.clear()
        error = WorkerLost(f"the worker is gone: {event.reason}")
        for number in list(worker.tasks):
            self._books.fail(now_ms, self._books.tasks[number], error)
        self._forget_worker(event.worker)

    def _on_worker_leaving(self, number: int) -> None:
        worker = self._books.workers.get(number)
        if worker is not None:
            worker.loaded.workers.discard(number)

    def is_free(self, number: int) -> bool:
        """Whether no task is bound to a worker."""
        worker = self._books.workers.get(number)
        return worker is None or not (worker.tasks or worker.running)

    def _forget_worker(self, number: int) -> None:
        """A worker that is down is remembered until it has answered for all that ran in it."""
        worker = self._books.workers.get(number)
        is_gone = worker is not None and number not in worker.loaded.workers
        if is_gone and self.is_free(number):
            del self._books.workers[number]

    def _pump(self, now_ms: float, number: int) -> None:
        worker = self._books.workers.get(number)
        if worker is None:
            return
        while worker.queue and worker.running < INFLIGHT_PER_WORKER_MAX:
            task = worker.queue.popleft()
            if task.state != "queued":
                continue
            remaining_ms = task.remaining_ms(now_ms)
            if remaining_ms == 0:
                self._books.expire(now_ms, task)
                continue
            task.step("submitted")
            worker.running += 1
            inputs, wanted = tuple(task.inputs), task.way.wanted
            compressible = task.way.compressible
            order = Submit(task.number, number, inputs, wanted, remaining_ms, compressible)
            self._books.orders.append(order)

    def _on_run_ended(self, now_ms: float, event: RunEnded) -> None:
        task = self._books.tasks[event.task]
        number = task.worker
        self._books.workers[number].running -= 1
        if isinstance(event.outcome, Outputs) and task.state == "running":
            send_outputs(self._books, now_ms, task, event.outcome)
        else:
            if isinstance(event.outcome, Outputs):
                self._books.orders.append(ReleaseOutputs(task.number))
            else:
                self._books.settle_failed(task, event.outcome, self._books.node_id)
            task.step("answered")
            self._books.bury(now_ms, task)
        self._pump(now_ms, number)
        self._forget_worker(number)

    # Slices and time.

    def _on_slice_loaded(self, event: SliceLoaded) -> None:
        key = (event.epoch, event.slice_.index)
        self._draining.pop(key, None)
        known = self._slices.get(key)
        if known is None:
            self._slices[key] = LoadedSlice(event)
        else:
            known.update(event)

    def _on_slice_unloaded(self, now_ms: float, key: SliceKey) -> None:
        loaded = self._slices.get(key)
        if loaded is not None and key not in self._draining:
            loaded.busy_ms = now_ms
            self._draining[key] = now_ms + DRAIN_MS_MAX

    def _drained_ms(self, key: SliceKey) -> float:
        """When an unloaded slice may go: quiet for a while, or at the end of its grace."""
        loaded = self._slices[key]
        if loaded.tasks:
            return self._draining[key]
        return min(loaded.busy_ms + DRAIN_QUIET_MS, self._draining[key])

    def _on_woke(self, now_ms: float) -> None:
        self._books.expire_due(now_ms)
        self._books.orders += self._books.marks.take(now_ms)
        for key in list(self._draining):
            if self._drained_ms(key) <= now_ms:
                self._drop(now_ms, key)

    def _drop(self, now_ms: float, key: SliceKey) -> None:
        loaded = self._slices[key]
        error = Unavailable(f"slice {loaded.slice.name!r} was unloaded")
        for number in list(loaded.tasks):
            self._books.fail(now_ms, self._books.tasks[number], error)
        del self._draining[key]
        del self._slices[key]
        for worker in list(loaded.workers):
            self._on_worker_down(now_ms, WorkerDown(worker, "its slice was unloaded"))
        self._books.orders.append(DropSlice(key))
