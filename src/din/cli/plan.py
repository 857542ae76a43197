"""`din plan`: where a request would run, and why not elsewhere. Touches no node."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

import click

from din.cli import complete
from din.cli.asking import ask
from din.cli.display import UNKNOWN, Column, mebibytes, number, show, show_table
from din.cli.frame import Command, gateway_option, output_option, say
from din.client.client import decode_answer
from din.domain.plan import Placement, Plan, Rejection
from din.domain.views import PlanView
from din.errors import CannotPlace

COLUMNS: Final[tuple[Column[Placement], ...]] = (
    Column("SLICE", lambda placed: str(placed.slice_index), is_number=True),
    Column("NAME", lambda placed: placed.slice_name),
    Column("NODE", lambda placed: placed.node),
    Column("REASON", lambda placed: placed.reason),
    Column("EXPECTED MS", lambda placed: number(placed.expected_ms, 1), is_number=True),
    Column("MEMORY", lambda placed: mebibytes(placed.memory_mib or None), is_number=True),
    Column("NODE ID", lambda placed: placed.node_id, is_wide=True),
)
REJECTION_COLUMNS: Final[tuple[Column[Rejection], ...]] = (
    Column("SLICE", lambda each: str(each.slice_index), is_number=True),
    Column("NOT ON", lambda each: each.node),
    Column("BECAUSE", lambda each: each.constraint),
    Column("SEEN", lambda each: each.observed or UNKNOWN),
    Column("NEEDED", lambda each: each.required or UNKNOWN),
    Column("DETAIL", lambda each: each.detail, is_wide=True),
)


@click.command(
    "plan",
    cls=Command,
    examples=("din plan centerface", "din plan centerface -o json", "din plan centerface -o wide"),
)
@click.argument("model", shell_complete=complete.models)
@click.option("--version", "version", help="Else the newest.")
@gateway_option
@output_option
def plan(model: str, version: str | None, gateway: str | None, output: str) -> None:
    """Where a request to MODEL would run, and why each other node was not chosen.

    Exit code 3 when no node fits.
    """
    query = {"model": model} | ({"version": version} if version is not None else {})
    with ask(gateway) as client:
        answer = client.call("GET", f"/api/v1/plan?{urlencode(query)}")
    found = decode_answer(answer, PlanView).plan
    # The replicas of a slice stand together, the first choice before the others.
    placed = sorted(found.placements, key=lambda each: each.slice_index)
    show(output, answer.body, placed, COLUMNS, lambda each: each.node)
    if output in ("table", "wide"):
        explain_plan(found, is_wide=output == "wide")
    if not found.placements:
        raise CannotPlace(
            f"no node can run model {found.model_id!r}",
            hint=f"the reasons: din plan {found.model_id} -o wide; the nodes: din node list",
        )


def explain_plan(found: Plan, *, is_wide: bool) -> None:
    """The rejections as a table, and the notes."""
    rejections = found.rejections or tuple(
        each for count in found.rejection_counts for each in count.examples
    )
    if rejections:
        click.echo()
        columns = [each for each in REJECTION_COLUMNS if is_wide or not each.is_wide]
        show_table(columns, rejections)
    if not found.rejections:
        for count in found.rejection_counts:
            if count.count > len(count.examples):
                say(f"{count.count} nodes in all were not chosen because of {count.constraint}")
    for first, second in found.relays:
        say(f"the gateway relays from {first} to {second}, which {first} cannot dial")
    if found.is_split_refused:
        say("one node alone is expected to be faster than the split that was asked for")
    for note in found.notes:
        say(note)
    if found.expected_ms is not None:
        say(f"expected {found.expected_ms:.1f} ms by policy {found.policy}")
