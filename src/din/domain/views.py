"""What the control API answers: the same JSON for CLI, client, console and curl.

Every top-level answer carries `schema`, which changes when a field changes its meaning.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from din.domain.crash import CrashView
from din.domain.cuts import CutChoice, CutTable, CutWay
from din.domain.deployment import DeploymentState
from din.domain.encoding import PrecisionCheck, RewriteCheck
from din.domain.engine import EngineFacts
from din.domain.model import EXTERNAL_FILES_MAX, CutFacts, Edge, ModelManifest, Slice, SliceKind
from din.domain.node import NodeHealth, NodeProfile, NodeStatus
from din.domain.plan import Plan
from din.domain.profile import Verification
from din.domain.request import Trace
from din.domain.strategy import SLICES_MAX, Strategy
from din.domain.tensor import TensorSpec
from din.domain.trust import DEFAULT_TENANT

EDGES_MAX = 100_000
"""Of slices whose plan is asked for."""


class StuckSlice(Struct, frozen=True, kw_only=True):
    """A slice on a draining node that no other node can take: it stays and is served."""

    slice: str
    """`model/slice`."""
    reasons: tuple[str, ...] = ()
    """Why each other node cannot; only in `inspect` and in the answer to `drain`."""


class ForeignServerView(Struct, frozen=True, kw_only=True):
    """A server of others behind a node."""

    url: str
    name: str
    version: str
    is_up: bool
    reason: str = ""
    """Why it is not."""
    models: tuple[str, ...] = ()
    """That can be asked."""
    unready: dict[str, str] = {}
    """Models that cannot, and why."""
    container: str = ""
    """Of a server that the node started itself: the runtime and how often it began again."""


class NodeView(Struct, frozen=True, kw_only=True):
    """One node."""

    node_id: str
    name: str
    status: NodeStatus
    reason: str = ""
    """Why it is suspect, lost or draining."""
    device_type: str
    health: NodeHealth
    health_score: float
    """From 0 to 1: failed slices and missed beats lower it, beats in time bring it back to 1."""
    heartbeat_age_ms: int
    memory_mib: int
    """What it offers."""
    memory_mib_reserved: int
    """Promised to slices, loaded or loading."""
    slices: tuple[str, ...]
    """`model/slice` of each ready replica."""
    address: str = ""
    profile: NodeProfile | None = None
    """Only in `inspect`."""
    engines: tuple[EngineFacts, ...] = ()
    """Those that it has, usable or not; only in `inspect`."""
    warnings: tuple[str, ...] = ()
    foreign: tuple[ForeignServerView, ...] = ()
    """Servers of others behind it."""
    is_draining: bool = False
    """An operator wants it empty, whatever its status is."""
    is_drain_forced: bool = False
    is_revoked: bool = False
    """Whether it was thrown out: it never comes back under this id."""
    is_insecure_network: bool = False
    """Its links are plain text, to anybody."""
    sandbox_level: int | None = None
    """How far its workers are confined: 3 = all the way, 0 = limits only; null = unknown."""
    stuck: tuple[StuckSlice, ...] = ()
    quarantined: tuple[StuckSlice, ...] = ()
    """Slices that ended their workers there and are kept out for a while, with the reason."""
    crashes: tuple[CrashView, ...] = ()
    """Workers that ended by themselves, the oldest first; only in `inspect`."""


class NodeList(Struct, frozen=True, kw_only=True):
    """GET /api/v1/nodes."""

    schema: str = "din.nodes/1"
    cluster: str
    gateway_id: str
    discovery_mode: str
    is_insecure_network: bool = False
    """Plain text is spoken off loopback, to anybody."""
    items: tuple[NodeView, ...]


class LabelNode(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/v1/nodes/{node}/labels."""

    labels: dict[str, str | None]
    """null takes a given label back."""


class ReplicaView(Struct, frozen=True, kw_only=True):
    """One slice on one node."""

    node: str
    state: str
    reason: str = ""
    memory_mib: int | None = None
    """What one worker of it was measured to take there; None = not loaded, or not told."""


class SliceView(Struct, frozen=True, kw_only=True):
    """One slice of a model."""

    index: int
    name: str
    kind: SliceKind
    slice_id: str
    operators: int
    bytes_weights: int
    memory_mib: int
    device_type: str | None
    backend: str = ""
    """The engine that runs it; empty = a gateway of an older version does not say."""
    is_sensitive: bool = False
    is_sealed: bool = False
    replicas: tuple[ReplicaView, ...]


