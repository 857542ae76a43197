"""Who somebody is and what they may do."""

from __future__ import annotations

import re
from typing import Final, Literal

from msgspec import Struct

from din.errors import Denied

Role = Literal["node", "gateway"]
Scope = Literal["infer", "models:write", "nodes:write", "policy:write", "metrics:read", "admin"]
CallerKind = Literal["local", "node", "key", "stranger", "gateway"]

SCOPES: Final[tuple[Scope, ...]] = (
    "infer",
    "models:write",
    "nodes:write",
    "policy:write",
    "metrics:read",
    "admin",
)
DEFAULT_TENANT: Final = "default"
NAME_BYTES_MAX: Final = 200

_NAME: Final = re.compile(
    r"spiffe://din/([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)/(node|gateway)/([0-9a-f]{16})"
)


class PeerName(Struct, frozen=True):
    """Whom a certificate names. Only made from one that was verified against our authority."""

    cluster: str
    role: Role
    id: str
    """Node id or gateway id: 16 lowercase hex digits."""
    serial: str = ""
    """Of the certificate, uppercase hex as the standard library writes it."""

    @property
    def uri(self) -> str:
        """`spiffe://din/<cluster>/<role>/<id>`, as in the certificate's SAN."""
        return f"spiffe://din/{self.cluster}/{self.role}/{self.id}"


def parse_peer_name(uri: str, serial: str = "") -> PeerName:
    """The name in a SAN. Raises Denied for any other text."""
    found = _NAME.fullmatch(uri) if len(uri) <= NAME_BYTES_MAX else None
    if found is None:
        raise Denied(
            f"the certificate names {uri!r:.120}, which is no machine of DIN",
            hint="join this machine with a token of its cluster: din node join -",
        )
    cluster, role, name = found.groups()
    return PeerName(cluster, "node" if role == "node" else "gateway", name, serial)


class Lapsed(Struct, frozen=True):
    """A certificate of our authority that has ended: it may be renewed, and counts for nothing
    else."""

    name: PeerName
    ended_ms: int
    """Milliseconds since 1970."""


class Peer(Struct, frozen=True):
    """The other end of one HTTP connection, as the connection itself shows it."""

    address: str = ""
    """Host it comes from."""
    is_tls: bool = False
    name: PeerName | None = None
    """Whom its certificate names; None without one that counts now."""
    lapsed: Lapsed | None = None
    """What it proved itself with instead, when that has ended."""


class Caller(Struct, frozen=True, kw_only=True):
    """Who sent an HTTP request, as its head showed it."""

    kind: CallerKind
    name: str = ""
    """Key id, node id, or empty."""
    tenant: str = DEFAULT_TENANT
    scopes: frozenset[Scope] = frozenset()
    address: str = ""
    """Host it came from, for the audit log."""

    def may(self, scope: Scope) -> bool:
        """Whether the scope is among those given; `admin` holds every other one."""
        return scope in self.scopes or "admin" in self.scopes


GATEWAY: Final = Caller(kind="gateway", scopes=frozenset({"admin"}))
"""The gateway itself, for what it does without being asked, and for programs that hold one."""
