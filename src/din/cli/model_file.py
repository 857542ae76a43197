"""The file of `din model register --config`: the seeds' keys, checked, as an order.

Everything that is wrong is said with its line and column, also what only the gateway or the carver
finds out later: they name a partition point, a range or a key, and the file knows where it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, cast, get_args

import msgspec
from msgspec import Meta, Struct

from din.cli.jsonc import FILE_BYTES_MAX, Document, read_jsonc
from din.cli.jsonc import Path as Place
from din.domain.nulls import without_nulls
from din.domain.strategy import (
    RangeSetting,
    SliceSetting,
    Strategy,
    StrategyType,
    dotted,
    faults_of,
)
from din.domain.views import RegisterModel
from din.errors import BadStrategy, DinError, UsageError
from din.observability.printable import one_line

STRATEGY: Final = "slicing_strategy"
PLACES_SHOWN_MAX: Final = 3
ENTRIES_TRIED_MAX: Final = 256
VALUE_CHARACTERS_MAX: Final = 80
"""Shown of a value that is wrong."""
"""Of one object, when looking for the entry that a complaint means."""


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
        str, Meta(min_length=1, description="The ONNX file, relative to this file.")
    ]
    slicing_strategy: Annotated[
        Strategy, Meta(description="How it is cut and where its slices may run.")
    ] = Strategy()
    inputs: Annotated[
        dict[str, tuple[int | str, ...]],
        Meta(description="Shapes that replace the declared ones; text is a free size."),
    ] = {}
    backend_options: Annotated[
        dict[str, str | int | float | bool],
        Meta(description="optimisation = off, basic, extended or all; threads."),
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
    schema: Annotated[
        str, Meta(description="For editors: where the output of `din strategy schema` lies.")
    ] = msgspec.field(default="", name="$schema")


class Registration(Struct, frozen=True):
    """What to upload, and the order once its hash is known (`source_sha256` is empty here)."""

    model_path: Path
    order: RegisterModel
    document: Document | None = None
    """Where it was written; None without a file."""

    def placed(self, error: DinError) -> DinError:
        """The same error with the place in the file of what it names."""
        if self.document is None or not isinstance(error, UsageError):
            return error
        places = _named_places(self.document, self.order, error.message)
        if not places:
            return error
        where = ", ".join(self.document.at(each) for each in places[:PLACES_SHOWN_MAX])
        return type(error)(f"{where}: {error.message}", hint=error.hint)


class Finding(Struct, frozen=True):
    """One thing that is wrong in a file."""

    place: str
    """`file:line:column`."""
    message: str
    hint: str = ""
    code: str = UsageError.code


def finding_of(error: UsageError, path: Path) -> Finding:
    """An error of a file as a finding: its place apart from its words."""
    place = rf"{re.escape(str(path))}:\d+:\d+"
    at = re.match(rf"({place})(?:, {place})*: ", error.message)
    if at is None:
        return Finding(str(path), error.message, error.hint, error.code)
    return Finding(at.group(1), error.message[at.end() :], error.hint, error.code)


class Read(Struct, frozen=True):
    """A file and all that is wrong in it; a registration only when nothing is."""

    findings: tuple[Finding, ...]
    registration: Registration | None = None


_KEYS: Final[dict[str, type[Struct]]] = {
    "": ModelFile,
    STRATEGY: Strategy,
    f"{STRATEGY}.slices": SliceSetting,
    f"{STRATEGY}.ranges": RangeSetting,
}


def read_model_file(path: Path) -> Registration:
    """A configuration file. Raises UsageError or BadStrategy for the first thing that is wrong,
    with line, column, key and value."""
    found = check_model_file(path)
    for finding in found.findings:
        kind = BadStrategy if finding.code == BadStrategy.code else UsageError
        raise kind(f"{finding.place}: {finding.message}", hint=finding.hint)
    assert found.registration is not None, "without findings there is a registration"
    return found.registration


def check_model_file(path: Path) -> Read:
    """A configuration file with all that is wrong in it. Raises UsageError when it cannot be read
    or is no JSON."""
    document = read_jsonc(_read(path), str(path))
    whole = document.value
    if not isinstance(whole, dict):
        hint = 'it starts with {"model_id": ...'
        return Read((Finding(document.at(()), "the file holds no object", hint),))
    findings = tuple(_unknown_keys(document, (), cast("dict[str, object]", whole)))
    if findings:
        return Read(findings)
    try:
        file = msgspec.convert(without_nulls(whole, ModelFile), ModelFile)
    except msgspec.ValidationError as error:
        return Read((_of_validation(document, error),))
    findings = tuple(
        Finding(
            document.at((STRATEGY, *each.path)),
            f"{dotted(each.path)}: {each.message}",
            each.hint,
            BadStrategy.code,
        )
        for each in faults_of(file.slicing_strategy)
    )
    if findings:
        return Read(findings)
    return Read((), Registration(_model_path(path, file.onnx_path), _order(file), document))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX + 1).decode()
    except OSError as error:
        raise UsageError(
            f"file {str(path)!r} cannot be read: {error.strerror}",
            hint="give the path of a file as in `din model register --help`",
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8 at byte {error.start}", hint="save it as UTF-8"
        ) from None


def _unknown_keys(document: Document, path: Place, content: dict[str, object]) -> Iterator[Finding]:
    """Unknown keys, by name and with what was probably meant."""
    where = ".".join(each for each in path if isinstance(each, str))
    known = _KEYS[where].__struct_encode_fields__
    for key, value in content.items():
        inner = f"{where}.{key}".lstrip(".")
        here = (*path, key)
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            yield Finding(
                document.at(here, is_key=True),
                f"unknown key {inner!r}",
                f"{hint}keys here: {', '.join(known)}",
            )
        elif inner in _KEYS:
            entries = cast("list[object]", value) if isinstance(value, list) else None
            paths = [here] if entries is None else [(*here, at) for at in range(len(entries))]
            for each, entry in zip(paths, entries or [value], strict=False):
                if isinstance(entry, dict):
                    yield from _unknown_keys(document, each, cast("dict[str, object]", entry))


# What msgspec complains of, in our words and with its place.

_AT: Final = re.compile(r"^(.*?)(?: - at (?:`(key)` in )?`\$(.*)`)?$", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


def _of_validation(document: Document, error: msgspec.ValidationError) -> Finding:
    found = _AT.match(str(error))
    assert found is not None, "the pattern matches any text"
    what, _, steps = found.groups()
    path: Place = ()
    for name, position in _STEP.findall(steps or ""):
        if position == "...":
            path = (*path, _entry_meant(document.value, path, what))
        else:
            path = (*path, int(position) if position else name)
    missing = re.search(r"missing required field `([^`]+)`", what)
    if missing:
        return Finding(document.at(path), f"key {missing.group(1)!r} is missing", _example(path))
    shown = ".".join(str(each) for each in path) or "file"
    enum = re.search(r"Invalid enum value '(.*)'", what)
    if enum:
        hint = f"it may be {_choices(path)}"
        return Finding(document.at(path), f"{shown} is {enum.group(1)!r}", hint, BadStrategy.code)
    value = _at(document.value, path)
    is_short = isinstance(value, str | int | float | bool)
    said = f"{shown} is {one_line(repr(value), VALUE_CHARACTERS_MAX)}" if is_short else shown
    return Finding(document.at(path), f"{said}: {what[0].lower()}{what[1:]}", _example(()))


def _entry_meant(value: object, path: Place, what: str) -> str:
    """Which entry of an object a complaint means: the one that alone gives rise to it."""
    inner = _at(value, path)
    entries = cast("dict[str, object]", inner) if isinstance(inner, dict) else {}
    for key in list(entries)[:ENTRIES_TRIED_MAX]:
        try:
            msgspec.convert(_with(value, path, {key: entries[key]}), ModelFile)
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


def _with(value: object, path: Place, new: object) -> object:
    """A copy of a value in which something else stands at a path."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    if isinstance(value, dict):
        content = cast("dict[Any, object]", value)
        return {**content, step: _with(content.get(step), rest, new)}
    if isinstance(value, list) and isinstance(step, int):
        entries = cast("list[object]", value)
        return [*entries[:step], _with(entries[step], rest, new), *entries[step + 1 :]]
    return value


