"""The file of `din model register --config`: the seeds' keys, checked, as an order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, cast, get_args

import msgspec
from msgspec import Struct

from din.cli.jsonc import FILE_BYTES_MAX, parse_jsonc
from din.domain.strategy import SliceSetting, Strategy, StrategyType, dotted, faults_of
from din.domain.views import RegisterModel
from din.errors import BadStrategy, UsageError


class ModelFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    model_id: str
    onnx_path: str
    slicing_strategy: Strategy = Strategy()
    inputs: dict[str, tuple[int | str, ...]] = {}
    backend_options: dict[str, str | int | float | bool] = {}
    before: dict[str, Any] | str | None = None
    after: dict[str, Any] | str | None = None
    workers: int = 1
    replicas: int = 2
    encrypt: bool | None = None


class Registration(Struct, frozen=True):
    """What to upload, and the order once its hash is known (`source_sha256` is empty here)."""

    model_path: Path
    order: RegisterModel


_KEYS: Final[dict[str, type[Struct]]] = {
    "": ModelFile,
    "slicing_strategy": Strategy,
    "slicing_strategy.slices": SliceSetting,
}


def read_model_file(path: Path) -> Registration:
    """A configuration file. Raises UsageError or BadStrategy naming file, key and value."""
    content = parse_jsonc(_read(path), str(path))
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no object", hint='it starts with {"model_id": ...')
    whole = cast("dict[str, object]", content)
    _check_keys(path, "", whole)
    try:
        file = msgspec.convert(whole, ModelFile)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {_plain(error)}", hint=_missing_hint(error)) from None
    for fault in faults_of(file.slicing_strategy):
        raise BadStrategy(f"{path}: {dotted(fault.path)}: {fault.message}", hint=fault.hint)
    return Registration(_model_path(path, file.onnx_path), _order(file))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX + 1).decode()
    except OSError as error:
        raise UsageError(
            f"file {str(path)!r} cannot be read: {error.strerror}",
            hint="--config names a file as in `din model register --help`",
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8 at byte {error.start}", hint="save it as UTF-8"
        ) from None


def _check_keys(path: Path, place: str, content: Mapping[str, object]) -> None:
    """Refuse unknown keys, by name and with what was probably meant."""
    known = _KEYS[place].__struct_fields__
    for key, value in content.items():
        inner = f"{place}.{key}".lstrip(".")
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(
                f"{path}: unknown key {inner!r}", hint=f"{hint}keys here: {', '.join(known)}"
            )
        if inner not in _KEYS:
            continue
        entries = cast("list[object]", value) if isinstance(value, list) else [value]
        for entry in entries:
            if isinstance(entry, dict):
                _check_keys(path, inner, cast("dict[str, object]", entry))


def _plain(error: msgspec.ValidationError) -> str:
    text = str(error)
    missing = re.search(r"missing required field `([^`]+)`", text)
    if missing:
        return f"key {missing.group(1)!r} is missing"
    text = re.sub(r"Invalid enum value ('.*?')", r"is \1", text)
    found = re.search(r"^(.*?) - at `\$\.?(.*)`$", text)
    if found and found.group(1).startswith("is '"):
        return f"{found.group(2)} {found.group(1)}"
    return f"{found.group(2) or 'file'}: {found.group(1)}" if found else text


def _missing_hint(error: msgspec.ValidationError) -> str:
    if "missing required" in str(error):
        return 'a file holds at least "model_id" and "onnx_path"'
    if "Invalid enum value" in str(error) and "slicing_strategy.type" in str(error):
        return f"it may be {' or '.join(get_args(StrategyType))}"
    return "see the example in `din model register --help`"


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
