"""`din service install | status | remove`: gateway and node as services of systemd."""

from __future__ import annotations

import grp
import json
import os
from pathlib import Path
from typing import Final, NamedTuple

import click

from din.cli.display import Column, show
from din.cli.frame import Command, output_option, say
from din.cli.service_place import Place, Systemd, check_readable, found_program, place_of
from din.cli.service_units import (
    DEVICE_GROUPS,
    ROLES,
    STATE_HOME,
    SYSUSERS,
    Facts,
    Role,
    is_edited,
    is_ours,
    unit_name,
    unit_text,
)
from din.errors import Conflict

EXIT_FAILED: Final = 1
USUAL_VERSION: Final = 252
"""Taken by --print where there is no systemd to ask."""

role_argument = click.argument("role", required=False, type=click.Choice(ROLES))
user_option = click.option(
    "--user", "is_user", is_flag=True, help="For your own user, without root."
)


def _roles(role: Role | None) -> tuple[Role, ...]:
    return ROLES if role is None else (role,)


@click.command(
    "install",
    cls=Command,
    examples=(
        "sudo din service install",
        "sudo din service install node",
        "din service install gateway --user",
        "din service install --print",
    ),
)
@role_argument
@user_option
@click.option("--print", "is_print", is_flag=True, help="Print the units and change nothing.")
@click.option("--replace", is_flag=True, help="Also a unit that was edited, or made by others.")
def install(role: Role | None, is_user: bool, is_print: bool, replace: bool) -> None:
    """Make units of systemd for the gateway and the node of this machine, or for one of them.

    Nothing is started. Doing it again brings the units up to date and keeps your drop-ins.
    """
    systemd, place = Systemd(is_user=is_user), place_of(is_user=is_user)
    program = found_program()
    if is_print:
        _print(_roles(role), place, _facts(program, systemd.version() or USUAL_VERSION, place))
        return
    systemd.check_here()
    place.check_writable()
    if place.scope == "system":
        check_readable(program)
    facts = _facts(program, systemd.checked_version(), place)
    texts: dict[Role, str] = {each: unit_text(each, facts) for each in _roles(role)}
    for each in texts:
        _check_replaceable(place.unit(each), is_forced=replace)
    if place.scope == "system":
        place.write(place.sysusers, SYSUSERS)
        systemd.make_user(place.sysusers)
    changed: list[Role] = [
        each for each, text in texts.items() if place.write(place.unit(each), text)
    ]
    if changed:
        systemd.call("daemon-reload")
    _say_installed(texts, changed, place, systemd)


def _facts(program: str, version: int, place: Place) -> Facts:
    here = {each.gr_name for each in grp.getgrall()}
    groups = tuple(each for each in DEVICE_GROUPS if each in here)
    return Facts(program, version, place.scope, groups)


def _print(roles: tuple[Role, ...], place: Place, facts: Facts) -> None:
    if place.scope == "system":
        click.echo(f"# {place.sysusers}\n{SYSUSERS}")
    for each in roles:
        click.echo(f"# {place.unit(each)}\n{unit_text(each, facts)}")


def _check_replaceable(path: Path, *, is_forced: bool) -> None:
    if is_forced or not path.exists():
        return
    text = path.read_text(errors="replace")
    if is_ours(text) and not is_edited(text):
        return
    what = "was edited" if is_ours(text) else "was not made by `din service install`"
    raise Conflict(
        f"{path} {what}",
        hint=f"keep your lines in a drop-in (systemctl edit {path.stem}), then --replace",
    )


