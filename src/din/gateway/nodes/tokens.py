"""Join tokens in the store: made, listed, revoked, used once.

    trust/tokens/<id>    hash of the secret, labels, expiry, and who used it

A token is used up by one `put` with `if_rev` that writes the machine's id and key beside it: of two
machines one wins. The same machine with the same key may use it again until it expires, so that an
answer lost on the way costs nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from din.domain.enrolment import CreateToken, TokenState, TokenView
from din.errors import Busy, Conflict, Denied, NotFound
from din.store.contract import Entry, Store
from din.wire.join_token import SECRET_BYTES, JoinToken

TOKENS_MAX: Final = 1000
REMEMBERED_MS: Final = 24 * 3600 * 1000
"""How long after its expiry a token is still listed, and a use of it answered with the reason."""
_PREFIX: Final = "trust/tokens/"
_HINT: Final = "make a new one on the gateway: din token create"


class _Stored(Struct, frozen=True):
    secret_sha256: str
    expires_ms: int
    labels: dict[str, str]
    node_id: str = ""
    key_sha256: str = ""


class TokenUse(Struct, frozen=True):
    """A token whose secret was shown, not used up yet."""

    id: str
    labels: dict[str, str]
    entry: Entry
    is_repeated: bool = False
    """Whether some machine has used it up before."""


class TokenBook:
    """All tokens of one cluster. `now_ms` is the wall clock: tokens outlast a restart."""

    def __init__(
        self,
        store: Store,
        now_ms: Callable[[], int],
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._store = store
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self._turn = asyncio.Lock()

    async def create(self, order: CreateToken, authority_sha256: str) -> JoinToken:
        """A fresh token, stored without its secret; of too many, the used or expired one that ends
        first goes. Raises Busy when all of them are open."""
        async with self._turn:
            await self._make_room()
            return await self._create(order, authority_sha256)

    async def _make_room(self) -> None:
        entries = await self._store.list(_PREFIX)
        if len(entries) < TOKENS_MAX:
            return
        stored = [(_read(each), each) for each in entries]
        ended = [each for each in stored if self._state_of(each[0]) != "open"]
        if not ended:
            raise Busy(
                f"{TOKENS_MAX} join tokens are open already",
                hint="revoke some: din token list, din token revoke ID",
            )
        _, oldest = min(ended, key=lambda each: each[0].expires_ms)
        await self._store.delete(oldest.key)

    async def _create(self, order: CreateToken, authority_sha256: str) -> JoinToken:
        secret = urlsafe_b64encode(self._random_bytes(SECRET_BYTES)).rstrip(b"=").decode()
        token = JoinToken(authority_sha256, self._random_bytes(4).hex(), secret)
        ttl_ms = order.ttl_s * 1000
        stored = _Stored(_digest(secret), self._now_ms() + ttl_ms, dict(order.labels))
        await self._put(token.id, stored, if_rev=0)
        return token

    async def list(self) -> tuple[TokenView, ...]:
        """Every token that is still known, by id."""
        entries = await self._store.list(_PREFIX)
        return tuple(self._view(each.key.removeprefix(_PREFIX), _read(each)) for each in entries)

    async def find(self, beginning: str) -> TokenView:
        """The token with this id or unique beginning of an id; of several the one that is open.
        Raises NotFound or Conflict."""
        known = await self.list()
        found = [each for each in known if beginning and each.id.startswith(beginning)]
        live = [each for each in found if each.state == "open"] or found
        if len(live) > 1:
            shown = ", ".join(f"{each.id} ({each.state})" for each in live[:4])
            raise Conflict(f"{beginning!r} means {len(live)} join tokens", hint=f"ids: {shown}")
        if not live:
            raise NotFound(f"there is no join token {beginning!r:.40}", hint="see: din token list")
        return live[0]

    async def revoke(self, token_id: str) -> None:
        """Nobody joins with it any more; who has joined stays. Raises NotFound."""
        if not await self._store.delete(_PREFIX + token_id):
            raise NotFound(f"there is no join token {token_id!r:.40}", hint="see: din token list")

    async def check(self, token_id: str, secret: str) -> TokenUse:
        """The token that this secret opens. Raises Denied with the reason."""
        entry = await self._store.get(_PREFIX + token_id)
        if entry is None:
            raise _unknown(token_id)
        stored = _read(entry)
        if not hmac.compare_digest(_digest(secret), stored.secret_sha256):
            raise Denied(f"the secret of join token {token_id} is wrong", hint=_HINT)
        late_ms = self._now_ms() - stored.expires_ms
        if late_ms >= 0:
            raise Denied(f"join token {token_id} expired {late_ms // 1000} s ago", hint=_HINT)
        return TokenUse(token_id, stored.labels, entry, bool(stored.node_id))

    async def use(self, use: TokenUse, node_id: str, key_sha256: str) -> None:
        """Bind it to this machine and key for good. Raises Denied when another has it."""
        stored = _read(use.entry)
        mine = (node_id, key_sha256)
        if stored.node_id:
            if (stored.node_id, stored.key_sha256) != mine:
                raise _used(use.id, stored.node_id)
            return
        bound = msgspec.structs.replace(stored, node_id=node_id, key_sha256=key_sha256)
        try:
            await self._put(use.id, bound, if_rev=use.entry.revision)
        except Conflict:
            # Somebody was quicker: another machine, or this one over another connection.
            entry = await self._store.get(_PREFIX + use.id)
            if entry is None:
                raise _unknown(use.id) from None
            winner = _read(entry)
            if (winner.node_id, winner.key_sha256) != mine:
                raise _used(use.id, winner.node_id) from None

    async def _put(self, token_id: str, stored: _Stored, *, if_rev: int) -> None:
        ttl_ms = max(stored.expires_ms - self._now_ms(), 0) + REMEMBERED_MS
        value = msgspec.json.encode(stored)
        await self._store.put(_PREFIX + token_id, value, ttl_ms=ttl_ms, if_rev=if_rev)

    def _view(self, token_id: str, stored: _Stored) -> TokenView:
        left_ms = max(stored.expires_ms - self._now_ms(), 0)
        return TokenView(
            id=token_id,
            state=self._state_of(stored),
            expires_in_s=left_ms // 1000,
            labels=stored.labels,
            used_by=stored.node_id,
        )

    def _state_of(self, stored: _Stored) -> TokenState:
        if stored.node_id:
            return "used"
        return "open" if stored.expires_ms > self._now_ms() else "expired"


def _read(entry: Entry) -> _Stored:
    return msgspec.json.decode(entry.value, type=_Stored)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _used(token_id: str, node_id: str) -> Denied:
    return Denied(
        f"join token {token_id} was used by node {node_id}: each admits one machine", hint=_HINT
    )


def _unknown(token_id: str) -> Denied:
    return Denied(
        f"join token {token_id} is not known here: it was revoked, or is of another time",
        hint=_HINT,
    )
