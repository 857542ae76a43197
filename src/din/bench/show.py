"""Rows as people and programs read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from din.bench.row import Row

WIDTHS: Final = (46, 11, 9, 10, 4)


def header() -> str:
    """Titles of the columns of `as_line`."""
    return _line("WHAT", "VALUE", "UNIT", "GOAL", "OK", "HOW")


def as_line(row: Row) -> str:
    """One row of the table."""
    value = "-" if row.value is None else f"{row.value:g}"
    verdict = {True: "yes", False: "NO", None: "-"}[row.ok]
    return _line(row.name, value, row.unit, row.goal or "-", verdict, row.how)


def as_json(rows: Iterable[Row]) -> str:
    """The list of all rows."""
    return msgspec.json.format(msgspec.json.encode(list(rows)), indent=1).decode()


def _line(*cells: str) -> str:
    name, value, unit, goal, verdict, how = cells
    a, b, c, d, e = WIDTHS
    return f"{name:{a}} {value:>{b}} {unit:{c}} {goal:{d}} {verdict:{e}} {how}"
