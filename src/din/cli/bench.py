"""`din bench`: measures this machine with DIN on it."""

from __future__ import annotations

import click
import msgspec

from din.bench.row import Row
from din.bench.run import BENCHMARKS, chosen, groups, is_complete, run
from din.bench.show import as_json, as_line, header
from din.cli.display import show_document
from din.cli.frame import Command, output_option


@click.command("list", cls=Command, examples=("din bench list", "din bench list -o name"))
@output_option
def list_benchmarks(output: str) -> None:
    """List what can be measured, by group."""
    if output in ("json", "yaml"):
        found = {
            group: {name: BENCHMARKS[name].about for name in names}
            for group, names in groups().items()
        }
        show_document(output, msgspec.json.encode(found))
        return
    for group, names in groups().items():
        click.echo(group)
        for name in names:
            click.echo(name if output == "name" else f"  {name:14} {BENCHMARKS[name].about}")


@click.command(
    "run",
    cls=Command,
    examples=("din bench run road", "din bench run decision link", "din bench run road -o json"),
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@output_option
def run_benchmarks(names: tuple[str, ...], output: str) -> None:
    """Measure groups or single benchmarks; each row says how it was taken.

    Starts gateways and nodes of its own and stops them. A goal that is not reached is shown as NO
    and is no error; exit code 1 means that something could not be measured, and its row says why.
    """
    is_table = output in ("table", "wide")

    def tell(row: Row) -> None:
        if is_table:
            click.echo(as_line(row))
        elif output == "name":
            click.echo(row.name)

    names = chosen(names)
    if is_table:
        click.echo(header())
    rows = run(names, tell)
    if output in ("json", "yaml"):
        show_document(output, as_json(rows).encode())
    if not is_complete(rows):
        raise click.exceptions.Exit(1)
