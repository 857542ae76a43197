"""Which models are registered, in which versions, and which version serves.

Registering carves the file, writes one record per version to the store and hands the partition to
the deployer. A new version takes over when it is ready; until then the old one serves, and it is
unloaded after. Registering the same content with the same settings changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, Literal, Protocol

import msgspec
from msgspec import Struct

from din.adapters.catalogue import check_adapter
from din.artifacts.files import ArtifactFolder
from din.domain.model import (
    AdapterSpec,
    CarveAnswer,
    CarveRequest,
    CutFacts,
    ModelManifest,
    Partition,
    SliceSetting,
)
from din.domain.tensor import TensorSpec
from din.domain.views import RegisterModel
from din.errors import NotFound, TooLarge, UsageError
from din.gateway.carving import Carving
from din.gateway.names import nearest, normal_model_id
from din.gateway.partition import adapted_signature, build_partition
from din.gateway.serving import Serving
from din.store.contract import Store

MODELS_MAX: Final = 1_000
WORKERS_MAX: Final = 64
REPLICAS_MAX: Final = 64


class ModelRecord(Struct, frozen=True, kw_only=True):
    """One registered version, as the store keeps it under `models/<id>/<version>`."""

    manifest: ModelManifest
    partition: Partition
    cuts: tuple[CutFacts, ...]
    order: RegisterModel
    order_sha256: str
    number: int
    """Store revision of the registration: the deployment number of its epochs."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Deploying(Protocol):
    """What the book needs of the deployer."""

    async def deploy(self, record: ModelRecord) -> Serving:
        """Start to place and load; returns at once."""
        ...

    async def retire(self, serving: Serving) -> None:
        """Unload everywhere."""
        ...


