"""One request: what is asked, how long it may take, what came back and where the time went."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

PrecisionClass = Literal["exact", "fp16", "uint8"]
"""The least precision at which tensors may cross between the slices of a request."""
SpanKind = Literal["queue", "transfer", "compute", "encode"]


class SliceTiming(Struct, frozen=True, array_like=True):
    """What one node did with one slice of one attempt. Relative to the arrival of its first frame,
    so clocks need not agree. Travels with the tensors to the gateway."""

    slice_index: int
    node_id: str
    wait_us: int
    """From the first frame's arrival until all inputs were there."""
    queue_us: int
    """From then until the worker took it."""
    compute_us: int
    """Inside the backend."""
    encode_us: int = 0
    """Decompressing what came from other slices and compressing what goes there."""
    accelerator_percent: float | None = None
    compressed_bytes: int = 0
    """Of what was compressed, as it travels."""
    uncompressed_bytes: int = 0
    """Of the same, as it was."""


class Span(Struct, frozen=True, kw_only=True):
    """One bar of the waterfall, relative to the arrival of the request at the gateway."""

    node: str
    slice_index: int
    phase: str
    """The slice's name, or `gateway`."""
    kind: SpanKind
    start_ms: float
    duration_ms: float
    compressed_bytes: int = 0
    """Of `encode`: what was compressed for other slices, as it travels."""
    uncompressed_bytes: int = 0
    """Of the same, as it was."""


class TraceStep(Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One entry of the seeds' `execution_trace`."""

    node: str
    phase: str
    latency_ms: float
    gpu_util: float | None = None
    queue_ms: float = 0.0
    wait_ms: float = 0.0
    slice_index: int = 0


class AttemptRecord(Struct, frozen=True, kw_only=True):
    """One try of a request, for the trace."""

    attempt: int
    nodes: tuple[str, ...]
    outcome: str
    """`completed`, or the cause of the failure in words: who, what."""
    duration_ms: float


class Trace(Struct, frozen=True, kw_only=True):
    """Everything that `din trace show` prints: an audit voucher of the decision, not a log."""

    request_id: str
    model_id: str
    version: str
    started_at: str
    """Wall clock, ISO 8601, for people only."""
    status: str
    duration_ms: float
    execution_trace: tuple[TraceStep, ...]
    spans: tuple[Span, ...]
    attempts: tuple[AttemptRecord, ...]
    path: str = "relay"
    """`direct` = gateway and worker shared memory; `relay` = through agents."""
    precision: PrecisionClass = "exact"
    """At which tensors crossed between its slices."""
    isolated_for: str = ""
    """Tenant whose own workers it ran in (`isolate: tenant`); empty = in the model's workers."""
    error: str = ""
    """Code and message of a request that failed."""
