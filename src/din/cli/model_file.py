"""The file of `din model register --config`: the seeds' keys, checked, as an order.

Everything that is wrong is said with its line and column, also what only the gateway or the carver
finds out later: they name a partition point, a range or a key, and the file knows where it stands.
"""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote
from typing import Any, Final

from msgspec import Struct

from din.cli.file_form import STRATEGY, Finding, ModelFile, read_form
from din.cli.jsonc import FILE_BYTES_MAX, Document, read_jsonc
from din.cli.jsonc import Path as Place
from din.domain.backend_names import unknown_backends
from din.domain.strategy import Fault, dotted, faults_of
from din.domain.views import RegisterModel
from din.errors import BadStrategy, DinError, UsageError

PLACES_SHOWN_MAX: Final = 3


class Registration(Struct, frozen=True):
    """What to upload, and the order once its hash is known (`source_sha256` is empty here)."""

    model_path: Path | None
    """None for the model of a server."""
    order: RegisterModel
    document: Document | None = None
    """Where it was written; None without a file."""
    calibration: Path | None = None
    """Samples of the user's own."""

    def placed(self, error: DinError) -> DinError:
        """The same error with the place in the file of what it names."""
        if self.document is None or not isinstance(error, UsageError):
            return error
        places = _named_places(self.document, self.order, error.message)
        if not places:
            return error
        where = ", ".join(self.document.at(each) for each in places[:PLACES_SHOWN_MAX])
        return type(error)(f"{where}: {error.message}", hint=error.hint)


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
    warnings: tuple[Finding, ...] = ()
    """What may be right, but probably is not."""


def read_model_file(path: Path) -> Registration:
    """A configuration file. Raises UsageError or BadStrategy for the first thing that is wrong,
    with line, column, key and value."""
    found = check_model_file(path)
    if found.findings:
        first, *others = found.findings
        kind = BadStrategy if first.code == BadStrategy.code else UsageError
        more = f"; {len(others)} more, see din strategy check {quote(str(path))}"
        hint = first.hint + (more if others else "")
        raise kind(f"{first.place}: {first.message}", hint=hint)
    assert found.registration is not None, "without findings there is a registration"
    return found.registration


def check_model_file(path: Path) -> Read:
    """A configuration file with all that is wrong in it. Raises UsageError when it cannot be read
    or is no JSON."""
    document = read_jsonc(_read(path), str(path))
    file = read_form(document)
    if isinstance(file, tuple):
        return Read(file)
    strategy = file.slicing_strategy
    findings = tuple(_found(document, each) for each in faults_of(strategy))
    if findings:
        return Read(findings)
    inputs = file.calibration_inputs
    calibration = _beside(path, inputs) if inputs else None
    model_path = _beside(path, file.onnx_path) if file.onnx_path else None
    return Read(
        (),
        Registration(model_path, _order(file), document, calibration),
        tuple(_found(document, each) for each in unknown_backends(strategy)),
    )


def _found(document: Document, fault: Fault) -> Finding:
    place = document.at((STRATEGY, *fault.path))
    message = f"{dotted(fault.path)}: {fault.message}"
    return Finding(place, message, fault.hint, BadStrategy.code)


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
        is_model = path.suffix == ".onnx"
        raise UsageError(
            f"file {str(path)!r} is not UTF-8 at byte {error.start}",
            hint=f"it is a model: din model register {quote(str(path))}"
            if is_model
            else "save it as UTF-8",
        ) from None


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
    for role, adapter in (("before", order.before), ("after", order.after)):
        for key, value in (adapter or {}).items():
            named = f"is called {value!r}" if key == "name" else f"option {key!r}"
            words.setdefault(named, (role, key))
    for name in order.backend_options:
        words.setdefault(f"option {name!r}", ("backend_options", name))
        words.setdefault(f"option {name}=", ("backend_options", name))
    for index in range(len(strategy.slices)):
        words.setdefault(f"slices[{index}]", (STRATEGY, "slices", index))
    found = sorted((message.find(word), place) for word, place in words.items() if word in message)
    places = [place for _, place in found]
    if places or not isinstance(document.value, dict):
        return places
    keys = re.findall(rf"{STRATEGY}\.(\w+)|\b(backend_map|partition points)\b", message)
    for dotted_key, named in keys:
        key = dotted_key or named.replace(" ", "_")
        if (STRATEGY, key) in document:
            return [(STRATEGY, key)]
    names = re.findall(r"^(?:the )?`?(\w+)`?", message)
    return [(name,) for name in names if name in document.value]


def _beside(config_path: Path, text: str) -> Path:
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
        foreign=file.foreign,
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


def read_foreign(text: str, model_id: str | None) -> Registration:
    """The model of a server behind a node, as NAME or NAME@NODE."""
    name = text.rpartition("@")[0] or text
    return Registration(None, RegisterModel(model_id=model_id or name, foreign=text))
