"""GET /openapi.json: every route with what it takes and answers, made of the structs that are
decoded and encoded. Paths and meanings come from the table of routes itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from din.api.oip_request import OipRequest
from din.api.seeds import SeedRequest
from din.api.trust import TokenList
from din.domain.audit import AuditCheck, AuditList
from din.domain.enrolment import CreateToken, JoinOrder, NewToken, RenewOrder
from din.domain.gateway_view import ErrorView, GatewayView
from din.domain.heat import HeatView
from din.domain.keys import CreateKey, KeyCreated, KeyList, KeyView
from din.domain.profile import ProfileModel, ProfileView, VerifyModel, VerifyView
from din.domain.request import Trace
from din.domain.result import CONTENT_TYPE as RESULT_TYPE
from din.domain.views import (
    CutsView,
    LabelNode,
    ModelList,
    ModelView,
    NodeList,
    NodeView,
    PlanSlices,
    PlanView,
    RegisterModel,
    SliceAgainView,
    TraceList,
)
from din.version import __version__

JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
TLV: Final = "application/x-din-tlv"
PHOTO: Final = "image/*"
ANYTHING: Final[dict[str, Any]] = {}
BYTES: Final[dict[str, Any]] = {"type": "string", "format": "binary"}

Content = Mapping[str, type[Struct] | None]
"""Media type -> the struct in it; None = bytes or text without a schema."""


class Operation(Struct, frozen=True, kw_only=True):
    """What one route takes and answers."""

    answer: Content
    body: Content | None = None
    is_body_needed: bool = True
    query: tuple[str, ...] = ()
    statuses: tuple[int, ...] = (200,)


def _of(answer: type[Struct], body: type[Struct] | None = None, **more: Any) -> Operation:
    return Operation(answer={JSON: answer}, body=None if body is None else {JSON: body}, **more)


_ANY: Final[Content] = {JSON: None}
_OIP: Final = Operation(answer={JSON: None, OCTETS: None}, body={JSON: OipRequest, OCTETS: None})
_MODEL: Final = "/api/v1/models/{model}"
OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/"): Operation(answer={"text/plain": None}),
    ("GET", "/openapi.json"): Operation(answer=_ANY),
    ("GET", "/metrics"): Operation(answer={"text/plain": None}),
    ("POST", "/infer"): Operation(
        answer={JSON: None, RESULT_TYPE: None},
        body={JSON: SeedRequest, OCTETS: None, PHOTO: None},
        query=(
            "model", "version", "outputs", "precision", "timeout_ms", "request_id", "dry-run",
        ),
    ),
    ("GET", "/v2"): Operation(answer=_ANY),
    ("GET", "/v2/health/live"): Operation(answer=_ANY),
    ("GET", "/v2/health/ready"): Operation(answer=_ANY, statuses=(200, 503)),
    ("GET", "/v2/models/{model}"): Operation(answer=_ANY),
    ("GET", "/v2/models/{model}/ready"): Operation(answer=_ANY, statuses=(200, 503)),
    ("POST", "/v2/models/{model}/infer"): _OIP,
    ("GET", "/v2/models/{model}/versions/{version}"): Operation(answer=_ANY),
    ("GET", "/v2/models/{model}/versions/{version}/ready"): Operation(
        answer=_ANY, statuses=(200, 503)
    ),
    ("POST", "/v2/models/{model}/versions/{version}/infer"): _OIP,
    ("POST", "/api/v1/heartbeat"): Operation(answer={OCTETS: None}, body={OCTETS: None}),
    ("GET", "/api/v1/gateway"): _of(GatewayView),
    ("GET", "/api/v1/nodes"): _of(NodeList),
    ("POST", "/api/v1/nodes"): Operation(answer={TLV: None}, body={TLV: None}),
    ("GET", "/api/v1/nodes/{node}"): _of(NodeView),
    ("GET", "/api/v1/nodes/{node}/heat"): _of(HeatView, query=("window_ms", "core_mask")),
    ("DELETE", "/api/v1/nodes/{node}"): Operation(answer={}, query=("session",), statuses=(204,)),
    ("POST", "/api/v1/nodes/{node}/drain"): _of(NodeView, query=("force", "dry_run")),
    ("POST", "/api/v1/nodes/{node}/labels"): _of(NodeView, LabelNode),
    ("POST", "/api/v1/nodes/{node}/undrain"): _of(NodeView),
    ("POST", "/api/v1/nodes/{node}/lift"): _of(NodeView),
    ("POST", "/api/v1/nodes/{node}/revoke"): Operation(answer=_ANY, query=("dry_run",)),
    ("GET", "/api/v1/trust/ca"): Operation(answer={"application/x-pem-file": None}),
    ("POST", "/api/v1/trust/join"): Operation(answer=_ANY, body={JSON: JoinOrder}),
    ("POST", "/api/v1/trust/renew"): Operation(answer=_ANY, body={JSON: RenewOrder}),
    ("GET", "/api/v1/trust/tokens"): _of(TokenList),
    ("POST", "/api/v1/trust/tokens"): _of(
        NewToken, CreateToken, is_body_needed=False, statuses=(201,)
    ),
    ("DELETE", "/api/v1/trust/tokens/{token}"): Operation(answer=_ANY),
    ("GET", "/api/v1/models"): _of(ModelList),
    ("POST", "/api/v1/models"): _of(ModelView, RegisterModel, statuses=(202,)),
    ("GET", _MODEL): _of(ModelView, query=("version",)),
    ("GET", f"{_MODEL}/cuts"): _of(CutsView, query=("version",)),
    ("POST", f"{_MODEL}/slice"): _of(SliceAgainView),
    ("DELETE", _MODEL): _of(ModelView),
    ("POST", f"{_MODEL}/profile"): _of(
        ProfileView, ProfileModel, is_body_needed=False, query=("version",)
    ),
    ("POST", f"{_MODEL}/verify"): _of(
        VerifyView, VerifyModel, is_body_needed=False, query=("version",)
    ),
    ("GET", "/api/v1/plan"): _of(PlanView, query=("model", "version")),
    ("POST", "/api/v1/plan"): _of(PlanView, PlanSlices),
    ("GET", "/api/v1/traces"): _of(TraceList, query=("limit",)),
    ("GET", "/api/v1/traces/{request_id}"): Operation(answer={JSON: Trace, RESULT_TYPE: None}),
    ("GET", "/api/v1/artifacts/{sha256}"): Operation(answer={OCTETS: None}, statuses=(200, 206)),
    ("PUT", "/api/v1/artifacts/{sha256}"): Operation(
        answer=_ANY, body={OCTETS: None}, query=("encrypt",), statuses=(200, 201)
    ),
    ("GET", "/api/v1/artifacts/{sha256}/upload"): Operation(answer=_ANY),
    ("GET", "/api/v1/events"): Operation(answer={"text/event-stream": None}),
    ("GET", "/api/v1/keys"): _of(KeyList),
    ("POST", "/api/v1/keys"): _of(KeyCreated, CreateKey, statuses=(201,)),
    ("DELETE", "/api/v1/keys/{key}"): _of(KeyView),
    ("GET", "/api/v1/audit"): _of(
        AuditList, query=("since", "until", "who", "what", "target", "limit")
    ),
    ("GET", "/api/v1/audit/check"): _of(AuditCheck),
}  # fmt: skip


def openapi_document(routes: Iterable[tuple[str, str, str]]) -> dict[str, Any]:
    """OpenAPI 3.1 of routes: method, path and what each is for."""
    structs = {kind for each in OPERATIONS.values() for kind in _structs(each)} | {ErrorView}
    ordered = sorted(structs, key=lambda kind: kind.__name__)
    _, components = msgspec.json.schema_components(
        ordered, schema_hook=_any, ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for method, path, summary in routes:
        operation = OPERATIONS.get((method, path), Operation(answer=_ANY))
        paths.setdefault(path, {})[method.lower()] = _described(path, operation, summary)
    return {
        "openapi": "3.1.0",
        "info": {"title": "DIN gateway", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def _any(_kind: type) -> dict[str, Any]:
    """`object` in a struct: what stands there is looked at later, if at all."""
    return {"description": "anything"}


def _structs(operation: Operation) -> Iterable[type[Struct]]:
    contents = (operation.answer, operation.body or {})
    return (kind for content in contents for kind in content.values() if kind is not None)


def _described(path: str, operation: Operation, summary: str) -> dict[str, Any]:
    content = _content(operation.answer)
    good: dict[str, Any] = {"description": "done"} | ({"content": content} if content else {})
    answers = {str(status): good for status in operation.statuses}
    found: dict[str, Any] = {
        "summary": summary,
        "parameters": [
            *(_parameter(name, "path") for name in re.findall(r"\{(\w+)\}", path)),
            *(_parameter(name, "query") for name in operation.query),
        ],
        "responses": {**answers, "default": _ERROR},
    }
    if operation.body is not None:
        body = _content(operation.body)
        found["requestBody"] = {"required": operation.is_body_needed, "content": body}
    return found


def _content(content: Content) -> dict[str, Any]:
    return {
        kind: {"schema": BYTES if struct is None and kind != JSON else _schema(struct)}
        for kind, struct in content.items()
    }


def _schema(struct: type[Struct] | None) -> dict[str, Any]:
    return ANYTHING if struct is None else {"$ref": f"#/components/schemas/{struct.__name__}"}


def _parameter(name: str, place: str) -> dict[str, Any]:
    schema = {"type": "string"} | ({"minLength": 1} if place == "path" else {})
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


_ERROR: Final[dict[str, Any]] = {
    "description": "not done: `error` says why; under /v2 it is a text, with the same in `din`",
    "content": {
        JSON: {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {"error": {"anyOf": [{"type": "string"}, _schema(ErrorView)]}},
            }
        }
    },
}
