"""Names by content: the slice id, the strategy's hash, and what is stamped into a slice's file."""

from __future__ import annotations

import hashlib

import msgspec
from onnx import ModelProto

from din.domain.model import SLICE_ENCODING, CarveRequest


def slice_id_of(model: ModelProto) -> str:
    """SHA256 over an unstamped slice whose large weights are named by their own SHA256, so that it
    is the same wherever they lie.

    Protobuf writes set fields by rising number; that it will always is not promised, so a test pins
    what comes of it. Ids that change make slices anew and nothing else: each file and pack is
    checked by its own SHA256.
    """
    return hashlib.sha256(
        SLICE_ENCODING.encode() + model.SerializeToString(deterministic=True)
    ).hexdigest()


def strategy_hash_of(request: CarveRequest) -> str:
    """SHA256 of what shapes the slices: the request without the model and its ways in and out."""
    shaping = msgspec.to_builtins(request)
    ways = ("model_path", "source_sha256", "external", "as_is")
    for way in (*ways, "output_path", "output_fd", "room_bytes", "is_dry_run"):
        del shaping[way]
    return hashlib.sha256(msgspec.json.encode(shaping, order="sorted")).hexdigest()


def stamp(model: ModelProto, facts: dict[str, str]) -> None:
    """Write facts into the model's metadata, in place, keys in order, each under `din.`."""
    for key in sorted(facts):
        entry = model.metadata_props.add()
        entry.key = f"din.{key}"
        entry.value = facts[key]
