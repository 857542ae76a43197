"""One registered version as the store keeps it, and how an order becomes one. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from din.adapters.catalogue import check_adapter
from din.domain.cuts import CutChoice
from din.domain.encoding import PrecisionCheck, RewriteCheck
from din.domain.foreign import is_foreign
from din.domain.forms import runs_whole
from din.domain.malformed import MALFORMED
from din.domain.model import (
    AdapterSpec,
    CarveAnswer,
    CutFacts,
    ModelManifest,
    Partition,
)
from din.domain.profile import Verification
from din.domain.strategy import check_strategy
from din.domain.tensor import TensorSpec
from din.domain.views import RegisterModel
from din.errors import BadStrategy, Internal, UsageError
from din.gateway.registration.foreign import check_foreign
from din.gateway.registration.partition import adapted_signature
from din.store.contract import Entry

WORKERS_MAX: Final = 32
REPLICAS_MAX: Final = 64


class ModelRecord(Struct, frozen=True, kw_only=True):
    """One registered version, as the store keeps it under `models/<id>/<version>`."""

    manifest: ModelManifest
    partition: Partition
    cuts: tuple[CutFacts, ...]
    order: RegisterModel
    order_sha256: str
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    choice: CutChoice | None = None
    """Why DIN cut it so, where the strategy left that to it."""
    assignment: tuple[int, ...] = ()
    """Slice of each operator, in the order of the model's CutTable."""
    verification: Verification | None = None
    """Whether its slices compute what the whole does, as found last; None before that was asked."""
    rewrite: RewriteCheck | None = None
    """By how much rewrites that were asked for change what it computes."""
    precision: PrecisionCheck | None = None
    """How tensors cross between its slices, and why; None where all were to cross exactly."""


def read_record(entry: Entry) -> ModelRecord:
    """A record as the store keeps it. Raises Internal."""
    try:
        try:
            return msgspec.json.decode(entry.value, type=ModelRecord)
        except msgspec.ValidationError:
            return _of_former_layout(entry.value)
    except MALFORMED as fault:
        raise Internal(
            f"the store's record {entry.key!r} cannot be read: {fault}",
            hint="it was written by another version of DIN, or damaged: start that version, or an "
            "empty state directory, and register the model again",
        ) from fault


_FORMERLY_FLAT: Final = ("partition_points", "backend_map", "slices", "private")


def _of_former_layout(value: bytes) -> ModelRecord:
    """Orders of version 0.1 held the strategy's keys beside the model's own. Raises
    ValidationError for what is not such a record either."""
    content = msgspec.json.decode(value, type=dict[str, Any])
    order = content.get("order")
    if isinstance(order, dict) and "slicing_strategy" not in order:
        flat = {name: order.pop(name) for name in _FORMERLY_FLAT if name in order}
        order["slicing_strategy"] = flat
    record = msgspec.convert(content, ModelRecord)
    return replace(record, order_sha256=digest_of(record.order))


def digest_of(order: RegisterModel) -> str:
    """Tells whether the same is registered again."""
    return hashlib.sha256(msgspec.json.encode(order, order="sorted")).hexdigest()


def artifacts_of(record: ModelRecord) -> set[str]:
    """Every artifact that a version needs, its source included."""
    parts = {artifact.sha256 for part in record.partition.slices for artifact in part.artifacts}
    return parts | sources_of(record.order)


def sources_of(order: RegisterModel) -> set[str]:
    """What was uploaded: the model, the files beside it, and inputs to calibrate on."""
    calibration = {order.calibration_sha256} if order.calibration_sha256 else set[str]()
    own = set[str]() if order.foreign else {order.source_sha256}
    return {*own, *order.external.values(), *calibration}


def newest_of(versions: Mapping[str, ModelRecord]) -> str:
    """The highest version."""
    return next(iter(versions)) if len(versions) == 1 else max(versions, key=int)


def key_of(record: ModelRecord) -> str:
    """Where the store keeps a record."""
    return f"models/{record.manifest.model_id}/{record.manifest.version}"


def check_order(order: RegisterModel) -> None:
    """Raises UsageError for workers or replicas out of bounds, BadStrategy."""
    check_strategy(order.slicing_strategy)
    check_foreign(order)
    if not (order.source_sha256 or order.foreign):
        raise UsageError(
            "neither source_sha256 nor foreign is given",
            hint="upload an ONNX file and give its SHA256, or name the model of a server",
        )
    if order.calibration_sha256 and order.slicing_strategy.precision == "exact":
        raise BadStrategy(
            "calibration inputs are given, and slicing_strategy.precision is exact: nothing is "
            "calibrated",
            hint='leave them out, or set "precision" to "auto", "uint8" or "fp16"',
        )
    for name, value, most in (
        ("workers", order.workers, WORKERS_MAX),
        ("replicas", order.replicas, REPLICAS_MAX),
    ):
        if not 1 <= value <= most:
            raise UsageError(f"{name} is {value}", hint=f"{name} is from 1 to {most}")


def adapter_of(
    written: dict[str, object] | None, kind: Literal["before", "after"]
) -> AdapterSpec | None:
    """An adapter as the configuration writes it. Raises UsageError."""
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


def manifest_of(
    order: RegisterModel,
    model_id: str,
    version: str,
    carved: CarveAnswer,
    partition: Partition,
) -> ModelManifest:
    """The manifest of what was carved."""
    taken: tuple[TensorSpec, ...] = ()
    given: tuple[TensorSpec, ...] = ()
    if partition.adapted_edges:
        taken, given = adapted_signature(partition, carved.inputs, carved.outputs)
    return ModelManifest(
        model_id=model_id,
        version=version,
        source_sha256=carved.source_sha256 if order.foreign else order.source_sha256,
        inputs=carved.inputs,
        outputs=carved.outputs,
        adapted_inputs=taken,
        adapted_outputs=given,
        backend_options=order.backend_options,
        workers=order.workers,
        replicas_max=order.replicas,
    )


def notes_of(carved: CarveAnswer) -> tuple[str, ...]:
    """What people should know of a version: what of it servers run or runs whole, and what is never
    read."""
    foreign = (each for each in carved.slices if is_foreign(each.backend))
    whole = (each for each in carved.slices if runs_whole(each.backend))
    return (
        *(f"slice {each.name!r} is the whole file, run by {each.backend}" for each in whole),
        *(f"slice {each.name!r} is run by a server, as {each.backend}" for each in foreign),
        *_unread(carved),
    )


def _unread(carved: CarveAnswer) -> tuple[str, ...]:
    if not carved.unused_inputs:
        return ()
    names = ", ".join(repr(each) for each in carved.unused_inputs)
    return (f"no operator reads input {names}: it is checked and then not sent anywhere",)