class ModelView(Struct, frozen=True, kw_only=True):
    """One model with its deployment."""

    schema: str = "din.model/1"
    model_id: str
    version: str
    state: DeploymentState
    reason: str = ""
    """Why it is not ready."""
    hint: str = ""
    """What to do about that."""
    error_code: str = ""
    """DIN code of `reason` where one is known."""
    serving_version: str = ""
    """Which version answers now when none is asked for; empty = none is ready."""
    epoch: tuple[int, int]
    """Of its deployment: a number by chance, and the revision of the store. Frames carry it."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    slices: tuple[SliceView, ...]
    cuts: tuple[CutFacts, ...] = ()
    manifest: ModelManifest | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tenant: str = DEFAULT_TENANT
    """Whose it is; `default` is shared by all."""
    verification: Verification | None = None
    """Whether the slices compute what the whole does."""
    rewrite: RewriteCheck | None = None
    """By how much rewrites that were asked for change what it computes."""
    precision: PrecisionCheck | None = None
    """How tensors cross between the slices, and why, where not always exactly."""
    crashes: tuple[CrashView, ...] = ()
    """Workers of it that ended by themselves, the oldest first."""
    is_seal_due: bool = False
    """It lies in plain form, and would be sealed if it were registered now."""
    choice: CutChoice | None = None
    """Why DIN cut it so, where the strategy left that to it."""


class ModelList(Struct, frozen=True, kw_only=True):
    """GET /api/v1/models."""

    schema: str = "din.models/1"
    items: tuple[ModelView, ...]


class CutsView(Struct, frozen=True, kw_only=True):
    """GET /api/v1/models/{model}/cuts: the graph, where it could be cut, and where it is."""

    schema: str = "din.model-cuts/1"
    model_id: str
    version: str
    table: CutTable
    assignment: tuple[int, ...]
    """Slice of each operator of the table."""
    slices: tuple[tuple[str, str], ...]
    """Name and node of each; without a node while none holds it."""
    operator_ms: tuple[float, ...]
    """Of each operator on `device`."""
    device: str
    times_from: Literal["profile", "flops"]
    ways: tuple[CutWay, ...] = ()
    """Over which its tensors go now, with what is known of them now."""


class SliceAgainView(Struct, frozen=True, kw_only=True):
    """POST /api/v1/models/{model}/slice: cuts chosen again."""

    schema: str = "din.slice-again/1"
    model_id: str
    version: str
    """That holds what was decided."""
    is_changed: bool
    reason: str
    cost_before: float | None
    """Of what stands, by what is known now; None when it cannot stay."""
    choice: CutChoice


class PlanView(Struct, frozen=True, kw_only=True):
    """Answer of a dry run."""

    schema: str = "din.plan/1"
    plan: Plan


class PlanSlices(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/v1/plan: where slices would go that are not registered, as a carver found them."""

    slices: Annotated[tuple[Slice, ...], Meta(min_length=1, max_length=SLICES_MAX)]
    edges: Annotated[tuple[Edge, ...], Meta(max_length=EDGES_MAX)] = ()


class TraceList(Struct, frozen=True, kw_only=True):
    """GET /api/v1/traces: newest first, bounded."""

    schema: str = "din.traces/1"
    items: tuple[Trace, ...]


class RegisterModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/v1/models: what `din model register` sends after the bytes are in the store.

    Mirrors the seeds' configuration file.
    """

    model_id: Annotated[str, Meta(max_length=512)]
    source_sha256: str = ""
    """Of the ONNX file; empty with `foreign`."""
    external: Annotated[dict[str, str], Meta(max_length=EXTERNAL_FILES_MAX)] = {}
    """SHA256 of each file beside the model that holds weights, by the location that it gives."""
    slicing_strategy: Strategy = Strategy()
    encrypt: bool | None = None
    """Seal all its files; None = when nodes of other machines may get them."""
    inputs: dict[str, tuple[int | str, ...]] = {}
    backend_options: dict[str, str] = {}
    before: dict[str, object] | None = None
    """{"name": "image", ...options}."""
    after: dict[str, object] | None = None
    workers: int = 1
    replicas: int = 2
    is_dry_run: bool = False
    calibration_sha256: str = ""
    """Of inputs for calibrating (`domain.calibration`), uploaded as the model; empty = made up."""
    verify: bool = True
    """Compare the slices with the whole on one made-up input before the version is kept."""
    foreign: Annotated[str, Meta(max_length=256)] = ""
    """A model that a server behind a node has, instead of a file: `NAME` or `NAME@NODE`."""
