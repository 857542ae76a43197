"""`din model graph`: the slices of a model as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from din.cli import complete
from din.cli.asking import ask
from din.cli.cuts import cuts_answer
from din.cli.frame import Command, gateway_option, say
from din.client.client import decode_answer
from din.domain.views import CutsView
from din.errors import UsageError

SVG: Final = "svg"
"""As a word in place of a file: to standard output."""


@click.command(
    "graph",
    cls=Command,
    examples=(
        "din model graph centerface -o centerface.svg",
        "din model graph centerface -o svg > centerface.svg",
    ),
)
@click.argument("model", shell_complete=complete.models)
@click.option(
    "-o",
    "--output",
    "output",
    default=SVG,
    show_default=True,
    metavar="FILE.svg",
    help="Where to; `svg` alone writes to standard output.",
)
@gateway_option
def graph(model: str, output: str, gateway: str | None) -> None:
    """Draw the slices of MODEL, coloured by node, and what flows between them.

    Split marks where tensors leave a slice for others, Merge where they come in from others.
    """
    path = Path(output)
    if output != SVG and path.suffix.lower() != ".svg":
        raise UsageError(
            f"-o {output} is neither `svg` nor a file that ends in .svg",
            hint=f"din model graph {model} -o {model}.svg",
        )
    with ask(gateway) as client:
        view = decode_answer(cuts_answer(client, model), CutsView)
    from din.cli.graph_svg import draw_graph

    picture = draw_graph(view)
    if output == SVG:
        click.echo(picture, nl=False)
        return
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="name another file"
        ) from None
    say(f"drawn into {path}")