class ModelBook:
    """All registered models. Implements dispatch.Book."""

    def __init__(self, store: Store, artifacts: ArtifactFolder, carving: Carving) -> None:
        self._store = store
        self._artifacts = artifacts
        self._carving = carving
        self._deployer: Deploying | None = None
        self._records: dict[str, dict[str, ModelRecord]] = {}
        self._servings: dict[tuple[str, str], Serving] = {}
        self._by_slice: dict[str, list[tuple[Serving, int]]] = {}

    def connect(self, deployer: Deploying) -> None:
        """Who deploys. Once, before load()."""
        self._deployer = deployer

    async def load(self) -> None:
        """Read the store and deploy the newest version of each model."""
        for entry in await self._store.list("models/"):
            record = msgspec.json.decode(entry.value, type=ModelRecord)
            self._records.setdefault(record.manifest.model_id, {})[record.manifest.version] = record
        for versions in self._records.values():
            await self._deploy(versions[_newest(versions)])

    # Looking up.

    def model_ids(self) -> tuple[str, ...]:
        """All registered ids."""
        return tuple(sorted(self._records))

    def record(self, model_id: str, version: str | None = None) -> ModelRecord:
        """One version; None = the newest. Raises NotFound naming what is near."""
        versions = self._versions(model_id)
        wanted = version if version is not None else _newest(versions)
        if wanted not in versions:
            raise NotFound(
                f"model {model_id!r} has no version {wanted!r}",
                hint=f"its versions are {', '.join(sorted(versions, key=int))}",
            )
        return versions[wanted]

    def serving(self, model_id: str, version: str | None) -> Serving:
        """Who serves; None = the newest ready version, or the newest that is being loaded."""
        versions = self._versions(model_id)
        if version is not None:
            self.record(model_id, version)
            serving = self._servings.get((model_id, version))
            if serving is None:
                raise NotFound(
                    f"version {version} of model {model_id!r} has been retired",
                    hint=f"version {_newest(versions)} serves",
                )
            return serving
        newest: Serving | None = None
        for each in sorted(versions, key=int, reverse=True):
            serving = self._servings.get((model_id, each))
            if serving is not None:
                if serving.is_ready(serving.raw):
                    return serving
                newest = newest or serving
        if newest is None:
            raise NotFound(f"model {model_id!r} is being removed")
        return newest

    def servings(self) -> tuple[Serving, ...]:
        """All that are deployed now."""
        return tuple(self._servings.values())

    def servings_of(self, slice_id: str) -> list[tuple[Serving, int]]:
        """Deployments that hold a slice, and its index there."""
        return self._by_slice.get(slice_id, [])

    # Changing.

    async def register(self, order: RegisterModel) -> ModelRecord:
        """Carve and deploy. Raises UsageError and its children for what the order asks, NotFound
        when the bytes were not uploaded."""
        model_id = normal_model_id(order.model_id)
        _check_counts(order)
        known = self._records.get(model_id, {})
        if not known and len(self._records) >= MODELS_MAX:
            raise TooLarge(f"{MODELS_MAX} models are registered, the limit of a gateway")
        digest = hashlib.sha256(msgspec.json.encode(order, order="sorted")).hexdigest()
        for record in known.values():
            if record.order_sha256 == digest and self._is_served(record):
                return record
        version = str(int(_newest(known)) + 1) if known else "1"
        record = await self._build(order, model_id, version, digest, None)
        if not order.is_dry_run:
            await self._keep(record)
        return record

    async def cut_to_fit(self, record: ModelRecord, memory_mib_max: int) -> ModelRecord:
        """Put a version that no node can hold into slices of at most that much memory each.

        The version stays: what changes is how it is deployed. Raises BadStrategy when even one
        operator does not fit, NotFound when the version was removed meanwhile.
        """
        manifest = record.manifest
        cut = await self._build(
            record.order, manifest.model_id, manifest.version, record.order_sha256, memory_mib_max
        )
        if self.record(manifest.model_id, manifest.version) is not record:
            raise NotFound(f"model {manifest.model_id!r} was changed meanwhile")
        old = self._servings.pop((manifest.model_id, manifest.version), None)
        await self._keep(cut)
        if old is not None:
            assert self._deployer is not None, "connect() comes first"
            await self._deployer.retire(old)
        return cut

    async def _build(
        self,
        order: RegisterModel,
        model_id: str,
        version: str,
        digest: str,
        memory_mib_max: int | None,
    ) -> ModelRecord:
        before, after = _adapter(order.before, "before"), _adapter(order.after, "after")
        carved = await self._carve(order, memory_mib_max)
        partition = build_partition(carved, before, after)
        number = await self._store.put(f"registrations/{model_id}", version.encode())
        return ModelRecord(
            manifest=_manifest(order, model_id, version, carved, partition, memory_mib_max),
            partition=partition,
            cuts=carved.cuts,
            order=order,
            order_sha256=digest,
            number=number,
            warnings=carved.warnings,
            notes=_notes(memory_mib_max, partition),
        )

    async def _keep(self, record: ModelRecord) -> None:
        await self._store.put(_key(record), msgspec.json.encode(record))
        manifest = record.manifest
        self._records.setdefault(manifest.model_id, {})[manifest.version] = record
        await self._deploy(record)

    async def became_ready(self, serving: Serving) -> None:
        """A version is ready: older ones of the same model retire and are forgotten."""
        manifest = serving.deployment.manifest
        for version in sorted(self._records.get(manifest.model_id, {}), key=int):
            if int(version) < int(manifest.version):
                await self._forget(manifest.model_id, version)

    async def remove(self, model_id: str) -> ModelRecord:
        """Unload and forget every version. Raises NotFound."""
        record = self.record(model_id)
        removed = list(self._records[model_id].values())
        for each in removed:
            await self._forget(model_id, each.manifest.version)
        kept = {sha256 for each in self._all_records() for sha256 in _artifacts(each)}
        for sha256 in {sha256 for each in removed for sha256 in _artifacts(each)} - kept:
            self._artifacts.remove(sha256)
        return record

    # Inside.

    def _versions(self, model_id: str) -> dict[str, ModelRecord]:
        versions = self._records.get(model_id)
        if not versions:
            raise NotFound(
                f"no model {model_id!r} is registered", hint=nearest(model_id, self._records)
            )
        return versions

    def _is_served(self, record: ModelRecord) -> bool:
        return (record.manifest.model_id, record.manifest.version) in self._servings

    async def _carve(self, order: RegisterModel, memory_mib_max: int | None) -> CarveAnswer:
        source = self._artifacts.file(order.source_sha256)
        return await self._carving.carve(
            CarveRequest(
                model_path=str(source),
                output_path="",
                partition_points=order.partition_points,
                backend_map=order.backend_map,
                slice_settings=_settings(order),
                input_shapes=order.inputs,
                memory_mib_max=memory_mib_max,
            )
        )

    async def _deploy(self, record: ModelRecord) -> None:
        assert self._deployer is not None, "connect() comes first"
        manifest = record.manifest
        serving = await self._deployer.deploy(record)
        self._servings[manifest.model_id, manifest.version] = serving
        self._index_slices()

    def _index_slices(self) -> None:
        self._by_slice = {}
        for serving in self._servings.values():
            for part in serving.deployment.partition.slices:
                self._by_slice.setdefault(part.slice_id, []).append((serving, part.index))

    async def _forget(self, model_id: str, version: str) -> None:
        assert self._deployer is not None, "connect() comes first"
        record = self._records[model_id].pop(version)
        if not self._records[model_id]:
            del self._records[model_id]
        serving = self._servings.pop((model_id, version), None)
        self._index_slices()
        await self._store.delete(_key(record))
        if serving is not None:
            await self._deployer.retire(serving)

    def _all_records(self) -> list[ModelRecord]:
        return [record for versions in self._records.values() for record in versions.values()]


