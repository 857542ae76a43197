"""Which scope each route needs: one table, and a route that is not in it cannot be served.

A row names the scopes of which one is enough. `admin` holds every scope. Beside scopes there are
NODE (a node's certificate, or a program on the plain port of this machine), FIRST (somebody on the
plain port, as long as no key with admin exists) and the empty row, which is open to everybody.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from din.domain.trust import DEFAULT_TENANT, SCOPES, Caller, Scope

Need = Scope | Literal["node", "first"]
Needs = tuple[Need, ...]

OPEN: Final[Needs] = ()
NODE: Final[Needs] = ("node",)
ANY: Final[Needs] = SCOPES
ANY_OR_NODE: Final[Needs] = (*SCOPES, "node")
INFER: Final[Needs] = ("infer",)
MODELS: Final[Needs] = ("models:write",)
MODELS_READ: Final[Needs] = ("infer", "models:write")
NODES: Final[Needs] = ("nodes:write",)
NODES_READ: Final[Needs] = ("metrics:read", "nodes:write")
METRICS: Final[Needs] = ("metrics:read",)
ADMIN: Final[Needs] = ("admin",)

NEEDS: Final[dict[tuple[str, str], Needs]] = {
    ("GET", "/"): OPEN,
    ("GET", "/openapi.json"): OPEN,
    ("GET", "/metrics"): METRICS,
    ("POST", "/infer"): INFER,
    ("GET", "/v2"): ANY,
    ("GET", "/v2/health/live"): OPEN,
    ("GET", "/v2/health/ready"): OPEN,
    ("GET", "/v2/models/{model}"): MODELS_READ,
    ("GET", "/v2/models/{model}/ready"): MODELS_READ,
    ("POST", "/v2/models/{model}/infer"): INFER,
    ("GET", "/v2/models/{model}/versions/{version}"): MODELS_READ,
    ("GET", "/v2/models/{model}/versions/{version}/ready"): MODELS_READ,
    ("POST", "/v2/models/{model}/versions/{version}/infer"): INFER,
    ("POST", "/api/v1/heartbeat"): NODE,
    ("GET", "/api/v1/gateway"): ANY_OR_NODE,
    ("GET", "/api/v1/nodes"): NODES_READ,
    ("POST", "/api/v1/nodes"): NODE,
    ("GET", "/api/v1/nodes/{node}"): NODES_READ,
    ("GET", "/api/v1/nodes/{node}/heat"): NODES_READ,
    ("DELETE", "/api/v1/nodes/{node}"): ("node", "nodes:write"),
    ("POST", "/api/v1/nodes/{node}/drain"): NODES,
    ("POST", "/api/v1/nodes/{node}/labels"): NODES,
    ("POST", "/api/v1/nodes/{node}/undrain"): NODES,
    ("POST", "/api/v1/nodes/{node}/lift"): NODES,
    ("POST", "/api/v1/nodes/{node}/revoke"): NODES,
    # Joining machines have nothing yet but a token, and a certificate may have ended: both routes
    # look at what the body proves.
    ("GET", "/api/v1/trust/ca"): OPEN,
    ("POST", "/api/v1/trust/join"): OPEN,
    ("POST", "/api/v1/trust/renew"): OPEN,
    ("GET", "/api/v1/trust/tokens"): NODES,
    ("POST", "/api/v1/trust/tokens"): NODES,
    ("DELETE", "/api/v1/trust/tokens/{token}"): NODES,
    ("GET", "/api/v1/models"): MODELS_READ,
    ("POST", "/api/v1/models"): MODELS,
    ("GET", "/api/v1/models/{model}"): MODELS_READ,
    ("GET", "/api/v1/models/{model}/cuts"): MODELS,
    ("POST", "/api/v1/models/{model}/slice"): MODELS,
    ("DELETE", "/api/v1/models/{model}"): MODELS,
    ("POST", "/api/v1/models/{model}/profile"): MODELS,
    ("POST", "/api/v1/models/{model}/verify"): MODELS,
    ("GET", "/api/v1/plan"): INFER,
    ("POST", "/api/v1/plan"): MODELS,
    ("GET", "/api/v1/traces"): INFER,
    ("GET", "/api/v1/traces/{request_id}"): INFER,
    # Who uploads asks with HEAD what is there already; a hash must not open another's model.
    ("HEAD", "/api/v1/artifacts/{sha256}"): ("node", "models:write"),
    ("GET", "/api/v1/artifacts/{sha256}"): ("node", "admin"),
    ("PUT", "/api/v1/artifacts/{sha256}"): MODELS,
    ("GET", "/api/v1/artifacts/{sha256}/upload"): MODELS,
    ("GET", "/api/v1/events"): METRICS,
    ("GET", "/api/v1/keys"): ADMIN,
    ("POST", "/api/v1/keys"): ("admin", "first"),
    ("DELETE", "/api/v1/keys/{key}"): ADMIN,
    ("GET", "/api/v1/audit"): ADMIN,
    ("GET", "/api/v1/audit/check"): ADMIN,
}


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"\{\w+\}", path)
    return re.compile("[^/]+".join(re.escape(part) for part in parts))


_PATTERNS: Final = tuple((m, _pattern(path), needs) for (m, path), needs in NEEDS.items())


def needs_of(method: str, path: str) -> Needs | None:
    """What a request needs; None = no such route. `path` is percent-encoded; HEAD needs what GET
    does where it has no row of its own."""
    for each, pattern, needs in _PATTERNS:
        if each == method and pattern.fullmatch(path):
            return needs
    return needs_of("GET", path) if method == "HEAD" else None


def is_allowed(caller: Caller, needs: Needs, *, is_first: bool = False) -> bool:
    """Whether a caller may; `is_first` = no usable key with admin exists."""
    if not needs or ("admin" in caller.scopes and needs != NODE):
        return True
    for need in needs:
        if need == "node":
            if caller.kind in ("node", "local"):
                return True
        elif need == "first":
            if is_first and caller.kind == "local":
                return True
        elif need in caller.scopes:
            return True
    return False


def words_of(needs: Needs) -> str:
    """The scopes of a row for people: `infer or models:write`."""
    if needs in (ANY, ANY_OR_NODE):
        return "any"
    if needs == NODE:
        return "a node's certificate"
    return " or ".join(each for each in needs if each in SCOPES)


def sees(caller: Caller, tenant: str) -> bool:
    """Whether a model of this tenant exists for the caller: its own, shared, or any (admin)."""
    return tenant in (caller.tenant, DEFAULT_TENANT) or "admin" in caller.scopes


def owns(caller: Caller, tenant: str) -> bool:
    """Whether the caller may change a model of this tenant."""
    return tenant == caller.tenant or "admin" in caller.scopes