def _say_installed(
    texts: dict[Role, str], changed: list[Role], place: Place, systemd: Systemd
) -> None:
    for each in texts:
        click.echo(unit_name(each))
        state = "made" if each in changed else "was up to date"
        say(f"{place.unit(each)} {state}")
    names = " ".join(unit_name(each).removesuffix(".service") for each in texts)
    command = place.command
    running = [each for each in changed if systemd.show(each).active == "active"]
    if running:
        say(f"next: {command} restart {' '.join(f'din-{each}' for each in running)}")
        return
    if place.scope == "user":
        say(f"next: {command} enable --now {names}; loginctl enable-linger, to run without a login")
        return
    say(f"settings: /etc/din/config.yaml; state: {STATE_HOME}/din, of user din")
    say(f"next: {command} enable --now {names}; then: din service status")


class Row(NamedTuple):
    """One unit as systemd and the disk have it."""

    unit: str
    installed: str
    enabled: str
    active: str
    restarts: str
    status: str


COLUMNS: Final[tuple[Column[Row], ...]] = (
    Column("UNIT", lambda row: row.unit),
    Column("INSTALLED", lambda row: row.installed),
    Column("ENABLED", lambda row: row.enabled),
    Column("ACTIVE", lambda row: row.active),
    Column("RESTARTS", lambda row: row.restarts, is_number=True),
    Column("STATUS", lambda row: row.status),
)


@click.command(
    "status",
    cls=Command,
    examples=("din service status", "din service status node -o json"),
)
@role_argument
@user_option
@output_option
def status(role: Role | None, is_user: bool, output: str) -> None:
    """How the units stand, with what each program says of itself. Exit code 1 when one failed."""
    systemd, place = Systemd(is_user=is_user), place_of(is_user=is_user)
    systemd.check_here()
    rows = [_row(each, place, systemd) for each in _roles(role)]
    document = {"schema": "din.service/1", "items": [each._asdict() for each in rows]}
    show(output, json.dumps(document).encode(), rows, COLUMNS, lambda row: row.unit)
    failed = [row.unit for row in rows if row.active == "failed"]
    if failed:
        say(f"next: {'journalctl --user' if is_user else 'journalctl'} -e -u {failed[0]}")
        raise click.exceptions.Exit(EXIT_FAILED)


def _row(role: Role, place: Place, systemd: Systemd) -> Row:
    path, shown = place.unit(role), systemd.show(role)
    if not path.exists():
        installed = "no"
    else:
        text = path.read_text(errors="replace")
        installed = "edited" if is_ours(text) and is_edited(text) else "yes"
        installed = installed if is_ours(text) else "not by din"
    return Row(
        unit_name(role),
        installed,
        shown.enabled or "-",
        shown.active or "-",
        shown.restarts or "-",
        shown.status or "-",
    )


@click.command(
    "remove", cls=Command, examples=("sudo din service remove", "din service remove node --user")
)
@role_argument
@user_option
@click.option("--dry-run", is_flag=True, help="Only say what would be stopped and removed.")
def remove(role: Role | None, is_user: bool, dry_run: bool) -> None:
    """Stop the services and take their units away. State, settings and drop-ins stay."""
    systemd, place = Systemd(is_user=is_user), place_of(is_user=is_user)
    systemd.check_here()
    there: list[Role] = [each for each in _roles(role) if place.unit(each).exists()]
    for each in there:
        if not is_ours(place.unit(each).read_text(errors="replace")):
            raise Conflict(
                f"{place.unit(each)} was not made by `din service install`",
                hint=f"{place.command} disable --now {unit_name(each)}, then remove it yourself",
            )
    if dry_run:
        for each in there:
            say(f"would stop {unit_name(each)} and remove {place.unit(each)}")
        return
    if not there:
        say(f"no unit of DIN is in {place.units}")
        return
    place.check_writable()
    for each in there:
        systemd.call("disable", "--now", unit_name(each))
        place.unit(each).unlink(missing_ok=True)
        say(f"stopped and removed {unit_name(each)}")
    systemd.call("daemon-reload")
    if place.scope == "system" and os.path.isdir(f"{STATE_HOME}/din"):  # noqa: PTH112
        say(f"models and identities stay in {STATE_HOME}/din")
