"""`din strategy check|explain|schema`: what a file says, before anything is registered."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec import Struct

from din.cli.asking import ask
from din.cli.display import UNKNOWN, Column, byte_count, mebibytes, show_document, show_table
from din.cli.file_form import Finding, ModelFile
from din.cli.frame import Command, gateway_option, output_option, say
from din.cli.local_carver import carve_here, partition_here
from din.cli.model_file import Registration, check_model_file, finding_of, read_model_file
from din.cli.plan import explain_plan
from din.cli.progress import Progress
from din.cli.slices import choice_lines, cut_lines, show_slices
from din.client.client import decode_answer
from din.domain.model import GATEWAY, CarveAnswer, Partition, Slice
from din.domain.plan import Placement, Plan
from din.domain.strategy import Strategy
from din.domain.tensor import DTYPE_BYTES, TensorSpec, nbytes_of
from din.domain.views import ModelView, PlanSlices
from din.errors import CannotPlace, DinError, Unreachable, UsageError

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
NO_MODEL: Final = "; the model file is not there, so what it names was not looked for"
EXAMPLE: Final[dict[str, Any]] = {
    "model_id": "yolov5s",
    "onnx_path": "yolov5s.onnx",
    "slicing_strategy": {
        "type": "graph_partition",
        "partition_points": ["model.9", "model.13"],
        "backend_map": {"model.0:model.9": "onnxruntime", "model.10:model.24": "onnxruntime"},
        "slices": [{"name": "backbone"}, {"name": "neck"}, {"name": "detect_head"}],
        "ranges": [{"range": "model.0:model.1", "sensitive": True}],
    },
    "before": {"name": "image", "size": [640, 640]},
}


class Checked(Struct, frozen=True, kw_only=True):
    """What `din strategy check -o json` prints."""

    schema: str = "din.strategy-check/1"
    file: str
    is_right: bool
    is_model_checked: bool
    """False when the model file is not there: points and ranges are not known to exist then."""
    findings: tuple[Finding, ...] = ()
    slices: tuple[str, ...] = ()
    warnings: tuple[Finding, ...] = ()
    """What may be right, such as a backend that only a later node has."""


class Explained(Struct, frozen=True, kw_only=True):
    """What `din strategy explain -o json` prints."""

    schema: str = "din.strategy-explain/1"
    file: str
    strategy: Strategy
    partition: Partition
    carved: CarveAnswer
    plan: Plan | None = None
    """Where the slices would go; None when no gateway was asked or none answered."""
    refusal: str = ""
    """Why no node can take some slice."""


@click.command(
    "check",
    cls=Command,
    examples=("din strategy check centerface.json", "din strategy check centerface.json -o json"),
)
@click.argument("file", type=click.Path(path_type=Path))
@output_option
def check(file: Path, output: str) -> None:
    """Whether FILE is right: its form, and against the model file if that is there.

    Says with line and column everything that is wrong in its form; when nothing is, what does not
    fit the model. A backend that DIN does not know is only warned of. Nothing is sent anywhere.
    Exit code 2 when something is wrong.
    """
    found = _checked(file)
    if output in ("json", "yaml"):
        show_document(output, msgspec.json.encode(found))
    else:
        for each in found.findings:
            click.echo(f"{each.place}: {each.message}")
            if each.hint:
                say(f"hint: {each.hint}")
        for name in found.slices:
            click.echo(name)
        for each in found.warnings:
            say(f"{each.place}: warning: {each.message}")
            say(f"hint: {each.hint}")
    if not found.is_right:
        click.get_current_context().exit(UsageError.exit_code)
    say(f"{file} is right" + ("" if found.is_model_checked else NO_MODEL))


def _checked(file: Path) -> Checked:
    try:
        read = check_model_file(file)
    except UsageError as error:
        return _wrong(file, finding_of(error, file))
    if read.registration is None:
        return _wrong(file, *read.findings)
    warnings = read.warnings
    path = read.registration.model_path
    if path is None or not path.is_file():
        return Checked(file=str(file), is_right=True, is_model_checked=False, warnings=warnings)
    try:
        carved = carve_here(read.registration)
        partition = partition_here(read.registration, carved)
    except UsageError as error:
        wrong = _wrong(file, finding_of(error, file), is_model_checked=True)
        return msgspec.structs.replace(wrong, warnings=warnings)
    return Checked(
        file=str(file),
        is_right=True,
        is_model_checked=True,
        slices=tuple(part.name for part in partition.slices),
        warnings=warnings,
    )


def _wrong(file: Path, *findings: Finding, is_model_checked: bool = False) -> Checked:
    return Checked(
        file=str(file), is_right=False, is_model_checked=is_model_checked, findings=findings
    )


@click.command(
    "explain",
    cls=Command,
    examples=("din strategy explain centerface.json", "din strategy explain FILE --local -o json"),
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--local", "is_local", is_flag=True, help="Ask no gateway where they could go.")
@gateway_option
@output_option
def explain(file: Path, is_local: bool, gateway: str | None, output: str) -> None:
    """Which slices FILE makes of its model, what crosses between them, and which nodes could take
    each. Nothing is registered, and nothing uploaded but for type auto: its cuts are chosen by the
    gateway, which knows the nodes and how fast they are.
    """
    registration = read_model_file(file)
    if registration.order.slicing_strategy.type == "auto":
        if not is_local and registration.model_path is not None:
            _explain_choice(registration, gateway, output)
            return
        say("the cuts of type auto are chosen by a gateway: this is only what its ranges ask")
    carved = carve_here(registration)
    partition = partition_here(registration, carved)
    found = Explained(
        file=str(file),
        strategy=registration.order.slicing_strategy,
        partition=partition,
        carved=carved,
    )
    found = found if is_local else _planned(found, gateway)
    if output in ("json", "yaml"):
        show_document(output, msgspec.json.encode(found))
        return
    if output == "name":
        for part in partition.slices:
            click.echo(part.name)
        return
    show_table([each for each in SLICES if output == "wide" or not each.is_wide], partition.slices)
    _show_crossings(found)
    if found.plan is not None:
        click.echo()
        show_table(PLACES, found.plan.placements)
        explain_plan(found.plan, is_wide=output == "wide")
    if found.refusal:
        say(found.refusal)


def _explain_choice(registration: Registration, gateway: str | None, output: str) -> None:
    path, order = registration.model_path, registration.order
    assert path is not None, "a strategy of type auto goes with a file"
    with ask(gateway) as client, Progress("uploading") as progress:
        sha256 = client.upload(path, progress.sent, encrypt=order.encrypt)
        beside = client.upload_beside(path, progress.sent, encrypt=order.encrypt)
        order = msgspec.structs.replace(
            order, source_sha256=sha256, external=beside, is_dry_run=True
        )
        try:
            answer = client.order_model(order)
        except DinError as error:
            raise registration.placed(error) from None
    view = decode_answer(answer, ModelView)
    if output in ("json", "yaml"):
        show_document(output, answer.body)
        return
    show_slices(view, is_wide=output == "wide")
    for line in cut_lines(view.cuts):
        click.echo(f"cut {line}")
    for line in choice_lines(view.choice) if view.choice is not None else ():
        click.echo(line)
    for line in (*view.notes, *view.warnings):
        say(line)


def _planned(found: Explained, gateway: str | None) -> Explained:
    partition = found.partition
    edges = partition.adapted_edges or partition.edges
    try:
        with ask(gateway) as client:
            plan = client.plan_slices(PlanSlices(slices=partition.slices, edges=edges))
    except CannotPlace as error:
        return msgspec.structs.replace(found, refusal=error.story())
    except Unreachable as error:
        say(f"which nodes could take them is not known: {error.message}")
        return found
    return msgspec.structs.replace(found, plan=plan)


def _show_crossings(found: Explained) -> None:
    names = {part.index: part.name for part in found.partition.slices}
    specs = {spec.name: spec for part in found.carved.slices for spec in part.outputs}
    for edge in found.partition.adapted_edges or found.partition.edges:
        consumers = [names[each] for each in edge.consumers if each != GATEWAY]
        if edge.producer != GATEWAY and consumers and edge.tensor in specs:
            size = _size(specs[edge.tensor])
            click.echo(f"{names[edge.producer]} -> {', '.join(consumers)}: {edge.tensor} ({size})")
    for line in found.carved.warnings:
        say(line)


def _size(spec: TensorSpec) -> str:
    dims = spec.shape or ()
    sizes = tuple(each for each in dims if isinstance(each, int))
    if spec.shape is None or len(sizes) < len(dims) or spec.dtype not in DTYPE_BYTES:
        return f"{spec.dtype} {spec.shown_shape()}, size depends on the input"
    return f"{spec.dtype} {spec.shown_shape()}, {byte_count(nbytes_of(spec.dtype, sizes))}"


def _asks(part: Slice) -> str:
    """What it asks of a node beside its backend."""
    asked = [
        part.device_type or "",
        *(f"{key}={value}" for key, value in part.labels.items()),
        "trust: high" if part.is_sensitive else "",
        f"on {', '.join(part.nodes)}" if part.nodes else "",
        f"not on {', '.join(part.not_nodes)}" if part.not_nodes else "",
    ]
    return "; ".join(each for each in asked if each) or UNKNOWN


SLICES: Final[tuple[Column[Slice], ...]] = (
    Column("SLICE", lambda part: str(part.index), is_number=True),
    Column("NAME", lambda part: part.name),
    Column("OPERATORS", lambda part: str(part.operators), is_number=True),
    Column("WEIGHTS", lambda part: byte_count(part.bytes_weights), is_number=True),
    Column("MEMORY", lambda part: mebibytes(part.memory_mib or None), is_number=True),
    Column("MFLOP", lambda part: f"{part.flops / 1e6:.1f}", is_wide=True, is_number=True),
    Column("BACKEND", lambda part: part.backend),
    Column("ASKS", _asks),
)
PLACES: Final[tuple[Column[Placement], ...]] = (
    Column("NAME", lambda placed: placed.slice_name),
    Column("WOULD GO TO", lambda placed: placed.node),
    Column("REASON", lambda placed: placed.reason),
)


@click.command("schema", cls=Command, examples=("din strategy schema > din.schema.json",))
def schema() -> None:
    """The JSON Schema of configuration files. Name it in a file for editors to read it:

    \b
      {"$schema": "./din.schema.json", "model_id": ...
    """
    click.echo(msgspec.json.format(msgspec.json.encode(schema_of_files()), indent=2).decode())


def schema_of_files() -> dict[str, Any]:
    """JSON Schema, made of the types that the reader uses."""
    found = msgspec.json.schema(ModelFile)
    top = found["$defs"].pop(ModelFile.__name__)
    return {"$schema": DIALECT, **top, "examples": [EXAMPLE], "$defs": found["$defs"]}
