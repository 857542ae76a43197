"""`din model inspect --cuts | --plot` and `din model slice`: where a model can be cut, and why it
is cut so."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote as url_quote
from urllib.parse import urlencode

import click

from din.cli import complete
from din.cli.asking import ask
from din.cli.display import UNKNOWN, Column, byte_count, count, show
from din.cli.frame import Command, gateway_option, output_option, say
from din.cli.model import choice_lines, find_model
from din.client.client import Client, decode_answer
from din.client.http import Answer
from din.domain.cuts import way_words
from din.domain.views import CutsView, ModelView, SliceAgainView
from din.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from din.placement.boundaries import Boundaries

ANALYSE_MS: Final = 300_000
"""The model may have to be analysed first, and cut after."""
ROWS_MAX: Final = 40
"""Of a table; the best and the present cuts are always among them."""


class Cut(NamedTuple):
    """One boundary as people see it."""

    after: str
    """Name of the operator before it."""
    share: float
    """Of the device's time that lies before it, 0..1."""
    nbytes: int
    width: int
    is_exact: bool
    is_best: bool
    is_present: bool

    @property
    def is_known(self) -> bool:
        """Whether anything is known of the size of what crosses."""
        return self.is_exact or self.nbytes > 0


def size_words(cut: Cut) -> str:
    """How much crosses, for people."""
    if not cut.is_known:
        return "not known"
    return byte_count(cut.nbytes) if cut.is_exact else f"about {byte_count(cut.nbytes)}"


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


def times_words(view: CutsView) -> str:
    """What the times rest on."""
    return "as measured" if view.times_from == "profile" else "estimated from work"


def cuts_of(view: CutsView) -> list[Cut]:
    """Every open boundary of the graph."""
    from din.placement.boundaries import best_cuts, boundaries_of

    bounds = boundaries_of(view.table)
    best = set(best_cuts(bounds))
    present = _present(view.assignment, bounds)
    total = sum(view.operator_ms) or 1.0
    cuts: list[Cut] = []
    spent = 0.0
    for place, operator in enumerate(view.table.operators[:-1], start=1):
        spent += view.operator_ms[place - 1]
        if bounds.is_open[place]:
            cuts.append(
                Cut(
                    operator.name,
                    spent / total,
                    int(bounds.nbytes[place]),
                    int(bounds.width[place]),
                    bool(bounds.is_exact[place]),
                    place in best,
                    place in present,
                )
            )
    return cuts


def _present(assignment: Sequence[int], bounds: Boundaries) -> set[int]:
    """Boundaries at which the model is cut now, as far as its slices follow each other."""
    size = len(bounds.table.operators)
    return {
        place
        for place in range(1, min(size, len(assignment)))
        if set(assignment[:place]).isdisjoint(assignment[place:])
    }


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
