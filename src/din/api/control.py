"""Handlers of /api/v1 and /metrics: they translate, the gateway decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from din.api.admission import Visit
from din.api.asgi import flag_of, json_response, number_of, only_query, read_body
from din.api.decoding import decode_json
from din.api.limits import FrontLimits
from din.api.peers import caller_of_request, peer_of_request, visit_of_request
from din.api.post import REQUEST_ID_MAX
from din.api.results import wants_result
from din.api.signature import model_id_of, plain_text
from din.api.tenants import manifest_for
from din.domain.heat import WINDOW_MS, WINDOW_MS_RANGE, core_mask_of
from din.domain.result import CONTENT_TYPE, result_of_trace
from din.domain.views import LabelNode, PlanSlices, PlanView, RegisterModel, TraceList
from din.errors import Busy, UsageError
from din.gateway.service import ControlService, InferenceService
from din.wire.result import encode_result

REGISTRATION_TYPE: Final = "application/x-din-tlv"
REGISTRATION_BYTES_MAX: Final = 4096
"""Far above the wire's own limit, whose error says more than this one."""
TRACES_MAX: Final = 1000
TRACES_DEFAULT: Final = 20
WATCHERS_MAX: Final = 64
NODE_NAME_MAX: Final = 128
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_LABELS: Final = msgspec.json.Decoder(LabelNode)
_SLICES: Final = msgspec.json.Decoder(PlanSlices)
_ORDER: Final = msgspec.json.Decoder(RegisterModel)


