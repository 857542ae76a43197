"""The control API, metrics and metadata: everything on the port but inference and heartbeats."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from difflib import get_close_matches
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from din.access.scopes import NEEDS
from din.api.access import AccessRoutes
from din.api.artifacts import ArtifactRoutes
from din.api.asgi import Admitted, ErrorsAndIds, path_of
from din.api.control import ControlRoutes
from din.api.examining import ExamineRoutes
from din.api.limits import FrontLimits
from din.api.metadata import MetadataRoutes
from din.api.problem import Refused
from din.api.trust import TrustRoutes
from din.errors import Internal, NotFound, UsageError
from din.gateway.service import (
    AccessService,
    ControlService,
    ExamineService,
    InferenceService,
    TrustService,
)
from din.version import __version__

Handler = Callable[[Request], Awaitable[Response]]
Entry = tuple[str, str, Handler, str]

_OWN: Final = ("GET", "/openapi.json", "this list as an OpenAPI document")
_POSTS: Final = (
    ("/infer", "one inference: JSON with base64, or a raw body with ?model=; ?dry-run=true"),
    ("/v2/models/{model}/infer", "Open Inference Protocol v2, with binary tensors"),
    ("/v2/models/{model}/versions/{version}/infer", "the same of one version"),
    ("/api/v1/heartbeat", "a node's heartbeat"),
)
_FRONT_PATHS: Final = (
    "/infer",
    "/v2/models/{model}/infer",
    "/v2/models/{model}/versions/{version}/infer",
    "/api/v1/heartbeat",
)


def _access_entries(access: AccessService) -> list[Entry]:
    ours = AccessRoutes(access)
    return [
        ("GET", "/api/v1/keys", ours.keys, "all API keys"),
        ("POST", "/api/v1/keys", ours.create_key, "make an API key (JSON)"),
        ("DELETE", "/api/v1/keys/{key}", ours.revoke_key, "take an API key away"),
        ("GET", "/api/v1/audit", ours.audit, "who changed what; ?since=&until=&who=&what="),
        ("GET", "/api/v1/audit/check", ours.check_audit, "is the audit log whole"),
    ]


def _trust_entries(trust: TrustService | None) -> list[Entry]:
    joining = TrustRoutes(trust)
    return [
        ("GET", "/api/v1/trust/ca", joining.authority, "certificate of the authority, PEM"),
        ("POST", "/api/v1/trust/join", joining.join, "a certificate for a join token"),
        ("POST", "/api/v1/trust/renew", joining.renew, "a node's next certificate"),
        ("GET", "/api/v1/trust/tokens", joining.tokens, "join tokens, without their secrets"),
        ("POST", "/api/v1/trust/tokens", joining.create_token, "make a join token"),
        (
            "DELETE",
            "/api/v1/trust/tokens/{token}",
            joining.revoke_token,
            "by its id or its beginning",
        ),
    ]


def _examine_entries(
    examination: ExamineService, inference: InferenceService, limits: FrontLimits
) -> list[Entry]:
    ours = ExamineRoutes(examination, inference, limits)
    models = "/api/v1/models/{model}"
    return [
        ("POST", f"{models}/profile", ours.profile, "time its operators on nodes (JSON)"),
        ("POST", f"{models}/verify", ours.verify, "compare its slices with the whole (JSON)"),
    ]


def _node_entries(ours: ControlRoutes) -> list[Entry]:
    return [
        ("GET", "/api/v1/nodes", ours.nodes, "all nodes"),
        ("POST", "/api/v1/nodes", ours.register, "a node registers (TLV)"),
        ("GET", "/api/v1/nodes/{node}", ours.node, "one node, by name or id"),
        (
            "GET",
            "/api/v1/nodes/{node}/heat",
            ours.heat,
            "its cores; ?window_ms=100&core_mask=0xFF",
        ),
        ("DELETE", "/api/v1/nodes/{node}", ours.deregister, "a node leaves; ?session=N"),
        ("POST", "/api/v1/nodes/{node}/drain", ours.drain, "empty it; ?force=true, ?dry_run=true"),
        (
            "POST",
            "/api/v1/nodes/{node}/labels",
            ours.label,
            "give it labels (JSON)",
        ),
        ("POST", "/api/v1/nodes/{node}/undrain", ours.undrain, "take a drain back"),
        ("POST", "/api/v1/nodes/{node}/lift", ours.lift, "load again what crashed there"),
        (
            "POST",
            "/api/v1/nodes/{node}/revoke",
            ours.revoke,
            "throw it out for good; ?dry_run=true",
        ),
    ]


def _entries(
    control: ControlService, inference: InferenceService, limits: FrontLimits
) -> list[Entry]:
    ours = ControlRoutes(control, inference, limits)
    files = ArtifactRoutes(control)
    about = MetadataRoutes(inference)
    return [
        ("GET", "/metrics", ours.metrics, "Prometheus text"),
        ("GET", "/v2", about.server, "what the server is"),
        ("GET", "/v2/health/live", about.live, "is it alive"),
        ("GET", "/v2/health/ready", about.ready, "is every model ready"),
        ("GET", "/v2/models/{model}", about.model, "signature of a model"),
        ("GET", "/v2/models/{model}/ready", about.model_ready, "is the model ready"),
        ("GET", "/v2/models/{model}/versions/{version}", about.model, "of one version"),
        ("GET", "/v2/models/{model}/versions/{version}/ready", about.model_ready, "one version"),
        ("GET", "/api/v1/gateway", ours.gateway, "who this gateway is"),
        *_node_entries(ours),
        ("GET", "/api/v1/models", ours.models, "all models"),
        ("POST", "/api/v1/models", ours.register_model, "register a model (JSON)"),
        ("GET", "/api/v1/models/{model}", ours.model, "one model; ?version=N"),
        ("GET", "/api/v1/models/{model}/cuts", ours.cuts, "where it could be cut; ?version=N"),
        ("POST", "/api/v1/models/{model}/slice", ours.slice_model, "choose its cuts again"),
        ("DELETE", "/api/v1/models/{model}", ours.remove_model, "unload and forget it"),
        ("GET", "/api/v1/plan", ours.plan, "where it would run; ?model=ID"),
        ("POST", "/api/v1/plan", ours.plan_slices, "where slices would go (JSON)"),
        ("GET", "/api/v1/traces", ours.traces, "newest first; ?limit=N"),
        ("GET", "/api/v1/traces/{request_id}", ours.trace, "one request"),
        ("GET", "/api/v1/artifacts/{sha256}", files.read, "bytes by hash, with ranges"),
        ("PUT", "/api/v1/artifacts/{sha256}", files.write, "store bytes under their hash"),
        ("GET", "/api/v1/artifacts/{sha256}/upload", files.upload, "where it broke off"),
        ("GET", "/api/v1/events", ours.events, "server-sent events"),
    ]


def build_app(
    control: ControlService,
    inference: InferenceService,
    limits: FrontLimits | None = None,
    access: AccessService | None = None,
    trust: TrustService | None = None,
    examination: ExamineService | None = None,
) -> ASGIApp:
    """The ASGI application; it has no lifespan and starts nothing. Without `trust` nobody joins."""
    limits = limits or FrontLimits()
    entries = _entries(control, inference, limits) + _trust_entries(trust)
    entries += _examine_entries(examination, inference, limits) if examination is not None else []
    entries += _access_entries(access) if access is not None else []
    page, described = _page(entries), _DescribedOnce(entries)

    async def index(_request: Request) -> Response:
        return PlainTextResponse(page)

    routes = [Route("/", index, methods=["GET"])]
    routes += [Route("/openapi.json", described.answer, methods=["GET"])]
    routes += [Route(path, handler, methods=[method]) for method, path, handler, _ in entries]
    routes += [Route(path, _front_only, methods=["POST"]) for path in _FRONT_PATHS]
    _check_table(routes)
    return ErrorsAndIds(Admitted(Routes(routes)))


def _check_table(routes: Sequence[Route]) -> None:
    for route in routes:
        for method in (route.methods or set()) - {"HEAD"}:
            if (method, route.path) not in NEEDS:
                raise Internal(f"{method} {route.path} names no scope in din.access.scopes")


class _DescribedOnce:
    """GET /openapi.json, made when somebody asks for the first time: most gateways never do."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._routes = [(method, path, note) for method, path, _, note in entries]
        self._routes += [("POST", path, note) for path, note in _POSTS]
        self._routes += [("GET", "/", "all routes in words"), _OWN]
        self._body = b""

    async def answer(self, _request: Request) -> Response:
        """The document."""
        if not self._body:
            from din.api.openapi import openapi_document

            self._body = msgspec.json.encode(openapi_document(self._routes))
        return Response(self._body, media_type="application/json")