def _artifacts(record: ModelRecord) -> set[str]:
    parts = {artifact.sha256 for part in record.partition.slices for artifact in part.artifacts}
    return parts | {record.manifest.source_sha256}


def _newest(versions: Mapping[str, ModelRecord]) -> str:
    return max(versions, key=int)


def _key(record: ModelRecord) -> str:
    return f"models/{record.manifest.model_id}/{record.manifest.version}"


def _check_counts(order: RegisterModel) -> None:
    for name, value, most in (
        ("workers", order.workers, WORKERS_MAX),
        ("replicas", order.replicas, REPLICAS_MAX),
    ):
        if not 1 <= value <= most:
            raise UsageError(f"{name} is {value}", hint=f"{name} is from 1 to {most}")


def _adapter(
    written: dict[str, object] | None, kind: Literal["before", "after"]
) -> AdapterSpec | None:
    if written is None:
        return None
    options = {key: value for key, value in written.items() if key != "name"}
    name = written.get("name")
    if not isinstance(name, str):
        raise UsageError(
            f'the `{kind}` adapter has no "name"', hint=f'for example "{kind}": {{"name": "image"}}'
        )
    spec = AdapterSpec(name, options)
    check_adapter(spec, kind)
    return spec


def _settings(order: RegisterModel) -> tuple[SliceSetting, ...]:
    try:
        return msgspec.convert(order.slices, tuple[SliceSetting, ...])
    except msgspec.ValidationError as fault:
        raise UsageError(
            f"slices of the slicing strategy: {fault}",
            hint="each slice may have name, device_type, labels and backend",
        ) from fault


def _manifest(
    order: RegisterModel,
    model_id: str,
    version: str,
    carved: CarveAnswer,
    partition: Partition,
    memory_mib_max: int | None,
) -> ModelManifest:
    taken: tuple[TensorSpec, ...] = ()
    given: tuple[TensorSpec, ...] = ()
    if partition.adapted_edges:
        taken, given = adapted_signature(partition, carved.inputs, carved.outputs)
    return ModelManifest(
        model_id=model_id,
        version=version,
        source_sha256=order.source_sha256,
        inputs=carved.inputs,
        outputs=carved.outputs,
        adapted_inputs=taken,
        adapted_outputs=given,
        backend_options=order.backend_options,
        workers=order.workers,
        replicas_max=order.replicas,
        is_cut_by_din=memory_mib_max is not None,
    )


def _notes(memory_mib_max: int | None, partition: Partition) -> tuple[str, ...]:
    if memory_mib_max is None:
        return ()
    count = sum(part.kind == "model" for part in partition.slices)
    return (
        f"no node can hold the whole model, so DIN cut it into {count} slices of at most "
        f"{memory_mib_max} MiB",
    )
