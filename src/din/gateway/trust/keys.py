"""API keys: in the store by the hash of their secret, in memory to be asked without waiting.

Memory and store change together under one lock, memory first where a key is taken away: it stops
counting before anybody is told so. When a key was last used is written rarely, so that asking
costs no disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from din.access.keys import (
    ID_BYTES,
    SECRET_BYTES,
    KeyRecord,
    check_key_order,
    digest_of,
    format_key,
    is_secret_of,
    parse_key,
)
from din.access.limits import TokenBucket
from din.domain.keys import CreateKey, KeyCreated, KeyList, KeyView
from din.domain.malformed import MALFORMED
from din.errors import Conflict, DinError, Internal, NotFound, TooLarge, Unavailable, UsageError
from din.store.contract import Entry, Store

PREFIX: Final = "keys/"
KEYS_MAX: Final = 1_000
"""Of a gateway; the one that was revoked or expired longest ago makes room."""
USED_STEP_MS: Final = 600_000
"""How old the time of last use may be."""
FLUSH_S: Final = 60.0


class Refusal(msgspec.Struct, frozen=True):
    """Why a shown key does not count. `reason` is for metrics and audit, `told` for its owner."""

    reason: str
    told: str
    key_id: str = ""


class Held(msgspec.Struct):
    """A key that counts, as one connection may keep it while `record` is the current one."""

    record: KeyRecord
    bucket: TokenBucket | None
    ask_again_ms: int
    """Time of day from which it must be shown again: it expires, or its use must be noted."""


class KeyBook:
    """All keys of one gateway. `now_ms` is the time of day, `chance` gives secret bytes."""

    def __init__(
        self, store: Store, now_ms: Callable[[], int], chance: Callable[[int], bytes]
    ) -> None:
        self._store = store
        self._now_ms = now_ms
        self._chance = chance
        self._records: dict[str, KeyRecord] = {}
        self._buckets: dict[str, TokenBucket] = {}
        self._used: set[str] = set()
        self._turn = asyncio.Lock()

    async def load(self) -> None:
        """Read the store. Raises Internal for a record that cannot be read."""
        for entry in await self._store.list(PREFIX):
            record = _read(entry)
            self._records[record.id] = record

    # Asking: no disk, no waiting.

    def show(self, text: str, clock_ms: float) -> Held | Refusal:
        """Somebody shows a key; `clock_ms` is the clock of the rate limits."""
        try:
            shown = parse_key(text)
        except UsageError as error:
            return Refusal("malformed", f"what was shown as API key is none: {error.message}")
        record = self._records.get(shown.id)
        if not is_secret_of(shown, record) or record is None:
            reason = "unknown" if record is None else "secret"
            return Refusal(reason, f"API key {shown.id} is not known here", shown.id)
        now_ms = self._now_ms()
        state = record.state(now_ms)
        if state != "active":
            return Refusal(state, f"API key {record.id} ({record.name}) is {state}", record.id)
        if record.used_ms is None or now_ms >= record.used_ms + USED_STEP_MS:
            record = self._records[record.id] = replace(record, used_ms=now_ms)
            self._used.add(record.id)
        used_ms = record.used_ms if record.used_ms is not None else now_ms
        again_ms = used_ms + USED_STEP_MS
        if record.expires_ms is not None:
            again_ms = min(again_ms, record.expires_ms)
        return Held(record, self._bucket_of(record, clock_ms), again_ms)

    def is_current(self, held: Held) -> bool:
        """Whether nothing about a key has changed since it was shown."""
        record = held.record
        return self._records.get(record.id) is record and self._now_ms() < held.ask_again_ms

    def counts(self, key_id: str) -> bool:
        """Whether a key exists that is neither expired nor revoked."""
        record = self._records.get(key_id)
        return record is not None and record.state(self._now_ms()) == "active"

    def has_admin(self) -> bool:
        """Whether some key that counts has the scope admin."""
        now_ms = self._now_ms()
        return any(
            "admin" in each.scopes and each.state(now_ms) == "active"
            for each in self._records.values()
        )

    def list(self) -> KeyList:
        """All keys, newest first."""
        newest = sorted(self._records.values(), key=lambda each: (-each.created_ms, each.id))
        return KeyList(items=tuple(self._view(each) for each in newest))

    def find(self, id_or_name: str) -> KeyView:
        """By id, unique beginning of an id, or name. Raises NotFound or Conflict."""
        return self._view(self._find(id_or_name))

    # Changing.

    async def create(self, order: CreateKey, created_by: str) -> KeyCreated:
        """Make a key. Raises UsageError, TooLarge, Unavailable when the disk is full."""
        check_key_order(order)
        async with self._turn:
            await self._make_room()
            now_ms = self._now_ms()
            text = self._new_text()
            shown = parse_key(text)
            record = KeyRecord(
                id=shown.id,
                secret_sha256=digest_of(shown.secret),
                name=order.name,
                tenant=order.tenant,
                scopes=order.scopes,
                created_ms=now_ms,
                created_by=created_by,
                expires_ms=None if order.life_s is None else now_ms + order.life_s * 1000,
                requests_per_s=order.requests_per_s,
                burst=order.burst,
                body_bytes_max=order.body_bytes_max,
            )
            await self._put(record)
            self._records[record.id] = record
        return KeyCreated(key=text, view=self._view(record))

    async def revoke(self, id_or_name: str) -> KeyView:
        """Take a key away, at once. Raises NotFound, Conflict, Unavailable: then it counts again,
        since after a restart it would."""
        async with self._turn:
            record = self._find(id_or_name)
            if record.revoked_ms is not None:
                return self._view(record)
            revoked = replace(record, revoked_ms=self._now_ms())
            self._records[record.id] = revoked
            self._buckets.pop(record.id, None)
            try:
                await self._put(revoked)
            except DinError:
                self._records[record.id] = record
                raise
        return self._view(revoked)

    async def run(self) -> None:
        """Write times of last use now and then, until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            # A full disk: they are written with the next ones.
            with suppress(Unavailable):
                await self.flush()

    async def flush(self) -> None:
        """Write times of last use. Raises Unavailable."""
        async with self._turn:
            while self._used:
                key_id = next(iter(self._used))
                record = self._records.get(key_id)
                if record is not None:
                    await self._put(record)
                self._used.discard(key_id)

    # Inside.

    def _new_text(self) -> str:
        while True:
            text = format_key(self._chance(ID_BYTES), self._chance(SECRET_BYTES))
            if parse_key(text).id not in self._records:
                return text

    async def _make_room(self) -> None:
        if len(self._records) < KEYS_MAX:
            return
        now_ms = self._now_ms()
        ended = [each for each in self._records.values() if each.state(now_ms) != "active"]
        if not ended:
            raise TooLarge(
                f"{KEYS_MAX} API keys are active, the limit of a gateway",
                hint="revoke some: din key list, din key revoke ID",
            )
        oldest = min(ended, key=lambda each: each.revoked_ms or each.expires_ms or 0)
        await self._store.delete(PREFIX + oldest.id)
        del self._records[oldest.id]

    async def _put(self, record: KeyRecord) -> None:
        await self._store.put(PREFIX + record.id, msgspec.json.encode(record))

    def _bucket_of(self, record: KeyRecord, clock_ms: float) -> TokenBucket | None:
        if record.requests_per_s is None:
            return None
        bucket = self._buckets.get(record.id)
        if bucket is None:
            bucket = TokenBucket(record.requests_per_s, record.burst, clock_ms)
            self._buckets[record.id] = bucket
        return bucket

    def _find(self, id_or_name: str) -> KeyRecord:
        exact = self._records.get(id_or_name)
        if exact is not None:
            return exact
        found = [
            each
            for each in self._records.values()
            if each.name == id_or_name or (id_or_name and each.id.startswith(id_or_name))
        ]
        live = [each for each in found if each.revoked_ms is None] or found
        if len(live) > 1:
            some = ", ".join(sorted(each.id for each in live)[:4])
            raise Conflict(f"{id_or_name!r:.80} means {len(live)} API keys", hint=f"ids: {some}")
        if not live:
            raise NotFound(f"no API key {id_or_name!r:.80}", hint="`din key list` shows all")
        return live[0]

    def _view(self, record: KeyRecord) -> KeyView:
        return KeyView(
            id=record.id,
            name=record.name,
            tenant=record.tenant,
            scopes=record.scopes,
            state=record.state(self._now_ms()),
            created_at=_iso(record.created_ms) or "",
            created_by=record.created_by,
            expires_at=_iso(record.expires_ms),
            revoked_at=_iso(record.revoked_ms),
            used_at=_iso(record.used_ms),
            requests_per_s=record.requests_per_s,
            burst=record.burst,
            body_bytes_max=record.body_bytes_max,
        )


def _iso(time_ms: int | None) -> str | None:
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _read(entry: Entry) -> KeyRecord:
    try:
        return msgspec.json.decode(entry.value, type=KeyRecord)
    except MALFORMED as fault:
        raise Internal(
            f"the store's API key {entry.key!r} cannot be read: {fault}",
            hint="it was written by another version of DIN, or damaged",
        ) from fault
