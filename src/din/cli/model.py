"""`din model list | inspect | slices | remove`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from din.cli import complete
from din.cli.asking import ask
from din.cli.crashes import crash_lines
from din.cli.display import (
    UNKNOWN,
    Column,
    repeat,
    show,
    show_document,
    show_facts,
)
from din.cli.finding import find_model
from din.cli.frame import Command, gateway_option, output_option, say, watch_option
from din.cli.precision import precision_lines, rewrite_lines
from din.cli.slices import SLICE_COLUMNS, choice_lines, cut_lines, show_slices
from din.client.client import decode_answer
from din.domain.tensor import TensorSpec
from din.domain.views import ModelList, ModelView
from din.errors import UsageError

UNSEALED: Final = (
    "lies unsealed on every disk, from when no other machine could join: register it again"
)


def _all_nodes(model: ModelView) -> str:
    names = {each.node for part in model.slices for each in part.replicas if each.state == "ready"}
    return ", ".join(sorted(names)) or UNKNOWN


def specs_in(specs: tuple[TensorSpec, ...], separator: str) -> str:
    """Names, datatypes and shapes."""
    return separator.join(f"{each.name} {each.dtype} {each.shown_shape()}" for each in specs)


COLUMNS: Final[tuple[Column[ModelView], ...]] = (
    Column("MODEL", lambda model: model.model_id),
    Column("VERSION", lambda model: model.version, is_number=True),
    Column("STATE", lambda model: model.state),
    Column("SLICES", lambda model: str(len(model.slices)), is_number=True),
    Column("NODES", _all_nodes),
    Column("TENANT", lambda model: model.tenant, is_wide=True),
    Column("INPUTS", lambda model: specs_in(model.inputs, " "), is_wide=True),
    Column("OUTPUTS", lambda model: specs_in(model.outputs, " "), is_wide=True),
    Column("REASON", lambda model: model.reason, is_wide=True),
)


def _show_models(gateway: str | None, output: str) -> None:
    with ask(gateway) as client:
        answer = client.call("GET", "/api/v1/models")
    view = decode_answer(answer, ModelList)
    show(output, answer.body, view.items, COLUMNS, lambda model: model.model_id)
    if output in ("table", "wide"):
        if not view.items:
            say("no model is registered\nhint: register one with `din model register model.onnx`")
        for model in view.items:
            if model.reason and model.state != "ready":
                say(_trouble(model))
            if model.is_seal_due:
                say(f"{model.model_id} {UNSEALED}")


def _trouble(model: ModelView) -> str:
    """One line; the reason in full is in `din model inspect`."""
    first, _, rest = model.reason.partition("\n")
    more = f" (more: din model inspect {model.model_id})" if rest else ""
    other = f"; version {_other(model)} answers meanwhile" if _other(model) else ""
    return f"{model.model_id} version {model.version} is {model.state}: {first}{more}{other}"


def _other(model: ModelView) -> str:
    """The older version that answers while this one does not."""
    return model.serving_version if model.serving_version != model.version else ""


@click.command(
    "list",
    cls=Command,
    examples=("din model list", "din model list -o wide", "din model list -o json"),
)
@gateway_option
@output_option
@watch_option
def list_models(gateway: str | None, output: str, watch: bool) -> None:
    """List models with their state."""
    repeat(lambda: _show_models(gateway, output), is_watching=watch)


@click.command(
    "inspect",
    cls=Command,
    examples=(
        "din model inspect centerface",
        "din model inspect cent -o json",
        "din model inspect centerface --cuts --plot cuts.png",
    ),
)
@click.argument("model", shell_complete=complete.models)
@gateway_option
@output_option
@watch_option
@click.option("--cuts", "is_cuts", is_flag=True, help="Where it could be cut, and the best places.")
@click.option(
    "--plot",
    "plot",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Draw what --cuts prints; needs matplotlib.",
)
def inspect_model(
    model: str,
    gateway: str | None,
    output: str,
    watch: bool,
    is_cuts: bool,
    plot: Path | None,
) -> None:
    """Signature, slices and where they are, of MODEL: an id or the start of one."""
    if is_cuts or plot is not None:
        from din.cli.cuts import show_cuts

        show_cuts(model, gateway, output, plot)
        return
    repeat(lambda: _show_model(model, gateway, output), is_watching=watch)


def _show_model(model: str, gateway: str | None, output: str) -> None:
    with ask(gateway) as client:
        answer = find_model(client, model)
    view = decode_answer(answer, ModelView)
    if output in ("json", "yaml"):
        show_document(output, answer.body)
        return
    if output == "name":
        click.echo(view.model_id)
        return
    manifest = view.manifest
    options = manifest.backend_options if manifest is not None else {}
    show_facts(
        [
            ("model", view.model_id),
            ("version", view.version),
            ("state", view.state + (f" ({view.reason})" if view.reason else "")),
            ("tenant", view.tenant),
            ("answers now", f"version {_other(view)}" if _other(view) else ""),
            ("inputs", specs_in(view.inputs, "\n")),
            ("outputs", specs_in(view.outputs, "\n")),
            ("backend options", ", ".join(f"{key}={text}" for key, text in options.items())),
            ("sealed", _sealed(view)),
            ("verified", _verified(view)),
            ("source", manifest.source_sha256 if manifest is not None else ""),
            ("cuts", "\n".join(cut_lines(view.cuts))),
            ("choice", "\n".join(choice_lines(view.choice)) if view.choice is not None else ""),
            ("rewrite", "\n".join(rewrite_lines(view.rewrite))),
            ("precision", "\n".join(precision_lines(view.precision))),
            ("compression", _compression(view)),
            ("crashes", crash_lines(view.crashes)),
            ("notes", "\n".join((*view.notes, *view.warnings))),
        ]
    )
    click.echo()
    show_slices(view, is_wide=output == "wide")


def _compression(view: ModelView) -> str:
    if view.manifest is None or view.manifest.compression == "none":
        return ""
    return f"{view.manifest.compression} between slices on different machines; see din trace show"


def _sealed(view: ModelView) -> str:
    if view.manifest is not None and view.manifest.is_encrypted:
        return "on every disk"
    return "no" + (": it " + UNSEALED if view.is_seal_due else "")


def _verified(view: ModelView) -> str:
    found = view.verification
    if found is None:
        return f"not yet: din model verify {view.model_id}" if len(view.cuts) else ""
    return f"{found.state}: {found.summary}" + (f", {found.checked_at}" if found.checked_at else "")


@click.command(
    "slices",
    cls=Command,
    examples=("din model slices centerface", "din model slices centerface -o json"),
)
@click.argument("model", shell_complete=complete.models)
@gateway_option
@output_option
def list_slices(model: str, gateway: str | None, output: str) -> None:
    """The slices of MODEL and the nodes that hold them."""
    import msgspec

    with ask(gateway) as client:
        answer = find_model(client, model)
    view = decode_answer(answer, ModelView)
    # The part of the answer as the gateway wrote it, fields that we do not know included.
    part = msgspec.json.decode(answer.body, type=dict[str, msgspec.Raw]).get("slices")
    body = bytes(part) if part is not None else b"[]"
    show(output, body, view.slices, SLICE_COLUMNS, lambda part: part.name)


@click.command(
    "remove",
    cls=Command,
    examples=("din model remove centerface", "din model remove centerface --yes"),
)
@click.argument("model", shell_complete=complete.models)
@gateway_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def remove_model(model: str, gateway: str | None, yes: bool, dry_run: bool) -> None:
    """Unload MODEL everywhere and forget it."""
    with ask(gateway) as client:
        view = decode_answer(client.model_answer(model), ModelView)
        count = f"{len(view.slices)} slice" + ("" if len(view.slices) == 1 else "s")
        what = f"model {view.model_id} version {view.version}, {count}"
        if dry_run:
            say(f"would remove {what} from {_all_nodes(view)}")
            return
        if not yes:
            _ask(what)
        client.remove(view.model_id)
    click.echo(view.model_id)
    say(f"removed {what}")


def _ask(what: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError(f"removing {what} needs a yes", hint="add --yes")
    click.confirm(f"Remove {what}?", abort=True, err=True)
