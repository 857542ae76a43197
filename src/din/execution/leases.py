"""How long a node may hold which sealed slices. Pure: time comes in."""

from __future__ import annotations

from din.domain.deployment import Epoch
from din.execution.events import SliceKey


class Leases:
    """One lease per slice that has one; slices without are held until they are unloaded."""

    def __init__(self) -> None:
        self._ends_ms: dict[SliceKey, int] = {}

    def grant(self, key: SliceKey, now_ms: int, lease_ms: int) -> None:
        """The gateway orders a slice: its lease begins anew. 0 = it needs none."""
        if lease_ms > 0:
            self._ends_ms[key] = now_ms + lease_ms
        else:
            self._ends_ms.pop(key, None)

    def renew(self, epoch: Epoch, now_ms: int, lease_ms: int) -> None:
        """Prolong the leases of one deployment; one that is over stays over."""
        for key, end_ms in self._ends_ms.items():
            if key[0] == epoch and end_ms > now_ms:
                self._ends_ms[key] = now_ms + max(lease_ms, 0)

    def end(self, key: SliceKey) -> None:
        """The slice is gone."""
        self._ends_ms.pop(key, None)

    def is_over(self, key: SliceKey, now_ms: int) -> bool:
        """Whether the slice had a lease and it has passed."""
        end_ms = self._ends_ms.get(key)
        return end_ms is not None and end_ms <= now_ms

    def over(self, now_ms: int) -> tuple[SliceKey, ...]:
        """Every slice whose lease has passed and that is not gone yet."""
        return tuple(key for key, end_ms in self._ends_ms.items() if end_ms <= now_ms)

    def next_wakeup_ms(self) -> int | None:
        """When the first lease passes; None without any."""
        return min(self._ends_ms.values(), default=None)
