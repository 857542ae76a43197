"""How much memory a new process could take here, and what says so.

The smallest of what the machine calls available (swap not counted: a node that swaps answers
nobody in time) and what every cgroup above us has left, version 1 and 2. Pages of files that nobody
used lately count as free there too: the kernel drops them before it kills.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from din.system.fingerprint import cgroup_folders
from din.system.readings import read_number, read_text

MIB: Final = 1024 * 1024
UNLIMITED_BYTES: Final = 1 << 62
_VERSIONS: Final = (
    # controller, limits, what is used, the line of memory.stat
    ("", ("memory.max", "memory.high"), "memory.current", "inactive_file"),
    ("memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
)


class Headroom(NamedTuple):
    """Free memory, and who sets the bound."""

    free_mib: int
    bound: str
    """In words, for messages."""


def read_headroom(root: Path = Path("/")) -> Headroom | None:
    """The tightest bound now; None where the kernel tells nothing."""
    return min(_bounds(root), key=lambda each: each.free_mib, default=None)


def _bounds(root: Path) -> Iterator[Headroom]:
    meminfo = read_text(root / "proc/meminfo") or ""
    if found := re.search(r"^MemAvailable:\s*(\d+) kB", meminfo, re.MULTILINE):
        yield Headroom(int(found[1]) // 1024, "this machine")
    for controller, limit_names, used_name, cache_name in _VERSIONS:
        for folder in cgroup_folders(root, controller):
            for limit_name in limit_names:
                yield from _of_cgroup(folder, limit_name, used_name, cache_name)


def _of_cgroup(
    folder: Path, limit_name: str, used_name: str, cache_name: str
) -> Iterator[Headroom]:
    limit, used = read_number(folder / limit_name), read_number(folder / used_name)
    if limit is None or used is None or not 0 < limit < UNLIMITED_BYTES:
        return
    stat = read_text(folder / "memory.stat") or ""
    cache = re.search(rf"^{cache_name} (\d+)$", stat, re.MULTILINE)
    left = int(limit) - int(used) + (int(cache[1]) if cache else 0)
    yield Headroom(
        max(0, left) // MIB, f"the limit of {int(limit) // MIB} MiB in {folder / limit_name}"
    )
