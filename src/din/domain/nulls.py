"""In documents that people and programs write, null for a key that may be left out leaves it out.

msgspec takes null only where a type says so, and a type that says so must be asked everywhere.
"""

from __future__ import annotations

from functools import cache
from typing import cast

from msgspec import inspect


def without_nulls(value: object, kind: object) -> object:
    """A decoded document without those keys of its structs that hold null where their type knows
    none. Keys that must be given, and entries of mappings, stay as they are."""
    return _cleared(value, _info(kind))


@cache
def _info(kind: object) -> inspect.Type:
    return inspect.type_info(kind)


def _cleared(value: object, kind: inspect.Type) -> object:
    match kind:
        case inspect.Metadata():
            return _cleared(value, kind.type)
        case inspect.UnionType():
            for each in kind.types:
                value = _cleared(value, each)
        case inspect.StructType() if isinstance(value, dict):
            fields = {each.encode_name: each for each in kind.fields}
            return {
                key: _cleared(entry, fields[key].type) if key in fields else entry
                for key, entry in cast("dict[str, object]", value).items()
                if entry is not None or key not in fields or _must_stay(fields[key])
            }
        case inspect.ListType() | inspect.VarTupleType() if isinstance(value, list):
            return [_cleared(each, kind.item_type) for each in cast("list[object]", value)]
        case inspect.DictType() if isinstance(value, dict):
            entries = cast("dict[str, object]", value)
            return {key: _cleared(entry, kind.value_type) for key, entry in entries.items()}
        case _:
            pass
    return value


def _must_stay(field: inspect.Field) -> bool:
    return field.required or _takes_null(field.type)


def _takes_null(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.Metadata):
        return _takes_null(kind.type)
    if isinstance(kind, inspect.UnionType):
        return any(map(_takes_null, kind.types))
    return isinstance(kind, inspect.NoneType | inspect.AnyType)
