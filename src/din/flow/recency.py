"""What was used last stays: values under keys with a limit in bytes. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

ENTRIES_MAX: Final = 4096
"""Beside the bytes: small values cost time and memory too."""

Value = TypeVar("Value")


class Recency(Generic[Value]):
    """Values by key; over a limit, those go first that were not asked for longest."""

    def __init__(self, bytes_max: int, entries_max: int = ENTRIES_MAX) -> None:
        self.bytes_max = bytes_max
        self.nbytes = 0
        self._entries_max = entries_max
        self._kept: OrderedDict[str, tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def values(self) -> Iterator[Value]:
        """All, the one not asked for longest first."""
        return (value for value, _ in self._kept.values())

    def get(self, key: str) -> Value | None:
        """A value, which is the last used one from now on."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: str, value: Value, nbytes: int) -> dict[str, Value]:
        """Keep a value and say what had to go; itself, when it alone is over the limit."""
        self.pop(key)
        if nbytes > self.bytes_max:
            return {key: value}
        self._kept[key] = (value, nbytes)
        self.nbytes += nbytes
        gone: dict[str, Value] = {}
        while self.nbytes > self.bytes_max or len(self._kept) > self._entries_max:
            eldest, (old, old_bytes) = self._kept.popitem(last=False)
            self.nbytes -= old_bytes
            gone[eldest] = old
        return gone

    def pop(self, key: str) -> Value | None:
        """Forget a value."""
        found = self._kept.pop(key, None)
        if found is None:
            return None
        self.nbytes -= found[1]
        return found[0]
