"""How `din doctor` makes its rows: all at once, each within a time of its own.

A driver, a mount or a gateway that stands still costs its own row, which then says so. What cannot
be looked at is never `ok`.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from din.cli.check import Check, State
from din.cli.frame import say, verbosity
from din.errors import DinError

LOOK_S_MAX: Final = 5.0


class Row(NamedTuple):
    """One look at something; `name` is the row's when it is not made in time."""

    name: str
    look: Callable[[], Check | Iterable[Check]]
    seconds: float = LOOK_S_MAX
    late: State = "warn"
    """How bad it is that the look took too long."""
    late_fix: str = "dmesg | tail"


class _Making(threading.Thread):
    """A look in a thread of its own, which does not hold the exit."""

    def __init__(self, row: Row) -> None:
        super().__init__(name=f"doctor {row.name}", daemon=True)
        self._row = row
        self.made: list[Check] = []

    def run(self) -> None:
        try:
            found = self._row.look()
            # One by one: what was seen before a look stood still is told as well.
            for check in (found,) if isinstance(found, Check) else found:
                self.made.append(check)
        except DinError as error:
            seen = f"not looked at: {error.message}"
            self.made.append(Check(self._row.name, "warn", seen, "din config show"))
        except Exception as fault:
            # A doctor that dies of one row tells nothing of the others.
            seen = f"could not be looked at: {type(fault).__name__}: {fault}"
            self.made.append(Check(self._row.name, "warn", seen, "din doctor -v"))
            if verbosity() > 0:
                say("".join(traceback.format_exception(fault)))


def looked_at(rows: Sequence[Row]) -> list[Check]:
    """What every row saw, in their order; takes as long as the slowest may. Never raises."""
    began_s = time.monotonic()
    making = [(row, _Making(row)) for row in rows]
    for _, each in making:
        each.start()
    found: list[Check] = []
    for row, each in making:
        each.join(max(0.0, began_s + row.seconds - time.monotonic()))
        is_late = each.is_alive()
        found += each.made
        if is_late:
            seen = f"nothing was seen within {row.seconds:g} s: what it asks stands still"
            found.append(Check(row.name, row.late, seen, row.late_fix))
    return found