def _choices(path: Place) -> str:
    kinds: dict[str, Any] = {
        each.encode_name: each.type for each in msgspec.structs.fields(Strategy)
    }
    kind = kinds.get(str(path[-1])) if path[:1] == (STRATEGY,) and len(path) == 2 else None
    while kind is not None and not isinstance(get_args(kind)[0], str):
        kind = get_args(kind)[0]  # out of Annotated
    words = get_args(kind) if kind is not None else get_args(StrategyType)
    return " or ".join(each or repr(each) for each in words)


def _example(path: Place) -> str:
    if not path:
        return 'a file holds at least "model_id" and "onnx_path"; docs/models.md has every key'
    return "docs/models.md has every key"


# Where something stands that the gateway or the carver named.


def _named_places(document: Document, order: RegisterModel, message: str) -> list[Place]:
    """Places of the points, ranges and keys that a message names, in the order it does."""
    strategy, shapes = order.slicing_strategy, order.inputs
    words: dict[str, Place] = {}
    for index, point in enumerate(strategy.partition_points):
        words.setdefault(repr(point), (STRATEGY, "partition_points", index))
    for key in strategy.backend_map:
        words.setdefault(repr(key), (STRATEGY, "backend_map", key))
    for index, each in enumerate(strategy.ranges):
        words.setdefault(f"range {each.range!r}", (STRATEGY, "ranges", index, "range"))
    for name in shapes:
        words.setdefault(repr(name), ("inputs", name))
    for index in range(len(strategy.slices)):
        words.setdefault(f"slices[{index}]", (STRATEGY, "slices", index))
    found = sorted((message.find(word), place) for word, place in words.items() if word in message)
    places = [place for _, place in found]
    if places or not isinstance(document.value, dict):
        return places
    keys = re.findall(rf"{STRATEGY}\.(\w+)|\b(backend_map|partition points)\b", message)
    for dotted_key, named in keys:
        key = dotted_key or named.replace(" ", "_")
        if _at(document.value, (STRATEGY, key)) is not None:
            return [(STRATEGY, key)]
    names = re.findall(r"^(?:the )?`?(\w+)`?", message)
    return [(name,) for name in names if name in document.value]


