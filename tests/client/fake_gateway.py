"""A gateway that answers what a test tells it to, over real HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from din.domain.gateway_view import GatewayView
from din.domain.model import CutFacts, ModelManifest
from din.domain.node import NodeHealth, NodeId, NodeProfile
from din.domain.plan import Placement, Plan, Rejection
from din.domain.request import AttemptRecord, Span, Trace, TraceStep
from din.domain.tensor import TensorSpec
from din.domain.views import (
    ModelList,
    ModelView,
    NodeList,
    NodeView,
    PlanView,
    ReplicaView,
    SliceView,
    TraceList,
)
from din.errors import DinError


class Seen(NamedTuple):
    """One request that arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Reply(NamedTuple):
    """What to answer; `None` for the body closes the connection without an answer."""

    status: int
    body: bytes | None
    headers: Mapping[str, str] = MappingProxyType({})


Handler = Callable[[Seen], Reply]


def document(view: Any, status: int = 200) -> Handler:
    return lambda _: Reply(status, msgspec.json.encode(view))


def failing(error: DinError) -> Handler:
    body = {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
    return lambda _: Reply(error.http_status, json.dumps(body).encode())


class FakeGateway:
    """Routes by (method, path without query); everything that came is in `seen`."""

    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], Handler] = {}
        self.seen: list[Seen] = []
        self.connections = 0
        fake = self

        class Requests(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                fake.connections += 1
                super().setup()

            def log_message(self, *_: object) -> None:
                pass

            def answer(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                seen = Seen(
                    self.command,
                    self.path,
                    {key.lower(): value for key, value in self.headers.items()},
                    self.rfile.read(size),
                )
                fake.seen.append(seen)
                path = self.path.partition("?")[0]
                missing = Reply(404, b'{"error":{"code":"DIN-500","message":"nothing here"}}')
                handler = fake.routes.get((self.command, path), lambda _: missing)
                reply = handler(seen)
                if reply.body is None:
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                for key, value in reply.headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(reply.body)

        for method in ("GET", "POST", "PUT", "HEAD", "DELETE"):
            setattr(Requests, f"do_{method}", Requests.answer)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


NODE_A, NODE_B = NodeId("3f9a000000000001"), NodeId("77b0000000000002")


def node_view(**changes: Any) -> NodeView:
    facts: dict[str, Any] = {
        "node_id": NODE_A,
        "name": "edge-gpu-01",
        "status": "ready",
        "device_type": "x86_64-cuda11.8-trt8.6",
        "health": NodeHealth(cpu_percent=41.6, memory_mib_free=3072, temperature_c=61.0),
        "health_score": 1.0,
        "heartbeat_age_ms": 1200,
        "memory_mib": 8192,
        "memory_mib_reserved": 256,
        "slices": ("centerface/backbone",),
        "address": "tcp:127.0.0.1:8080",
    }
    return NodeView(**{**facts, **changes})


def bare_node() -> NodeView:
    return node_view(
        node_id=NODE_B,
        name="edge-npu-02",
        status="suspect",
        reason="two beats missed",
        device_type="aarch64-ascend310p-cann6.3",
        health=NodeHealth(),
        slices=(),
        health_score=0.5,
    )


def profile() -> NodeProfile:
    return NodeProfile(
        node_id=NODE_A,
        session=3,
        name="edge-gpu-01",
        device_type="x86_64-cuda11.8-trt8.6",
        cpu_model="Test CPU",
        cpu_isa=("avx2",),
        cpu_cores=8,
        memory_mib=8192,
        accelerator="Test GPU",
        accelerator_memory_mib=6144,
        backends=("onnxruntime",),
        labels={"line": "4"},
    )


def node_list(*nodes: NodeView) -> NodeList:
    return NodeList(cluster="test", gateway_id="g1", discovery_mode="auto", items=nodes)


def slice_view(state: str = "ready", reason: str = "") -> SliceView:
    return SliceView(
        index=0,
        name="backbone",
        kind="model",
        slice_id="ab" * 32,
        operators=27,
        bytes_weights=157_800,
        memory_mib=153,
        device_type=None,
        replicas=(ReplicaView(node="edge-gpu-01", state=state, reason=reason),),
    )


def model_view(**changes: Any) -> ModelView:
    facts: dict[str, Any] = {
        "model_id": "centerface",
        "version": "1",
        "state": "ready",
        "epoch": (1, 1),
        "inputs": (TensorSpec("input.1", "FP32", (1, 3, "H", None)),),
        "outputs": (TensorSpec("537", "FP32", None),),
        "slices": (slice_view(),),
        "cuts": (CutFacts(after_slice=0, tensors=("404",), nbytes=1536),),
    }
    return ModelView(**{**facts, **changes})


def manifest() -> ModelManifest:
    return ModelManifest(
        model_id="centerface",
        version="1",
        source_sha256="cd" * 32,
        inputs=(),
        outputs=(),
        backend_options={"optimisation": "off"},
    )


def trace(request_id: str = "req-8a3f2b1c", **changes: Any) -> Trace:
    steps = (TraceStep(node="edge-gpu-01", phase="backbone", latency_ms=18.3, gpu_util=62.1),)
    spans = (
        Span(
            node="edge-gpu-01",
            slice_index=0,
            phase="backbone",
            kind="transfer",
            start_ms=0,
            duration_ms=2,
        ),
        Span(
            node="edge-gpu-01",
            slice_index=0,
            phase="backbone",
            kind="compute",
            start_ms=2,
            duration_ms=18,
        ),
        Span(
            node="gateway",
            slice_index=-1,
            phase="gateway",
            kind="transfer",
            start_ms=20,
            duration_ms=2,
        ),
    )
    facts: dict[str, Any] = {
        "request_id": request_id,
        "model_id": "centerface",
        "version": "1",
        "started_at": "2026-01-01T00:00:00Z",
        "status": "completed",
        "duration_ms": 22.0,
        "execution_trace": steps,
        "spans": spans,
        "attempts": (
            AttemptRecord(attempt=1, nodes=("edge-gpu-01",), outcome="completed", duration_ms=22.0),
        ),
    }
    return Trace(**{**facts, **changes})


def plan_view(*, is_possible: bool = True) -> PlanView:
    placed = Placement(
        slice_index=0,
        slice_name="backbone",
        node_id=NODE_A,
        node="edge-gpu-01",
        reason="lowest_load",
        expected_ms=18.25,
        memory_mib=153,
    )
    refused = Rejection(
        slice_index=0,
        node_id=NODE_B,
        node="edge-npu-02",
        constraint="temperature",
        observed="89 C",
        required="< 75 C",
    )
    return PlanView(
        plan=Plan(
            plan_id="p1",
            model_id="centerface",
            version="1",
            placements=(placed,) if is_possible else (),
            rejections=(refused,),
            expected_ms=18.25 if is_possible else None,
        )
    )


def furnish(fake: FakeGateway) -> None:
    """A fleet of two nodes with one model and one request."""
    gateway = GatewayView(
        gateway_id="g1",
        cluster="test",
        version="0.1.0",
        pid=1,
        state_path="/s",
        discovery_mode="auto",
        nodes=2,
        models=1,
    )
    get = {
        "/api/v1/gateway": gateway,
        "/api/v1/nodes": node_list(node_view(), bare_node()),
        "/api/v1/nodes/edge-gpu-01": node_view(profile=profile()),
        "/api/v1/models": ModelList(items=(model_view(),)),
        "/api/v1/models/centerface": model_view(manifest=manifest()),
        "/api/v1/plan": plan_view(),
        "/api/v1/traces": TraceList(items=(trace(), trace("req-8b000000"))),
        "/api/v1/traces/req-8a3f2b1c": trace(),
    }
    for path, view in get.items():
        fake.routes["GET", path] = document(view)
    fake.routes["DELETE", "/api/v1/models/centerface"] = document(model_view())
    drained = node_view(status="draining")
    for name in (NODE_A, "edge-gpu-01"):
        fake.routes["POST", f"/api/v1/nodes/{name}/drain"] = document(drained)
        fake.routes["POST", f"/api/v1/nodes/{name}/undrain"] = document(node_view())
        fake.routes["POST", f"/api/v1/nodes/{name}/lift"] = document(node_view())
