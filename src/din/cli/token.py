"""`din token create | list | revoke`."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from din.cli import complete
from din.cli.asking import ask
from din.cli.display import UNKNOWN, Column, duration, show, show_document
from din.cli.frame import Command, gateway_option, output_option, say
from din.cli.options import pairs
from din.cli.quantities import parse_duration_s
from din.client.client import decode_answer
from din.domain.enrolment import (
    TOKEN_TTL_S,
    TOKEN_TTL_S_MAX,
    CreateToken,
    NewToken,
    TokenList,
    TokenView,
)
from din.errors import Denied, UsageError

TOKENS_PATH: Final = "/api/v1/trust/tokens"


def _labels(token: TokenView) -> str:
    return ",".join(f"{name}={text}" for name, text in token.labels.items())


def _expires_in(token: TokenView) -> str:
    return duration(token.expires_in_s * 1000) if token.state == "open" else UNKNOWN


COLUMNS: Final[tuple[Column[TokenView], ...]] = (
    Column("ID", lambda token: token.id),
    Column("STATE", lambda token: token.state),
    Column("EXPIRES IN", _expires_in, is_number=True),
    Column("LABELS", lambda token: _labels(token) or UNKNOWN),
    Column("USED BY", lambda token: token.used_by or UNKNOWN),
)


@click.command(
    "create",
    cls=Command,
    examples=(
        "din token create",
        "din token create --ttl 1h --label line=4",
        "din token create -o name | ssh edge-1 din node join -",
    ),
)
@click.option("--ttl", metavar="SPAN", help="How long it may be used: 90s, 15m, 1h; 15m.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    help="Label that the machine gets by joining. Repeatable.",
)
@gateway_option
@output_option
def create_token(
    ttl: str | None, labels: tuple[str, ...], gateway: str | None, output: str
) -> None:
    """Make a token by which one machine may join. It is shown once, and is a secret."""
    asked_s = parse_duration_s("--ttl", ttl)
    ttl_s = TOKEN_TTL_S if asked_s is None else asked_s
    if not 1 <= ttl_s <= TOKEN_TTL_S_MAX:
        raise UsageError(f"--ttl is {ttl!r}", hint="a join token works for 1s to 7d")
    order = CreateToken(ttl_s=ttl_s, labels=pairs("--label", labels))
    with ask(gateway) as client:
        answer = client.call("POST", TOKENS_PATH, msgspec.json.encode(order), is_idempotent=False)
    if output in ("json", "yaml"):
        show_document(output, answer.body)
        return
    made = decode_answer(answer, NewToken)
    click.echo(made.token)
    _say_command(made)


def show_new_token(url: str) -> None:
    """Print a token for the first machine, and what to type there. Where the gateway asks for a
    key that is not given, say how one is made."""
    body = msgspec.json.encode(CreateToken())
    try:
        with ask(url) as client:
            answer = client.call("POST", TOKENS_PATH, body, is_idempotent=False)
    except Denied:
        say("other machines join by a token, made with a key: din token create --key-file FILE")
        return
    made = decode_answer(answer, NewToken)
    say(f"join token, for one machine, once: {made.token}")
    _say_command(made)


def _say_command(made: NewToken) -> None:
    where = next((each for each in made.gateways if "127.0.0.1" not in each), "")
    named = f" --gateway {where}" if where else ""
    say(f"on the other machine, within {duration(made.ttl_s * 1000)}:")
    say(f"  din node join -{named}     and paste the token there")


@click.command("list", cls=Command, examples=("din token list", "din token list -o json"))
@gateway_option
@output_option
def list_tokens(gateway: str | None, output: str) -> None:
    """List tokens, without their secrets. Used and expired ones are kept for a day."""
    with ask(gateway) as client:
        answer = client.call("GET", TOKENS_PATH)
    items = decode_answer(answer, TokenList).items
    show(output, answer.body, items, COLUMNS, lambda token: token.id)
    if output in ("table", "wide") and not items:
        say("there is no join token\nhint: make one with `din token create`")


@click.command("revoke", cls=Command, examples=("din token revoke 434d5aaa", "din token revoke 43"))
@click.argument("token_id", metavar="ID", shell_complete=complete.tokens)
@gateway_option
def revoke_token(token_id: str, gateway: str | None) -> None:
    """Take a token back, by ID or the start of one. A machine that has joined with it stays: `din
    node revoke`."""
    from urllib.parse import quote

    with ask(gateway) as client:
        answer = client.call("DELETE", f"{TOKENS_PATH}/{quote(token_id, safe='')}")
    say(f"token {decode_answer(answer, TokenView).id} admits nobody any more")
