"""Names that TAB completes, asked from the gateway; none when it does not answer."""

from __future__ import annotations

from collections.abc import Callable

import click

from din.cli.asking import ask
from din.client.client import Client, decode_answer
from din.domain.enrolment import TokenList
from din.domain.keys import KeyList
from din.errors import DinError


def models(context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Ids of models."""
    return _names(context, start, lambda client: [each.model_id for each in client.models().items])


def nodes(context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Names of nodes."""
    return _names(context, start, lambda client: [each.name for each in client.nodes().items])


def keys(context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Names of API keys that count."""

    def names(client: Client) -> list[str]:
        found = decode_answer(client.call("GET", "/api/v1/keys"), KeyList).items
        return [each.name for each in found if each.state == "active"]

    return _names(context, start, names)


def tokens(context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Ids of join tokens that admit somebody yet."""

    def ids(client: Client) -> list[str]:
        found = decode_answer(client.call("GET", "/api/v1/trust/tokens"), TokenList).items
        return [each.id for each in found if each.state == "open"]

    return _names(context, start, ids)


def _names(context: click.Context, start: str, get: Callable[[Client], list[str]]) -> list[str]:
    try:
        with ask(context.params.get("gateway")) as client:
            return sorted({each for each in get(client) if each.startswith(start)})
    except DinError:
        return []  # an error in the middle of a command line helps nobody; the command tells it
