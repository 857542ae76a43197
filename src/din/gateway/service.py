"""What the gateway offers to its fronts (HTTP, later gRPC): two small surfaces, no HTTP words.

The fronts translate bytes into these calls and errors into their own shapes; tests give a fake.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from din.domain.audit import AuditCheck, AuditList, AuditQuery
from din.domain.enrolment import (
    CreateToken,
    Enrolled,
    JoinOrder,
    NewToken,
    RenewOrder,
    RevokedView,
    TokenView,
)
from din.domain.gateway_view import GatewayView
from din.domain.heat import HeatView
from din.domain.keys import CreateKey, KeyCreated, KeyList, KeyView
from din.domain.model import ModelManifest
from din.domain.plan import Plan
from din.domain.profile import ProfileModel, ProfileView, VerifyModel, VerifyView
from din.domain.request import PrecisionClass, Trace, TraceStep
from din.domain.tensor import TensorMeta
from din.domain.trust import DEFAULT_TENANT, Caller, Peer
from din.domain.views import (
    CutsView,
    ModelList,
    ModelView,
    NodeList,
    NodeView,
    PlanSlices,
    RegisterModel,
    SliceAgainView,
)

Buffer = bytes | bytearray | memoryview


class InferenceCall(Struct, kw_only=True):
    """One inference as a front hands it over."""

    model_id: str
    version: str | None = None
    request_id: str | None = None
    """The caller's own; None = DIN makes one (`req-` and 8 hex digits)."""
    metas: tuple[TensorMeta, ...]
    chunks: Sequence[Sequence[Buffer]]
    """Bytes of tensor i in pieces as they came off the socket; copied once, into the slot."""
    is_adapted: bool
    """True for /infer and the client; False for /v2."""
    outputs: tuple[str, ...] = ()
    """Names wanted; empty = all. Unknown names are a BadTensor that lists the valid ones."""
    timeout_ms: int | None = None
    is_retry_of_random_allowed: bool = False
    precision: PrecisionClass | None = None
    """The least that is allowed, for the choice of the route; None = as the model was registered.
    A more precise way is always right."""
    tenant: str = DEFAULT_TENANT
    """Who may see its trace."""


class InferenceAnswer(Struct, kw_only=True):
    """Outputs lie in shared memory until `release` is called; call it exactly once."""

    request_id: str
    model_id: str
    version: str
    metas: tuple[TensorMeta, ...]
    views: Sequence[memoryview]
    steps: tuple[TraceStep, ...]
    """The `execution_trace`."""
    release: Callable[[], None]


InferenceDone = Callable[[InferenceAnswer | BaseException], None]


class Started(Protocol):
    """A request that runs without a task."""

    def cancel(self) -> None:
        """The caller has gone: the request is cancelled on every node."""
        ...


class InferenceService(Protocol):
    """The inference front's side of the gateway."""

    async def infer(self, call: InferenceCall) -> InferenceAnswer:
        """Run one request. Raises any DinError; cancelling the awaiting task cancels the request
        on every node."""
        ...

    def start(self, call: InferenceCall, done: InferenceDone) -> Started | None:
        """Begin a request that can run this instant and needs no task; None when this one is not
        such, with nothing changed: `infer` is for all. `done` is called once with what `infer`
        would return or raise, not before this returns, and never after `cancel`."""
        ...

    def plan(self, model_id: str, version: str | None, *, is_adapted: bool) -> Plan:
        """Dry run: touches no node and looks at no input."""
        ...

    def manifest(self, model_id: str, version: str | None = None) -> ModelManifest:
        """Signature of a model. Raises NotFound naming similar model ids."""
        ...

    def is_ready(self, model_id: str, version: str | None = None) -> bool:
        """Whether a request could be answered now."""
        ...

    def is_gateway_ready(self) -> bool:
        """Whether every registered model is ready and the gateway is not stopping."""
        ...

    def count_rejected(self, model_id: str, error_code: str) -> None:
        """Count a request that failed before `infer` could be called (parse errors)."""
        ...


