"""Which models are registered, in which versions, and which version serves.

Registering carves the file, writes one record per version to the store and hands the partition to
the deployer. A new version takes over when it is ready; until then the old one serves, and it is
unloaded after. Registering the same content with the same settings changes nothing.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from din.access.scopes import owns
from din.artifacts.files import ArtifactFolder
from din.domain.encoding import RewriteCheck
from din.domain.node import NodeId
from din.domain.profile import Verification
from din.domain.trust import GATEWAY, Caller
from din.domain.views import RegisterModel
from din.errors import Conflict, Denied, DinError, NotFound, TooLarge
from din.gateway.registration.building import Builder
from din.gateway.registration.carving import Carving
from din.gateway.registration.cutting import Choosing
from din.gateway.registration.keeping import ArtifactKeeper
from din.gateway.registration.names import nearest, normal_model_id
from din.gateway.registration.record import (
    ModelRecord,
    artifacts_of,
    check_order,
    digest_of,
    key_of,
    newest_of,
    read_record,
    sources_of,
)
from din.gateway.routes.serving import Serving
from din.placement.partitioning import Chosen
from din.store.contract import Store

MODELS_MAX: Final = 1_000
FAILED_LISTED_S: Final = 600.0
"""As long as a lost node: whoever registered it without waiting can still read why."""


class Deploying(Protocol):
    """What the book needs of the deployer."""

    async def deploy(self, record: ModelRecord) -> Serving:
        """Start to place and load; returns at once."""
        ...

    async def retire(self, serving: Serving) -> None:
        """Unload everywhere."""
        ...

    def follow(self, before: ModelRecord, after: ModelRecord) -> None:
        """A deployed version has another record, with the same slices."""
        ...


class ModelBook:
    """All registered models. Implements dispatch.Book."""

    def __init__(
        self,
        store: Store,
        artifacts: ArtifactFolder,
        carving: Carving,
        chooser: Choosing,
        seals: Callable[[bool | None], bool] = bool,
    ) -> None:
        """`seals`: whether a model is sealed whose registration asks so, or does not say (None)."""
        self._store = store
        self._artifacts = artifacts
        self.builder = Builder(artifacts, carving, seals, chooser)
        self.keeper = ArtifactKeeper(artifacts, self._needed, self._fetched)
        self._build = partial(
            self.builder.build, keep_sealed=self.keeper.keep_sealed, drop=self.keeper.drop
        )
        self._deployer: Deploying | None = None
        self._records: dict[str, dict[str, ModelRecord]] = {}
        self._servings: dict[tuple[str, str], Serving] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def connect(self, deployer: Deploying) -> None:
        """Who deploys. Once, before load()."""
        self._deployer = deployer

    async def load(self) -> None:
        """Read the store and deploy every version: an old one serves until the newest is ready.
        Artifacts that no version needs are dropped. Raises Internal for an unreadable record."""
        for entry in await self._store.list("models/"):
            record = read_record(entry)
            self._records.setdefault(record.manifest.model_id, {})[record.manifest.version] = record
        self.keeper.drop(set(self._artifacts.hashes()))
        sealed = [each.order for each in self._all_records() if each.manifest.is_encrypted]
        self.keeper.keep_sealed({sha256 for order in sealed for sha256 in sources_of(order)})
        for record in self._all_records():
            await self._deploy(record)

    # Looking up.

    def model_ids(self) -> tuple[str, ...]:
        """All registered ids."""
        return tuple(sorted(self._records))

    def record(self, model_id: str, version: str | None = None) -> ModelRecord:
        """One version; None = the newest. Raises NotFound naming what is near."""
        versions = self._versions(model_id)
        wanted = version if version is not None else newest_of(versions)
        if wanted not in versions:
            raise NotFound(
                f"model {model_id!r} has no version {wanted!r}",
                hint=f"its versions are {', '.join(sorted(versions, key=int))}",
            )
        return versions[wanted]

    def serving(self, model_id: str, version: str | None) -> Serving:
        """Who serves; None = the newest ready version, or the newest that is being loaded."""
        model_id = unicodedata.normalize("NFC", model_id)
        versions = self._versions(model_id)
        if version is not None:
            self.record(model_id, version)
            serving = self._servings.get((model_id, version))
            if serving is None:
                raise NotFound(
                    f"version {version} of model {model_id!r} has been retired",
                    hint=f"version {newest_of(versions)} serves",
                )
            return serving
        newest: Serving | None = None
        for each in sorted(versions, key=int, reverse=True) if len(versions) > 1 else versions:
            serving = self._servings.get((model_id, each))
            if serving is not None:
                if serving.is_available:
                    return serving
                newest = newest or serving
        if newest is None:
            raise NotFound(f"model {model_id!r} is being removed", hint="try again in a moment")
        return newest

    def servings(self) -> tuple[Serving, ...]:
        """All that are deployed now."""
        return tuple(self._servings.values())

    def whole_ms(self, source_sha256: str) -> dict[NodeId, float]:
        """Measured time by node of the same file where it is deployed in one slice."""
        found: dict[NodeId, float] = {}
        for serving in self._servings.values():
            index = serving.raw.single_slice
            if index is None or serving.deployment.manifest.source_sha256 != source_sha256:
                continue
            for node_id, replica in serving.replicas(index).items():
                if replica.mean_ms is not None:
                    found[node_id] = min(replica.mean_ms, found.get(node_id, replica.mean_ms))
        return found

    # Changing.

    async def register(self, order: RegisterModel, caller: Caller = GATEWAY) -> ModelRecord:
        """Carve and deploy. Raises UsageError and its children for what the order asks, NotFound
        when the bytes were not uploaded, Conflict when the id is another tenant's."""
        model_id = normal_model_id(order.model_id)
        check_order(order)
        async with self._turn(model_id):
            with self.keeper.building():
                return await self._register(replace(order, model_id=model_id), caller)

    async def _register(self, order: RegisterModel, caller: Caller) -> ModelRecord:
        model_id = order.model_id
        known = self._records.get(model_id, {})
        tenant = known[newest_of(known)].manifest.tenant if known else caller.tenant
        if not owns(caller, tenant):
            raise Conflict(
                f"model id {model_id!r} is taken by another tenant", hint="choose another id"
            )
        if not known and len(self._records) >= MODELS_MAX:
            full = f"{MODELS_MAX} models are registered, the limit of a gateway"
            raise TooLarge(full, hint="remove an unused one: din model remove MODEL")
        digest = digest_of(order)
        for record in reversed(known.values()):
            is_kept = record.manifest.is_encrypted or not self.builder.seals_order(order)
            if record.order_sha256 == digest and is_kept and self._is_served(record):
                return record
        version = str(int(newest_of(known)) + 1) if known else "1"
        record = await self._build(order, version=version, digest=digest, tenant=tenant)
        if order.is_dry_run:
            self.keeper.drop(artifacts_of(record) - sources_of(order))
        else:
            await self._keep(record)
        return record

    async def cut_again(self, record: ModelRecord, chosen: Chosen) -> ModelRecord:
        """The same order in a new version with other cuts, which takes over when it is ready.
        Raises Conflict when the model was changed meanwhile."""
        manifest = record.manifest
        async with self._turn(manifest.model_id):
            with self.keeper.building():
                if self._records.get(manifest.model_id, {}).get(manifest.version) is not record:
                    raise Conflict(f"model {manifest.model_id!r} was changed meanwhile")
                cut = await self._build(
                    record.order,
                    version=str(int(manifest.version) + 1),
                    digest=record.order_sha256,
                    tenant=manifest.tenant,
                    chosen=chosen,
                )
                await self._keep(cut)
        return cut

    async def cut_to_fit(self, record: ModelRecord, chosen: Chosen) -> ModelRecord:
        """Put a version that no node can hold into the slices that were chosen.

        The version stays: what changes is how it is deployed. Raises NotFound when the
        version was removed meanwhile.
        """
        async with self._turn(record.manifest.model_id):
            with self.keeper.building():
                return await self._cut_to_fit(record, chosen)

    async def _cut_to_fit(self, record: ModelRecord, chosen: Chosen) -> ModelRecord:
        manifest = record.manifest
        if self.record(manifest.model_id, manifest.version) is not record:
            raise NotFound(f"model {manifest.model_id!r} was changed meanwhile")
        cut = await self._build(
            record.order,
            version=manifest.version,
            digest=record.order_sha256,
            tenant=manifest.tenant,
            chosen=chosen,
        )
        # It stays in its place until the cut one stands there: who asks meanwhile may wait.
        old = self._servings.get((manifest.model_id, manifest.version))
        await self._keep(cut)
        if old is not None:
            assert self._deployer is not None, "connect() comes first"
            await self._deployer.retire(old)
        self.keeper.drop(artifacts_of(record))
        return cut

    async def _keep(self, record: ModelRecord) -> None:
        manifest = record.manifest
        versions = self._records.setdefault(manifest.model_id, {})
        before = versions.get(manifest.version)
        versions[manifest.version] = record
        try:
            await self._store.put(key_of(record), msgspec.json.encode(record))
            await self._deploy(record)
        except DinError:  # a full disk: what is not wholly registered is not registered
            if before is None:
                self._drop_record(manifest.model_id, manifest.version)
                with suppress(DinError):
                    await self._store.delete(key_of(record))
            raise

    async def verified(
        self, record: ModelRecord, found: Verification, rewrite: RewriteCheck | None = None
    ) -> None:
        """Keep what was found of a version, if it still is the same. Raises Unavailable when the
        disk is full."""
        manifest = record.manifest
        async with self._turn(manifest.model_id):
            versions = self._records.get(manifest.model_id, {})
            if versions.get(manifest.version) is not record:
                return
            assert self._deployer is not None, "connect() comes first"
            after = replace(record, verification=found, rewrite=rewrite)
            await self._store.put(key_of(after), msgspec.json.encode(after))
            versions[manifest.version] = after
            self._deployer.follow(record, after)

    async def became_ready(self, serving: Serving) -> None:
        """A version is ready: older ones of the same model retire and are forgotten."""
        if serving.deployment.tenant:
            return
        manifest = serving.deployment.manifest
        async with self._turn(manifest.model_id):
            for version in sorted(self._records.get(manifest.model_id, {}), key=int):
                if int(version) < int(manifest.version) and not serving.is_retired:
                    await self._forget(manifest.model_id, version)

    async def became_failed(self, serving: Serving) -> None:
        """Every node would refuse this version: it is not kept, and listed with its reason for a
        while. A version that serves stays what it is."""
        manifest = serving.deployment.manifest
        model_id, version = manifest.model_id, manifest.version
        async with self._turn(model_id):
            if self._servings.get((model_id, version)) is not serving:
                return  # removed meanwhile, or no model of this book
            await self._store.delete(key_of(self._records[model_id][version]))
        await asyncio.sleep(FAILED_LISTED_S)
        async with self._turn(model_id):
            if self._servings.get((model_id, version)) is serving:
                await self._forget(model_id, version)

    async def remove(self, model_id: str, caller: Caller = GATEWAY) -> ModelRecord:
        """Unload and forget every version. Raises NotFound, Denied for a shared model."""
        model_id = self.record(model_id).manifest.model_id
        async with self._turn(model_id):
            record = self.record(model_id)
            if not owns(caller, record.manifest.tenant):
                raise Denied(
                    f"model {model_id!r} belongs to tenant {record.manifest.tenant!r}",
                    hint="a key of that tenant, or one with scope admin, may remove it",
                )
            for version in sorted(self._records[model_id], key=int):
                await self._forget(model_id, version)
        return record

    # Inside.

    def _turn(self, model_id: str) -> asyncio.Lock:
        """One change of a model at a time: versions are counted and take over one by one."""
        return self._turns.setdefault(model_id, asyncio.Lock())

    def _needed(self) -> set[str]:
        return {sha256 for each in self._all_records() for sha256 in artifacts_of(each)}

    def _versions(self, model_id: str) -> dict[str, ModelRecord]:
        model_id = unicodedata.normalize("NFC", model_id)
        versions = self._records.get(model_id)
        if not versions:
            raise NotFound(
                f"no model {model_id!r} is registered", hint=nearest(model_id, self._records)
            )
        return versions

    def _is_served(self, record: ModelRecord) -> bool:
        serving = self._servings.get((record.manifest.model_id, record.manifest.version))
        return serving is not None and serving.deployment.state != "failed"

    def _fetched(self) -> set[str]:
        """Files that nodes fetch, so that they have to stay as they are."""
        return {
            artifact.sha256
            for record in self._all_records()
            for part in record.partition.slices
            for artifact in part.artifacts
        }

    async def _deploy(self, record: ModelRecord) -> None:
        assert self._deployer is not None, "connect() comes first"
        manifest = record.manifest
        serving = await self._deployer.deploy(record)
        self._servings[manifest.model_id, manifest.version] = serving

    async def _forget(self, model_id: str, version: str) -> None:
        assert self._deployer is not None, "connect() comes first"
        # The store first: when the disk is full, the model stays as it is.
        record = await self._unrecord(model_id, version)
        serving = self._servings.pop((model_id, version), None)
        if serving is not None:
            await self._deployer.retire(serving)
        self.keeper.drop(artifacts_of(record))

    async def _unrecord(self, model_id: str, version: str) -> ModelRecord:
        record = self._records[model_id][version]
        await self._store.delete(key_of(record))
        self._drop_record(model_id, version)
        return record

    def _drop_record(self, model_id: str, version: str) -> None:
        del self._records[model_id][version]
        if not self._records[model_id]:
            del self._records[model_id]

    def _all_records(self) -> list[ModelRecord]:
        return [record for versions in self._records.values() for record in versions.values()]
