"""The form of a configuration file: its keys and types, and everything that is wrong in them.

msgspec stops at the first value of a wrong type; here what is wrong is told, taken out of a copy,
and the rest is read again, so that one look names every mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import islice
from typing import Annotated, Any, Final, NamedTuple, cast, get_args

import msgspec
from msgspec import Meta, Struct

from din.cli.jsonc import Document
from din.cli.jsonc import Path as Place
from din.domain.nulls import without_nulls
from din.domain.strategy import RangeSetting, SliceSetting, Strategy
from din.errors import BadStrategy, UsageError
from din.observability.printable import one_line

STRATEGY: Final = "slicing_strategy"
SOURCES: Final = ("onnx_path", "foreign")
FINDINGS_MAX: Final = 64
"""Told of one file."""
ENTRIES_TRIED_MAX: Final = 256
"""Of one object, when looking for the entry that a complaint means."""
VALUE_CHARACTERS_MAX: Final = 80
"""Shown of a value that is wrong."""


class ModelFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A model, how it is cut, and its adapters: JSON, with comments and trailing commas."""

    model_id: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=128,
            description="What it is asked for by: printable characters without `/`.",
        ),
    ]
    onnx_path: Annotated[
        str, Meta(description="The ONNX file, relative to this file; or `foreign` instead.")
    ] = ""
    foreign: Annotated[
        str, Meta(description="The model of a server behind a node: NAME or NAME@NODE.")
    ] = ""
    slicing_strategy: Annotated[
        Strategy, Meta(description="How it is cut and where its slices may run.")
    ] = Strategy()
    inputs: Annotated[
        dict[str, tuple[int | str, ...]],
        Meta(description="Shapes that replace the declared ones; text is a free size."),
    ] = {}
    backend_options: Annotated[
        dict[str, str | int | float | bool],
        Meta(description="threads, profile and what docs/backends.md names, for its engines."),
    ] = {}
    before: Annotated[
        dict[str, Any] | str | None,
        Meta(description='Adapter from a file to tensors: {"name": "image", ...}.'),
    ] = None
    after: Annotated[
        dict[str, Any] | str | None,
        Meta(description='Adapter from tensors to a result: {"name": "classify", ...}.'),
    ] = None
    workers: Annotated[int, Meta(ge=1, le=32, description="Worker processes of one replica.")] = 1
    replicas: Annotated[
        int, Meta(ge=1, le=64, description="Replicas of each slice, where memory allows.")
    ] = 2
    encrypt: Annotated[
        bool | None, Meta(description="Seal its files on every disk; else as the gateway says.")
    ] = None
    verify: Annotated[
        bool,
        Meta(description="Compare the slices with the whole on a node before the version serves."),
    ] = True
    calibration_inputs: Annotated[
        str,
        Meta(
            description="Samples for `precision`, relative to this file: a folder with one in each "
            ".npz or .npy, or one .npz whose arrays' first axis counts them."
        ),
    ] = ""
    schema: Annotated[
        str, Meta(description="For editors: where the output of `din strategy schema` lies.")
    ] = msgspec.field(default="", name="$schema")


class Finding(Struct, frozen=True):
    """One thing that is wrong in a file."""

    place: str
    """`file:line:column`."""
    message: str
    hint: str = ""
    code: str = UsageError.code


_KEYS: Final[dict[str, type[Struct]]] = {
    "": ModelFile,
    STRATEGY: Strategy,
    f"{STRATEGY}.slices": SliceSetting,
    f"{STRATEGY}.ranges": RangeSetting,
}