class ControlService(Protocol):
    """The control API's side of the gateway."""

    def gateway_view(self) -> GatewayView:
        """Who this is."""
        ...

    def list_nodes(self) -> NodeList:
        """All members, lost ones included until they are forgotten."""
        ...

    def inspect_node(self, name_or_id: str) -> NodeView:
        """One node by name, id or unique id prefix. Raises NotFound or Conflict (ambiguous)."""
        ...

    async def heat_of_node(self, name_or_id: str, window_ms: int, core_mask: int) -> HeatView:
        """How hot its cores run in one window from now on; mask 0 = every core. Raises NotFound,
        Conflict, Busy, Unreachable, DeadlineExceeded."""
        ...

    async def drain_node(
        self,
        name_or_id: str,
        caller: Caller,
        *,
        is_forced: bool = False,
        is_dry_run: bool = False,
    ) -> NodeView:
        """Place nothing more on it and move its slices away; it serves each until another node
        does, or with force nothing at once. The answer names what nobody else can take."""
        ...

    async def undrain_node(self, name_or_id: str, caller: Caller) -> NodeView:
        """Take a drain back, also of a node that is not here."""
        ...

    async def lift_node(self, name_or_id: str, caller: Caller) -> NodeView:
        """Have it load slices again that ended their workers there. Raises NotFound,
        Unavailable."""
        ...

    async def revoke_node(
        self, name_or_id: str, caller: Caller, *, is_dry_run: bool = False
    ) -> RevokedView:
        """Throw it out for good: links closed, certificate worth nothing. A dry run only says who
        is meant. Raises NotFound or Conflict."""
        ...

    async def label_node(
        self, name_or_id: str, changes: Mapping[str, str | None], caller: Caller
    ) -> NodeView:
        """Give labels to a node, or take given ones back (None). Raises NotFound, Conflict,
        UsageError, TooLarge."""
        ...

    def register_node(self, body: bytes, peer: Peer, sent_wall_ms: int | None) -> bytes:
        """TLV registration in, TLV answer out; `sent_wall_ms` is the time by the node's own clock,
        where it said that. Raises UsageError, Conflict, or Denied when this peer may not speak for
        the node."""
        ...

    def deregister_node(self, node_id: str, session: int, peer: Peer) -> None:
        """A node says good-bye. Raises NotFound, Denied, or Conflict when a newer session lives."""
        ...

    async def remove_node(self, name_or_id: str, session: int, caller: Caller) -> None:
        """An operator says it for a node. Raises NotFound or Conflict."""
        ...

    def heartbeat(self, body: bytes, peer: Peer) -> bytes:
        """One heartbeat in, the answer out (`ok` or `register again`). Raises as registering."""
        ...

    def list_models(self, caller: Caller) -> ModelList:
        """Newest version of each model that the caller sees, with deployment state."""
        ...

    def inspect_model(self, model_id: str, version: str | None = None) -> ModelView:
        """One model. Raises NotFound."""
        ...

    def plan_slices(self, asked: PlanSlices) -> Plan:
        """Where slices that are not registered would go, as things are; touches no node.

        Raises UsageError for edges that name no slice, CannotPlace with the reasons.
        """
        ...

    async def register_model(self, order: RegisterModel, caller: Caller) -> ModelView:
        """Carve and start to deploy; returns at once with the state so far. Raises Conflict when
        the id is another tenant's."""
        ...

    async def cuts_of_model(self, model_id: str, version: str | None = None) -> CutsView:
        """Where a model could be cut and where it is. Raises NotFound."""
        ...

    async def slice_model(self, model_id: str, caller: Caller) -> SliceAgainView:
        """Choose the cuts of an `auto` model again; deploys only what wins clearly. Raises
        NotFound, Denied, BadStrategy, CannotPlace."""
        ...

    async def remove_model(self, model_id: str, caller: Caller) -> ModelView:
        """Unload everywhere and forget."""
        ...

    def list_traces(self, limit: int, caller: Caller) -> tuple[Trace, ...]:
        """Newest first, of the caller's tenant."""
        ...

    def trace(self, request_id: str, caller: Caller) -> Trace:
        """Raises NotFound."""
        ...

    def has_artifact(self, sha256: str) -> int | None:
        """Size in bytes, or None."""
        ...

    async def put_artifact(
        self,
        sha256: str,
        body: AsyncIterator[bytes],
        nbytes: int,
        *,
        is_encrypted: bool | None = None,
        start: int = 0,
    ) -> None:
        """Store bytes under their hash, those from `start` of `nbytes` in all; sealed as they come
        when that is said, or when it is not said and models are sealed here. Raises UsageError when
        the hash differs, Conflict when the upload before did not end at `start`, TooLarge over the
        quota, Unavailable when the disk is full."""
        ...

    def uploaded_bytes(self, sha256: str) -> int:
        """How much is here of an artifact whose upload broke off."""
        ...

    def artifact_path(self, sha256: str) -> str:
        """Path to serve with range support. Raises NotFound."""
        ...

    def metrics_text(self) -> bytes:
        """Prometheus text format 0.0.4."""
        ...

    def watch(self, caller: Caller) -> AsyncIterator[tuple[str, bytes]]:
        """Server-sent events: (event name, JSON)."""
        ...


class ExamineService(Protocol):
    """Looking at models by probes."""

    async def profile_model(
        self, model_id: str, version: str | None, asked: ProfileModel, caller: Caller
    ) -> ProfileView:
        """Times and sizes of every operator, on one node or on one of each class. Raises NotFound,
        Denied for a shared model, CannotPlace, BadTensor, Busy."""
        ...

    async def verify_model(
        self, model_id: str, version: str | None, asked: VerifyModel, caller: Caller
    ) -> VerifyView:
        """Whole against sliced. Raises as `profile_model`, and what the node says."""
        ...


class AccessService(Protocol):
    """Keys and the audit log. Every change is written down before it is made; one that cannot be
    written raises Unavailable."""

    async def create_key(self, order: CreateKey, caller: Caller) -> KeyCreated:
        """Make a key; only the answer ever holds it. Raises UsageError or TooLarge."""
        ...

    def list_keys(self) -> KeyList:
        """All keys, newest first."""
        ...

    async def revoke_key(self, id_or_name: str, caller: Caller) -> KeyView:
        """Take a key away, on open connections too. Raises NotFound or Conflict."""
        ...

    async def audit(self, query: AuditQuery) -> AuditList:
        """Entries of the audit log, newest first."""
        ...

    async def check_audit(self) -> AuditCheck:
        """Whether the audit log is whole."""
        ...


class TrustService(Protocol):
    """How machines join: the control API's side of `gateway.enrolment`."""

    def authority_pem(self) -> bytes:
        """The authority's certificate."""
        ...

    async def create_token(self, order: CreateToken, caller: Caller) -> NewToken:
        """A token for one machine. Raises Busy."""
        ...

    async def tokens(self) -> tuple[TokenView, ...]:
        """All tokens without their secrets."""
        ...

    async def revoke_token(self, beginning: str, caller: Caller) -> TokenView:
        """What the token of this id was, or of the only id that begins so. Raises NotFound or
        Conflict."""
        ...

    async def join(self, order: JoinOrder, peer: Peer) -> Enrolled:
        """A certificate for a token. Raises Denied, UsageError, Conflict, Busy or Limited."""
        ...

    async def renew(self, order: RenewOrder, peer: Peer) -> Enrolled:
        """A new certificate for the same key. Raises Denied or UsageError."""
        ...
