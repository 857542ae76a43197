"""Who asks and whether they may: one call per request, before anything of its body is read.

A connection keeps what its last request showed, so that asking again with the same key costs two
comparisons. A revoked or expired key stops counting with the next request, on open connections too.
A right key is taken whatever else came from its address: others behind one address must not be
able to lock it out, and with 256 bits of secret, guessing gains nothing by that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Final

from msgspec import Struct

from din.access.limits import FailureLimiter, TokenBucket
from din.access.local import passed_on
from din.access.scopes import NODE, OPEN, Needs, is_allowed, words_of
from din.api.limits import FrontLimits
from din.api.post import BODY_UNLIMITED, Post, PostKind, Target
from din.config import is_loopback
from din.domain.trust import SCOPES, Caller, Peer, Scope
from din.errors import Denied, Limited, Unauthenticated
from din.gateway.trust.keys import Held, KeyBook, Refusal

NEEDS_OF_KIND: Final[dict[PostKind, Needs]] = {
    "infer": ("infer",),
    "oip": ("infer",),
    "heartbeat": NODE,
}
REFUSED_BODY_BYTES_MAX: Final = 16 * 1024
"""Of a request that a key may not send: read and thrown away, so that the connection lives on."""
_NONE: Final[frozenset[Scope]] = frozenset()
_EVERY: Final[frozenset[Scope]] = frozenset({"admin"})
_BEARER: Final = b"bearer "
_SHOW_ONE: Final = (
    "send `Authorization: Bearer din_...`; commands take --key-file FILE or DIN_API_KEY_FILE"
)

_BE_LOCAL: Final = (
    "on the gateway's machine ask http://127.0.0.1 and its port without a proxy; from elsewhere "
    "show an API key: `din key create`"
)
_JOIN_ANEW: Final = "that machine may join anew, with an empty state directory: din node join -"
_RENEW: Final = "the node renews it by itself; where that fails, join it with a token"


def _make_one(needs: Needs) -> str:
    """How a key that may do this is made."""
    scope = next((each for each in needs if each in SCOPES), "SCOPE")
    command = f"din key create NAME --scope {scope} --save FILE"
    return f"on the gateway's machine, or with an admin's key: {command}"


def _nobody(_node_id: str) -> str:
    return ""


def _ignored(*_: object) -> None:
    pass


class Rules(Struct, frozen=True, kw_only=True):
    """What admission is told and whom it tells."""

    cluster: str = ""
    """Whose certificates count; empty = of any cluster under our authority."""
    is_key_required: bool = False
    """Whether programs on the plain port need a key as well."""
    refusal_of_node: Callable[[str], str] = _nobody
    """Why the certificate of a node does not count any more; empty = it does."""
    count: Callable[[str], None] = _ignored
    """Hears the reason of each refusal."""
    tell: Callable[[Caller, str, str], None] = _ignored
    """Hears who was refused, why, and what they wanted."""


class Admission:
    """What all connections of a front share. Without a book there are no keys."""

    def __init__(
        self,
        keys: KeyBook | None = None,
        rules: Rules | None = None,
        clock_ms: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.keys = keys
        self.rules = rules or Rules()
        self.clock_ms = clock_ms
        self._failures = FailureLimiter()

    def refuse(
        self,
        caller: Caller,
        refusal: Refusal,
        target: str,
        *,
        is_guess: bool,
        hint: str = _SHOW_ONE,
    ) -> Exception:
        """The error for a caller who is not known; wrong keys are counted by address."""
        self.rules.count(refusal.reason)
        wait_ms = self._failures.fail(caller.address, self.clock_ms()) if is_guess else 0.0
        if wait_ms:
            self.rules.count("limited")
            told = "too many wrong API keys came from this address"
            return Limited(told, hint="wait, or fix them", retry_after_s=ceil(wait_ms / 1000))
        self.rules.tell(caller, refusal.reason, target)
        return Unauthenticated(refusal.told, hint=hint)

    def denied(self, caller: Caller, needs: Needs, target: str) -> Exception:
        """The error for a known caller without the scope."""
        self.rules.count("scope")
        self.rules.tell(caller, "scope", target)
        held = ", ".join(sorted(caller.scopes)) or "none"
        who = f"API key {caller.name}" if caller.kind == "key" else f"{caller.kind} {caller.name}"
        return Denied(
            f"{who} may not do this: it needs scope {words_of(needs)}, and holds {held}",
            hint=_make_one(needs),
        )


class Visit(Struct, frozen=True):
    """One admitted request."""

    peer: Peer
    caller: Caller
    keys: KeyBook | None = None

    def counts(self) -> bool:
        """Whether the caller's key still does: for answers that never end."""
        if self.caller.kind != "key":
            return True
        return self.keys is not None and self.keys.counts(self.caller.name)


