"""Messages on the control socket between a worker and whoever feeds it (agent, or gateway by
hand-over), and between the agent and its zygote. One SEQPACKET message each, msgpack arrays.

Everything a worker says is untrusted: tickets, offsets and sizes are checked against the asked.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from din.domain.model import AdapterSpec
from din.domain.tensor import TensorMeta, TensorSpec

MESSAGE_BYTES_MAX: Final = 64 * 1024


class Placed(Struct, frozen=True, array_like=True):
    """A tensor in the arena."""

    meta: TensorMeta
    offset: int


class WorkerMessage(Struct, frozen=True, array_like=True, tag_field="kind"):
    """Base."""


class Compute(WorkerMessage, frozen=True, array_like=True, tag="run"):
    """Feeder -> worker."""

    ticket: int
    inputs: tuple[Placed, ...]
    outputs: tuple[str, ...]
    """Names wanted; empty = all."""
    remaining_ms: int
    sent_at_ms: int = 0
    """Monotonic clock of this host when it was sent, so that time spent waiting in the socket
    counts against the deadline; 0 = count from when the worker reads it."""
    released: tuple[int, ...] = ()
    """Tickets released since the last order: saves a message and a wake-up each."""
    compressed: tuple[str, ...] = ()
    """Outputs that shall be compressed, where it makes them smaller."""


class Computed(WorkerMessage, frozen=True, array_like=True, tag="done"):
    """Worker -> feeder: outputs lie in the output region until Release(ticket)."""

    ticket: int
    outputs: tuple[Placed, ...]
    compute_us: int
    accelerator_percent: float | None = None
    encode_us: int = 0
    """Decompressing inputs and compressing outputs."""


class ComputeFailed(WorkerMessage, frozen=True, array_like=True, tag="fail"):
    """Worker -> feeder: this request failed, the worker lives."""

    ticket: int
    code: str
    message: str
    is_retryable: bool
    hint: str = ""
    tensor: str = ""
    """The input that another slice spoiled, of SpoiledTensor."""


class Release(WorkerMessage, frozen=True, array_like=True, tag="free"):
    """Feeder -> worker: the outputs of this ticket may be overwritten."""

    ticket: int


class Abort(WorkerMessage, frozen=True, array_like=True, tag="abort"):
    """Feeder -> worker: end the run of this ticket as soon as the backend lets you."""

    ticket: int


class Attach(WorkerMessage, frozen=True, array_like=True, tag="attach"):
    """Feeder -> worker, first message of each feeder on a channel: outputs of tickets of any other
    session on this channel are forgotten. A ticket is `session << 32 | counter`."""

    session: int


class Loaded(WorkerMessage, frozen=True, array_like=True, tag="ready"):
    """Worker -> agent, once."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    load_ms: float
    warm_ms: float | None
    memory_mib: int
    """Its share of memory: pages that several processes have count in parts."""
    engine: str = ""
    """What runs it, in words: engine, version, device, and what was given up."""


class Worn(WorkerMessage, frozen=True, array_like=True, tag="worn"):
    """Worker -> agent, at most once: replace me when you can; I serve on."""

    requests: int
    """That it has answered."""
    grown_mib: int
    """Since it was loaded; 0 = it was not for that."""


class LoadFailed(WorkerMessage, frozen=True, array_like=True, tag="load_fail"):
    """Worker -> agent, once; the worker exits."""

    code: str
    message: str
    hint: str


AnyWorkerMessage = (
    Compute | Computed | ComputeFailed | Release | Abort | Attach | Loaded | LoadFailed | Worn
)
FeederMessage = Compute | Release | Abort | Attach
WorkerAnswer = Computed | ComputeFailed | Loaded | LoadFailed | Worn


class ArenaLayout(Struct, frozen=True, array_like=True):
    """One memfd: input region [0, input_bytes), output region [input_bytes, arena_bytes)."""

    arena_bytes: int
    input_bytes: int


class Given(Struct, frozen=True, array_like=True):
    """One file of a slice that a worker gets as a descriptor."""

    role: str
    """As `domain.model.Artifact.role`."""
    name: str
    """SHA256 of the content: what a model names its weights by."""


class Fork(Struct, frozen=True, array_like=True, tag_field="kind", tag="fork"):
    """Agent -> zygote, with descriptors: one per artifact in order, then (control socket, arena)
    per channel."""

    worker_id: int
    backend: str
    backend_options: dict[str, str]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    artifacts: tuple[Given, ...]
    channels: tuple[ArenaLayout, ...]
    adapter: AdapterSpec | None = None
    title: str = ""
    """Shown as the process title, e.g. `din worker centerface/2`."""
    requests_max: int = 0
    """After so many the worker says that it is worn; 0 = never."""
    growth_mib_max: int = 0
    """Once it has grown by more it says so as well; 0 = never."""
    memory_mib_max: int = 0
    """What the worker may take beside what it is born with; 0 = as much as the machine has."""


class Forked(Struct, frozen=True, array_like=True, tag_field="kind", tag="forked"):
    """Zygote -> agent, with one descriptor: a pidfd of the new worker."""

    worker_id: int
    pid: int


class ForkFailed(Struct, frozen=True, array_like=True, tag_field="kind", tag="fork_failed"):
    """Zygote -> agent: the system refused another process, or the order was malformed."""

    worker_id: int
    message: str


class Exited(Struct, frozen=True, array_like=True, tag_field="kind", tag="exited"):
    """Zygote -> agent: exit status as os.waitstatus_to_exitcode gives it (negative = signal)."""

    worker_id: int
    exit_code: int
    memory_mib_peak: int = 0
    """The most that was ever resident."""


AnyZygoteMessage = Fork | Forked | ForkFailed | Exited
ZygoteAnswer = Forked | ForkFailed | Exited
