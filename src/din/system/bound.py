"""Where a running node listens, as it wrote it down for `din doctor` on its machine.

Nobody else can look: the open files of DIN's processes are root's only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from din.domain.malformed import MALFORMED
from din.system.identity import write_atomically

FILE: Final = "listening.json"
BYTES_MAX: Final = 4096


class Bound(Struct, frozen=True, kw_only=True):
    """The listener for peers."""

    host: str
    port: int
    is_encrypted: bool


def write_bound(folder: Path, bound: Bound) -> None:
    """Raises Unavailable or Denied."""
    write_atomically(folder / FILE, msgspec.json.encode(bound) + b"\n")


def read_bound(folder: Path) -> Bound | None:
    """What the last node of this directory wrote; None when there is none, or it is broken."""
    try:
        with (folder / FILE).open("rb") as file:
            return msgspec.json.decode(file.read(BYTES_MAX), type=Bound)
    except (OSError, *MALFORMED):
        return None
