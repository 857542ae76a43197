"""Epochs of deployments: never used twice, and those of earlier gateway sessions are known.

An epoch is (number by chance, revision of the store). Stores count alike: with the revision alone a
gateway with a new, a copied or a restored store would say epochs for which nodes hold the slices of
another model, and be answered by that one. The store keeps, per version, the epochs that came
before, since nodes may still hold slices of them when the gateway starts again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from din.domain.deployment import Epoch
from din.domain.malformed import MALFORMED
from din.domain.model import ModelManifest
from din.errors import Conflict
from din.gateway.registration.record import ModelRecord
from din.store.contract import Store

if TYPE_CHECKING:
    from random import Random

NUMBER_BITS: Final = 48
"""Drawn twice alike about never; exact in every JSON reader."""
ISOLATED: Final = "isolated/"
"""Before the model ids of deployments that are one tenant's: no model has a `/` in its id."""
FORMER_EPOCHS_MAX: Final = 4
"""Per version: a node that slept through more restarts of the gateway is restarted itself."""


class EpochBook:
    """Hands out epochs and remembers what nodes may hold from before."""

    def __init__(self, store: Store, random: Random) -> None:
        self._store = store
        self._random = random
        self.former: set[Epoch] = set()
        """Of earlier sessions of this gateway, or replaced ones."""

    async def next(self, record: ModelRecord, tenant: str = "") -> Epoch:
        """A new epoch for a version, or for what of it is one tenant's. Raises
        Unavailable when the disk is full."""
        key = _key(record.manifest, tenant)
        entry = await self._store.get(key)
        former: list[Epoch] = []
        number = self._random.getrandbits(NUMBER_BITS)
        if entry is not None:
            before, earlier = _read(entry.value)
            former = [*earlier, Epoch(before, entry.revision)][-FORMER_EPOCHS_MAX:]
        revision = await self._store.put(key, msgspec.json.encode((number, former)))
        self.former.update(former)
        return Epoch(number, revision)

    async def end_all(self, namespace: str) -> None:
        """Deployments whose model ids begin with this are over: nodes hold nothing of them."""
        prefix = f"deployments/{namespace}"
        for entry in await self._store.list(prefix):
            if entry.key.count("/") <= prefix.count("/"):
                continue  # a model that is called like the namespace
            number, earlier = _read(entry.value)
            self.former.update([*earlier, Epoch(number, entry.revision)])
            await self._store.delete(entry.key)

    async def end(self, epoch: Epoch, manifest: ModelManifest, tenant: str = "") -> None:
        """An epoch is over: forget it, unless a newer one of the same version stands there."""
        try:
            await self._store.delete(_key(manifest, tenant), if_rev=epoch.revision)
        except Conflict:
            return


def _key(manifest: ModelManifest, tenant: str) -> str:
    version = f"{manifest.model_id}/{manifest.version}"
    return f"deployments/{ISOLATED}{version}/{tenant}" if tenant else f"deployments/{version}"


def _read(value: bytes) -> tuple[int, list[Epoch]]:
    """An entry that cannot be read costs nothing but the unloading of what it would name."""
    try:
        return msgspec.json.decode(value, type=tuple[int, list[Epoch]])
    except MALFORMED:
        return 0, []
