"""Headers of the frames that travel on a link, one struct per kind.

A frame is `fixed header | message header (msgpack array) | body (raw tensors)`; `wire.frame` holds
the bytes. Every message is a tagged array-like struct, so a field may be appended, never removed or
moved, inside one protocol version. Times are remaining or relative, never wall clock.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from din.domain.crash import Death
from din.domain.deployment import Epoch, Route
from din.domain.engine import EngineFacts
from din.domain.foreign import ForeignServer
from din.domain.heat import CoreKind, SensorView
from din.domain.model import Edge, Slice
from din.domain.request import SliceTiming
from din.domain.tensor import TensorMeta

PROTOCOL_VERSION: Final = 1

Lane = Literal["urgent", "bulk"]


class Message(Struct, frozen=True, array_like=True, tag_field="kind"):
    """Base of all message headers."""


class Hello(Message, frozen=True, array_like=True, tag="HELLO"):
    """First frame on each connection, from the dialling side."""

    node_id: str
    """The dialler: a node id or a gateway id."""
    session: int
    lane: Lane
    link_id: int
    """Same number on both lanes of one link."""
    protocol_versions: tuple[int, ...] = (PROTOCOL_VERSION,)
    target_id: str = ""
    """Whom the dialler believes to reach; a mismatch is refused, so stale addresses do no harm."""


class Welcome(Message, frozen=True, array_like=True, tag="WELCOME"):
    """Answer to Hello. A refusal is Refused."""

    node_id: str
    session: int
    protocol_version: int


class Refused(Message, frozen=True, array_like=True, tag="REFUSED"):
    """The link will not be: wrong target, old session, no common version, too many links."""

    reason: str


class Ping(Message, frozen=True, array_like=True, tag="PING"):
    """Answered by Pong with the same nonce; an idle link is pinged, a silent one is closed."""

    nonce: int


class Pong(Message, frozen=True, array_like=True, tag="PONG"):
    """Answer to Ping."""

    nonce: int


class Prepare(Message, frozen=True, array_like=True, tag="PREPARE"):
    """Gateway -> agent: pull this slice, load it, warm it. Repeating it is harmless and updates
    peers and edges."""

    epoch: Epoch
    model_id: str
    slice: Slice
    edges: tuple[Edge, ...]
    adapted_edges: tuple[Edge, ...]
    workers: int
    backend_options: dict[str, str]
    artifact_url: str
    """`http://gateway/api/v1/artifacts/` - the SHA256 is appended."""
    peers: dict[str, tuple[str, ...]]
    """Node id -> addresses of every node of the deployment."""
    remaining_ms: int
    signature: bytes = b""
    """Of the gateway, over `wire.statement`; nodes that joined with a token insist on it."""
    grant: bytes = b""
    """The data key of a sealed slice for this node (docs/protocol/sealed-slice.md): of its first
    file."""
    lease_ms: int = 0
    """How long the slice may be held without RENEW; 0 = for ever."""
    further_grants: tuple[bytes, ...] = ()
    """Of its other files, in their order."""

    def grant_of(self, artifact: int) -> bytes:
        """For the file with this index; empty when none came."""
        grants = (self.grant, *self.further_grants)
        return grants[artifact] if 0 <= artifact < len(grants) else b""


class Prepared(Message, frozen=True, array_like=True, tag="PREPARED"):
    """Agent -> gateway: loaded and warm."""

    epoch: Epoch
    slice_index: int
    load_ms: float
    warm_ms: float | None
    memory_mib: int | None
    undialable: tuple[str, ...] = ()
    """Peers that could not be dialled: the gateway relays for these."""


class PrepareFailed(Message, frozen=True, array_like=True, tag="PREPARE_FAILED"):
    """Agent -> gateway: could not be loaded; `code` is a DIN error code."""

    epoch: Epoch
    slice_index: int
    code: str
    message: str
    hint: str = ""


class Renew(Message, frozen=True, array_like=True, tag="RENEW"):
    """Gateway -> agent: the slices of this deployment may be held so much longer, from now."""

    epoch: Epoch
    lease_ms: int


class Unload(Message, frozen=True, array_like=True, tag="UNLOAD"):
    """Gateway -> agent: drain and drop every slice of this deployment (index None) or one slice."""

    epoch: Epoch
    slice_index: int | None = None


class Run(Message, frozen=True, array_like=True, tag="RUN"):
    """Inputs for one slice of one attempt; the body holds the tensors. A slice runs when all of its
    inputs are there, from whichever frames."""

    request_id: int
    """Unique per gateway session; `origin` makes it unique in the network."""
    attempt: int
    slice_index: int
    route: Route
    remaining_ms: int
    tensors: tuple[TensorMeta, ...]
    origin: str
    """Gateway id that outputs, progress and failures go to."""
    target: str = ""
    """Node id, when the gateway shall relay this frame to it."""
    producer: int = -1
    timings: tuple[SliceTiming, ...] = ()
    """Of every slice upstream."""


class Result(Message, frozen=True, array_like=True, tag="RESULT"):
    """Agent -> gateway: outputs of one slice that the gateway consumes."""

    request_id: int
    attempt: int
    slice_index: int
    tensors: tuple[TensorMeta, ...]
    timings: tuple[SliceTiming, ...]
    queue_depth: int
    """Of the answering node, so that routing sees load without waiting for a heartbeat."""


class Progress(Struct, frozen=True, array_like=True):
    """One step of one slice of one attempt."""

    request_id: int
    attempt: int
    slice_index: int
    step: Literal["accepted", "forwarded"]


class Accepted(Message, frozen=True, array_like=True, tag="ACCEPTED"):
    """Agent -> gateway: these slices have all inputs (`accepted`) or have sent all outputs on
    (`forwarded`). Batched: a slice that answered within the batching time is never mentioned."""

    marks: tuple[Progress, ...]


class Failed(Message, frozen=True, array_like=True, tag="FAILED"):
    """A typed failure of one slice of one attempt."""

    request_id: int
    attempt: int
    slice_index: int
    node_id: str
    """Whom to blame: the sender, or the peer that it could not reach."""
    code: str
    message: str
    is_retryable: bool = True
    """False when another node would fail the same way, as with a wrong tensor."""
    hint: str = ""


class BusyNode(Message, frozen=True, array_like=True, tag="BUSY"):
    """The node's queue for this slice is full, or its workers are being replaced (a depth of 0).
    Nothing ran, and it is not blamed."""

    request_id: int
    attempt: int
    slice_index: int
    node_id: str
    queue_depth: int
    retry_after_ms: int


class Cancel(Message, frozen=True, array_like=True, tag="CANCEL"):
    """Gateway -> every node of the attempt: stop, free, refuse late frames until the deadline."""

    request_id: int
    attempt: int
    origin: str
    remaining_ms: int


class Offer(Message, frozen=True, array_like=True, tag="OFFER"):
    """Agent -> gateway on the same host, with two descriptors (control socket, arena): talk to this
    worker yourself. `worker_id` is unique per agent session."""

    epoch: Epoch
    slice_index: int
    worker_id: int
    arena_bytes: int
    input_bytes: int
    """The arena is one input region of this size, then the output region."""


class Revoke(Message, frozen=True, array_like=True, tag="REVOKE"):
    """Agent -> gateway: the worker is being unloaded; send no more, then answer with Revoked."""

    worker_id: int


class Revoked(Message, frozen=True, array_like=True, tag="REVOKED"):
    """Gateway -> agent: nothing of ours runs in that worker any more. Sent unasked: it did not
    answer, and is to be ended."""

    worker_id: int


class WorkerDied(Message, frozen=True, array_like=True, tag="WORKER_DIED"):
    """Agent -> gateway: a worker of a loaded slice ended; another is started with back-off."""

    epoch: Epoch
    slice_index: int
    death: Death


class Lift(Message, frozen=True, array_like=True, tag="LIFT"):
    """Gateway -> agent: load slices again that ended their workers there; see PREPARE_FAILED."""


class ThrownOut(Message, frozen=True, array_like=True, tag="THROWN_OUT"):
    """Gateway -> agent: these nodes were revoked. End what is open to them and take nothing more
    from them. Sent at each revocation, and to whoever opens a link, with all of late."""

    node_ids: tuple[str, ...]


class MeasuredWay(Struct, frozen=True, array_like=True):
    """What one end of a link knows of it."""

    peer_id: str
    """The other end: a node or a gateway."""
    latency_ms: float | None
    """Half of the shortest of the last round trips."""
    mib_per_second: float | None
    """At which large bodies came from there of late."""


class Measured(Message, frozen=True, array_like=True, tag="MEASURED"):
    """Agent -> gateway: all that it knows of its links now; it replaces what was said before."""

    ways: tuple[MeasuredWay, ...]


class EngineNews(Message, frozen=True, array_like=True, tag="ENGINES"):
    """Agent -> gateway: every engine that it has or was told to have, and which of them cannot be
    used and why; it replaces what was said before."""

    engines: tuple[EngineFacts, ...]


class AskHeat(Message, frozen=True, array_like=True, tag="ASK_HEAT"):
    """Gateway -> agent: measure its cores from now on for so long, then answer with Heat."""

    number: int
    window_ms: int
    core_mask: str = ""
    """Hexadecimal, bit 0 = core 0; empty = every core."""


class HeatCore(Struct, frozen=True, array_like=True):
    """One core over the window; None = not measured."""

    core: int
    kind: CoreKind
    percent: float | None
    bandwidth_percent: float | None


class Heat(Message, frozen=True, array_like=True, tag="HEAT"):
    """Agent -> gateway: answer to AskHeat."""

    number: int
    window_ms: int = 0
    """As measured."""
    cores: tuple[HeatCore, ...] = ()
    unknown: dict[str, str] = {}
    """What was not measured, and why."""
    sensors: tuple[SensorView, ...] = ()
    reason: str = ""
    """Why nothing was measured; empty = it was."""


class Foreign(Message, frozen=True, array_like=True, tag="FOREIGN"):
    """Agent -> gateway: the servers behind this node and what can be asked of them now; it replaces
    what was said before."""

    servers: tuple[ForeignServer, ...]


class Bye(Message, frozen=True, array_like=True, tag="BYE"):
    """Orderly end: the sender is stopping and wants no blame for closing."""

    reason: str


AnyMessage = (
    Hello
    | Welcome
    | Refused
    | Ping
    | Pong
    | Prepare
    | Prepared
    | PrepareFailed
    | Renew
    | Unload
    | Run
    | Result
    | Accepted
    | Failed
    | BusyNode
    | Cancel
    | Offer
    | Revoke
    | Revoked
    | WorkerDied
    | Lift
    | ThrownOut
    | Measured
    | AskHeat
    | Heat
    | EngineNews
    | Foreign
    | Bye
)

URGENT_KINDS: Final = (
    Ping, Pong, Accepted, Failed, BusyNode, Cancel, Prepared, PrepareFailed, Prepare, Renew,
    Unload, Offer, Revoke, Revoked, WorkerDied, Lift, ThrownOut,
    Measured, AskHeat, Heat, EngineNews, Foreign, Bye,
)  # fmt: skip
"""Kinds that travel on the urgent lane; Run and Result do too when their body is small."""

URGENT_BODY_BYTES_MAX: Final = 16 * 1024
"""Bodies up to this travel on the urgent lane: they delay a cancel little."""
