"""Keys of the settings as people meet them: what each means, and values from many places."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast, get_type_hints

import msgspec

from din.config import SECTIONS, AnyConfig, ClientConfig, Config
from din.config_forms import Section
from din.errors import UsageError

LISTS: Final = (
    "foreign",
    "gateway",
    "interfaces_allowed",
    "interfaces_denied",
    "operators_allowed",
    "runner_device",
)
"""Keys that hold several texts; one text counts as a list of one."""
UNITS: Final = {"ms": "ms", "mib": "MiB", "mb": "MB", "bytes": "bytes", "days": "days"}


class Knob(NamedTuple):
    """What people are told of one key."""

    section: Section
    key: str
    default: object
    allowed: str
    unit: str
    meaning: str


class Origin(NamedTuple):
    """Where a value came from: `default`, a file, a variable or `flag`."""

    value: object
    source: str


def defaults_of(section: Section) -> dict[str, object]:
    """Key -> default."""
    fresh = SECTIONS[section]()
    return {key: getattr(fresh, key) for key in fresh.__struct_fields__}


def build(struct: type[AnyConfig], values: Mapping[str, Origin]) -> AnyConfig:
    """The frozen settings. Raises UsageError naming key, value, source and what is allowed."""
    plain = {key: _plain(key, origin.value) for key, origin in values.items()}
    try:
        return msgspec.convert(plain, struct, strict=False)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        found = re.search(r"at `\$\.(\w+)", str(error))
        key = found.group(1) if found else _key_of_half_characters(plain)
        origin = values.get(key, Origin("", "?"))
        raise UsageError(
            f"{key} is {origin.value!r:.200} (from {origin.source})",
            hint=f"allowed: {knob_of(struct, key).allowed}" if key else str(error),
        ) from None


def _key_of_half_characters(plain: Mapping[str, object]) -> str:
    """Of a value that is no whole text, as bytes in the environment may be; a number is not read
    of it."""
    for key, value in plain.items():
        if isinstance(value, str) and value.encode("utf-8", "ignore").decode() != value:
            return key
    return ""


def _plain(key: str, value: object) -> object:
    if key in LISTS and isinstance(value, str):
        return [value]
    return list(cast("tuple[object, ...]", value)) if isinstance(value, tuple) else value


def knobs() -> tuple[Knob, ...]:
    """Every key of both sections, for `din config` and the documentation."""
    return tuple(
        knob_of(struct, key) for struct in SECTIONS.values() for key in struct.__struct_fields__
    )


def knob_of(struct: type[Config | ClientConfig], key: str) -> Knob:
    """One key of one section."""
    section: Section = next(name for name, each in SECTIONS.items() if each is struct)
    hint = get_type_hints(struct, include_extras=True)[key]
    schema: dict[str, Any] = msgspec.json.schema(hint)
    unit = next((UNITS[part] for part in key.split("_") if part in UNITS), "")
    unit += "/s" if key.endswith("_per_second") else ""
    meaning = str(schema.get("description", ""))
    return Knob(section, key, defaults_of(section)[key], _allowed(schema), unit, meaning)


def _allowed(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(_allowed(each) for each in schema["anyOf"])
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    if low is not None:
        above = "above " if "exclusiveMinimum" in schema else ""
        return f"{schema['type']}, {above}{low} to {schema.get('maximum')}"
    if "pattern" in schema:
        return "lowercase letters, digits and '-', at most 63 (RFC 1123 label)"
    names = {"boolean": "true | false", "array": "list of text", "object": "name: text pairs"}
    return names.get(schema["type"], str(schema["type"]).replace("string", "text"))
