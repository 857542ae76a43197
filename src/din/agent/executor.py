"""Performs what the execution core orders: memory of workers, bodies of frames, timers.

The core speaks in numbers; here lie the slots, outputs and channels behind them. Each callback runs
to its end before the next: instructions wait in a queue, so an order that answers itself at once
(a hand-over on this node, a worker that refuses) never re-enters the core half-way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from din.domain.tensor import TensorMeta, offsets_of
from din.errors import Busy, DinError, TooLarge
from din.execution.core import Execution
from din.execution.events import (
    Abort,
    CancelArrived,
    Delivered,
    DropSlice,
    Event,
    Forward,
    FrameArrived,
    FrameRefused,
    FreeSlots,
    Instruction,
    Outputs,
    ReleaseOutputs,
    Return,
    RunEnded,
    SliceKey,
    Submit,
    Tell,
    Woke,
    WorkerDown,
    WorkerLeaving,
    WorkerUp,
)
from din.transport.channel import InputSlot, OutputSet, WorkerChannel
from din.wire.messages import AnyMessage, Cancel, Run
from din.wire.worker import Placed

RELEASE_TIMEOUT_S: Final = 30.0
"""How long a worker that is to go may take for what it has."""

Sent = Callable[[str], None]
"""Told once how a sending went; an empty text = it is on its way."""


class Post(Protocol):
    """Where messages go."""

    def tell(self, gateway_id: str, message: AnyMessage) -> bool:
        """Send without a body; False when there is no way to that gateway now."""
        ...

    def answer(
        self, gateway_id: str, message: AnyMessage, body: Sequence[memoryview], sent: Sent
    ) -> None:
        """Send outputs to a gateway."""
        ...

    def forward(self, node_id: str, run: Run, body: Sequence[memoryview], sent: Sent) -> None:
        """Send outputs to another node, directly or through the gateway."""
        ...

    def is_here(self, node_id: str) -> bool:
        """Whether what is sent to a node stays on this machine."""
        ...


class Executor:
    """The execution core with hands. All calls in the loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node_id: str,
        post: Post,
        on_drop: Callable[[SliceKey], None],
    ) -> None:
        self._loop = loop
        self._node_id = node_id
        self._post = post
        self._on_drop = on_drop
        self._core = Execution(node_id)
        self._channels: dict[int, tuple[SliceKey, WorkerChannel]] = {}
        self._slots: dict[int, InputSlot] = {}
        self._outputs: dict[int, OutputSet] = {}
        self._tickets: dict[int, tuple[WorkerChannel, int]] = {}
        self._receiving: dict[int, tuple[Run, int, int]] = {}
        """By identity of the message: the frame, its worker and its slot."""
        self._orders: deque[Instruction] = deque()
        self._is_performing = False
        self._last_number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0.0

    @property
    def queue_length(self) -> int:
        """Requests accepted and not computed."""
        return self._core.queue_length

    @property
    def is_idle(self) -> bool:
        """Whether nothing is accepted and unfinished."""
        return self._core.is_idle

    def give(self, event: Event) -> None:
        """Let the core know, and do what follows."""
        self._perform(self._core.handle(self._now_ms(), event))

    def cancel(self, message: Cancel) -> None:
        """A gateway takes an attempt back."""
        self.give(CancelArrived(message))

    # Workers.

    def watch_workers(self, key: SliceKey, channels: Iterable[WorkerChannel], reason: str) -> None:
        """These channels serve the slice now; those that have closed do no more."""
        self.bury_workers(reason)
        known = {id(channel) for _, channel in self._channels.values()}
        for channel in channels:
            if id(channel) not in known:
                self._last_number += 1
                self._channels[self._last_number] = (key, channel)
                self.give(WorkerUp(key, self._last_number))

    def bury_workers(self, reason: str) -> None:
        """Tell the core of channels that have closed."""
        gone = [number for number, (_, each) in self._channels.items() if not each.is_open]
        for number in gone:
            del self._channels[number]
            self.give(WorkerDown(number, reason))

    async def release(self, channel: WorkerChannel) -> None:
        """Give a worker nothing new; returns once it has done what it has, or after a while."""
        number = next((n for n, (_, each) in self._channels.items() if each is channel), None)
        if number is None:
            return
        self.give(WorkerLeaving(number))
        end_s = self._loop.time() + RELEASE_TIMEOUT_S
        while not self._core.is_free(number) and self._loop.time() < end_s:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    # Frames.

    def place(self, run: Run, nbytes: int) -> memoryview | None:
        """Memory of a worker for the body of a frame; None = the body is thrown away."""
        slot = self._slot_for(run, nbytes)
        if slot is None:
            return None
        self._receiving[id(run)] = (run, *slot)
        return self._slots[slot[1]].view

    def abandon(self, run: Run) -> None:
        """The link broke in the middle of a body."""
        placed = self._receiving.pop(id(run), None)
        if placed is not None:
            self._slots.pop(placed[2]).free()

    def take(self, run: Run, body: memoryview | None) -> None:
        """A whole frame. A body that was thrown away was answered in `place`."""
        placed = self._receiving.pop(id(run), None)
        if placed is not None:
            self.give(FrameArrived(run, placed[1], placed[2]))
        elif body is None and offsets_of(run.tensors)[1] == 0:
            self._hand_in(run, ())

    def _hand_in(self, run: Run, views: Sequence[memoryview]) -> None:
        """A frame whose tensors are on this node already: copied into the worker's slot."""
        offsets, total = offsets_of(run.tensors)
        slot = self._slot_for(run, total)
        if slot is None:
            return
        target = self._slots[slot[1]].view
        for offset, view in zip(offsets, views, strict=False):
            target[offset : offset + view.nbytes] = view
        self.give(FrameArrived(run, *slot))

    def _slot_for(self, run: Run, nbytes: int) -> tuple[int, int] | None:
        """(worker, slot) for a frame, or None after the sender was answered."""
        admission = self._core.admit(self._now_ms(), run, nbytes)
        self._perform(admission.instructions)
        known = self._channels.get(admission.worker) if admission.worker is not None else None
        if admission.worker is None or known is None:
            return None
        channel = known[1]
        slot = channel.allocate(nbytes)
        if slot is None:
            if not channel.is_open:
                self.bury_workers("its channel closed")
            else:
                self.give(FrameRefused(run, _no_room(nbytes, channel)))
            return None
        self._last_number += 1
        self._slots[self._last_number] = slot
        return admission.worker, self._last_number

    # Instructions.

    def _perform(self, instructions: Iterable[Instruction]) -> None:
        orders = self._orders
        orders.extend(instructions)
        if self._is_performing:
            return
        self._is_performing = True
        try:
            while orders:
                self._do(orders.popleft())
        finally:
            self._is_performing = False
        self._set_timer()

    def _do(self, order: Instruction) -> None:
        match order:
            case FreeSlots():
                for slot in order.slots:
                    self._slots.pop(slot).free()
            case Submit():
                self._submit(order)
            case Return():
                body = self._views(order.task, order.result.tensors)
                sent = partial(self._delivered, order.task, order.origin)
                self._post.answer(order.origin, order.result, body, sent)
            case Forward():
                self._forward(order)
            case ReleaseOutputs():
                outputs = self._outputs.pop(order.task, None)
                if outputs is not None:
                    outputs.release()
            case Tell():
                self._post.tell(order.origin, order.message)
            case Abort():
                running = self._tickets.get(order.task)
                if running is not None:
                    running[0].abort(running[1])
            case DropSlice():
                self._on_drop(order.key)

    def _submit(self, order: Submit) -> None:
        known = self._channels.get(order.worker)
        placed = tuple(
            Placed(each.meta, self._slots[each.slot].offset + each.offset) for each in order.inputs
        )
        try:
            if known is None:
                raise Busy("the worker is gone")
            channel = known[1]
            done = partial(self._on_done, order.task)
            ticket = channel.compute(
                placed, order.outputs, order.remaining_ms, done, self._compressed(order)
            )
        except DinError as error:
            self.give(RunEnded(order.task, error))
        else:
            self._tickets[order.task] = (channel, ticket)

    def _compressed(self, order: Submit) -> tuple[str, ...]:
        """Outputs of which some copy leaves this machine."""
        return tuple(
            name
            for name, nodes in order.compressible.items()
            if not all(each == self._node_id or self._post.is_here(each) for each in nodes)
        )

    def _on_done(self, task: int, outcome: OutputSet | DinError) -> None:
        channel, _ = self._tickets.pop(task)
        if isinstance(outcome, OutputSet):
            self._outputs[task] = outcome
            facts = Outputs(
                outcome.metas,
                outcome.compute_us,
                outcome.accelerator_percent,
                outcome.encode_us,
            )
            self.give(RunEnded(task, facts))
        else:
            self.give(RunEnded(task, outcome))
            if not channel.is_open:
                self._loop.call_soon(self.bury_workers, outcome.message)

    def _forward(self, order: Forward) -> None:
        body = self._views(order.task, order.run.tensors)
        sent = partial(self._delivered, order.task, order.node_id)
        if order.node_id == self._node_id:
            self._hand_in(order.run, body)
            sent("")
        else:
            self._post.forward(order.node_id, order.run, body, sent)

    def _delivered(self, task: int, node_id: str, reason: str) -> None:
        self.give(Delivered(task, node_id, reason))

    def _views(self, task: int, metas: tuple[TensorMeta, ...]) -> list[memoryview]:
        outputs = self._outputs[task]
        by_name = dict(zip((meta.name for meta in outputs.metas), outputs.views, strict=True))
        return [by_name[meta.name] for meta in metas]

    # Time.

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    def _set_timer(self) -> None:
        """Sleep until the core wants to be woken; a timer that is early enough stays."""
        wakeup_ms = self._core.next_wakeup_ms()
        if wakeup_ms is None:
            return
        if self._timer is not None:
            if self._timer_ms <= wakeup_ms:
                return
            self._timer.cancel()
        self._timer_ms = wakeup_ms
        self._timer = self._loop.call_at(wakeup_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.give(Woke())

    def close(self) -> None:
        """No more timers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _no_room(nbytes: int, channel: WorkerChannel) -> DinError:
    if nbytes > channel.input_bytes:
        return TooLarge(
            f"inputs of {nbytes} bytes do not fit a worker's arena of {channel.input_bytes}",
            hint="send a smaller batch",
        )
    return Busy("the worker's memory for inputs is full")
