"""When a worker is worn: after so many requests, or once it has grown by so much.

Engines and allocators keep memory in pieces that nothing fits into any more. A worker says so once
and serves on; its owner starts another first.
"""

from __future__ import annotations

import os
from typing import Final

from din.wire.worker import Fork, Worn
from din.worker.memory import MIB

LOOK_EVERY: Final = 64
"""Requests between two looks at our memory, which take microseconds each."""


class Wear:
    """Counts requests, and looks at what they left behind."""

    def __init__(self, order: Fork, statm: int) -> None:
        """`statm`: a descriptor of /proc/self/statm. What we hold now is where growth begins."""
        self._requests_max = order.requests_max
        self._growth_mib_max = order.growth_mib_max
        self._statm = statm
        self._requests = 0
        self._is_told = False
        self._born_mib = self._own_mib()

    def after_request(self) -> Worn | None:
        """What to tell the owner, once in a life."""
        self._requests += 1
        if self._is_told:
            return None
        is_old = 0 < self._requests_max <= self._requests
        grown_mib = 0
        if self._growth_mib_max and self._requests % LOOK_EVERY == 0:
            grown_mib = self._own_mib() - self._born_mib
        if not is_old and grown_mib <= self._growth_mib_max:
            return None
        self._is_told = True
        return Worn(self._requests, max(grown_mib, 0))

    def _own_mib(self) -> int:
        """Resident and of no file: the arena does not count, which is others' as well."""
        fields = os.pread(self._statm, 256, 0).split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGESIZE") // MIB
