"""`din model profile | verify`: models looked at on nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import click
import msgspec

from din.cli import complete
from din.cli.asking import ask
from din.cli.display import (
    UNKNOWN,
    Column,
    byte_count,
    duration,
    number,
    show_document,
    show_facts,
    show_table,
)
from din.cli.finding import find_model
from din.cli.frame import Command, gateway_option, output_option, say
from din.cli.precision import rewrite_lines
from din.cli.progress import told_when_slow
from din.client.client import GRACE_MS, Client, decode_answer
from din.client.http import Answer
from din.domain.malformed import MALFORMED
from din.domain.probe import OperatorTime, TensorError, VerifyLevel, VerifyReport
from din.domain.profile import (
    GivenTensor,
    ProfileItem,
    ProfileModel,
    ProfileView,
    VerifyModel,
    VerifyView,
)
from din.domain.tensor import TensorSpec
from din.domain.views import ModelView
from din.errors import Internal, UsageError, error_of_code

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHOWN_MAX: Final = 20
"""Operators in a table; -o wide and -o json have all."""
PROBES_WAITED: Final = 6
"""Probes for one answer, one after the other, each with its own time."""

node_option = click.option(
    "--node",
    help="A node by its name or id; else DIN chooses.",
    shell_complete=complete.nodes,
)
inputs_option = click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="Tensors: FILE.npz, FILE.json or NAME=FILE.npy, repeatable. Else they are made up.",
)
shapes_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=1,3,640,640",
    help="Shape of an input that is made up; repeatable.",
)
version_option = click.option("--version", "version", help="Version of the model; else the newest.")
timeout_option = click.option(
    "--timeout-ms",
    type=click.IntRange(1_000, 300_000),
    default=120_000,
    show_default=True,
    help="How long one node may take, loading included.",
)


@click.command(
    "profile",
    cls=Command,
    examples=(
        "din model profile centerface",
        "din model profile detector --shape images=1,3,640,640 --node edge-1",
        "din model profile detector --input frame.npz -o json",
    ),
)
@click.argument("model", shell_complete=complete.models)
@node_option
@inputs_option
@shapes_option
@click.option("--rounds", type=click.IntRange(1, 100), default=7, show_default=True)
@click.option("--fresh", is_flag=True, help="Measure again what was measured before.")
@version_option
@timeout_option
@gateway_option
@output_option
def profile(
    model: str,
    node: str | None,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    rounds: int,
    fresh: bool,
    version: str | None,
    timeout_ms: int,
    gateway: str | None,
    output: str,
) -> None:
    """Time every operator of MODEL, as a whole, on one node of each class of devices.

    A profile is kept and shown again until --fresh. Its times are shares of the model's own time
    with its own optimisation; single operators can be told apart only without.
    """
    asked = ProfileModel(
        node=node,
        shapes=shapes_of(shapes),
        rounds=rounds,
        is_fresh=fresh,
        timeout_ms=timeout_ms,
    )
    with ask(gateway) as client:
        known = decode_answer(find_model(client, model), ModelView)
        asked = msgspec.structs.replace(asked, inputs=given(inputs, known.inputs))
        answer = _examine(client, known.model_id, "profile", asked, version)
    view = decode_answer(answer, ProfileView)
    if output in ("json", "yaml"):
        show_document(output, answer.body)
    elif output == "name":
        click.echo(view.model_id)
    else:
        for place, item in enumerate(view.items):
            if place:
                click.echo()
            _show_profile(item, is_wide=output == "wide")
    failed = [each for each in view.items if each.error]
    if failed and len(failed) == len(view.items):
        raise error_of_code(failed[0].error_code, f"{failed[0].node}: {failed[0].error}")


def _show_profile(item: ProfileItem, *, is_wide: bool) -> None:
    found = item.profile
    if found is None:
        say(f"{item.node} ({item.device}): {item.error}")
        return
    report = found.report
    live = "" if item.live_factor is None else f"{item.live_factor:.2f} times the profile"
    when = f"{found.measured_at} on {found.node}" + (" (stored)" if item.is_stored else "")
    show_facts(
        [
            ("devices", str(found.device)),
            ("engine", found.device.engine),
            ("measured", f"{when}, {report.rounds} rounds"),
            ("inputs", "\n".join(f"{i.name} {i.dtype} {list(i.shape)}" for i in report.inputs)),
            ("whole", f"{report.whole_ms:.3f} ms; {report.plain_ms:.3f} ms without optimisation"),
            ("coverage", f"{report.coverage:.1%} of {len(report.operators)} operators"),
            ("live slices", live),
            ("notes", "\n".join(report.notes)),
        ]
    )
    click.echo()
    ordered = sorted(report.operators, key=lambda each: -each.ms)
    shown = ordered if is_wide else ordered[:SHOWN_MAX]
    show_table(_operator_columns(report.whole_ms), shown)
    if len(shown) < len(ordered):
        rest = sum(each.ms for each in ordered[len(shown) :])
        say(f"{len(ordered) - len(shown)} more operators take {rest:.3f} ms: -o wide shows all")


def _operator_columns(whole_ms: float) -> tuple[Column[OperatorTime], ...]:
    return (
        Column(
            "MS",
            lambda each: ("~" if each.is_estimated else "") + number(each.ms, 3),
            is_number=True,
        ),
        Column(
            "SHARE",
            lambda each: f"{each.ms / whole_ms:.1%}" if whole_ms else UNKNOWN,
            is_number=True,
        ),
        Column("OPERATOR", lambda each: each.name),
        Column("KIND", lambda each: each.kind),
        Column("MAKES", _makes, is_number=True),
    )


def _makes(each: OperatorTime) -> str:
    sizes = [value.nbytes for value in each.outputs]
    known = [size for size in sizes if size is not None]
    return byte_count(sum(known)) if known and len(known) == len(sizes) else UNKNOWN


@click.command(
    "verify",
    cls=Command,
    examples=(
        "din model verify centerface",
        "din model verify detector --input frame.npz --node edge-1",
        "din model verify detector --seed 7 -o json",
    ),
)
@click.argument("model", shell_complete=complete.models)
@node_option
@inputs_option
@shapes_option
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the made-up inputs.")
@version_option
@timeout_option
@gateway_option
@output_option
def verify(
    model: str,
    node: str | None,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    seed: int,
    version: str | None,
    timeout_ms: int,
    gateway: str | None,
    output: str,
) -> None:
    """Compare the slices of MODEL with the whole, on one node that can hold it.

    Without optimisation both have to be equal bit for bit; at the model's own level within
    |difference| <= 1e-6 + 1e-4 x |whole| (1e-3 + 1e-2 x for FP16, 1e-2 + 5e-2 x for BF16).
    Exit code 1 when they differ.
    """
    asked = VerifyModel(node=node, shapes=shapes_of(shapes), seed=seed, timeout_ms=timeout_ms)
    with ask(gateway) as client:
        known = decode_answer(find_model(client, model), ModelView)
        asked = msgspec.structs.replace(asked, inputs=given(inputs, known.inputs))
        answer = _examine(client, known.model_id, "verify", asked, version)
    view = decode_answer(answer, VerifyView)
    found = view.verification
    if output in ("json", "yaml"):
        show_document(output, answer.body)
    elif output == "name":
        click.echo(view.model_id)
    elif found.report is not None:
        _show_report(found.report, is_wide=output == "wide")
    for line in rewrite_lines(view.rewrite):
        say(line)
    if found.state == "wrong":
        raise Internal(
            f"model {view.model_id!r} version {view.version}: {found.summary}",
            hint="cut it elsewhere, and report this with the model if the cut is at fault",
        )
    say(found.summary)


def _show_report(report: VerifyReport, *, is_wide: bool) -> None:
    rows = [(level, each) for level in report.levels for each in level.tensors]
    show_table([each for each in _ERRORS if is_wide or not each.is_wide], rows)
    for note in report.notes:
        say(note)
    for name in report.untested:
        say(f"not compared: {name}, which random operators are behind")


Row = tuple[VerifyLevel, TensorError]


def _state(row: Row) -> str:
    level, error = row
    if error.is_equal:
        return "equal"
    return ("within" if not level.is_exact else "ok") if error.is_within else "differs"


def _error(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2g}"


_ERRORS: Final[tuple[Column[Row], ...]] = (
    Column("OPTIMISATION", lambda row: row[0].optimisation),
    Column("TENSOR", lambda row: row[1].name),
    Column("IS", lambda row: "output" if row[1].is_output else f"cut {row[1].after_slice}"),
    Column("DATATYPE", lambda row: row[1].dtype),
    Column("SHAPE", lambda row: str(list(row[1].shape)), is_wide=True),
    Column("RESULT", _state),
    Column("MAX ABSOLUTE", lambda row: _error(row[1].max_absolute), is_number=True),
    Column("MAX RELATIVE", lambda row: _error(row[1].max_relative), is_number=True),
    Column("TROUBLE", lambda row: row[1].trouble),
)


def _examine(
    client: Client,
    model_id: str,
    what: str,
    asked: ProfileModel | VerifyModel,
    version: str | None,
) -> Answer:
    query = f"?{urlencode({'version': version})}" if version is not None else ""
    limit_ms = asked.timeout_ms
    slow = f"a node loads the whole model and runs it; at most {duration(limit_ms)} on each"
    with told_when_slow(slow):
        return client.call(
            "POST",
            f"/api/v1/models/{quote(model_id, safe='')}/{what}{query}",
            msgspec.json.encode(asked),
            is_idempotent=False,
            timeout_ms=limit_ms * PROBES_WAITED + GRACE_MS,
        )


def shapes_of(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`NAME=1,3,640,640` by name. Raises UsageError."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, sizes = text.rpartition("=")
        parts = [part.strip() for part in sizes.replace("x", ",").split(",") if part.strip()]
        if not name or not all(part.isascii() and part.isdigit() for part in parts):
            raise UsageError(
                f"--shape {text!r} is no shape", hint="for example --shape images=1,3,640,640"
            )
        shapes[name] = tuple(map(int, parts))
    return shapes


def given(texts: Sequence[str], inputs: Sequence[TensorSpec]) -> tuple[GivenTensor, ...]:
    """Files of tensors by the names of the inputs. Raises UsageError, BadTensor."""
    if not texts:
        return ()
    from din.cli.infer import read_inputs
    from din.client.arrays import encode_array

    if len(texts) == 1 and texts[0].endswith(".json"):
        arrays = _from_json(Path(texts[0]), inputs)
    else:
        found: Any = read_inputs(texts)
        if isinstance(found, Path):
            raise UsageError(
                f"--input {texts[0]!r} is no tensor",
                hint="give FILE.npz or FILE.json with arrays by the names of the inputs, or "
                "NAME=FILE.npy",
            )
        if not isinstance(found, dict) and len(inputs) != 1:
            raise UsageError(
                f"--input {texts[0]!r} names none of the {len(inputs)} inputs",
                hint=f"NAME={texts[0]}, NAME one of {', '.join(each.name for each in inputs)}",
            )
        arrays = found if isinstance(found, dict) else {inputs[0].name: found}
    made: list[GivenTensor] = []
    for name, array in arrays.items():
        datatype, raw = encode_array(name, array)
        made.append(GivenTensor(name=name, datatype=datatype, shape=array.shape, data=bytes(raw)))
    return tuple(made)


def _from_json(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    """Nested lists by input, in the datatypes of the model."""
    import numpy as np

    from din.client.arrays import NUMPY_TYPES

    try:
        content = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        words = {each.name: NUMPY_TYPES.get(each.dtype, "O") for each in inputs}
        return {name: np.array(value, words.get(name)) for name, value in content.items()}
    except OSError as error:
        raise UsageError(
            f"input {str(path)!r} cannot be read: {error.strerror}",
            hint="--input names a file that exists",
        ) from None
    except (*MALFORMED, ValueError, TypeError, OverflowError) as error:
        raise UsageError(
            f"{path} holds no tensors: {error}",
            hint='write nested lists by the names of the inputs: {"x": [[1.0, 2.0]]}',
        ) from None
