"""What happens to the execution core and what it orders: past facts in, imperatives out.

Workers, slots and tasks are plain numbers here; who performs the instructions keeps the memory and
the sockets behind them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from din.domain.deployment import Epoch
from din.domain.model import Edge, Slice
from din.domain.tensor import TensorMeta
from din.errors import DinError
from din.wire.messages import Accepted, BusyNode, Cancel, Failed, Result, Run

SliceKey = tuple[Epoch, int]
"""Epoch of the deployment and index of the slice."""


class SliceLoaded(Struct, frozen=True):
    """A slice is loaded, or its edges changed. Repeating it is harmless."""

    epoch: Epoch
    slice_: Slice
    edges: tuple[Edge, ...]
    adapted_edges: tuple[Edge, ...]


class SliceUnloaded(Struct, frozen=True):
    """The slice shall go once nothing of its epoch needs it any more."""

    key: SliceKey


class WorkerUp(Struct, frozen=True):
    """A worker that holds this slice takes tasks."""

    key: SliceKey
    worker: int


class WorkerDown(Struct, frozen=True):
    """The worker takes no more tasks; what lay in its memory is lost."""

    worker: int
    reason: str


class WorkerLeaving(Struct, frozen=True):
    """The worker takes no new tasks; those that it has it finishes."""

    worker: int


class FrameArrived(Struct, frozen=True):
    """The tensors of a frame that `admit` gave this worker lie in this slot of it."""

    run: Run
    worker: int
    slot: int


class FrameRefused(Struct, frozen=True):
    """A frame that `admit` took found no room after all."""

    run: Run
    error: DinError


class Outputs(Struct, frozen=True):
    """What a run made; it lies with the performer under the task's number."""

    metas: tuple[TensorMeta, ...]
    compute_us: int
    accelerator_percent: float | None = None
    encode_us: int = 0


class RunEnded(Struct, frozen=True):
    """The answer to Submit, exactly one."""

    task: int
    outcome: Outputs | DinError


class Delivered(Struct, frozen=True):
    """The answer to Forward and Return, exactly one each. An empty reason = it is on its way."""

    task: int
    node_id: str
    reason: str = ""


class CancelArrived(Struct, frozen=True):
    """The gateway takes an attempt back."""

    cancel: Cancel


class Woke(Struct, frozen=True):
    """The time that `next_wakeup_ms` named has come; too early is fine."""


Event = (
    SliceLoaded
    | SliceUnloaded
    | WorkerUp
    | WorkerDown
    | WorkerLeaving
    | FrameArrived
    | FrameRefused
    | RunEnded
    | Delivered
    | CancelArrived
    | Woke
)


class Input(Struct, frozen=True):
    """One input tensor: the slot of its frame and the bytes from the slot's start."""

    slot: int
    meta: TensorMeta
    offset: int


class Submit(Struct, frozen=True):
    """Give the task to the worker."""

    task: int
    worker: int
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    remaining_ms: int
    compressible: Mapping[str, frozenset[str]] = MappingProxyType({})
    """Outputs that may cross compressed -> the nodes that they go to."""


class Abort(Struct, frozen=True):
    """End the task's run early; RunEnded still comes."""

    task: int


class FreeSlots(Struct, frozen=True):
    """Nobody reads these slots any more."""

    slots: tuple[int, ...]


class Forward(Struct, frozen=True):
    """Send outputs of the task to the node of their consumer, which may be this one."""

    task: int
    node_id: str
    run: Run


class Return(Struct, frozen=True):
    """Send outputs of the task to the gateway that asked."""

    task: int
    origin: str
    result: Result


class ReleaseOutputs(Struct, frozen=True):
    """The worker may write over the task's outputs."""

    task: int


class Tell(Struct, frozen=True):
    """Send a message without body to a gateway."""

    origin: str
    message: Failed | BusyNode | Accepted


class DropSlice(Struct, frozen=True):
    """Stop the workers of a slice that was unloaded; nothing of it runs any more."""

    key: SliceKey


Instruction = Submit | Abort | FreeSlots | Forward | Return | ReleaseOutputs | Tell | DropSlice
Instructions = tuple[Instruction, ...]


class Admission(Struct, frozen=True):
    """Where the body of a frame goes. Without a worker it is thrown away; whoever must know that
    is told by the instructions."""

    worker: int | None
    instructions: Instructions = ()
