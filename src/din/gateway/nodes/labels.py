"""Labels that operators give to nodes: they outlive sessions and stand above what a node says.

    labels/<node id>    name -> text

The label `trust` decides which slices a node may hold. A machine that came by network cannot give
it to itself: it has it from its join token, or from here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from din.domain.node import NodeId, NodeProfile
from din.errors import Conflict, TooLarge, UsageError
from din.store.contract import Store

PREFIX: Final = "labels/"
LABELS_MAX: Final = 16
"""Given to one node."""
NODES_MAX: Final = 20_000
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_TEXT: Final = re.compile(r"[A-Za-z0-9._:/-]{1,63}")


class LabelBook:
    """In memory whole; changes are durable before they count, and come one at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._given: dict[str, dict[str, str]] = {}
        self._own: dict[str, dict[str, str]] = {}
        """What nodes say of themselves that had given labels since they registered."""
        self._turn = asyncio.Lock()

    async def load(self) -> None:
        """Read the store. Once, before the first registration."""
        for entry in await self._store.list(PREFIX):
            given = msgspec.json.decode(entry.value, type=dict[str, str])
            self._given[entry.key.removeprefix(PREFIX)] = given

    def nodes(self) -> frozenset[str]:
        """Ids of nodes that were given some."""
        return frozenset(self._given)

    async def forget(self, node_id: NodeId) -> None:
        """A node never comes back. Raises Unavailable."""
        async with self._turn:
            if self._given.get(node_id):
                await self._write(node_id, {})
            self._given.pop(node_id, None)
            self._own.pop(node_id, None)

    def applied(self, profile: NodeProfile) -> NodeProfile:
        """A profile with the given labels over its own."""
        given = self._given.get(profile.node_id)
        if given is None:
            self._own.pop(profile.node_id, None)
            return profile
        self._own[profile.node_id] = dict(profile.labels)
        return replace(profile, labels={**profile.labels, **given})

    def check(
        self, profile: NodeProfile, changes: Mapping[str, str | None], by_token: Collection[str]
    ) -> None:
        """Raises UsageError for a malformed label, Conflict when one would stay that was to be
        taken: a node says it of itself, and nobody gave it."""
        given = self._given.get(profile.node_id, {})
        for name, text in changes.items():
            check_label(name, text)
            own = profile.labels.get(name)
            if text is None and own is not None and name not in given and name not in by_token:
                raise Conflict(
                    f"{profile.name} says {name}={own} of itself: it was not given, so it cannot "
                    "be taken back",
                    hint="start the node without it, or give another value, which stands above: "
                    f"din node label {profile.name} {name}=none",
                )

    async def change(
        self,
        profile: NodeProfile,
        changes: Mapping[str, str | None],
        by_token: Collection[str] = (),
    ) -> NodeProfile:
        """Give labels, or take given ones back (None); the profile with what holds now. `by_token`
        = what the roll gave besides, and takes back itself. Raises TooLarge."""
        async with self._turn:
            return await self._change(profile, changes, by_token)

    async def _change(
        self, profile: NodeProfile, changes: Mapping[str, str | None], by_token: Collection[str]
    ) -> NodeProfile:
        node_id = profile.node_id
        before = self._given.get(node_id, {})
        # The profile may be of before another change, which gave or took what stands in it.
        own = dict(self._own.get(node_id, profile.labels))
        for name in (each for each in by_token if changes.get(each, "") is None):
            own.pop(name, None)
        given = {name: text for name, text in {**before, **changes}.items() if text is not None}
        is_full = node_id not in self._given and len(self._given) >= NODES_MAX
        if is_full or len(given) > LABELS_MAX:
            raise TooLarge(
                f"a node has at most {LABELS_MAX} given labels, {NODES_MAX} nodes some",
                hint="take one back: din node label NODE NAME-",
            )
        await self._write(node_id, given)
        self._own[node_id] = own
        if not given:
            self._given.pop(node_id, None)
        else:
            self._given[node_id] = given
        return replace(profile, labels={**own, **given})

    async def _write(self, node_id: NodeId, given: dict[str, str]) -> None:
        if given:
            await self._store.put(PREFIX + node_id, msgspec.json.encode(given))
        else:
            await self._store.delete(PREFIX + node_id)


def check_label(name: str, text: str | None) -> None:
    """Raises UsageError for a name or text that no label has; None = it is taken back."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(f"{name!r:.80} is no label", hint="letters, digits and . _ - / inside")
    if text is not None and _TEXT.fullmatch(text) is None:
        raise UsageError(
            f"label {name} is {text!r:.80}", hint="1 to 63 letters, digits and . _ - : /"
        )