class Visitor:
    """One connection's callers. Each request may show another key."""

    __slots__ = (
        "_admission",
        "_allowed",
        "_given",
        "_held",
        "_is_here",
        "_known",
        "caller",
        "keys",
        "peer",
    )

    def __init__(
        self, admission: Admission, peer: Peer, known: Callable[[Caller], None] | None = None
    ) -> None:
        """`known` hears once that somebody has shown who he is, and may raise."""
        self._admission = admission
        self._known = known
        self.keys = admission.keys
        self.peer = peer
        self._is_here = is_loopback(peer.address)
        self._given: bytes | None = None
        self._held: Held | None = None
        self._allowed: Needs | None = None
        """The row that the caller of the last request was held against."""
        self.caller = self._without_key()

    @property
    def body_bytes_max(self) -> int:
        """Of one request of this caller."""
        held = self._held
        limit = held.record.body_bytes_max if held is not None else None
        return BODY_UNLIMITED if limit is None else limit

    def admit(self, needs: Needs, headers: Mapping[bytes, bytes], target: str = "") -> Caller:
        """Who sends this request. Raises Unauthenticated, Denied, or Limited."""
        given = headers.get(b"x-api-key")
        if given is None:
            given = headers.get(b"authorization")
        held, keys = self._held, self.keys
        is_stale = held is not None and (keys is None or not keys.is_current(held))
        if is_stale or given != self._given:
            self._look_at(given, needs, target)
            held = self._held
        if needs and self.caller.kind == "local":
            self._check_local(headers, target)
        if needs is not self._allowed:
            self._check(needs, target)
        if needs and self._known is not None:
            self._known(self.caller)
            self._known = None
        if held is not None and held.bucket is not None and needs:
            self._take(held.bucket)
        return self.caller

    def post(
        self, target: Target, query: bytes, headers: dict[bytes, bytes], limits: FrontLimits
    ) -> Post:
        """A post of ours, its caller admitted. Raises like `admit` where nobody known asks; what a
        known key may not do is a refusal inside the post, answered once its body has come."""
        peer = self.peer
        try:
            caller = self.admit(NEEDS_OF_KIND[target.kind], headers, target.kind)
        except (Denied, Limited) as error:
            if self._held is None or target.kind == "heartbeat" or b"expect" in headers:
                raise
            limit = min(limits.body_bytes_max, REFUSED_BODY_BYTES_MAX)
            return Post(target, query, headers, [], 0, peer, self.caller, limit, error)
        is_beat = target.kind == "heartbeat"
        limit = limits.heartbeat_bytes_max if is_beat else limits.body_bytes_max
        if self._held is not None:
            limit = min(limit, self.body_bytes_max)
        return Post(target, query, headers, [], 0, peer, caller, limit)

    def _look_at(self, given: bytes | None, needs: Needs, target: str) -> None:
        self._given, self._held, self._allowed = None, None, None
        self.caller = self._without_key()
        text, keys = _key_in(given), self.keys
        if text is None or keys is None:
            self._given = given
            return
        found = keys.show(text, self._admission.clock_ms())
        if isinstance(found, Refusal):
            if needs is OPEN:
                return
            caller = Caller(kind="stranger", name=found.key_id, address=self.peer.address)
            has_lapsed = found.reason in ("expired", "revoked")
            hint = _make_one(needs) if has_lapsed else _SHOW_ONE
            raise self._admission.refuse(caller, found, target, is_guess=True, hint=hint)
        record = found.record
        self._given, self._held = given, found
        self.caller = Caller(
            kind="key",
            name=record.id,
            tenant=record.tenant,
            scopes=frozenset(record.scopes),
            address=self.peer.address,
        )

    def _without_key(self) -> Caller:
        peer, rules = self.peer, self._admission.rules
        if not peer.is_tls:
            scopes = _NONE if rules.is_key_required else _EVERY
            return Caller(kind="local", scopes=scopes, address=peer.address)
        name = peer.name
        if name is None or name.role != "node" or rules.cluster not in ("", name.cluster):
            return Caller(kind="stranger", address=peer.address)
        return Caller(kind="node", name=name.id, address=peer.address)

    def _check_local(self, headers: Mapping[bytes, bytes], target: str) -> None:
        """Without a key only programs of this machine are known, not whoever makes them ask."""
        behind = passed_on(headers, is_here=self._is_here)
        if behind:
            told = f"a request without an API key counts for programs of this machine, and {behind}"
            caller = Caller(kind="stranger", address=self.peer.address)
            raise self._admission.refuse(
                caller, Refusal("passed_on", told), target, is_guess=False, hint=_BE_LOCAL
            )

    def _check(self, needs: Needs, target: str) -> None:
        caller, admission = self.caller, self._admission
        why = admission.rules.refusal_of_node(caller.name) if caller.kind == "node" else ""
        if why:
            told = Refusal(
                "revoked", f"the certificate of node {caller.name} counts no more: {why}"
            )
            raise admission.refuse(caller, told, target, is_guess=False, hint=_JOIN_ANEW)
        keys = self.keys
        is_first = self._is_here and "first" in needs and keys is not None and not keys.has_admin()
        if is_allowed(caller, needs, is_first=is_first):
            # What depends on more than the caller is asked each time.
            self._allowed = None if is_first or caller.kind == "node" else needs
            return
        if caller.kind in ("key", "node"):
            raise admission.denied(caller, needs, target)
        lapsed = self.peer.lapsed
        if lapsed is not None:
            told = Refusal("expired", f"the certificate of node {lapsed.name.id} has ended")
            raise admission.refuse(caller, told, target, is_guess=False, hint=_RENEW)
        scope = words_of(needs)
        which = "" if scope == "any" else f" with scope {scope}"
        told = Refusal("missing", f"this needs an API key{which}")
        hint = f"{_SHOW_ONE}; {_make_one(needs)}"
        raise admission.refuse(caller, told, target, is_guess=False, hint=hint)

    def _take(self, bucket: TokenBucket) -> None:
        wait_ms = bucket.take(self._admission.clock_ms())
        if wait_ms:
            self._admission.rules.count("rate")
            raise Limited(
                f"API key {self.caller.name} asks more often than it may",
                hint="send fewer requests a second, or make a key with a higher --rate",
                retry_after_s=ceil(wait_ms / 1000),
            )


def _key_in(given: bytes | None) -> str | None:
    """The text of a key; None where there is none, as with other schemes of authorization."""
    if not given:
        return None
    text = given.strip()
    if text[:7].lower() == _BEARER:
        return text[7:].strip().decode("latin-1")
    return None if b" " in text else text.decode("latin-1")
