"""`din model register`: bytes to the store, the order to the gateway, then wait for ready."""

from __future__ import annotations

import time
from pathlib import Path
from shlex import quote
from typing import Final, get_args

import click
from msgspec.structs import replace

from din.cli.asking import ask
from din.cli.calibration import read_calibration, upload_calibration
from din.cli.display import show_document
from din.cli.frame import Command, gateway_option, output_option, say
from din.cli.model import cut_lines, show_slices, specs_in
from din.cli.model_file import Registration, read_foreign, read_model_alone, read_model_file
from din.cli.options import pairs
from din.cli.precision import rewrite_lines
from din.cli.progress import Progress
from din.client.client import Client, decode_answer
from din.client.http import Answer
from din.domain.strategy import Objective
from din.domain.views import ModelView
from din.errors import CannotPlace, DeadlineExceeded, DinError, ExecutionFailed, error_of_code

POLL_S: Final = 0.2
UNPLACED_S: Final = 5.0
"""How long `no node can take it` may last before we stop waiting; nodes may be just joining."""


@click.command(
    "register",
    cls=Command,
    examples=(
        "din model register model.onnx",
        "din model register --config centerface.json",
        "din model register model.onnx --model-id detector --backend-option optimisation=off",
        "din model register model.onnx --auto --objective throughput",
        "din model register model.onnx --encrypt",
        "din model register --foreign resnet50@edge-1 --model-id resnet",
        "din model register --config centerface.json --dry-run -o json",
    ),
)
@click.argument("model", required=False, type=click.Path(path_type=Path))
@click.option(
    "--config",
    "config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Model, slicing strategy and adapters in one file, as above.",
)
@click.option(
    "--foreign",
    metavar="NAME[@NODE]",
    help="No file: the model of a server behind a node, as `din node inspect` shows it.",
)
@click.option("--model-id", help="Else the one in the file, or the file's name.")
@click.option(
    "--auto", "is_auto", is_flag=True, help="DIN chooses where to cut, for the nodes that are here."
)
@click.option(
    "--objective",
    type=click.Choice(get_args(Objective)),
    help="What --auto makes small; throughput it makes large. Else latency.",
)
@click.option(
    "--backend-option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="threads=N, profile=low-memory, ...: see docs/backends.md. Repeatable.",
)
@click.option(
    "--encrypt/--no-encrypt",
    "encrypt",
    default=None,
    help="Seal its files wherever they lie. Else: as the file or the gateway says.",
)
@click.option(
    "--verify/--no-verify",
    "verify",
    default=None,
    help="Compare the slices with the whole first. Else: as the file says, or yes.",
)
@click.option(
    "--calibration-inputs",
    "calibration",
    type=click.Path(path_type=Path),
    metavar="DIR|FILE.npz",
    help="Samples for `precision`: a folder with one in each .npz or .npy, or one .npz whose "
    "arrays' first axis counts them. Else they are made up.",
)
@click.option("--no-wait", is_flag=True, help="Do not wait until it is ready.")
@click.option("--dry-run", is_flag=True, help="Cut the model, but deploy nothing.")
@click.option(
    "--timeout-ms",
    type=click.IntRange(1),
    default=120_000,
    show_default=True,
    help="How long to wait until it is ready.",
)
@gateway_option
@output_option
def register(
    model: Path | None,
    config: Path | None,
    foreign: str | None,
    model_id: str | None,
    options: tuple[str, ...],
    encrypt: bool | None,
    is_auto: bool,
    objective: Objective | None,
    verify: bool | None,
    calibration: Path | None,
    no_wait: bool,
    dry_run: bool,
    timeout_ms: int,
    gateway: str | None,
    output: str,
) -> None:
    """Give DIN the ONNX file MODEL, or its slicing strategy too in a --config FILE, or --foreign.

    The file is JSON; comments and trailing commas are allowed:

    \b
      {
        "model_id": "centerface",
        "onnx_path": "centerface.onnx",   // relative to this file
        "slicing_strategy": {
          "type": "graph_partition",
          "partition_points": ["404", "474"],
          "slices": [{"name": "backbone", "device_type": "x86_64-cpu"}, {"sensitive": true}, {}],
          "private": "first-last"         // first and last slice on nodes with trust: high only
        },
        "encrypt": true,                  // sealed on every disk
        "verify": false,                  // trust the cut without comparing it with the whole
        "inputs": {"input.1": [1, 3, "H", "W"]},   // text: any size
        "before": {"name": "image", "max_side": 640}, "after": {"name": "centerface"}
      }
    """
    found = _left_to_din(_read(model, config, foreign, model_id), objective, is_auto=is_auto)
    registration = _adjusted(found, model_id, options, encrypt, verify, dry_run)
    samples = read_calibration(calibration or registration.calibration)
    with ask(gateway) as client:
        try:
            answer = _send(client, registration, samples)
        except DinError as error:
            raise registration.placed(error) from None
        if not (dry_run or no_wait):
            answer = _wait(client, decode_answer(answer, ModelView), timeout_ms)
    _show(answer, output, dry_run=dry_run, no_wait=no_wait)


def _read(
    model: Path | None, config: Path | None, foreign: str | None, model_id: str | None
) -> Registration:
    if sum(each is not None for each in (model, config, foreign)) != 1:
        raise click.UsageError("give either MODEL, --config FILE or --foreign NAME")
    if foreign is not None:
        return read_foreign(foreign, model_id)
    if config is not None:
        return read_model_file(config)
    assert model is not None, "one of the two is given"
    return read_model_alone(model, model_id)


