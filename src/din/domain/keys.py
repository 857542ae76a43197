"""API keys as people see and order them. The secret itself is in one answer only: KeyCreated."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from din.domain.trust import DEFAULT_TENANT, Scope

KeyState = Literal["active", "expired", "revoked"]


class CreateKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/v1/keys."""

    name: str
    """What it is for: 1..64 printable characters."""
    scopes: tuple[Scope, ...]
    tenant: str = DEFAULT_TENANT
    life_s: int | None = None
    """Seconds until it expires; None = never."""
    requests_per_s: float | None = None
    burst: int | None = None
    """Requests at once above the rate; None = one second's worth."""
    body_bytes_max: int | None = None
    """Of one request; None = the gateway's own limit."""


class KeyView(Struct, frozen=True, kw_only=True):
    """One key, without anything that would let one use it."""

    id: str
    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    state: KeyState
    created_at: str
    created_by: str
    expires_at: str | None = None
    revoked_at: str | None = None
    used_at: str | None = None
    """Last use, at most ten minutes too old; None = never."""
    requests_per_s: float | None = None
    burst: int | None = None
    body_bytes_max: int | None = None


class KeyCreated(Struct, frozen=True, kw_only=True):
    """Answer to CreateKey: the only place where the whole key ever appears."""

    schema: str = "din.key/1"
    key: str
    view: KeyView

    def __repr__(self) -> str:
        return f"KeyCreated(id={self.view.id!r})"


class KeyList(Struct, frozen=True, kw_only=True):
    """GET /api/v1/keys: revoked and expired ones included until they are forgotten."""

    schema: str = "din.keys/1"
    items: tuple[KeyView, ...]
