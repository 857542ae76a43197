"""`din errors` and `din completion`: what can be looked up without a gateway."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from din.cli.display import Column, show
from din.cli.frame import Command, output_option
from din.errors import DinError, NotFound, every_error

CONCRETE: Final = "DIN-"


def meaning(kind: type[DinError]) -> str:
    """What an error means, in one sentence."""
    return " ".join((kind.__doc__ or "").split()).rstrip(".")


COLUMNS: Final[tuple[Column[type[DinError]], ...]] = (
    Column("CODE", lambda kind: kind.code),
    Column("NAME", lambda kind: kind.__name__),
    Column("EXIT", lambda kind: str(kind.exit_code), is_number=True),
    Column("HTTP", lambda kind: str(kind.http_status), is_number=True),
    Column("MEANING", meaning),
)


@click.command(
    "errors", cls=Command, examples=("din errors", "din errors DIN-200", "din errors -o json")
)
@click.argument("code", required=False)
@output_option
def errors(code: str | None, output: str) -> None:
    """What error CODE means, and with which exit code and HTTP status it comes. All without CODE.

    Beside these, exit code 0 is success and 130 is an interruption by Ctrl-C.
    """
    kinds = list(every_error())
    if code is not None:
        wanted = code.upper() if code.upper().startswith(CONCRETE) else f"{CONCRETE}{code}"
        kinds = [kind for kind in kinds if wanted == kind.code or code == kind.__name__]
        if not kinds:
            raise NotFound(f"no error has the code {code!r}", hint="`din errors` lists all")
    document: dict[str, Any] = {
        "schema": "din.errors/1",
        "items": [
            {
                "code": kind.code,
                "name": kind.__name__,
                "exit_code": kind.exit_code,
                "http_status": kind.http_status,
                "meaning": meaning(kind),
            }
            for kind in kinds
        ],
    }
    show(output, json.dumps(document).encode(), kinds, COLUMNS, lambda kind: kind.code)


@click.command(
    "completion",
    cls=Command,
    examples=(
        'eval "$(din completion bash)"',
        "din completion zsh > ~/.zfunc/_din",
        "din completion fish > ~/.config/fish/completions/din.fish",
    ),
)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print completion for a SHELL; it serves `din` and `din-cli`."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    context = click.get_current_context().find_root()
    for name, variable in (("din", "_DIN_COMPLETE"), ("din-cli", "_DIN_CLI_COMPLETE")):
        click.echo(kind(context.command, {}, name, variable).source())