def read_form(document: Document) -> ModelFile | tuple[Finding, ...]:
    """A document as a model file, or all that is wrong in its keys and types."""
    if not isinstance(document.value, dict):
        hint = 'it starts with {"model_id": ...'
        return (Finding(document.at(()), "the file holds no object", hint),)
    value = without_nulls(document.value, ModelFile)
    findings: list[Finding] = []
    unknown = _unknown_keys(document, (), cast("dict[str, object]", document.value))
    for path, finding in islice(unknown, FINDINGS_MAX):
        findings.append(finding)
        value = _changed(value, path, _GONE)
    told: set[Place] = set()
    while len(findings) < FINDINGS_MAX:
        try:
            file = msgspec.convert(value, ModelFile)
        except msgspec.ValidationError as error:
            complaint = _complaint_of(value, error)
            if complaint.path not in told:
                findings.append(_finding_of(document, complaint))
            elif not complaint.is_missing:
                break  # what was taken out is complained of again: the rest is not known
            told.add(complaint.path)
            value = _mended(value, complaint)
        else:
            findings += _sources(document)
            return tuple(findings) or file
    return tuple(findings)


def _sources(document: Document) -> list[Finding]:
    """A model comes out of a file, or is a server's: one of the two is named."""
    content = cast("dict[str, object]", document.value)
    given = [key for key in SOURCES if content.get(key) not in (None, "")]
    if len(given) == 1:
        return []
    place = document.at((given[-1],)) if given else document.at(())
    said = "onnx_path and foreign are both given" if given else "key 'onnx_path' is missing"
    hint = "give the ONNX file, or `foreign` for a model that a server behind a node runs"
    return [Finding(place, said, hint)]


