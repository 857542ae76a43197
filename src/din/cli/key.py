"""`din key create | list | revoke`."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
import msgspec

from din.cli import complete
from din.cli.asking import ask
from din.cli.display import UNKNOWN, Column, show, show_document, show_facts
from din.cli.frame import Command, gateway_option, output_option, say
from din.cli.quantities import parse_bytes, parse_duration_s
from din.client.client import decode_answer
from din.domain.keys import CreateKey, KeyCreated, KeyList, KeyView
from din.domain.trust import SCOPES
from din.errors import Conflict, NotFound, UsageError


def _minute(moment: str | None) -> str:
    return (moment or "")[:16].replace("T", " ")


def _rate(key: KeyView) -> str:
    if key.requests_per_s is None:
        return UNKNOWN
    burst = f" burst {key.burst}" if key.burst is not None else ""
    return f"{key.requests_per_s:g}/s{burst}"


COLUMNS: Final[tuple[Column[KeyView], ...]] = (
    Column("ID", lambda key: key.id),
    Column("NAME", lambda key: key.name),
    Column("STATE", lambda key: key.state),
    Column("TENANT", lambda key: key.tenant),
    Column("SCOPES", lambda key: ",".join(key.scopes)),
    Column("EXPIRES (UTC)", lambda key: _minute(key.expires_at) or "never"),
    Column("LAST USED (UTC)", lambda key: _minute(key.used_at) or UNKNOWN),
    Column("RATE", _rate, is_wide=True),
    Column("BODY MAX", lambda key: str(key.body_bytes_max or UNKNOWN), is_wide=True),
    Column("CREATED (UTC)", lambda key: _minute(key.created_at), is_wide=True),
    Column("BY", lambda key: key.created_by, is_wide=True),
)


@click.command(
    "create",
    cls=Command,
    examples=(
        "din key create line-4 --scope infer --tenant line-4 --expires 90d --save line-4.key",
        "din key create grafana --scope metrics:read",
        "din key create root --scope admin -o json",
    ),
)
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice(SCOPES),
    help="What it may do. Repeatable.",
)
@click.option("--tenant", default="default", show_default=True, help="Whose models it sees.")
@click.option("--expires", metavar="TIME", help="Life such as 12h or 90d; else it never ends.")
@click.option("--rate", type=float, metavar="N", help="Requests a second.")
@click.option("--burst", type=int, metavar="N", help="Requests at once above the rate.")
@click.option("--body-max", metavar="SIZE", help="Of one request, such as 8MiB.")
@click.option(
    "--save",
    type=click.Path(),
    metavar="FILE",
    help="Write the key to a new file of mode 600 instead.",
)
@gateway_option
@output_option
def create_key(
    name: str,
    scopes: tuple[str, ...],
    tenant: str,
    expires: str | None,
    rate: float | None,
    burst: int | None,
    body_max: str | None,
    save: str | None,
    gateway: str | None,
    output: str,
) -> None:
    """Make an API key called NAME and print it, this once.

    On the gateway's machine this needs no key itself, unless the gateway asks for keys there too
    (require_key): then only the first key with scope admin is made without one.
    """
    order = msgspec.convert(
        {
            "name": name,
            "scopes": scopes,
            "tenant": tenant,
            "life_s": parse_duration_s("--expires", expires),
            "requests_per_s": rate,
            "burst": burst,
            "body_bytes_max": parse_bytes("--body-max", body_max),
        },
        CreateKey,
    )
    with _new_file(save) as write, ask(gateway) as client:
        body = msgspec.json.encode(order)
        answer = client.call("POST", "/api/v1/keys", body, is_idempotent=False)
        made = decode_answer(answer, KeyCreated)
        write(f"{made.key}\n")
    if save is not None:
        _show_view(made.view, output)
        say(f"the key is in {save}; use it: --key-file {save}, or DIN_API_KEY_FILE")
        return
    if output in ("json", "yaml"):
        show_document(output, answer.body)
    else:
        click.echo(made.key)
    say(f"this is key {made.view.id}; it is shown this once. Keep it in a file of mode 600")


@contextmanager
def _new_file(path: str | None) -> Generator[Callable[[str], object]]:
    """Write into a file that is made before a key is, and is gone when none was made."""
    if path is None:
        yield lambda _: None
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Conflict(f"{path} exists already", hint="give --save a new name") from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}",
            hint="name a file in a folder that you may write to",
        ) from None
    with open(descriptor, "w") as file:
        try:
            yield file.write
        except BaseException:
            Path(path).unlink()
            raise


def _show_view(view: KeyView, output: str) -> None:
    if output in ("json", "yaml"):
        show_document(output, msgspec.json.encode(view))
    else:
        click.echo(view.id)


@click.command("list", cls=Command, examples=("din key list", "din key list -o json"))
@gateway_option
@output_option
def list_keys(gateway: str | None, output: str) -> None:
    """All API keys, without their secrets; revoked and expired ones too."""
    with ask(gateway) as client:
        answer = client.call("GET", "/api/v1/keys")
    view = decode_answer(answer, KeyList)
    show(output, answer.body, view.items, COLUMNS, lambda key: key.id)
    if not view.items and output in ("table", "wide"):
        say("no API key yet\nhint: din key create NAME --scope infer")


@click.command("revoke", cls=Command, examples=("din key revoke 3f9a12bc", "din key revoke line-4"))
@click.argument("key", shell_complete=complete.keys)
@click.option("--dry-run", is_flag=True, help="Only say which key it would be.")
@gateway_option
@output_option
def revoke_key(key: str, dry_run: bool, gateway: str | None, output: str) -> None:
    """Take an API key away, by id, the start of an id, or name; at once, for good."""
    from urllib.parse import quote

    with ask(gateway) as client:
        if dry_run:
            view = _find(decode_answer(client.call("GET", "/api/v1/keys"), KeyList), key)
            show_facts([("id", view.id), ("name", view.name), ("state", view.state)])
            say("nothing was changed")
            return
        answer = client.call("DELETE", f"/api/v1/keys/{quote(key, safe='')}")
    view = decode_answer(answer, KeyView)
    _show_view(view, output)
    say(f"key {view.id} ({view.name}) is revoked")


def _find(keys: KeyList, wanted: str) -> KeyView:
    """As the gateway finds it. Raises NotFound or Conflict."""
    exact = [each for each in keys.items if each.id == wanted]
    found = exact or [
        each
        for each in keys.items
        if each.name == wanted or (wanted and each.id.startswith(wanted))
    ]
    live = [each for each in found if each.state != "revoked"] or found
    if len(live) > 1:
        ids = ", ".join(sorted(each.id for each in live)[:4])
        raise Conflict(f"{wanted!r:.80} means {len(live)} API keys", hint=f"ids: {ids}")
    if not live:
        raise NotFound(f"no API key {wanted!r:.80}", hint="`din key list` shows all")
    return live[0]
