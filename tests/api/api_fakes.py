"""A gateway that answers from memory: two models, counted calls, and answers that can be held."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from din.domain.enrolment import RevokedView
from din.domain.gateway_view import GatewayView
from din.domain.heat import CoreHeat, HeatView
from din.domain.model import ModelManifest
from din.domain.node import NodeHealth
from din.domain.plan import Placement, Plan, Rejection
from din.domain.profile import (
    ProfileModel,
    ProfileView,
    Verification,
    VerifyModel,
    VerifyView,
)
from din.domain.request import Trace, TraceStep
from din.domain.tensor import BYTES, DTYPE_BYTES, TensorMeta, TensorSpec
from din.domain.trust import Caller, Peer
from din.domain.views import ModelList, ModelView, NodeList, NodeView, PlanSlices, RegisterModel
from din.errors import Conflict, NotFound, UsageError
from din.gateway.service import InferenceAnswer, InferenceCall, InferenceDone

DTYPES = (*DTYPE_BYTES, BYTES)


def _manifest(model_id: str, inputs: list[TensorSpec], **more: object) -> ModelManifest:
    fields: dict[str, object] = {
        "inputs": tuple(inputs),
        "outputs": tuple(TensorSpec("out_" + each.name, each.dtype, each.shape) for each in inputs),
    } | more
    return ModelManifest(model_id=model_id, version="1", source_sha256="0" * 64, **fields)


FACES = _manifest(
    "faces",
    [TensorSpec("x", "FP32", (1, 3))],
    adapted_inputs=(TensorSpec("image", "UINT8", ("bytes",)),),
    adapted_outputs=(
        TensorSpec("boxes", "FP32", ("n", 4)),
        TensorSpec("scores", "FP32", ("n",)),
        TensorSpec("labels", "BYTES", ("n",)),
    ),
)
PLAIN = _manifest("plain", [TensorSpec("x", "FP32", ("n", 2))])
MODELS = [
    FACES,
    PLAIN,
    _manifest("模型 100%😀", [TensorSpec("x", "FP32", ("n", 2))]),
    _manifest("模型/100%😀", [TensorSpec("x", "FP32", ("n", 2))]),
    *[_manifest(f"echo-{dtype}", [TensorSpec("x", dtype, None)]) for dtype in DTYPES],
]


def trace_of(request_id: str, model_id: str) -> Trace:
    step = TraceStep(node="edge-1", phase="whole", latency_ms=1.5)
    return Trace(
        request_id=request_id,
        model_id=model_id,
        version="1",
        started_at="2026-01-01T00:00:00Z",
        status="completed",
        duration_ms=2.0,
        execution_trace=(step,),
        spans=(),
        attempts=(),
    )


class FakeStarted:
    """Implements service.Started."""

    def __init__(self, task: asyncio.Task[InferenceAnswer], done: InferenceDone) -> None:
        self.task = task
        task.add_done_callback(lambda task: task.cancelled() or done(_outcome_of(task)))

    def cancel(self) -> None:
        self.task.cancel()


def _outcome_of(task: asyncio.Task[InferenceAnswer]) -> InferenceAnswer | BaseException:
    return task.exception() or task.result()


class FakeInference:
    """Echoes inputs; adapted models find one face."""

    def __init__(self) -> None:
        self.models = {each.model_id: each for each in MODELS}
        self.calls: list[InferenceCall] = []
        self.rejected: list[tuple[str, str]] = []
        self.released = 0
        self.cancelled = 0
        self.gate: asyncio.Event | None = None
        self.started = asyncio.Event()
        self.error: Exception | None = None
        self.big: bytes | None = None
        self.is_ready_now = True
        self.is_express = False
        self.expressed = 0

    def manifest(self, model_id: str, version: str | None = None) -> ModelManifest:
        found = self.models.get(model_id)
        if found is None or version not in (None, "1"):
            raise NotFound(f"no model {model_id!r}", hint="similar: faces")
        return found

    def is_ready(self, model_id: str, version: str | None = None) -> bool:
        return self.is_ready_now

    def is_gateway_ready(self) -> bool:
        return self.is_ready_now

    def count_rejected(self, model_id: str, error_code: str) -> None:
        self.rejected.append((model_id, error_code))

    def plan(self, model_id: str, version: str | None, *, is_adapted: bool) -> Plan:
        return Plan(
            plan_id="p1",
            model_id=model_id,
            version="1",
            placements=(
                Placement(
                    slice_index=0,
                    slice_name="whole",
                    node_id="a" * 16,
                    node="edge-1",
                    reason="lowest_load",
                    memory_mib=120,
                ),
            ),
            rejections=(
                Rejection(
                    slice_index=0,
                    node_id="b" * 16,
                    node="edge-2",
                    constraint="memory",
                    observed="64 MiB",
                    required="120 MiB",
                ),
            ),
        )

    async def infer(self, call: InferenceCall) -> InferenceAnswer:
        self.calls.append(call)
        self.started.set()
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        metas, views = self._outputs(call)
        return InferenceAnswer(
            request_id=call.request_id or "req-00000000",
            model_id=call.model_id,
            version="1",
            metas=metas,
            views=views,
            steps=trace_of(call.request_id or "", call.model_id).execution_trace,
            release=self._release,
        )

    def start(self, call: InferenceCall, done: InferenceDone) -> FakeStarted | None:
        """Only when `is_express`: answered in the next turn of the loop, or when the gate opens."""
        if not self.is_express:
            return None
        self.expressed += 1
        return FakeStarted(asyncio.get_running_loop().create_task(self.infer(call)), done)

    def _release(self) -> None:
        self.released += 1

    def _outputs(self, call: InferenceCall) -> tuple[tuple[TensorMeta, ...], list[memoryview]]:
        import struct

        if call.is_adapted:
            boxes = struct.pack("<4f", 0.1, 0.2, 30.5, 40.25)
            labels = (4).to_bytes(4, "little") + b"face"
            raw = [
                (TensorMeta("boxes", "FP32", (1, 4), 16), boxes),
                (TensorMeta("scores", "FP32", (1,), 4), struct.pack("<f", 0.9)),
                (TensorMeta("labels", "BYTES", (1,), 8), labels),
            ]
        elif self.big is not None:
            raw = [(TensorMeta("out_x", "FP32", (len(self.big) // 8, 2), len(self.big)), self.big)]
        else:
            raw = [
                (TensorMeta("out_" + meta.name, meta.dtype, meta.shape, meta.nbytes), b"".join(own))
                for meta, own in zip(call.metas, call.chunks, strict=True)
            ]
        raw = [each for each in raw if not call.outputs or each[0].name in call.outputs]
        return tuple(meta for meta, _ in raw), [memoryview(bytearray(data)) for _, data in raw]


class FakeControl:
    """One node, one model, artifacts in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.beats: list[bytes] = []
        self.encrypted: list[bool | None] = []
        self.removed: list[str] = []
        self.orders: list[RegisterModel] = []
        self.drained: list[tuple[str, bool, bool]] = []
        self.lifted: list[str] = []
        self.revoked: list[str] = []
        self.deregistered: list[tuple[str, int]] = []
        self.deregistered_by: list[tuple[str, str, int]] = []
        self.watching = 0

    def gateway_view(self) -> GatewayView:
        return GatewayView(
            gateway_id="g1",
            cluster="test",
            version="0",
            pid=1,
            state_path="/nowhere",
            discovery_mode="unicast",
            nodes=1,
            models=1,
        )

    def _node(self) -> NodeView:
        return NodeView(
            node_id="a" * 16,
            name="edge-1",
            status="ready",
            device_type="x86_64",
            health=NodeHealth(),
            health_score=1.0,
            heartbeat_age_ms=5,
            memory_mib=100,
            memory_mib_reserved=0,
            slices=(),
        )

    def list_nodes(self) -> NodeList:
        return NodeList(
            cluster="test", gateway_id="g1", discovery_mode="unicast", items=(self._node(),)
        )

    async def heat_of_node(self, name_or_id: str, window_ms: int, core_mask: int) -> HeatView:
        return HeatView(
            node=self.inspect_node(name_or_id).name,
            window_ms=window_ms,
            core_mask=f"{core_mask:#x}",
            cores=(CoreHeat(core=0, percent=12.5),),
        )

    def inspect_node(self, name_or_id: str) -> NodeView:
        if name_or_id not in ("edge-1", "a" * 16):
            raise NotFound(f"no node {name_or_id!r}", hint="nodes are edge-1")
        return self._node()

    async def drain_node(
        self, name_or_id: str, caller: Caller, *, is_forced: bool = False, is_dry_run: bool = False
    ) -> NodeView:
        self.drained.append((name_or_id, is_forced, is_dry_run))
        return self.inspect_node(name_or_id)

    async def undrain_node(self, name_or_id: str, caller: Caller) -> NodeView:
        found = self.inspect_node(name_or_id)
        if (name_or_id, False, False) in self.drained:
            self.drained.remove((name_or_id, False, False))
        return found

    async def lift_node(self, name_or_id: str, caller: Caller) -> NodeView:
        self.lifted.append(name_or_id)
        return self.inspect_node(name_or_id)

    async def label_node(
        self, name_or_id: str, changes: Mapping[str, str | None], caller: Caller
    ) -> NodeView:
        self.labels = dict(changes)
        return self.inspect_node(name_or_id)

    async def revoke_node(
        self, name_or_id: str, caller: Caller, *, is_dry_run: bool = False
    ) -> RevokedView:
        node = self.inspect_node(name_or_id)
        if not is_dry_run:
            self.revoked.append(node.node_id)
        return RevokedView(node_id=node.node_id, name=node.name, is_new=True)

    def register_node(self, body: bytes, peer: Peer, sent_wall_ms: int | None) -> bytes:
        self.sent_wall_ms = sent_wall_ms
        if body == b"clone":
            raise Conflict("node name edge-1 is taken", hint="give --name")
        return b"hello " + peer.address.encode() + b" " + body

    def deregister_node(self, node_id: str, session: int, peer: Peer) -> None:
        self.deregistered.append((node_id, session))

    async def remove_node(self, name_or_id: str, session: int, caller: Caller) -> None:
        self.deregistered_by.append((caller.name, name_or_id, session))

    def heartbeat(self, body: bytes, peer: Peer) -> bytes:
        if body == b"bad":
            raise UsageError("no heartbeat", hint="send TLV")
        self.beats.append(body)
        return b"ok"

    def _model(self, model_id: str) -> ModelView:
        return ModelView(
            model_id=model_id,
            version="1",
            state="ready",
            epoch=(1, 1),
            inputs=(),
            outputs=(),
            slices=(),
        )

    def list_models(self, caller: Caller) -> ModelList:
        return ModelList(items=(self._model("faces"),))

    def inspect_model(self, model_id: str, version: str | None = None) -> ModelView:
        return self._model(model_id)

    def plan_slices(self, asked: PlanSlices) -> Plan:
        placements = tuple(
            Placement(
                slice_index=part.index,
                slice_name=part.name,
                node_id="a" * 16,
                node="edge-1",
                reason="lowest_load",
            )
            for part in asked.slices
        )
        return Plan(plan_id="p2", model_id="", version="", placements=placements)

    async def register_model(self, order: RegisterModel, caller: Caller) -> ModelView:
        self.orders.append(order)
        return self._model(order.model_id)

    async def remove_model(self, model_id: str, caller: Caller) -> ModelView:
        self.removed.append(model_id)
        return self._model(model_id)

    def list_traces(self, limit: int, caller: Caller) -> tuple[Trace, ...]:
        return tuple(trace_of(f"req-{each}", "faces") for each in range(min(limit, 3)))

    def trace(self, request_id: str, caller: Caller) -> Trace:
        if request_id == "none":
            raise NotFound("no trace 'none'")
        return trace_of(request_id, "faces")

    def has_artifact(self, sha256: str) -> int | None:
        path = self.folder / sha256
        return path.stat().st_size if path.exists() else None

    async def put_artifact(
        self,
        sha256: str,
        body: AsyncIterator[bytes],
        nbytes: int,
        *,
        is_encrypted: bool | None = None,
        start: int = 0,
    ) -> None:
        self.encrypted.append(is_encrypted)
        part = self.folder / f"{sha256}.partial"
        before = part.read_bytes()[:start] if start else b""
        data = before + b"".join([piece async for piece in body])
        assert len(data) == nbytes
        if hashlib.sha256(data).hexdigest() != sha256:
            raise UsageError("the bytes have another SHA256")
        (self.folder / sha256).write_bytes(data)

    def uploaded_bytes(self, sha256: str) -> int:
        part = self.folder / f"{sha256}.partial"
        return part.stat().st_size if part.exists() else 0

    def artifact_path(self, sha256: str) -> str:
        if self.has_artifact(sha256) is None:
            raise NotFound(f"no artifact {sha256}")
        return str(self.folder / sha256)

    def metrics_text(self) -> bytes:
        return b"# HELP din_up\n"

    async def watch(self, caller: Caller) -> AsyncIterator[tuple[str, bytes]]:
        self.watching += 1
        try:
            for count in range(1000):
                yield "beat", b'{"count": %d}' % count
                await asyncio.sleep(0.01)
        finally:
            self.watching -= 1


class FakeExamination:
    """Implements service.ExamineService."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None, ProfileModel | VerifyModel]] = []
        self.found = Verification(state="right", summary="equal")

    async def profile_model(
        self, model_id: str, version: str | None, asked: ProfileModel, caller: Caller
    ) -> ProfileView:
        self.asked.append((model_id, version, asked))
        return ProfileView(model_id=model_id, version="1", items=())

    async def verify_model(
        self, model_id: str, version: str | None, asked: VerifyModel, caller: Caller
    ) -> VerifyView:
        self.asked.append((model_id, version, asked))
        return VerifyView(model_id=model_id, version="1", verification=self.found)
