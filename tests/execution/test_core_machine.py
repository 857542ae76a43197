"""Any order of frames, cancels, deaths and time: memory is freed once, every task ends once."""

from __future__ import annotations

from execution_play import (
    ALL_HERE,
    EPOCH,
    HEADS,
    HERE,
    PHOTO,
    SCORES,
    THERE,
    WORKER,
    Player,
    cancel,
    frame,
    loaded,
)
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from din.errors import Busy, ExecutionFailed
from din.execution.events import (
    CancelArrived,
    Delivered,
    Forward,
    FrameRefused,
    RunEnded,
    SliceUnloaded,
    Woke,
    WorkerDown,
    WorkerUp,
)
from din.execution.limits import INFLIGHT_PER_WORKER_MAX, QUEUE_MAX
from din.execution.task import Task
from din.wire.messages import BusyNode, Failed, Run

REQUESTS = st.integers(1, 6)
ATTEMPTS = st.integers(1, 3)
ROUTES = st.sampled_from([ALL_HERE, (HERE, THERE, THERE), (THERE, THERE, HERE)])
FRAMES = st.sampled_from([(0, (PHOTO,), -1), (2, (HEADS,), 0), (2, (SCORES,), 1)])


class ExecutionMachine(RuleBasedStateMachine):
    """Drives the core and plays its performer."""

    def __init__(self) -> None:
        super().__init__()
        self.player = Player(0, 2, workers=2)
        self.on_the_way: list[tuple[Run, int]] = []
        self.workers = {WORKER: 0, WORKER + 1: 0, WORKER + 200: 2, WORKER + 201: 2}
        self.last_worker = WORKER + 1000
        self.seen: dict[int, Task] = {}
        self.unheard = 0
        """Results that found no gateway, so that there was nobody to tell."""

    def note(self) -> None:
        for number, task in self.player.core._books.tasks.items():
            self.seen.setdefault(number, task)

    @rule(request=REQUESTS, attempt=ATTEMPTS, nodes=ROUTES, kind=FRAMES, ms=st.integers(0, 400))
    def frame_begins(self, request, attempt, nodes, kind, ms) -> None:
        index, tensors, producer = kind
        run = frame(
            index, request_id=request, attempt=attempt, tensors=tensors, producer=producer,
            nodes=nodes, remaining_ms=ms,
        )  # fmt: skip
        worker = self.player.offer(run)
        self.note()
        if worker is not None:
            self.on_the_way.append((run, worker))

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data(), has_room=st.booleans(), is_whole=st.booleans())
    def frame_ends(self, data, has_room, is_whole) -> None:
        place = data.draw(st.integers(0, len(self.on_the_way) - 1))
        run, worker = self.on_the_way.pop(place)
        if not is_whole:
            return  # the link broke: the body was never there
        if has_room:
            self.player.land(run, worker)
        else:
            self.player.give(FrameRefused(run, Busy("full")))

    @precondition(lambda self: self.player.running)
    @rule(data=st.data(), is_good=st.booleans())
    def run_ends(self, data, is_good) -> None:
        task = data.draw(st.sampled_from(sorted(self.player.running)))
        if is_good:
            self.player.finish_run(task)
        else:
            self.player.running.pop(task)
            self.player.give(RunEnded(task, ExecutionFailed("it failed")))

    @precondition(lambda self: self.player.deliveries)
    @rule(reason=st.sampled_from(["", "", "the link closed"]))
    def delivery_ends(self, reason) -> None:
        each = self.player.deliveries.pop(0)
        if isinstance(each, Forward) and each.node_id == HERE:
            worker = self.player.offer(each.run)
            self.note()
            if worker is not None:
                self.player.land(each.run, worker)
            reason = ""
        who = each.node_id if isinstance(each, Forward) else each.origin
        self.unheard += bool(reason) and not isinstance(each, Forward)
        self.player.give(Delivered(each.task, who, reason))

    @rule(request=REQUESTS, attempt=ATTEMPTS, ms=st.integers(0, 400))
    def gateway_cancels(self, request, attempt, ms) -> None:
        self.player.give(CancelArrived(cancel(request, attempt, ms)))

    @rule(data=st.data())
    def worker_dies_and_is_replaced(self, data) -> None:
        worker = data.draw(st.sampled_from(sorted(self.workers)))
        index = self.workers.pop(worker)
        self.player.give(WorkerDown(worker, "killed"))
        for task, order in list(self.player.running.items()):
            if order.worker == worker:
                self.player.running.pop(task)
                self.player.give(RunEnded(task, ExecutionFailed("the worker died")))
        self.last_worker += 1
        self.workers[self.last_worker] = index
        self.player.give(WorkerUp((EPOCH, index), self.last_worker))

    @rule(ms=st.integers(1, 200))
    def time_passes(self, ms) -> None:
        self.player.now_ms += ms
        self.player.give(Woke())

    @rule(index=st.sampled_from([0, 2]))
    def slice_is_unloaded_and_loaded(self, index) -> None:
        self.player.give(SliceUnloaded((EPOCH, index)))
        self.player.now_ms += 600
        self.player.give(Woke())
        self.player.give(loaded(index))
        for worker, its_index in self.workers.items():
            if its_index == index:
                self.player.give(WorkerUp((EPOCH, index), worker))

    @invariant()
    def bounds_hold(self) -> None:
        books = self.player.core._books
        for worker in self.workers:
            running = [each for each in self.player.running.values() if each.worker == worker]
            assert len(running) <= INFLIGHT_PER_WORKER_MAX
        assert len(books.tasks) <= 2 * QUEUE_MAX
        assert self.player.core.queue_length >= 0
        assert books.sending == sum(task.state == "sending" for task in books.tasks.values())

    @invariant()
    def slots_belong_to_living_tasks(self) -> None:
        held = {slot for task in self.player.core._books.tasks.values() for slot in task.slots}
        assert held == self.player.slots

    @invariant()
    def every_task_that_is_gone_has_one_outcome(self) -> None:
        living = self.player.core._books.tasks
        for number, task in self.seen.items():
            assert number in living or (task.state == "gone" and task.outcome)

    @invariant()
    def a_task_tells_of_its_failure_once(self) -> None:
        failed = sum(task.outcome in ("failed", "busy") for task in self.seen.values())
        told = sum(isinstance(each, (Failed, BusyNode)) for each in self.player.messages())
        assert told + self.unheard >= failed

    def teardown(self) -> None:
        while self.player.running:
            self.player.finish_run(next(iter(self.player.running)))
        while self.player.deliveries:
            each = self.player.deliveries.pop(0)
            who = each.node_id if isinstance(each, Forward) else each.origin
            self.player.give(Delivered(each.task, who))
        self.player.now_ms += 10_000
        self.player.give(Woke())
        while self.player.running:
            self.player.finish_run(next(iter(self.player.running)))
        assert not self.player.slots
        assert not self.player.outputs
        assert self.player.core.is_idle


TestExecutionMachine = ExecutionMachine.TestCase
TestExecutionMachine.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
