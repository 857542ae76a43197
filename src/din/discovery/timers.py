"""One timer per node, cheap to leave alone: a later deadline is found out when the timer rings."""

from __future__ import annotations

import heapq

from din.domain.node import NodeId


class Timers:
    """A heap with one valid entry per node. Entries that were overtaken are skipped."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, NodeId]] = []
        self._rings_ms: dict[NodeId, int] = {}

    def set(self, node_id: NodeId, deadline_ms: int) -> None:
        """Ring at the deadline or earlier; the owner looks and sets again."""
        rings_ms = self._rings_ms.get(node_id)
        if rings_ms is None or deadline_ms < rings_ms:
            self._rings_ms[node_id] = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, node_id))

    def unset(self, node_id: NodeId) -> None:
        """Never ring for this node; harmless without a timer."""
        self._rings_ms.pop(node_id, None)

    def pop(self, now_ms: int) -> NodeId | None:
        """A node whose timer rang by now; its timer is unset."""
        while self._heap and self._heap[0][0] <= now_ms:
            rings_ms, node_id = heapq.heappop(self._heap)
            if self._rings_ms.get(node_id) == rings_ms:
                del self._rings_ms[node_id]
                return node_id
        return None

    def next_ms(self) -> int | None:
        """When the next timer rings."""
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        return len(self._heap)