async def _front_only(request: Request) -> Response:
    raise Internal(
        f"POST {request.url.path} is served by the front, which is not in the way here",
        hint="run the application with din.api.serve",
    )


class Routes:
    """Routes by the path as it was sent, so that an encoded slash stays inside its segment; path
    parameters stay percent-encoded and handlers decode them."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes
        self._paths = sorted({route.path for route in routes})
        self._router = Router(routes, redirect_slashes=False, default=self._absent)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. Raises DinError or Refused."""
        scope = {**scope, "path": path_of(scope)}
        methods = self._methods(scope)
        if methods and scope["method"] not in methods:
            raise Refused(405, _wrong_method(scope, methods))
        await self._router(scope, receive, send)

    def _methods(self, scope: Scope) -> set[str]:
        """Methods that the path knows; empty when nothing is there."""
        found: set[str] = set()
        for route in self._routes:
            match, _ = route.matches(scope)
            if match is not Match.NONE:
                found |= route.methods or set()
        return found

    async def _absent(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        close = get_close_matches(scope["path"][:200], self._paths, n=3, cutoff=0.5)
        hint = f"nearest: {', '.join(close)}" if close else "GET / lists what is here"
        raise NotFound(f"nothing at {scope['path']!r:.200}", hint=hint)


def _wrong_method(scope: Scope, methods: set[str]) -> UsageError:
    listing = ", ".join(sorted(methods))
    return UsageError(
        f"{scope['method']} is not possible at {scope['path']!r:.200}",
        hint=f"methods here: {listing}",
    )


def _page(entries: Sequence[Entry]) -> str:
    lines = [(path, method, note) for method, path, _, note in entries]
    lines += [(path, "POST", note) for path, note in _POSTS]
    lines += [(_OWN[1], _OWN[0], _OWN[2])]
    body = "\n".join(f"  {method:6} {path:45} {note}" for path, method, note in sorted(lines))
    return f"DIN {__version__} gateway\n\n{body}\n"
