"""A model of three slices for tests of the execution core, and a player that performs its orders.

gateway --photo--> 0 --heads--> 2 --boxes--> gateway
                   0 --features--> 1 --scores--> 2
"""

from __future__ import annotations

from din.domain.deployment import Epoch, Route
from din.domain.model import GATEWAY, Edge, Slice
from din.domain.node import NodeId
from din.domain.strategy import Compression
from din.domain.tensor import TensorMeta, TensorSpec, offsets_of
from din.execution.core import Execution
from din.execution.events import (
    Abort,
    Delivered,
    DropSlice,
    Event,
    Forward,
    FrameArrived,
    FreeSlots,
    Instruction,
    Outputs,
    ReleaseOutputs,
    Return,
    RunEnded,
    SliceLoaded,
    Submit,
    Tell,
    WorkerUp,
)
from din.wire.messages import Cancel, Run

HERE = NodeId("00000000000000aa")
THERE = NodeId("00000000000000bb")
GATEWAY_ID = "gateway-1"
EPOCH = Epoch(7, 3)
WORKER = 11
EDGES = (
    Edge("photo", GATEWAY, (0,)),
    Edge("heads", 0, (2,)),
    Edge("features", 0, (1,)),
    Edge("scores", 1, (2,)),
    Edge("boxes", 2, (GATEWAY,)),
)
PHOTO = TensorMeta("photo", "FP32", (1, 4), 16)
HEADS = TensorMeta("heads", "FP32", (1, 4), 16)
FEATURES = TensorMeta("features", "FP32", (1, 4), 16)
SCORES = TensorMeta("scores", "FP32", (1, 4), 16)
BOXES = TensorMeta("boxes", "FP32", (1, 4), 16)
METAS = {meta.name: meta for meta in (PHOTO, HEADS, FEATURES, SCORES, BOXES)}
ALL_HERE = (HERE, HERE, HERE)


def spec(name: str) -> TensorSpec:
    return TensorSpec(name, "FP32", ("batch", 4))


def slice_of(index: int, compression: Compression = "none") -> Slice:
    return Slice(
        compression=compression,
        index=index,
        slice_id=f"{index:064x}",
        name=f"part{index}",
        inputs=tuple(spec(edge.tensor) for edge in EDGES if index in edge.consumers),
        outputs=tuple(spec(edge.tensor) for edge in EDGES if edge.producer == index),
    )


def loaded(index: int, epoch: Epoch = EPOCH, compression: Compression = "none") -> SliceLoaded:
    return SliceLoaded(epoch, slice_of(index, compression), EDGES, ())


def frame(
    slice_index: int = 0,
    *,
    request_id: int = 1,
    attempt: int = 1,
    tensors: tuple[TensorMeta, ...] = (PHOTO,),
    producer: int = GATEWAY,
    nodes: tuple[NodeId, ...] = (HERE, THERE, THERE),
    remaining_ms: int = 1000,
    epoch: Epoch = EPOCH,
) -> Run:
    return Run(
        request_id,
        attempt,
        slice_index,
        Route(epoch, False, nodes),
        remaining_ms,
        tensors,
        GATEWAY_ID,
        producer=producer,
    )


def cancel(request_id: int = 1, attempt: int = 1, remaining_ms: int = 1000) -> Cancel:
    return Cancel(request_id, attempt, GATEWAY_ID, remaining_ms)


class Player:
    """Performs instructions the way an agent does, and checks that memory is used by the rules."""

    def __init__(self, *indexes: int, workers: int = 1) -> None:
        self.core = Execution(HERE)
        self.now_ms = 1000.0
        self.slots: set[int] = set()
        self.running: dict[int, Submit] = {}
        self.outputs: set[int] = set()
        self.deliveries: list[Forward | Return] = []
        self.told: list[Tell] = []
        self.aborted: set[int] = set()
        self.dropped: list[DropSlice] = []
        self._last_slot = 0
        for index in indexes:
            self.give(loaded(index))
            for number in range(workers):
                self.give(WorkerUp((EPOCH, index), WORKER + 100 * index + number))

    def give(self, event: Event) -> None:
        self.perform(self.core.handle(self.now_ms, event))

    def perform(self, instructions: tuple[Instruction, ...]) -> None:
        for each in instructions:
            match each:
                case Submit():
                    assert {one.slot for one in each.inputs} <= self.slots
                    assert each.task not in self.running
                    self.running[each.task] = each
                case FreeSlots():
                    read = {one.slot for order in self.running.values() for one in order.inputs}
                    for slot in each.slots:
                        assert slot not in read, "a slot was freed under a running worker"
                        self.slots.remove(slot)
                case Forward() | Return():
                    assert each.task in self.outputs
                    self.deliveries.append(each)
                case ReleaseOutputs():
                    self.outputs.remove(each.task)
                case Tell():
                    self.told.append(each)
                case Abort():
                    self.aborted.add(each.task)
                case DropSlice():
                    self.dropped.append(each)

    def offer(self, run: Run) -> int | None:
        """The first half of a frame: the worker that the body goes to."""
        admission = self.core.admit(self.now_ms, run, offsets_of(run.tensors)[1])
        self.perform(admission.instructions)
        return admission.worker

    def land(self, run: Run, worker: int) -> None:
        """The second half: the body is there."""
        self._last_slot += 1
        self.slots.add(self._last_slot)
        self.give(FrameArrived(run, worker, self._last_slot))

    def arrive(self, run: Run) -> bool:
        worker = self.offer(run)
        if worker is not None:
            self.land(run, worker)
        return worker is not None

    def finish_run(self, task: int) -> None:
        order = self.running.pop(task)
        self.outputs.add(task)
        self.give(RunEnded(task, Outputs(tuple(METAS[name] for name in order.outputs), 700)))

    def deliver(self, reason: str = "") -> Forward | Return:
        """Answer the oldest delivery."""
        each = self.deliveries.pop(0)
        target = each.node_id if isinstance(each, Forward) else each.origin
        self.give(Delivered(each.task, target, reason))
        return each

    def messages(self) -> list[object]:
        return [each.message for each in self.told]
