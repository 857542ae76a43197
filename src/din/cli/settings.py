"""`din config show | explain`."""

from __future__ import annotations

import json
import os
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, cast

import click

from din.cli.display import UNKNOWN, Column, show, show_facts
from din.cli.frame import Command, output_option, say
from din.cli.knobs import (
    Knob,
    Origin,
    build,
    knobs,
)
from din.cli.sources import SYSTEM_FILE, Loaded, collect, load_gateway, load_node, user_file
from din.config import SECTIONS
from din.config_forms import Section
from din.errors import NotFound


class Row(NamedTuple):
    """One key with the value in force."""

    knob: Knob
    origin: Origin


COLUMNS: Final[tuple[Column[Row], ...]] = (
    Column("KEY", lambda row: f"{row.knob.section}.{row.knob.key}"),
    Column("VALUE", lambda row: text_of(row.origin.value)),
    Column("UNIT", lambda row: row.knob.unit),
    Column("FROM", lambda row: row.origin.source),
    Column("MEANING", lambda row: row.knob.meaning, is_wide=True),
    Column("ALLOWED", lambda row: row.knob.allowed, is_wide=True),
)


def text_of(value: object) -> str:
    """A value as the file would have it; `-` where it is empty."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or value in ("", (), {}):
        return UNKNOWN
    return value if isinstance(value, str) else json.dumps(value)


def _rows() -> list[Row]:
    found: list[Row] = []
    by_name = {(knob.section, knob.key): knob for knob in knobs()}
    for section in SECTIONS:
        loaded = collect(section, {}, os.environ)
        for warning in loaded.warnings:
            if section == "gateway":
                say(f"warning: {warning}")
        config = _in_force(section, loaded)
        for key, origin in loaded.values.items():
            value: object = getattr(config, key)
            found.append(Row(by_name[section, key], Origin(value, origin.source)))
    return found


def _in_force(section: Section, loaded: Loaded) -> Any:
    """Settings as the program gets them: with the names and places that depend on this machine."""
    loaders = {"gateway": load_gateway, "node": load_node}
    if section in loaders:
        return loaders[section]({}, os.environ)
    return build(cast("type[Any]", SECTIONS[section]), loaded.values)


@click.command(
    "show",
    cls=Command,
    examples=("din config show", "din config show --section node", "din config show -o json"),
)
@click.option("--section", type=click.Choice(tuple(SECTIONS)), help="Only this program's.")
@click.option("--effective", is_flag=True, help="The values in force; this is always so.")
@click.option("--origin", is_flag=True, help="Where each comes from; this is always shown.")
@output_option
def show_config(section: Section | None, effective: bool, origin: bool, output: str) -> None:
    """Settings in force, and whether each is a default or comes from a file or a variable.

    Flags win over variables (DIN_PORT, DIN_NODE_PORT), those over ~/.config/din/config.yaml, that
    over /etc/din/config.yaml. A file holds keys of both programs, and sections for one:

    \b
      cluster: line-4
      gateway: {port: 8800}
      node: {labels: {line: "4"}}
    """
    del effective, origin
    rows = [row for row in _rows() if section in (None, row.knob.section)]
    document = {
        "schema": "din.config/1",
        "files": [str(SYSTEM_FILE), str(user_file(os.environ))],
        "items": [_item(row) for row in rows],
    }
    show(output, json.dumps(document).encode(), rows, COLUMNS, COLUMNS[0].cell)
    if output in ("table", "wide"):
        say(f"files: {SYSTEM_FILE}, {user_file(os.environ)}; variables: DIN_<KEY>")


def _item(row: Row) -> dict[str, object]:
    return {
        "section": row.knob.section,
        "key": row.knob.key,
        "value": row.origin.value,
        "unit": row.knob.unit,
        "from": row.origin.source,
    }


@click.command(
    "explain",
    cls=Command,
    examples=("din config explain node_heartbeat_jitter_ms", "din config explain node.port"),
)
@click.argument("key")
def explain_config(key: str) -> None:
    """What KEY means, what it allows, and what it is now."""
    wanted = key.replace("-", "_").removeprefix("__")
    rows = [
        row for row in _rows() if wanted in (row.knob.key, f"{row.knob.section}.{row.knob.key}")
    ]
    if not rows:
        close = get_close_matches(wanted, {knob.key for knob in knobs()}, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "`din config show` lists all keys"
        raise NotFound(f"no setting is called {key!r}", hint=hint)
    for index, row in enumerate(rows):
        if index:
            click.echo()
        show_facts(_facts(row))


def _facts(row: Row) -> list[tuple[str, str]]:
    knob = row.knob
    return [
        ("key", f"{knob.section}.{knob.key}"),
        ("meaning", knob.meaning),
        ("allowed", knob.allowed + (f" ({knob.unit})" if knob.unit else "")),
        ("default", text_of(knob.default)),
        ("now", f"{text_of(row.origin.value)} (from {row.origin.source})"),
        ("variable", f"DIN_{knob.section}_{knob.key}".upper()),
    ]
