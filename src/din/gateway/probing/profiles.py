"""Profiles in the store: found again after a restart, one per file, class of devices, settings and
input shapes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from din.domain.cuts import CutTable
from din.domain.malformed import MALFORMED
from din.domain.node import NodeProfile
from din.domain.profile import DeviceClass, Profile
from din.domain.views import RegisterModel
from din.placement.correction import times_for
from din.store.contract import Store

PREFIX: Final = "profiles/"
PROFILES_MAX: Final = 256
"""The one that was measured longest ago goes first."""
SHORT: Final = 16
"""Hex digits of the hashes in a key that only tell profiles of one file apart."""


def device_class(profile: NodeProfile | DeviceClass) -> str:
    """Nodes of one class are expected to take the same time."""
    return f"{profile.device_type}/{profile.cpu_model}/{profile.cpu_cores:g}"


class ProfileBook:
    """All profiles of a gateway."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._revisions: dict[str, int] = {}
        """Of each key, the oldest first."""

    async def load(self) -> None:
        """Learn what the store has."""
        entries = await self._store.list(PREFIX)
        ordered = sorted(entries, key=lambda entry: entry.revision)
        self._revisions = {entry.key: entry.revision for entry in ordered}

    async def find(
        self,
        source_sha256: str,
        device: DeviceClass,
        bucket: str,
        backend_options: Mapping[str, str],
    ) -> Profile | None:
        """A stored profile; one that another version of DIN wrote is none."""
        key = _key(source_sha256, device, bucket, backend_options)
        return await self._read(key) if key in self._revisions else None

    async def times_of(self, order: RegisterModel, table: CutTable) -> dict[str, tuple[float, ...]]:
        """Measured milliseconds by operator of the table, by class of devices as terrain names
        them: of a model's own settings, the newest of each class."""
        profiles = await self.newest(order, table)
        times = {name: times_for(each, table) for name, each in profiles.items()}
        return {name: each for name, each in times.items() if each is not None}

    async def newest(self, order: RegisterModel, table: CutTable) -> dict[str, Profile]:
        """Of a model's own settings and of this very graph, by class of devices."""
        found: dict[str, Profile] = {}
        for key in [each for each in self._revisions if each.startswith(_folder(table))]:
            profile = await self._read(key)
            if profile is None or profile.backend_options != order.backend_options:
                continue
            if times_for(profile, table) is not None:
                found[device_class(profile.device)] = profile
        return found

    async def _read(self, key: str) -> Profile | None:
        entry = await self._store.get(key)
        try:
            return msgspec.json.decode(entry.value, type=Profile) if entry is not None else None
        except MALFORMED:
            return None

    async def keep(self, profile: Profile) -> None:
        """Store one, over an older one of the same. Raises Unavailable when the disk is full."""
        key = _key(profile.source_sha256, profile.device, profile.bucket, profile.backend_options)
        revision = await self._store.put(key, msgspec.json.encode(profile))
        self._revisions.pop(key, None)
        self._revisions[key] = revision
        while len(self._revisions) > PROFILES_MAX:
            oldest = next(iter(self._revisions))
            del self._revisions[oldest]
            await self._store.delete(oldest)


def _folder(table: CutTable) -> str:
    return f"{PREFIX}{table.source_sha256}/"


def _key(
    source_sha256: str, device: DeviceClass, bucket: str, backend_options: Mapping[str, str]
) -> str:
    settings = msgspec.json.encode((device, dict(backend_options)), order="sorted")
    return f"{PREFIX}{source_sha256}/{_short(settings)}/{_short(bucket.encode())}"


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:SHORT]
