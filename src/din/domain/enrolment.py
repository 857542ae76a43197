"""What joining machines, people and gateways tell each other about certificates and tokens.

The same JSON for the command line, the child that joins, and curl. Secrets are in `NewToken.token`
and `JoinOrder.secret` only; these two are never logged.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

TokenState = Literal["open", "used", "expired"]
Pem = Annotated[str, Meta(max_length=4096)]
Word = Annotated[str, Meta(max_length=64)]
NodeIdText = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]

TOKEN_TTL_S: int = 15 * 60
TOKEN_TTL_S_MAX: int = 7 * 24 * 3600


class CreateToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/v1/trust/tokens."""

    ttl_s: Annotated[int, Meta(ge=1, le=TOKEN_TTL_S_MAX)] = TOKEN_TTL_S
    labels: dict[Word, Word] = {}
    """Labels that the machine gets by joining with it."""


class NewToken(Struct, frozen=True, kw_only=True):
    """Its answer: the only place where the token is ever shown."""

    schema: str = "din.token/1"
    id: str
    token: str
    ttl_s: int
    labels: dict[str, str]
    gateways: tuple[str, ...]
    """`https://host:port` under which machines reach this gateway."""


class TokenView(Struct, frozen=True, kw_only=True):
    """One token, without its secret."""

    id: str
    state: TokenState
    expires_in_s: int
    """Seconds left; 0 when it has expired."""
    labels: dict[str, str] = {}
    used_by: str = ""
    """Id of the node that joined with it."""


class TokenList(Struct, frozen=True, kw_only=True):
    """GET /api/v1/trust/tokens."""

    schema: str = "din.tokens/1"
    items: tuple[TokenView, ...]


class JoinOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/v1/trust/join."""

    token_id: Annotated[str, Meta(pattern=r"^[0-9a-f]{8}\Z")]
    secret: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{22}\Z")]
    request: Pem
    """PKCS 10, PEM."""
    node_id: NodeIdText
    name: Annotated[str, Meta(pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?\Z")] = ""

    def __repr__(self) -> str:
        return f"JoinOrder(token_id={self.token_id!r}, node_id={self.node_id!r})"


class RenewOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/v1/trust/renew."""

    request: Pem


class Enrolled(Struct, frozen=True, kw_only=True):
    """The answer to both: a certificate."""

    schema: str = "din.enrolled/1"
    certificate: str
    """PEM."""
    cluster: str
    gateway_id: str
    gateways: tuple[str, ...]
    signing_key: str
    """Public half of the key that signs what nodes are told: ed25519, base64url."""
    begins_ms: int
    """Milliseconds since 1970 by the gateway's clock: now."""
    ends_ms: int
    name: str = ""
    """Under which the node is listed: another than it asked for where a machine has that one."""


class Membership(Struct, frozen=True, kw_only=True):
    """`cluster.json` of a node that has joined."""

    cluster: str
    node_id: str
    gateways: tuple[str, ...]
    signing_key: str
    """What is not signed by its private half is not loaded."""
    begins_ms: int
    ends_ms: int
    """Of the certificate, milliseconds since 1970."""
    name: str = ""
    """Under which the gateway lists it."""
    is_own: bool = False
    """Whether the gateway of this user on this machine gave it the certificate by itself."""


class RevokedView(Struct, frozen=True, kw_only=True):
    """POST /api/v1/nodes/{node}/revoke."""

    schema: str = "din.revoked/1"
    node_id: str
    name: str
    is_new: bool
    """False when it had been revoked before."""
