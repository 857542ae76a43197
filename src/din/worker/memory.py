"""What a worker takes of the machine's memory, and how much more it may take."""

from __future__ import annotations

import os
import re
from typing import Final

from din.wire.worker import Fork

MIB: Final = 1024 * 1024
_NO_MEMORY: Final = re.compile(
    r"failed to allocate|bad.?alloc|out of memory|cannot allocate memory", re.IGNORECASE
)
"""How engines and the C library say it; none has a kind of its own for it."""


def open_memory_file(processes: int) -> int:
    """Descriptor of our memory figures, to be opened before the doors close; by one of /proc."""
    for name in ("self/smaps_rollup", "self/statm"):  # the first since Linux 4.14
        try:
            return os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=processes)
        except FileNotFoundError:
            continue
    raise FileNotFoundError("/proc/self/statm")


def open_statm(processes: int) -> int:
    """Descriptor of our memory figures that is quick to read, likewise."""
    return os.open("self/statm", os.O_RDONLY | os.O_CLOEXEC, dir_fd=processes)


def share_mib(descriptor: int) -> int:
    """Our proportional share of memory, where the kernel tells it, else all that is resident; the
    descriptor is closed."""
    text = os.pread(descriptor, 4096, 0)
    os.close(descriptor)
    found = re.search(rb"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    if found:
        return -(-int(found[1]) // 1024)
    return -(-int(text.split()[1]) * os.sysconf("SC_PAGESIZE") // MIB)


def memory_bytes_max(order: Fork, processes: int) -> int:
    """The limit that the order sets, on top of what we have now; 0 = none."""
    if not order.memory_mib_max:
        return 0
    descriptor = open_statm(processes)
    data_pages = int(os.pread(descriptor, 256, 0).split()[5])
    os.close(descriptor)
    page_bytes = os.sysconf("SC_PAGESIZE")
    limit = data_pages * page_bytes + order.memory_mib_max * MIB
    return min(limit, os.sysconf("SC_PHYS_PAGES") * page_bytes)


def is_out_of_memory(words: str) -> bool:
    """Whether an engine's error means that it got no memory."""
    return _NO_MEMORY.search(words) is not None