class ControlRoutes:
    """One method per route."""

    def __init__(
        self, control: ControlService, inference: InferenceService, limits: FrontLimits
    ) -> None:
        self._control = control
        self._inference = inference
        self._limits = limits
        self._watchers = 0

    async def metrics(self, _request: Request) -> Response:
        """GET /metrics."""
        return Response(self._control.metrics_text(), headers={"content-type": METRICS_TYPE})

    async def gateway(self, _request: Request) -> Response:
        """GET /api/v1/gateway."""
        return json_response(self._control.gateway_view())

    async def nodes(self, request: Request) -> Response:
        """GET /api/v1/nodes."""
        only_query(request)
        return json_response(self._control.list_nodes())

    async def node(self, request: Request) -> Response:
        """GET /api/v1/nodes/{node}."""
        return json_response(self._control.inspect_node(_node_of(request)))

    async def heat(self, request: Request) -> Response:
        """GET /api/v1/nodes/{node}/heat?window_ms=100&core_mask=0xFF: answers after the window."""
        only_query(request, "window_ms", "core_mask")
        asked = request.query_params.get("window_ms")
        window_ms = number_of(asked, "window_ms", *WINDOW_MS_RANGE, WINDOW_MS)
        mask = core_mask_of(request.query_params.get("core_mask"))
        view = await self._control.heat_of_node(_node_of(request), window_ms, mask)
        return json_response(view)

    async def register(self, request: Request) -> Response:
        """POST /api/v1/nodes: TLV in, TLV out."""
        given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if given != REGISTRATION_TYPE:
            raise UsageError(
                f"the registration has Content-Type {given!r:.80}",
                hint=f"registrations are {REGISTRATION_TYPE}",
            )
        body = await read_body(request, REGISTRATION_BYTES_MAX, "the registration")
        peer = peer_of_request(request)
        answer = self._control.register_node(body, peer, _sent_wall_ms(request))
        return Response(answer, media_type=REGISTRATION_TYPE)

    async def deregister(self, request: Request) -> Response:
        """DELETE /api/v1/nodes/{node}?session=N."""
        only_query(request, "session")
        if "session" not in request.query_params:
            raise UsageError(
                "the query names no session", hint="add ?session=N with the node's own session"
            )
        session = number_of(request.query_params["session"], "session", 0, 2**32 - 1, 0)
        caller = caller_of_request(request)
        if caller.kind == "key":
            await self._control.remove_node(_node_of(request), session, caller)
        else:
            self._control.deregister_node(_node_of(request), session, peer_of_request(request))
        return Response(status_code=204)

    async def drain(self, request: Request) -> Response:
        """POST /api/v1/nodes/{node}/drain?force=true&dry_run=true."""
        only_query(request, "force", "dry_run")
        await read_body(request, self._limits.control_body_bytes_max, "the request")
        view = await self._control.drain_node(
            _node_of(request),
            caller_of_request(request),
            is_forced=flag_of(request, "force"),
            is_dry_run=flag_of(request, "dry_run"),
        )
        return json_response(view)

    async def label(self, request: Request) -> Response:
        """POST /api/v1/nodes/{node}/labels."""
        only_query(request)
        body = await read_body(request, self._limits.control_body_bytes_max, "the labels")
        changes = decode_json(_LABELS, body, "the labels").labels
        caller = caller_of_request(request)
        return json_response(await self._control.label_node(_node_of(request), changes, caller))

    async def undrain(self, request: Request) -> Response:
        """POST /api/v1/nodes/{node}/undrain."""
        only_query(request)
        await read_body(request, self._limits.control_body_bytes_max, "the request")
        caller = caller_of_request(request)
        return json_response(await self._control.undrain_node(_node_of(request), caller))

    async def lift(self, request: Request) -> Response:
        """POST /api/v1/nodes/{node}/lift."""
        only_query(request)
        await read_body(request, self._limits.control_body_bytes_max, "the request")
        caller = caller_of_request(request)
        return json_response(await self._control.lift_node(_node_of(request), caller))

    async def revoke(self, request: Request) -> Response:
        """POST /api/v1/nodes/{node}/revoke?dry_run=true."""
        only_query(request, "dry_run")
        await read_body(request, self._limits.control_body_bytes_max, "the request")
        view = await self._control.revoke_node(
            _node_of(request), caller_of_request(request), is_dry_run=flag_of(request, "dry_run")
        )
        return json_response(view)

    async def models(self, request: Request) -> Response:
        """GET /api/v1/models."""
        only_query(request)
        return json_response(self._control.list_models(caller_of_request(request)))

    async def model(self, request: Request) -> Response:
        """GET /api/v1/models/{model}."""
        only_query(request, "version")
        model_id = model_id_of(request.path_params["model"])
        version = request.query_params.get("version")
        manifest_for(self._inference, caller_of_request(request), model_id, version)
        return json_response(self._control.inspect_model(model_id, version))

    async def cuts(self, request: Request) -> Response:
        """GET /api/v1/models/{model}/cuts."""
        only_query(request, "version")
        model_id = model_id_of(request.path_params["model"])
        version = request.query_params.get("version")
        manifest_for(self._inference, caller_of_request(request), model_id, version)
        return json_response(await self._control.cuts_of_model(model_id, version))

    async def slice_model(self, request: Request) -> Response:
        """POST /api/v1/models/{model}/slice: answers when it is decided; a deployment goes on."""
        only_query(request)
        await read_body(request, self._limits.control_body_bytes_max, "the request")
        model_id = model_id_of(request.path_params["model"])
        caller = caller_of_request(request)
        manifest_for(self._inference, caller, model_id)
        return json_response(await self._control.slice_model(model_id, caller))

    async def register_model(self, request: Request) -> Response:
        """POST /api/v1/models: answers 202, the deployment goes on."""
        limit = self._limits.control_body_bytes_max
        body = await read_body(request, limit, "the model registration")
        order = decode_json(_ORDER, body, "the model registration")
        view = await self._control.register_model(order, caller_of_request(request))
        return json_response(view, 202)

    async def remove_model(self, request: Request) -> Response:
        """DELETE /api/v1/models/{model}."""
        model_id = model_id_of(request.path_params["model"])
        caller = caller_of_request(request)
        manifest_for(self._inference, caller, model_id)
        return json_response(await self._control.remove_model(model_id, caller))

    async def plan(self, request: Request) -> Response:
        """GET /api/v1/plan?model=ID."""
        only_query(request, "model", "version")
        named = request.query_params.get("model")
        if named is None:
            raise UsageError("the query names no model", hint="add ?model=ID")
        model_id = plain_text(named, "model id", 128)
        version = request.query_params.get("version")
        caller = caller_of_request(request)
        manifest = manifest_for(self._inference, caller, model_id, version)
        is_adapted = bool(manifest.adapted_inputs)
        plan = self._inference.plan(model_id, version, is_adapted=is_adapted)
        return json_response(PlanView(plan=plan))

    async def plan_slices(self, request: Request) -> Response:
        """POST /api/v1/plan."""
        only_query(request)
        body = await read_body(request, self._limits.control_body_bytes_max, "the slices")
        asked = decode_json(_SLICES, body, "the slices")
        return json_response(PlanView(plan=self._control.plan_slices(asked)))

    async def traces(self, request: Request) -> Response:
        """GET /api/v1/traces?limit=N."""
        only_query(request, "limit")
        asked = request.query_params.get("limit")
        limit = number_of(asked, "limit", 1, TRACES_MAX, TRACES_DEFAULT)
        traces = self._control.list_traces(limit, caller_of_request(request))
        return json_response(TraceList(items=traces))

    async def trace(self, request: Request) -> Response:
        """GET /api/v1/traces/{request_id}."""
        request_id = unquote(request.path_params["request_id"])
        request_id = plain_text(request_id, "request id", REQUEST_ID_MAX)
        trace = self._control.trace(request_id, caller_of_request(request))
        if wants_result(request.headers.get("accept", "").encode("latin-1")):
            body = b"".join(encode_result(result_of_trace(trace)))
            answer = Response(body, media_type=CONTENT_TYPE)
        else:
            answer = json_response(trace)
        answer.headers["vary"] = "accept"
        return answer

    async def events(self, request: Request) -> Response:
        """GET /api/v1/events: until the client goes or its key ends. Raises Busy."""
        only_query(request)
        if self._watchers >= WATCHERS_MAX:
            raise Busy(f"all {WATCHERS_MAX} watchers are taken", hint="close one and try again")
        return StreamingResponse(
            self._events(visit_of_request(request)),
            media_type="text/event-stream",
            headers={"cache-control": "no-store"},
        )

    async def _events(self, visit: Visit) -> AsyncIterator[bytes]:
        self._watchers += 1
        source = self._control.watch(visit.caller)
        try:
            async for name, data in source:
                if not visit.counts():
                    return
                yield b"event: %s\ndata: %s\n\n" % (name.encode(), data)
        finally:
            self._watchers -= 1
            close = getattr(source, "aclose", None)
            if close is not None:
                await close()


def _sent_wall_ms(request: Request) -> int | None:
    """The sender's time of day by its Date, to the second."""
    try:
        return int(parsedate_to_datetime(request.headers["date"]).timestamp() * 1000)
    except (KeyError, ValueError, OverflowError):
        return None


def _node_of(request: Request) -> str:
    return plain_text(unquote(request.path_params["node"]), "node name", NODE_NAME_MAX)
