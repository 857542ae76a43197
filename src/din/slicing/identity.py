"""Names by content: the slice id, the strategy's hash, and what is stamped into a slice's file."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import ModelProto

from din.domain.model import SLICE_ENCODING, CarveRequest

_HEAD: Final = struct.Struct("<II").pack
_LENGTH: Final = struct.Struct("<Q").pack
_MESSAGE, _TEXT = "message", "text"
_FACTS: Final[dict[FieldDescriptor, tuple[int, str]]] = {}

_NUMBERS: Final[dict[int, str]] = {
    FieldDescriptor.CPPTYPE_INT32: "q",
    FieldDescriptor.CPPTYPE_INT64: "q",
    FieldDescriptor.CPPTYPE_UINT32: "Q",
    FieldDescriptor.CPPTYPE_UINT64: "Q",
    FieldDescriptor.CPPTYPE_ENUM: "q",
    FieldDescriptor.CPPTYPE_BOOL: "q",
    FieldDescriptor.CPPTYPE_FLOAT: "d",
    FieldDescriptor.CPPTYPE_DOUBLE: "d",
}


def slice_id_of(model: ModelProto) -> str:
    """SHA256 over DIN's own encoding of an unstamped slice whose large weights are named by their
    own SHA256, so that it is the same wherever they lie.

    The bytes that protobuf writes are not promised to stay the same between its versions, so the
    id does not rest on them.
    """
    return hashlib.sha256(SLICE_ENCODING.encode() + digest_of(model)).hexdigest()


def digest_of(message: Message) -> bytes:
    """SHA256 of a message: its set fields by rising number, each with its count of values.

    Messages inside stand for their digest; text and bytes carry their length; numbers are 8 bytes
    little-endian. Floats are widened to doubles, which keeps them apart exactly.
    """
    update = (state := hashlib.sha256()).update
    for field, value in message.ListFields():
        number, kind = _FACTS.get(field) or _facts_of(field)
        is_one = isinstance(value, str | bytes) or not isinstance(value, Sequence)
        values: list[Any] = [value] if is_one else list(value)
        update(_HEAD(number, len(values)))
        if kind == _MESSAGE:
            for each in values:
                update(digest_of(each))
        elif kind == _TEXT:
            for each in values:
                content = each.encode() if isinstance(each, str) else each
                update(_LENGTH(len(content)))
                update(content)
        else:
            update(struct.pack(f"<{len(values)}{kind}", *values))
    return state.digest()


def _facts_of(field: FieldDescriptor) -> tuple[int, str]:
    """A field's number and how its values are encoded; asking the library again costs more."""
    kinds = {
        FieldDescriptor.CPPTYPE_MESSAGE: _MESSAGE,
        FieldDescriptor.CPPTYPE_STRING: _TEXT,
    } | _NUMBERS
    _FACTS[field] = field.number, kinds[field.cpp_type]
    return _FACTS[field]


def strategy_hash_of(request: CarveRequest) -> str:
    """SHA256 of what shapes the slices: the request without the model and its ways in and out."""
    shaping = msgspec.to_builtins(request)
    ways = ("model_path", "source_sha256", "external", "as_is")
    for way in (*ways, "output_path", "output_fd", "is_dry_run"):
        del shaping[way]
    return hashlib.sha256(msgspec.json.encode(shaping, order="sorted")).hexdigest()


def stamp(model: ModelProto, facts: dict[str, str]) -> None:
    """Write facts into the model's metadata, in place, keys in order, each under `din.`."""
    for key in sorted(facts):
        entry = model.metadata_props.add()
        entry.key = f"din.{key}"
        entry.value = facts[key]