def _model_path(config_path: Path, text: str) -> Path:
    path = Path(text).expanduser()
    return path if path.is_absolute() else config_path.parent / path


def _order(file: ModelFile) -> RegisterModel:
    return RegisterModel(
        model_id=file.model_id,
        source_sha256="",
        slicing_strategy=file.slicing_strategy,
        inputs=file.inputs,
        backend_options={key: option_text(value) for key, value in file.backend_options.items()},
        before=_adapter(file.before),
        after=_adapter(file.after),
        workers=file.workers,
        replicas=file.replicas,
        encrypt=file.encrypt,
        verify=file.verify,
    )


def option_text(value: str | int | float | bool) -> str:
    """An option as the gateway takes it: text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _adapter(value: dict[str, Any] | str | None) -> dict[str, object] | None:
    return {"name": value} if isinstance(value, str) else value


def read_model_alone(path: Path, model_id: str | None) -> Registration:
    """A bare ONNX file: DIN decides how to cut it. Raises UsageError."""
    if not path.is_file():
        raise UsageError(
            f"file {str(path)!r} does not exist" if not path.exists() else f"{path} is no file",
            hint="give the path of an ONNX model, or --config FILE",
        )
    if path.suffix in (".json", ".jsonc"):
        raise UsageError(
            f"{path} is a configuration, not a model", hint=f"din model register --config {path}"
        )
    return Registration(path, RegisterModel(model_id=model_id or path.stem, source_sha256=""))