def _unknown_keys(
    document: Document, path: Place, content: dict[str, object]
) -> Iterator[tuple[Place, Finding]]:
    """Unknown keys, by name and with what was probably meant."""
    where = ".".join(each for each in path if isinstance(each, str))
    known = _KEYS[where].__struct_encode_fields__
    for key, value in content.items():
        inner = f"{where}.{key}".lstrip(".")
        here = (*path, key)
        if key not in known:
            close = get_close_matches(key[:VALUE_CHARACTERS_MAX], known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            finding = Finding(
                document.at(here, is_key=True),
                f"unknown key {one_line(repr(_dotted(here)), VALUE_CHARACTERS_MAX)}",
                f"{hint}keys here: {', '.join(known)}",
            )
            yield here, finding
        elif inner in _KEYS:
            entries = cast("list[object]", value) if isinstance(value, list) else None
            paths = [here] if entries is None else [(*here, at) for at in range(len(entries))]
            for each, entry in zip(paths, entries or [value], strict=False):
                if isinstance(entry, dict):
                    yield from _unknown_keys(document, each, cast("dict[str, object]", entry))


# What msgspec complains of, in our words and with its place.


class _Complaint(NamedTuple):
    path: Place
    """Of the wrong value, or of the key that is missing."""
    what: str
    is_missing: bool


_AT: Final = re.compile(r"^(.*?)(?: - at (?:`(?:key)` in )?`\$(.*)`)?$", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_KIND: Final = re.compile(r"`([a-z]+(?: \| [a-z]+)*)`")
_KINDS: Final[dict[str, str]] = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object {...}",
    "array": "a list [...]",
}
_GONE: Final = object()
_STAND_INS: Final[tuple[object, ...]] = ("x", 1, {}, {"range": "x"}, _GONE)
"""One of them is right wherever a file may hold a value of its own."""


def _complaint_of(value: object, error: msgspec.ValidationError) -> _Complaint:
    found = _AT.match(str(error))
    assert found is not None, "the pattern matches any text"
    what, steps = found.groups()
    path: Place = ()
    for name, position in _STEP.findall(steps or ""):
        if position == "...":
            path = (*path, _entry_meant(value, path, what))
        else:
            path = (*path, int(position) if position else name)
    missing = re.search(r"missing required field `([^`]+)`", what)
    return _Complaint((*path, missing.group(1)) if missing else path, what, missing is not None)


def _finding_of(document: Document, complaint: _Complaint) -> Finding:
    path, what, _ = complaint
    place, shown = document.at(path), _dotted(path)
    if complaint.is_missing:
        least = 'a file holds at least "model_id" and "onnx_path"; '
        hint = (least if len(path) == 1 else "") + _described(path)
        return Finding(place, f"key {path[-1]!r} is missing", hint)
    enum = re.search(r"Invalid enum value '(.*)'", what)
    if enum:
        hint = f"it may be {_choices(path)}"
        return Finding(place, f"{shown} is {enum.group(1)!r}", hint, BadStrategy.code)
    value = _at(document.value, path)
    if isinstance(value, str | int | float):
        said = str(value).lower() if isinstance(value, bool) else repr(value)
        shown = f"{shown} is {one_line(said, VALUE_CHARACTERS_MAX)}"
    told = _KIND.sub(lambda kinds: _kind_words(kinds.group(1)), f"{what[0].lower()}{what[1:]}")
    return Finding(place, f"{shown}: {told}", _described(path))


def _kind_words(kinds: str) -> str:
    return " or ".join(_KINDS.get(each, each) for each in kinds.split(" | "))


def _mended(value: object, complaint: _Complaint) -> object:
    """The same without what was complained of. In a list something else stands in its place, since
    the entries behind it keep their numbers."""
    path = complaint.path
    if not (complaint.is_missing or isinstance(path[-1], int)):
        return _changed(value, path, _GONE)
    for stand_in in _STAND_INS:
        changed = _changed(value, path, stand_in)
        try:
            msgspec.convert(changed, ModelFile)
        except msgspec.ValidationError as error:
            if _complaint_of(changed, error).path[: len(path)] == path:
                continue
        return changed
    return _changed(value, path[:-1], _GONE)


def _entry_meant(value: object, path: Place, what: str) -> str:
    """Which entry of an object a complaint means: the one that alone gives rise to it."""
    inner = _at(value, path)
    entries = cast("dict[str, object]", inner) if isinstance(inner, dict) else {}
    for key in list(entries)[:ENTRIES_TRIED_MAX]:
        try:
            msgspec.convert(_changed(value, path, {key: entries[key]}), ModelFile)
        except msgspec.ValidationError as error:
            if str(error).startswith(what):
                return key
    return ""


def _at(value: object, path: Place) -> object:
    for step in path:
        if isinstance(value, dict):
            value = cast("dict[Any, object]", value).get(step)
        elif isinstance(value, list) and isinstance(step, int):
            value = cast("list[object]", value)[step]
    return value


def _changed(value: object, path: Place, new: object) -> object:
    """A copy of a value in which something else stands at a path, or nothing (_GONE)."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    if isinstance(value, dict):
        content = cast("dict[Any, object]", value)
        if not rest and new is _GONE:
            return {key: each for key, each in content.items() if key != step}
        return {**content, step: _changed(content.get(step), rest, new)}
    if isinstance(value, list) and isinstance(step, int):
        entries = cast("list[object]", value)
        kept = [] if not rest and new is _GONE else [_changed(entries[step], rest, new)]
        return [*entries[:step], *kept, *entries[step + 1 :]]
    return value


def _dotted(path: Place) -> str:
    """A place as text: `slicing_strategy.slices[1].name`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)[1:]


def _type_of(path: Place) -> Any:
    """The annotated type of the innermost described key that a path leads through; None without
    one."""
    names = [each for each in path if isinstance(each, str)]
    while names:
        owner = _KEYS.get(".".join(names[:-1]))
        for field in msgspec.structs.fields(owner) if owner is not None else ():
            if field.encode_name == names[-1]:
                return field.type
        names.pop()
    return None


def _described(path: Place) -> str:
    """What the key is for, as a hint."""
    notes = [each for each in get_args(_type_of(path)) if isinstance(each, Meta)]
    said = f"{notes[0].description} " if notes and notes[0].description else ""
    return f"{said}docs/models.md has every key"


def _choices(path: Place) -> str:
    kind = _type_of(path)
    while not isinstance(get_args(kind)[0], str):
        kind = get_args(kind)[0]  # out of Annotated, out of a list
    return " or ".join(each or repr(each) for each in get_args(kind))
