"""Answers as table, wide, json, name or yaml. Tables are plain text; rich colours a terminal's."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import click
import msgspec

from din.observability.printable import one_line, printable, printable_json

Item = TypeVar("Item")

UNKNOWN: Final = "-"
WATCH_INTERVAL_S: Final = 2.0
COLOURS: Final = {
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
    "ready": "green",
    "completed": "green",
    "joining": "yellow",
    "placing": "yellow",
    "loading": "yellow",
    "draining": "yellow",
    "degraded": "yellow",
    "idle": "cyan",
    "suspect": "yellow",
    "assigned": "yellow",
    "lost": "red",
    "failed": "red",
}


class Column(NamedTuple, Generic[Item]):
    """A title and what it shows of one item; wide columns only with -o wide."""

    title: str
    cell: Callable[[Item], str]
    is_wide: bool = False
    is_number: bool = False


def is_terminal() -> bool:
    """Whether stdout is a person's terminal that may show colour."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def show(
    output: str,
    body: bytes,
    items: Sequence[Item],
    columns: Sequence[Column[Item]],
    name_of: Callable[[Item], str],
) -> None:
    """Print an answer in one of the five forms; `body` is the JSON that HTTP gave."""
    if output in ("json", "yaml"):
        show_document(output, body)
    elif output == "name":
        for item in items:
            click.echo(one_line(name_of(item)))
    else:
        chosen = [each for each in columns if output == "wide" or not each.is_wide]
        show_table(chosen, items)


def show_document(output: str, body: bytes) -> None:
    """JSON as HTTP gave it, indented, or the same as YAML."""
    if output == "yaml":
        import yaml

        content = msgspec.json.decode(body)
        document = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        if document != printable(document):
            document = yaml.safe_dump(content, sort_keys=False, allow_unicode=False)
        click.echo(document, nl=False)
    else:
        click.echo(printable_json(msgspec.json.format(body, indent=2).decode()))


def show_table(columns: Sequence[Column[Item]], items: Sequence[Item]) -> None:
    """Aligned columns, at least a title line."""
    rows = [[one_line(column.cell(item)) for column in columns] for item in items]
    if is_terminal():
        _show_rich(columns, rows)
        return
    widths = [
        max([len(column.title), *(len(row[index]) for row in rows)])
        for index, column in enumerate(columns)
    ]
    for row in [[column.title for column in columns], *rows]:
        cells = [
            cell.rjust(width) if column.is_number else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def _show_rich(columns: Sequence[Column[Any]], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        justify = "right" if column.is_number else "left"
        table.add_column(column.title, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in row))
    Console(highlight=False).print(table)


def show_facts(facts: Sequence[tuple[str, str]]) -> None:
    """`name: value` lines, values aligned; empty values are left out."""
    shown = [(name, value) for name, value in facts if value]
    width = max((len(name) for name, _ in shown), default=0) + 2
    for name, value in shown:
        lines = printable(value).splitlines()
        click.echo(f"{name}:".ljust(width) + lines[0])
        for line in lines[1:]:
            click.echo(" " * width + line)


def number(value: float | None, digits: int = 0) -> str:
    """A number, or `-` when it was not measured."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def mebibytes(value: float | None) -> str:
    """A size in MiB or GiB, or `-` when it was not measured."""
    if value is None:
        return UNKNOWN
    return f"{value / 1024:.1f} GiB" if value >= 1024 else f"{value:.0f} MiB"


def byte_count(value: int | None) -> str:
    """A number of bytes in the unit that reads best, or `-`."""
    if value is None:
        return UNKNOWN
    amount, unit = float(value), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def count(number: int, word: str) -> str:
    """`1 slice`, `3 slices`."""
    return f"{number} {word}" + ("" if number == 1 else "s")


def duration(value_ms: float) -> str:
    """Milliseconds as people say them."""
    if value_ms < 1000:
        return f"{value_ms:.0f} ms"
    if value_ms < 120_000:
        return f"{value_ms / 1000:.1f} s"
    return f"{value_ms / 60_000:.0f} min"


def repeat(draw: Callable[[], None], *, is_watching: bool) -> None:
    """Draw once, or again and again on a cleared screen until Ctrl-C."""
    while True:
        if is_watching and sys.stdout.isatty():
            click.clear()
        draw()
        if not is_watching:
            return
        sys.stdout.flush()
        time.sleep(WATCH_INTERVAL_S)
