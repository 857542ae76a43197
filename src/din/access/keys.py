"""API keys: their text, what is kept of them, and what an order for one may ask.

A key is `din_<id, 8 hex>.<secret, 43 base64url>`: 256 bits of chance, so a plain SHA256 of the
secret is kept and needs no stretching. No error here repeats what it was given.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from typing import Final

from msgspec import Struct

from din.domain.keys import CreateKey, KeyState
from din.domain.trust import SCOPES, Scope
from din.errors import UsageError

SECRET_BYTES: Final = 32
ID_BYTES: Final = 4
NAME_CHARACTERS_MAX: Final = 64
LIFE_S_MAX: Final = 10 * 365 * 86_400
REQUESTS_PER_S_MAX: Final = 1_000_000.0
BURST_MAX: Final = 1_000_000
BODY_BYTES_MAX: Final = 2**40

_KEY: Final = re.compile(r"din_([0-9a-f]{8})\.([A-Za-z0-9_-]{43})")
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NOBODY_SHA256: Final = "0" * 64
"""Compared with when the id is unknown, so that it takes as long as a wrong secret."""


class KeyText(Struct, frozen=True):
    """A key as its owner shows it."""

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyText(id={self.id!r})"


class KeyRecord(Struct, frozen=True, kw_only=True):
    """A key as the gateway keeps it."""

    id: str
    secret_sha256: str
    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    created_ms: int
    created_by: str
    expires_ms: int | None = None
    revoked_ms: int | None = None
    used_ms: int | None = None
    requests_per_s: float | None = None
    burst: int | None = None
    body_bytes_max: int | None = None

    def state(self, now_ms: int) -> KeyState:
        """Whether it counts at this time of day."""
        if self.revoked_ms is not None:
            return "revoked"
        return "expired" if self.expires_ms is not None and now_ms >= self.expires_ms else "active"


def parse_key(text: str) -> KeyText:
    """Raises UsageError that says nothing of the text but its length."""
    found = _KEY.fullmatch(text) if len(text) <= 64 else None
    if found is None:
        raise UsageError(
            f"a text of {len(text)} characters is no API key",
            hint="an API key is din_, 8 hex digits, a dot and 43 characters: `din key create`",
        )
    return KeyText(*found.groups())


def format_key(key_id: bytes, secret: bytes) -> str:
    """The text of a key from chance: ID_BYTES and SECRET_BYTES."""
    assert (len(key_id), len(secret)) == (ID_BYTES, SECRET_BYTES)
    return f"din_{key_id.hex()}.{urlsafe_b64encode(secret).rstrip(b'=').decode()}"


def digest_of(secret: str) -> str:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def is_secret_of(shown: KeyText, record: KeyRecord | None) -> bool:
    """Whether the secret is this record's, in the same time for None and for any wrong one."""
    kept = _NOBODY_SHA256 if record is None else record.secret_sha256
    return hmac.compare_digest(digest_of(shown.secret), kept) and record is not None


def check_key_order(order: CreateKey) -> None:
    """Raises UsageError naming the field and what it allows."""
    if not (1 <= len(order.name) <= NAME_CHARACTERS_MAX and order.name.isprintable()):
        raise UsageError(
            f"the key's name is {order.name!r:.80}",
            hint=f"1 to {NAME_CHARACTERS_MAX} printable characters that say what it is for",
        )
    if not order.scopes or len(set(order.scopes)) != len(order.scopes):
        raise UsageError(
            f"the key's scopes are {list(order.scopes)}",
            hint=f"at least one, each once, of {', '.join(SCOPES)}",
        )
    if not _LABEL.fullmatch(order.tenant):
        raise UsageError(
            f"the tenant is {order.tenant!r:.80}",
            hint="lowercase letters, digits and '-', at most 63",
        )
    _check_range("life_s", order.life_s, 1, LIFE_S_MAX)
    _check_range("requests_per_s", order.requests_per_s, 0.001, REQUESTS_PER_S_MAX)
    _check_range("burst", order.burst, 1, BURST_MAX)
    _check_range("body_bytes_max", order.body_bytes_max, 1, BODY_BYTES_MAX)
    if order.burst is not None and order.requests_per_s is None:
        raise UsageError("burst is given without requests_per_s", hint="give both or none")


def _check_range(name: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise UsageError(f"{name} is {value}", hint=f"{name} is from {least} to {most:g}")
