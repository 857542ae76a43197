"""`din model inspect --cuts | --plot` and `din model slice`: where a model can be cut, and why it
is cut so."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Final
from urllib.parse import quote as url_quote
from urllib.parse import urlencode

import click

from din.cli import complete
from din.cli.asking import ask
from din.cli.boundaries import Cut, cuts_of, size_words, times_words
from din.cli.display import UNKNOWN, Column, count, show
from din.cli.finding import find_model
from din.cli.frame import Command, gateway_option, output_option, say
from din.cli.slices import choice_lines
from din.client.client import Client, decode_answer
from din.client.http import Answer
from din.domain.cuts import way_words
from din.domain.views import CutsView, ModelView, SliceAgainView
from din.errors import Unavailable, UsageError

ANALYSE_MS: Final = 300_000
"""The model may have to be analysed first, and cut after."""
ROWS_MAX: Final = 40
"""Of a table; the best and the present cuts are always among them."""


def _marks(cut: Cut) -> list[str]:
    return ["best"] * cut.is_best + ["cut here"] * cut.is_present


COLUMNS: Final[tuple[Column[Cut], ...]] = (
    Column("AFTER", lambda cut: cut.after),
    Column("TIME BEFORE", lambda cut: f"{cut.share:.1%}", is_number=True),
    Column("CROSSING", size_words, is_number=True),
    Column("TENSORS", lambda cut: str(cut.width), is_number=True),
    Column("", lambda cut: " ".join(_marks(cut))),
)


def cuts_answer(client: Client, model: str) -> Answer:
    """The cuts of a model by its id or the start of it."""
    view = decode_answer(find_model(client, model), ModelView)
    query = urlencode({"version": view.version})
    path = f"/api/v1/models/{url_quote(view.model_id, safe='')}/cuts?{query}"
    return client.call("GET", path, timeout_ms=ANALYSE_MS)


def sliced_again(client: Client, model_id: str) -> Answer:
    """What came of choosing the cuts of a model again."""
    path = f"/api/v1/models/{url_quote(model_id, safe='')}/slice"
    return client.call("POST", path, is_idempotent=False, timeout_ms=ANALYSE_MS)


def show_cuts(model: str, gateway: str | None, output: str, plot: Path | None) -> None:
    """Print the boundaries, or draw them."""
    if plot is not None:
        _check_plot(plot)
    with ask(gateway) as client:
        answer = cuts_answer(client, model)
    view = decode_answer(answer, CutsView)
    cuts = cuts_of(view)
    shown = _shortened(cuts) if output == "table" else cuts
    show(output, answer.body, shown, COLUMNS, lambda cut: cut.after)
    if output in ("table", "wide"):
        where = f" on {view.device}" if view.device else ""
        say(f"time before: share of the operators' time{where}, {times_words(view)}")
        say("best: no earlier cut has as few bytes")
        for way in view.ways:
            say(way_words(way))
        if len(shown) < len(cuts):
            say(f"{len(shown)} of {count(len(cuts), 'possible cut')} shown; -o wide shows all")
    if plot is not None:
        from din.cli.cuts_plot import draw_cuts

        draw_cuts(view, cuts, plot)
        say(f"drawn into {plot}")


def _shortened(cuts: Sequence[Cut]) -> list[Cut]:
    """The marked ones, and as many others, evenly, as there is room for."""
    kept = {number for number, cut in enumerate(cuts) if cut.is_best or cut.is_present}
    room = max(ROWS_MAX - len(kept), 0)
    if room:
        kept.update(range(0, len(cuts), max(1, -(-len(cuts) // room))))
    return [cuts[number] for number in sorted(kept)]


def _check_plot(path: Path) -> None:
    """Before anything is asked: whether the picture could be written at all."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError(
            f"--plot {path} has no picture's ending", hint="name a file that ends in .png"
        )
    if find_spec("matplotlib") is None:
        raise Unavailable(
            "--plot needs matplotlib, which is not installed",
            hint=f"{quote(sys.executable)} -m pip install matplotlib, or look at the same numbers "
            "with --cuts alone",
        )


@click.command(
    "slice",
    cls=Command,
    examples=("din model slice detector", "din model slice detector -o json"),
)
@click.argument("model", shell_complete=complete.models)
@gateway_option
@output_option
def slice_model(model: str, gateway: str | None, output: str) -> None:
    """Choose the cuts of MODEL again, for the nodes that are here now.

    MODEL was registered with --auto. What stands is replaced only by what is expected to win by
    10 %; it serves until the new slices are ready.
    """
    with ask(gateway) as client:
        found = decode_answer(find_model(client, model), ModelView)
        answer = sliced_again(client, found.model_id)
    view = decode_answer(answer, SliceAgainView)
    show(output, answer.body, (view,), SLICED, lambda each: each.model_id)
    if output in ("table", "wide"):
        say(view.reason)
        for line in choice_lines(view.choice)[1:] if view.is_changed else ():
            say(line)
        if view.is_changed:
            say(f"next: din model inspect {view.model_id} --watch")


def _cost(view: SliceAgainView, cost: float) -> str:
    """What is made small, as people think of it: a throughput is answers and no milliseconds."""
    if view.choice.objective == "throughput" and cost > 0:
        return f"{1000 / cost:.1f}/s"
    return f"{cost:.1f} {view.choice.unit}"


SLICED: Final[tuple[Column[SliceAgainView], ...]] = (
    Column("MODEL", lambda each: each.model_id),
    Column("VERSION", lambda each: each.version, is_number=True),
    Column("CHANGED", lambda each: "yes" if each.is_changed else "no"),
    Column("SLICES", lambda each: str(len(each.choice.slices)), is_number=True),
    Column(
        "BEFORE",
        lambda each: UNKNOWN if each.cost_before is None else _cost(each, each.cost_before),
        is_number=True,
    ),
    Column("CHOSEN", lambda each: _cost(each, each.choice.cost), is_number=True),
)
