"""Which nodes an operator wants empty, kept in the store: it outlives losses and restarts of nodes
and of the gateway, until the operator takes it back.

With each node stand the slices that it serves until others do. After a restart of the gateway it is
asked for exactly these again, and for nothing that has already moved away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from din.domain.malformed import MALFORMED
from din.domain.node import NodeId
from din.errors import DinError, TooLarge
from din.gateway.registration.names import id_of
from din.store.contract import Store

DRAINS_MAX: Final = 20_000
"""As many as there may be nodes."""
PREFIX: Final = "drains/"

SliceName = tuple[str, str]
"""(model id/version, slice id): slices that did not change are in several versions, and a node that
serves one of them has room for that one."""


class Drain(Struct, frozen=True, kw_only=True):
    """One node that is to become empty."""

    node_id: NodeId
    name: str
    is_forced: bool = False
    """It serves nothing any more, whether or not others can take it."""
    kept: frozenset[SliceName] = frozenset()


class DrainBook:
    """All drains of this gateway, in memory and in the store."""

    def __init__(self, store: Store, report: Callable[..., None]) -> None:
        self._store = store
        self._report = report
        self._drains: dict[NodeId, Drain] = {}
        self._unwritten: set[NodeId] = set()

    async def load(self) -> None:
        """Read the store. One that cannot be read is reported and left out."""
        for entry in await self._store.list(PREFIX):
            try:
                drain = msgspec.json.decode(entry.value, type=Drain)
            except MALFORMED as error:
                self._report("drain unreadable", key=entry.key, error=str(error))
                continue
            self._drains[drain.node_id] = drain

    def is_leaving(self, node_id: NodeId) -> bool:
        """Whether a node is to become empty."""
        return node_id in self._drains

    def is_forced(self, node_id: NodeId) -> bool:
        """Whether it is to serve nothing, at once."""
        drain = self._drains.get(node_id)
        return drain is not None and drain.is_forced

    def leaving(self) -> frozenset[NodeId]:
        """All nodes that are to become empty."""
        return frozenset(self._drains)

    def kept(self, node_id: NodeId) -> frozenset[SliceName]:
        """What a node serves until others do."""
        drain = self._drains.get(node_id)
        return drain.kept if drain is not None else frozenset()

    def is_kept(self, slices: Iterable[SliceName]) -> bool:
        """Whether a node that may come back is to serve one of these."""
        return any(not drain.kept.isdisjoint(slices) for drain in self._drains.values())

    def find(self, name_or_id: str) -> Drain:
        """By name, id or unique beginning of an id, also of a node that is forgotten. Raises
        NotFound or Conflict."""
        names = {str(each.node_id): each.name for each in self._drains.values()}
        node_id = id_of(name_or_id, names, "is drained", lambda _: False)
        return self._drains[NodeId(node_id)]

    async def begin(
        self, node_id: NodeId, name: str, kept: Iterable[SliceName], *, is_forced: bool
    ) -> Drain:
        """A node is to become empty; force once given stays. Durable when this returns.
        Raises TooLarge, or Unavailable when the disk is full."""
        if node_id not in self._drains and len(self._drains) >= DRAINS_MAX:
            raise TooLarge(
                f"{DRAINS_MAX} nodes are drained, the limit of a gateway",
                hint="end one with `din node undrain NODE`",
            )
        is_forced = is_forced or self.is_forced(node_id)
        drain = Drain(
            node_id=node_id,
            name=name,
            is_forced=is_forced,
            kept=frozenset() if is_forced else self.kept(node_id) | frozenset(kept),
        )
        await self._store.put(PREFIX + node_id, msgspec.json.encode(drain))
        self._drains[node_id] = drain
        return drain

    async def end(self, node_id: NodeId) -> None:
        """The operator took it back. Raises Unavailable when the disk is full."""
        await self._store.delete(PREFIX + node_id)
        self._drains.pop(node_id, None)

    def let_go(self, node_id: NodeId, slice_name: SliceName) -> None:
        """Somebody else serves this slice now, or nobody needs it; written by `flush`."""
        drain = self._drains.get(node_id)
        if drain is not None and slice_name in drain.kept:
            self._drains[node_id] = replace(drain, kept=drain.kept - {slice_name})
            self._unwritten.add(node_id)

    async def flush(self) -> None:
        """Write what changed; a store that cannot is asked again at the next call."""
        for node_id in list(self._unwritten):
            drain = self._drains.get(node_id)
            try:
                if drain is not None:
                    await self._store.put(PREFIX + node_id, msgspec.json.encode(drain))
            except DinError as error:
                self._report("drain not written", node=node_id, error=error.message)
                return
            if self._drains.get(node_id) is drain:
                self._unwritten.discard(node_id)
