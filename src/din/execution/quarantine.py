"""Slices that end their workers: kept out for a while that doubles.

    free --two crashes within ten minutes--> out for 10 s, then 20 s, ... at most an hour --> free
    free --an hour without a crash--> forgotten          out --lifted--> forgotten

Pure: the time comes in. Only crashes of its own count, not workers that somebody killed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from msgspec import Struct

from din.errors import Quarantined

CRASHES_MAX: Final = 2
WINDOW_MS: Final = 600_000.0
"""Crashes further apart are two troubles, not one."""
OUT_MS_MIN: Final = 10_000.0
OUT_MS_MAX: Final = 3_600_000.0
FORGET_MS: Final = 3_600_000.0
"""After so long without a crash the next one is the first."""
NAMES_MAX: Final = 256


class _Record(Struct):
    crashes_ms: list[float]
    reason: str = ""
    times: int = 0
    """How often it was put out."""
    until_ms: float = 0.0


class Quarantine:
    """What is kept out of one node, by slice id."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def crashed(self, slice_id: str, now_ms: float, reason: str) -> bool:
        """A worker ended by its slice's own fault; whether the slice is out now."""
        record = self._records.pop(slice_id, None)
        if record is None or now_ms - max(record.crashes_ms[-1], record.until_ms) > FORGET_MS:
            record = _Record([])
        self._records[slice_id] = record
        while len(self._records) > NAMES_MAX:
            self._records.popitem(last=False)
        record.reason = reason
        record.crashes_ms = [each for each in record.crashes_ms if now_ms - each <= WINDOW_MS]
        record.crashes_ms = [*record.crashes_ms, now_ms][-CRASHES_MAX:]
        if len(record.crashes_ms) < CRASHES_MAX:
            return False
        record.until_ms = now_ms + min(OUT_MS_MIN * 2 ** min(record.times, 20), OUT_MS_MAX)
        record.times += 1
        return True

    def refusal(self, slice_id: str, now_ms: float, name: str) -> Quarantined | None:
        """Why a slice may not be loaded now; None when it may."""
        record = self._records.get(slice_id)
        if record is None or record.until_ms <= now_ms:
            return None
        left_s = -(-(record.until_ms - now_ms) // 1000)
        return Quarantined(
            f"slice {name!r} ended its workers here {CRASHES_MAX} times within "
            f"{WINDOW_MS / 60_000:.0f} min and is kept out for {left_s:.0f} s more; the last: "
            f"{record.reason}",
            hint="it is loaded again by itself then; to allow it at once: din node lift NODE",
        )

    def lift(self) -> int:
        """Forget everything; how many slices were out or suspected."""
        count = len(self._records)
        self._records.clear()
        return count
