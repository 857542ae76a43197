"""Hands the outputs of a task on: to the nodes of their consumers, and to the gateway."""

from __future__ import annotations

from din.domain.model import GATEWAY
from din.domain.request import SliceTiming
from din.domain.tensor import TensorMeta, nbytes_of
from din.errors import ExecutionFailed
from din.execution.events import Delivered, Forward, Outputs, ReleaseOutputs, Return
from din.execution.ledger import Ledger
from din.execution.task import Task
from din.wire.messages import Result, Run


def send_outputs(ledger: Ledger, now_ms: float, task: Task, outputs: Outputs) -> None:
    """A run has ended well: order one delivery for each consumer."""
    task.step("computed")
    ledger.sending += 1
    ledger.unbind(task)
    ledger.free_slots(task)
    _note_timing(ledger.node_id, now_ms, task, outputs)
    deliveries = task.way.deliveries
    task.unsent = len(deliveries)
    for consumer, names in deliveries.items():
        metas = tuple(meta for meta in outputs.metas if meta.name in names)
        _deliver(ledger, now_ms, task, metas, consumer)
    if not deliveries:
        _finish(ledger, now_ms, task)


def on_delivered(ledger: Ledger, now_ms: float, event: Delivered) -> None:
    """One copy has left, or could not."""
    task = ledger.tasks[event.task]
    task.unsent -= 1
    if event.reason and event.node_id != task.origin:
        error = ExecutionFailed(f"tensors could not be sent to it: {event.reason}")
        ledger.settle_failed(task, error, event.node_id)
    elif event.reason:
        ledger.marks.withdraw(task)
        task.settle("failed")  # the gateway has gone: there is nobody to tell
    if task.unsent == 0:
        _finish(ledger, now_ms, task)


def _note_timing(node_id: str, now_ms: float, task: Task, outputs: Outputs) -> None:
    run_us = max(int((now_ms - task.complete_ms) * 1000), 0)
    task.loaded.observe(run_us / 1000)
    compute_us = min(max(outputs.compute_us, 0), run_us)
    encode_us = min(max(outputs.encode_us, 0), run_us - compute_us)
    compressed = [meta for meta in outputs.metas if meta.compression]
    index = task.loaded.slice.index
    task.timings[index] = SliceTiming(
        index,
        node_id,
        int((task.complete_ms - task.arrived_ms) * 1000),
        run_us - compute_us - encode_us,
        compute_us,
        encode_us,
        outputs.accelerator_percent,
        sum(meta.nbytes for meta in compressed),
        sum(nbytes_of(meta.dtype, meta.shape) for meta in compressed),
    )


def _deliver(
    ledger: Ledger, now_ms: float, task: Task, metas: tuple[TensorMeta, ...], consumer: int
) -> None:
    timings = tuple(task.timings.values())
    index = task.loaded.slice.index
    about = (task.request_id, task.attempt)
    if consumer == GATEWAY:
        result = Result(*about, index, metas, timings, ledger.queue_length)
        ledger.orders.append(Return(task.number, task.origin, result))
        return
    run = Run(
        *about,
        consumer,
        task.route,
        task.remaining_ms(now_ms),
        metas,
        task.origin,
        producer=index,
        timings=timings,
    )
    ledger.orders.append(Forward(task.number, task.route.nodes[consumer], run))


def _finish(ledger: Ledger, now_ms: float, task: Task) -> None:
    task.step("sent")
    ledger.sending -= 1
    ledger.orders.append(ReleaseOutputs(task.number))
    if task.settle("sent"):
        if GATEWAY in task.way.deliveries:
            ledger.marks.withdraw(task)  # the result says it
        else:
            ledger.marks.put(task, "forwarded", now_ms)
    ledger.bury(now_ms, task)
