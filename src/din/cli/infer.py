"""`din infer`: one request from the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import click

from din.cli import complete
from din.cli.asking import ask
from din.cli.display import UNKNOWN, Column, number, show_table
from din.cli.frame import Command, gateway_option, say
from din.cli.progress import told_when_slow
from din.client.client import INFER_MS
from din.client.result import Inference
from din.domain.request import PrecisionClass, TraceStep
from din.domain.result import SUFFIX
from din.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

STEP_COLUMNS: Final[tuple[Column[TraceStep], ...]] = (
    Column("PHASE", lambda step: step.phase),
    Column("NODE", lambda step: step.node),
    Column("LATENCY MS", lambda step: number(step.latency_ms, 1), is_number=True),
    Column("QUEUE MS", lambda step: number(step.queue_ms, 1), is_number=True),
    Column("GPU %", lambda step: number(step.gpu_util), is_number=True),
)
TEXT_MAX: Final = 200
"""Characters of a value that a table shows."""
ENDINGS: Final = (".png", ".jpg", ".jpeg", ".npz", ".json", SUFFIX)
"""Of files that a result can be kept in."""
SHOWN_MAX: Final = 20
"""Rows of a result that a table shows."""


@click.command(
    "infer",
    cls=Command,
    examples=(
        "din infer centerface --input photo.jpg",
        "din infer centerface --input photo.jpg --output boxes.png",
        "din infer centerface --input input.1=tensor.npy --output heads.npz",
        "din infer centerface --input photo.jpg -o json",
    ),
)
@click.argument("model", shell_complete=complete.models)
@click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="A photo or other file; or tensors as FILE.npy, FILE.npz or NAME=FILE.npy (repeatable).",
)
@click.option(
    "--output",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to: .png or .jpg = the photo with its boxes, .npz = tensors, .json = the result, "
    ".dinr = all of it in binary (docs/protocol/result.md).",
)
@click.option(
    "-o",
    "form",
    type=click.Choice(("table", "json", "yaml")),
    default="table",
    show_default=True,
    help="How to print the result.",
)
@click.option(
    "--raw", is_flag=True, help="Print the result alone, as one line of JSON, however large."
)
@click.option(
    "--want", "wanted", multiple=True, metavar="NAME", help="Only this output tensor. Repeatable."
)
@click.option("--version", "version", help="Version of the model; else the newest.")
@click.option(
    "--precision",
    type=click.Choice(get_args(PrecisionClass)),
    help="The least that may cross between slices; else as the model was registered.",
)
@click.option(
    "--timeout-ms",
    type=click.IntRange(1),
    default=INFER_MS,
    show_default=True,
    help="How long the whole request may take, retries included.",
)
@gateway_option
def infer(
    model: str,
    inputs: tuple[str, ...],
    target: Path | None,
    form: str,
    raw: bool,
    wanted: tuple[str, ...],
    version: str | None,
    precision: str | None,
    timeout_ms: int,
    gateway: str | None,
) -> None:
    """Run one request through MODEL."""
    if target is not None and target.suffix not in ENDINGS:
        raise UsageError(
            f"--output {str(target)!r} has no known ending",
            hint=".png or .jpg draws boxes, .npz keeps tensors, .json the result, .dinr all of it",
        )
    given = read_inputs(inputs)
    slow = f"no answer yet; where it would run, or why nowhere: din plan {quote(model)}"
    with ask(gateway) as client, told_when_slow(slow):
        answer = client.infer(
            model,
            given,
            outputs=wanted,
            timeout_ms=timeout_ms,
            version=version,
            precision=precision,
            is_binary=target is not None and target.suffix == SUFFIX,
        )
    if raw:
        click.echo(json.dumps(_plain(answer.result)))
    else:
        _show(answer, form)
    if target is not None:
        _keep(target, answer, inputs)


def read_inputs(texts: Sequence[str]) -> Any:
    """What to send: a path, one array, or arrays by name. Raises UsageError."""
    if len(texts) == 1 and not _is_tensor(texts[0]):
        path = Path(texts[0])
        _check_readable(path)
        return path
    arrays: dict[str, NDArray[Any]] = {}
    for text in texts:
        name, path = _named(text)
        if not _is_tensor(text):
            raise UsageError(
                f"--input {text!r} is no tensor, and only one file can be sent",
                hint="tensors are NAME=FILE.npy or FILE.npz",
            )
        loaded = load_arrays(path)
        if isinstance(loaded, dict):
            arrays.update(loaded)
        elif name is None and len(texts) == 1:
            return loaded
        elif name is None:
            raise UsageError(f"--input {text!r} names no input", hint=f"--input NAME={text}")
        else:
            arrays[name] = loaded
    return arrays


def _is_tensor(text: str) -> bool:
    return text.endswith((".npy", ".npz"))


def _named(text: str) -> tuple[str | None, Path]:
    """NAME=FILE; a file that exists under the whole text is no pair."""
    if Path(text).exists() or "=" not in text:
        return None, Path(text)
    name, _, path = text.partition("=")
    return name, Path(path)


def _check_readable(path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise UsageError(
            f"input {str(path)!r} cannot be read: {error.strerror}",
            hint="--input names a file that exists",
        ) from None


def load_arrays(path: Path) -> Any:
    """One array, or those of an .npz by name. Raises UsageError."""
    import numpy as np

    _check_readable(path)
    try:
        loaded: Any = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return {str(name): loaded[name] for name in loaded.files}
    except (ValueError, OSError, EOFError) as error:
        raise UsageError(
            f"{path} is no array file of numpy: {error}",
            hint="write it with numpy.save or numpy.savez, without objects",
        ) from None


def _show(answer: Inference, form: str) -> None:
    if form == "table":
        _show_result(answer)
        click.echo()
        show_table(STEP_COLUMNS, answer.execution_trace)
        say(f"next: din trace show {answer.request_id or 'last'}")
        return
    import msgspec

    document = {
        "schema": "din.inference/1",
        "request_id": answer.request_id,
        "model_id": answer.model_id,
        "version": answer.version,
        "result": _plain(answer.result),
        "execution_trace": msgspec.to_builtins(answer.execution_trace),
    }
    if form == "yaml":
        import yaml

        click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)
    else:
        click.echo(json.dumps(document, indent=2))


def _plain(result: Mapping[str, Any]) -> dict[str, Any]:
    """Values that JSON can hold; arrays become nested lists, bytes become text, and what is no
    number (NaN, Infinity) null, as over HTTP."""
    return {name: _plain_value(value) for name, value in result.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list | tuple):
        return [_plain_value(each) for each in value]
    if hasattr(value, "tolist"):
        return _plain_value(value.tolist())
    if isinstance(value, float) and not isfinite(value):
        return None
    return value


def _show_result(answer: Inference) -> None:
    if answer.outputs and not answer.is_adapted:
        for name, array in answer.outputs.items():
            click.echo(f"{name}: {array.dtype} {list(array.shape)}{_range(array)}")
        return
    rows = detections(answer.result)
    if rows is None:
        for name, value in answer.result.items():
            click.echo(f"{name}: {_brief(value)}")
        return
    if not rows:
        click.echo("nothing found")
    else:
        show_table(_DETECTION_COLUMNS, rows[:SHOWN_MAX])
    if len(rows) > SHOWN_MAX:
        say(f"{len(rows) - SHOWN_MAX} more: -o json")


Detection = tuple[list[float], float | None, str]
"""Box, score, label."""
_DETECTION_COLUMNS: Final[tuple[Column[Detection], ...]] = (
    Column("LABEL", lambda row: row[2] or UNKNOWN),
    Column("SCORE", lambda row: number(row[1], 3), is_number=True),
    Column("BOX", lambda row: ", ".join(number(each) for each in row[0])),
)


def detections(result: Mapping[str, Any]) -> list[Detection] | None:
    """Boxes with their scores and labels; None where the result is something else."""
    boxes = result.get("boxes")
    if not isinstance(boxes, list):
        return None
    scores, labels = result.get("scores") or [], result.get("labels") or []
    return [
        (
            box,
            scores[index] if index < len(scores) else None,
            str(labels[index]) if index < len(labels) else "",
        )
        for index, box in enumerate(boxes)
    ]


def _range(array: Any) -> str:
    if array.size == 0 or array.dtype.kind not in "iuf":
        return ""
    return f", values {array.min():.4g} to {array.max():.4g}"


def _brief(value: Any) -> str:
    """A value of a result in one line; of numbers in several dimensions their shape."""
    shape: list[int] = []
    inner = value
    while isinstance(inner, list):
        items = cast("list[Any]", inner)
        shape.append(len(items))
        inner = items[0] if items else None
    if len(shape) > 1 and isinstance(inner, int | float):
        return f"numbers of shape {shape}; all of them: -o json, or --output FILE.npz"
    text = json.dumps(value)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]} ...; all of it: -o json"


def _keep(target: Path, answer: Inference, inputs: Sequence[str]) -> None:
    try:
        if target.suffix == ".json":
            target.write_text(json.dumps(_plain(answer.result)))
        elif target.suffix == ".npz":
            _keep_tensors(target, answer)
        elif target.suffix == SUFFIX:
            from din.client.saved import encode_inference

            target.write_bytes(b"".join(encode_inference(answer)))
        else:
            from din.cli.draw import draw_boxes

            draw_boxes(Path(inputs[0]), target, detections(answer.result))
    except OSError as error:
        raise Unavailable(
            f"{target} cannot be written: {error.strerror or error}",
            hint="give a place that exists, is writable and has room",
        ) from None
    say(f"wrote {target}")


def _keep_tensors(target: Path, answer: Inference) -> None:
    import numpy as np

    arrays = answer.outputs or {name: np.asarray(each) for name, each in answer.result.items()}
    with target.open("wb") as file:
        np.savez(file, **arrays)
