"""`din node join` and `din node revoke`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec import Struct

from din.cli import complete, daemon
from din.cli.asking import ask
from din.cli.frame import Command, gateway_option, say
from din.cli.secrets import read_secret_text
from din.cli.sources import load_node
from din.client.client import decode_answer
from din.domain.enrolment import Membership, RevokedView
from din.domain.malformed import MALFORMED
from din.errors import Conflict, Unavailable
from din.system.identity import claim_directory
from din.transport.find import BROWSE_COMMAND
from din.transport.membership import (
    CHILD_S,
    FOLDER,
    GATEWAYS_MAX,
    EnrolOrder,
    decode_enrol_answer,
    enrol_command,
)
from din.wire.gateway_url import TLS_PORT, gateway_url
from din.wire.join_token import parse_join_token

BROWSE_MS: Final = 2500
BROWSE_S: Final = 10.0
HERE: Final = f"https://127.0.0.1:{TLS_PORT}"


class _Announced(Struct):
    tls_urls: tuple[str, ...] = ()


@click.command(
    "join",
    cls=Command,
    examples=(
        "din node join - --name edge-1",
        "din node join --token-file token.txt --gateway https://10.0.0.5:8443",
        "din node join DIN1.5f0c... --name edge-1",
    ),
)
@click.argument("token", required=False)
@click.option("--token-file", type=click.Path(), metavar="FILE", help="Where the token stands.")
@click.option("--name", help="Of this node; from the host name.")
@click.option(
    "--gateway",
    multiple=True,
    metavar="URL",
    help="Join by this one; else those that announce themselves. Repeatable.",
)
@click.option(
    "--state-dir",
    type=click.Path(),
    metavar="PATH",
    help="Of this node alone; as for `din node start`.",
)
def join_node(
    token: str | None,
    token_file: str | None,
    name: str | None,
    gateway: tuple[str, ...],
    state_dir: str | None,
) -> None:
    """Make this machine a node of a cluster, by a TOKEN of `din token create`.

    - reads the token from standard input, which no other user can look at; as an argument it stays
    in the shell's history. Nothing secret is sent before the gateway has proved that it belongs to
    the authority in the token. `din node start` uses the certificate by itself.
    """
    text = read_secret_text(token, token_file)
    parse_join_token(text)
    config = load_node({"name": name, "state_dir": state_dir}, os.environ)
    urls = tuple(gateway_url(each, "https") for each in gateway)
    _check_stopped(config.name, config.state_dir)
    urls = urls or _announced()
    with claim_directory(Path(config.state_dir), f"din node join {config.name}") as claim:
        identity = claim.next_identity()
        order = EnrolOrder(
            folder=str(Path(config.state_dir) / FOLDER),
            gateways=urls[:GATEWAYS_MAX],
            token=text,
            node_id=identity.node_id,
            name=config.name,
        )
        membership = run_enrol(order)
    click.echo(membership.node_id)
    listed = membership.name or config.name
    say(f"{listed} has joined cluster {membership.cluster} as node {membership.node_id}")
    if listed != config.name:
        say(f"the name {config.name} is another machine's: this one is listed as {listed}")
        say(f"if that one is gone for good, `din node revoke {config.name}` frees its name")
    place = f" --state-dir {state_dir}" if state_dir else ""
    say(f"next: din node start --name {config.name} --host 0.0.0.0{place}")


def _check_stopped(name: str, state_dir: str) -> None:
    running = daemon.read_record(daemon.run_folder(state_dir) / "node.json")
    if running is not None:
        raise Conflict(
            f"node {running.name} runs (process {running.pid}), and takes a certificate at its "
            "start only",
            hint=f"din node stop --state-dir {state_dir}, then join {name}, then start it again",
        )


def run_enrol(order: EnrolOrder) -> Membership:
    """What the joining child brings. Raises the error that it tells, or Unavailable."""
    try:
        done = subprocess.run(
            enrol_command("join"),
            input=msgspec.json.encode(order),
            stdout=subprocess.PIPE,
            timeout=CHILD_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(
            f"no gateway has let this machine join in {CHILD_S:g} s",
            hint="see on the gateway's machine what it does: din doctor",
        ) from None
    return decode_enrol_answer(done.stdout)


def _announced() -> tuple[str, ...]:
    """Where gateways say that they speak TLS, and this machine: hints, the token decides."""
    say("looking for gateways; --gateway https://HOST:8443 names one")
    try:
        done = subprocess.run(
            [*BROWSE_COMMAND, f"--timeout-ms={BROWSE_MS}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=BROWSE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return (HERE,)
    return (*_urls_in(done.stdout.splitlines()), HERE)


def _urls_in(lines: Sequence[bytes]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for line in lines:
        try:
            found.update(dict.fromkeys(msgspec.json.decode(line, type=_Announced).tls_urls))
        except MALFORMED:
            continue  # an announcement may say anything
    return tuple(each for each in found if "//127.0.0.1:" not in each)[: GATEWAYS_MAX - 1]


@click.command(
    "revoke", cls=Command, examples=("din node revoke edge-1", "din node revoke 3f9a --dry-run")
)
@click.argument("node", shell_complete=complete.nodes)
@gateway_option
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
def revoke_node(node: str, **options: Any) -> None:
    """Throw NODE out for good: its links are closed and its certificate is worth nothing.

    There is no way back for its id; the machine may join anew with an empty state directory.
    """
    from urllib.parse import quote

    path = f"/api/v1/nodes/{quote(node, safe='')}/revoke"
    if options["dry_run"]:
        path += "?dry_run=true"
    with ask(options["gateway"]) as client:
        view = decode_answer(client.call("POST", path), RevokedView)
    named = f"{view.name} ({view.node_id})" if view.name else f"node {view.node_id}"
    if not view.is_new:
        told = f"{named} is out, and was before"
    elif options["dry_run"]:
        told = f"would throw {named} out for good: links closed, certificate worth nothing"
    else:
        told = f"{named} is out"
    click.echo(view.node_id)
    say(told)