def _adjusted(
    found: Registration,
    model_id: str | None,
    options: tuple[str, ...],
    encrypt: bool | None,
    verify: bool | None,
    dry_run: bool,
) -> Registration:
    order = found.order
    order = replace(
        order,
        model_id=model_id or order.model_id,
        backend_options={**order.backend_options, **pairs("--backend-option", options)},
        encrypt=order.encrypt if encrypt is None else encrypt,
        verify=order.verify if verify is None else verify,
        is_dry_run=dry_run,
    )
    return replace(found, order=order)


def _left_to_din(
    found: Registration, objective: Objective | None, *, is_auto: bool
) -> Registration:
    """With the cuts left to DIN where that is asked. Raises UsageError where the strategy says
    otherwise."""
    if not is_auto and objective is None:
        return found
    strategy = found.order.slicing_strategy
    if strategy.type != "auto" and not is_auto:
        raise click.UsageError("--objective goes with --auto, or with a strategy of type auto")
    if strategy.type != "auto" and (strategy.partition_points or strategy.slices):
        raise click.UsageError("--auto and a strategy that says where to cut exclude each other")
    strategy = replace(strategy, type="auto", objective=objective or strategy.objective)
    order = replace(found.order, slicing_strategy=strategy)
    return replace(found, order=order)


def _send(client: Client, registration: Registration, calibration: bytes) -> Answer:
    """`calibration`: samples to go with it, or nothing."""
    if registration.model_path is None:
        return client.order_model(registration.order)
    with Progress("uploading") as progress:
        encrypt = registration.order.encrypt
        path = registration.model_path
        sha256 = client.upload(path, progress.sent, encrypt=encrypt)
        external = client.upload_beside(path, progress.sent, encrypt=encrypt)
        samples = upload_calibration(client, calibration, encrypt) if calibration else ""
    order = replace(
        registration.order, source_sha256=sha256, external=external, calibration_sha256=samples
    )
    return client.order_model(order)


def _wait(client: Client, view: ModelView, timeout_ms: int) -> Answer:
    give_up_s = time.monotonic() + timeout_ms / 1000
    unplaced_s: float | None = None
    with Progress(f"deploying {view.model_id}:") as progress:
        while True:
            answer = client.model_answer(view.model_id, view.version)
            view = decode_answer(answer, ModelView)
            if view.state in ("ready", "idle"):  # idle: it was ready, and nobody asked since
                return answer
            if view.state == "failed":
                say(f"not registered; `{_inspect(view)}` shows it for ten minutes")
                raise failure_of(view)
            now_s = time.monotonic()
            is_unplaced = view.state == "placing" and bool(view.reason)
            unplaced_s = (unplaced_s or now_s) if is_unplaced else None
            if unplaced_s is not None and now_s - unplaced_s > UNPLACED_S:
                raise failure_of(view)
            if now_s > give_up_s:
                raise _too_slow(view, timeout_ms)
            progress.say(view.reason or view.state)
            time.sleep(POLL_S)


def failure_of(view: ModelView) -> DinError:
    """Why a model is not ready: no node may take it, or a node could not load it."""
    failed = [
        f"slice {part.name} on {replica.node}: {replica.reason}"
        for part in view.slices
        for replica in part.replicas
        if replica.state == "failed" and replica.reason
    ]
    if view.error_code and view.state == "failed":
        return error_of_code(view.error_code, view.reason, view.hint)
    if failed:
        return ExecutionFailed(
            f"model {view.model_id!r} could not be loaded: {'; '.join(failed)}",
            hint="DIN tries again by itself until it can; the node's log says more",
        )
    stays = f"{view.model_id} version {view.version} stays registered, placed when a node fits it"
    return CannotPlace(
        view.reason or f"no node can take model {view.model_id!r}",
        hint=f"{view.hint}; {stays}" if view.hint else f"{stays}: din plan {quote(view.model_id)}",
    )


def _too_slow(view: ModelView, timeout_ms: int) -> DeadlineExceeded:
    reason = f": {view.reason}" if view.reason else ""
    return DeadlineExceeded(
        f"model {view.model_id!r} is still {view.state} after {timeout_ms / 1000:g} s{reason}",
        hint=f"it goes on; see `{_inspect(view)}`, or give more --timeout-ms",
    )


def _show(answer: Answer, output: str, *, dry_run: bool, no_wait: bool) -> None:
    view = decode_answer(answer, ModelView)
    if output in ("json", "yaml"):
        show_document(output, answer.body)
    elif output == "name":
        click.echo(view.model_id)
    else:
        show_slices(view, is_wide=output == "wide")
    for line in cut_lines(view.cuts):
        say(f"cut {line}")
    if view.choice is not None and view.choice.is_split_refused:
        say(f"DIN does not cut it: {view.choice.reason}")
    for line in (*view.notes, *view.warnings, *rewrite_lines(view.rewrite)):
        say(line)
    if view.verification is not None and view.verification.state != "whole":
        say(view.verification.summary)
    if dry_run:
        say(f"dry run: model {view.model_id} was cut and not registered")
    elif no_wait:
        say(f"next: {_inspect(view)} --watch")
    else:
        say(f"model {view.model_id} version {view.version} is {view.state}")
        if not _has_adapter(view):
            say(f"it takes {specs_in(view.inputs, ', ')}")
        say(f"next: din infer {quote(view.model_id)} --input {_input_word(view)}")


def _inspect(view: ModelView) -> str:
    return f"din model inspect {quote(view.model_id)}"


def _has_adapter(view: ModelView) -> bool:
    return any(part.kind == "before" for part in view.slices)


def _input_word(view: ModelView) -> str:
    """What such a model is asked with: a photo needs an adapter, tensors do not."""
    if _has_adapter(view):
        return "PHOTO"
    return "TENSOR.npy" if len(view.inputs) == 1 else "NAME=TENSOR.npy ..."
