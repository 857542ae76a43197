"""What the audit log says of one change, and how it is asked."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class AuditFact(Struct, frozen=True, kw_only=True):
    """One change, or one refusal, as it is written down."""

    at: str
    """Time of day in UTC, ISO 8601 with milliseconds."""
    kind: str
    """Of who did it: local, key, node, stranger, or gateway for what it did by itself."""
    who: str = ""
    """Key id or node id."""
    tenant: str = ""
    address: str = ""
    what: str
    """`<thing>.<verb>`, such as `model.register`."""
    target: str = ""
    outcome: str = ""
    """Empty = about to be done; else why it was refused or failed."""
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """How people call the target where that is an id; empty when nobody wrote it down."""
        return str(self.after.get("name") or self.before.get("name") or "")


class AuditEntry(Struct, frozen=True, kw_only=True):
    """A fact in its place in the chain."""

    seq: int
    previous: str
    """SHA256 of the line before; 64 zeros for the first."""
    entry: AuditFact


class AuditQuery(Struct, frozen=True, kw_only=True):
    """Which entries are wanted; empty = all."""

    since: str = ""
    """ISO 8601; entries of this moment and later."""
    until: str = ""
    """Entries before this moment."""
    who: str = ""
    """Key id, node id or kind."""
    what: str = ""
    """`model.register`, or its beginning: `model`."""
    target: str = ""
    """What was changed, by id or by name."""
    limit: int = 100


class AuditList(Struct, frozen=True, kw_only=True):
    """GET /api/v1/audit: newest first."""

    schema: str = "din.audit/1"
    items: tuple[AuditEntry, ...]


class AuditCheck(Struct, frozen=True, kw_only=True):
    """GET /api/v1/audit/check: whether the log is whole."""

    schema: str = "din.audit-check/1"
    is_whole: bool
    first_seq: int
    last_seq: int
    head_sha256: str
    """Of the last line. Noted elsewhere, it shows later whether all up to here was rewritten."""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What was dropped by rotation, or cut off by a power cut."""
