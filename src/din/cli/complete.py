"""Names that TAB completes, asked from the gateway; none when it does not answer."""

from __future__ import annotations

from collections.abc import Callable

import click

from din.cli.asking import ask
from din.client.client import Client
from din.errors import DinError


def models(context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Ids of models."""
    return _names(context, start, lambda client: [each.model_id for each in client.models().items])


def nodes(context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Names of nodes."""
    return _names(context, start, lambda client: [each.name for each in client.nodes().items])


def _names(context: click.Context, start: str, get: Callable[[Client], list[str]]) -> list[str]:
    try:
        with ask(context.params.get("gateway")) as client:
            return [each for each in get(client) if each.startswith(start)]
    except DinError:
        return []  # an error in the middle of a command line helps nobody; the command tells it
