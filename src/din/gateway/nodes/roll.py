"""The roll of a cluster: which key holds which node id, and which nodes were thrown out.

    trust/nodes/<node id>      the key that holds the id, name and labels given at the join
    trust/revoked/<node id>    its name and when; there is no way back for this id

A machine keeps the name of its join while it is away: commands mean nodes by name, those that give
labels as well, and nobody shall get what was meant for another by saying his name.

Kept in memory whole, since every registration and beat asks; the store makes it outlast restarts.
Changes come one at a time: two machines that join at once under one name get two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

import msgspec
from msgspec import Struct

from din.config import is_loopback
from din.discovery.names import free_name
from din.domain.node import NodeId, NodeProfile
from din.domain.trust import Peer
from din.errors import Busy, Conflict, Denied
from din.store.contract import Store

NODES_MAX: Final = 100_000
TOLD_MS: Final = 48 * 3600 * 1000
"""Twice the life of a certificate: so long other nodes are told of a revocation."""
TOLD_MAX: Final = 4096
"""Revoked nodes that others are told of; of more, the latest."""
TRUST_LABEL: Final = "trust"
"""Decides which slices a node may see, so a machine that came by network cannot give it itself."""
_NODES: Final = "trust/nodes/"
_REVOKED: Final = "trust/revoked/"
_NEW_IDENTITY: Final = (
    "a machine that shall come back gets a new identity: an empty --state-dir and a new token"
)


class Binding(Struct, frozen=True):
    """A node id and the key that holds it."""

    key_sha256: str
    name: str = ""
    labels: dict[str, str] = {}
    public_key: bytes = b""
    """DER: keys of sealed slices are granted to it."""
    is_own: bool = False
    """Of this gateway's user, on its machine: what it says of itself counts as the user's word."""


class Revoked(Struct, frozen=True):
    """A node that was thrown out."""

    name: str
    at_ms: int


class Roll:
    """Answers at once from memory; changes are durable before they are told."""

    def __init__(self, store: Store, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._bound: dict[str, Binding] = {}
        self._revoked: dict[str, Revoked] = {}
        self._owners: dict[str, str] = {}
        """Name -> id of the machine that joined with it."""
        self._turn = asyncio.Lock()
        self.is_own_plain = False
        """Whether the gateway's own node has no certificate now: others are kept out by loopback,
        so its id may be said there."""

    async def load(self) -> None:
        """Read what the store holds. Once, before the first question."""
        for entry in await self._store.list(_NODES):
            binding = msgspec.json.decode(entry.value, type=Binding)
            self._bound[entry.key.removeprefix(_NODES)] = binding
        for entry in await self._store.list(_REVOKED):
            revoked = msgspec.json.decode(entry.value, type=Revoked)
            self._revoked[entry.key.removeprefix(_REVOKED)] = revoked
        for node_id, binding in self._bound.items():
            if binding.name and node_id not in self._revoked:
                self._owners[binding.name] = node_id

    # What is asked.

    def labels_of(self, node_id: str) -> dict[str, str]:
        """What its token gave a machine."""
        binding = self._bound.get(node_id)
        return binding.labels if binding is not None else {}

    def binding(self, node_id: str) -> Binding | None:
        """The key that holds an id; None when no machine has joined with it."""
        return self._bound.get(node_id)

    def is_certified(self, node_id: str) -> bool:
        """Whether a node has joined, and so speaks TLS; the own one may go without just now."""
        binding = self._bound.get(node_id)
        return binding is not None and not (binding.is_own and self.is_own_plain)

    def names(self) -> dict[str, str]:
        """Id -> the name with which a machine joined, of all that did."""
        return {node_id: binding.name for node_id, binding in self._bound.items()}

    def owner_of(self, name: str) -> str:
        """Id of the machine that joined under a name and was not thrown out; empty for none."""
        owner = self._owners.get(name, "")
        return "" if owner in self._revoked else owner

    def thrown_out(self) -> tuple[str, ...]:
        """Ids of nodes that were revoked of late: certificates of the others have ended, so that
        nobody opens a link to them any more."""
        since_ms = self._now_ms() - TOLD_MS
        late = ((each.at_ms, node_id) for node_id, each in self._revoked.items())
        newest = sorted((each for each in late if each[0] >= since_ms), reverse=True)
        return tuple(node_id for _, node_id in newest[:TOLD_MAX])

    def is_revoked(self, node_id: str) -> bool:
        """Whether a node was thrown out."""
        return node_id in self._revoked

    def refusal_of(self, node_id: str) -> str:
        """Why the certificate of a node counts no more; empty when it does."""
        return "the node was revoked" if node_id in self._revoked else ""

    def check_claim(self, peer: Peer, node_id: str) -> None:
        """Whether this connection may speak for a node. Raises Denied.

        Over TLS the certificate must name it. Without TLS (this host, or an insecure network) an
        id that a joined machine holds is nobody's.
        """
        if node_id in self._revoked:
            raise self._thrown_out(node_id)
        if peer.name is not None:
            if (peer.name.role, peer.name.id) != ("node", node_id):
                raise Denied(f"the certificate of {peer.name.uri} cannot speak for node {node_id}")
        elif peer.is_tls:
            raise Denied(
                f"node {node_id} showed no certificate",
                hint="join this machine with a token: din node join -",
            )
        elif node_id in self._bound and not self._is_own_at_home(node_id, peer):
            raise Denied(
                f"node id {node_id} is held by a machine that joined with a certificate",
                hint="start that node with its own state directory, or use another --state-dir",
            )

    def _is_own_at_home(self, node_id: str, peer: Peer) -> bool:
        return self.is_own_plain and self._bound[node_id].is_own and is_loopback(peer.address)

    def admitted(self, peer: Peer, profile: NodeProfile) -> NodeProfile:
        """The profile with the labels that this machine got when it joined. Raises Denied."""
        self.check_claim(peer, profile.node_id)
        binding = self._bound.get(profile.node_id)
        if binding is not None and binding.is_own:
            return profile
        if peer.name is None and is_loopback(peer.address):
            return profile
        given = self.labels_of(profile.node_id)
        own = {name: text for name, text in profile.labels.items() if name != TRUST_LABEL}
        # Whoever registers from another machine without TLS speaks plain text, whatever it says.
        is_insecure = profile.is_insecure_network or not peer.is_tls
        return msgspec.structs.replace(
            profile, labels={**own, **given}, is_insecure_network=is_insecure
        )

    # What changes it.

    async def bind(self, node_id: str, binding: Binding, *, is_repeated: bool = False) -> None:
        """Give an id to a key, and a name that is nobody else's. With a token that it has used
        before a machine keeps the labels that it has now: those taken back stay away. Raises Denied
        when another key holds the id or it was thrown out."""
        async with self._turn:
            self.check_free(node_id, binding.key_sha256)
            before = self._bound.get(node_id)
            if before is not None and is_repeated:
                binding = msgspec.structs.replace(binding, labels=before.labels)
            await self._bind(node_id, binding, before)

    async def _bind(self, node_id: str, binding: Binding, before: Binding | None) -> None:
        if binding.name:
            name = free_name(NodeId(node_id), binding.name, self.owner_of)
            binding = msgspec.structs.replace(binding, name=name)
        if before is not None:
            await self._store.put(_NODES + node_id, msgspec.json.encode(binding))
        else:
            try:
                await self._store.put(_NODES + node_id, msgspec.json.encode(binding), if_rev=0)
            except Conflict:
                raise _held(node_id) from None
        if before is not None and self._owners.get(before.name) == node_id:
            del self._owners[before.name]
        self._bound[node_id] = binding
        if binding.name:
            self._owners[binding.name] = node_id

    async def take_labels(self, node_id: str, names: Collection[str]) -> None:
        """Take back labels that a machine got with its token: they stay away until it joins
        with another one."""
        async with self._turn:
            await self._take_labels(node_id, names)

    async def _take_labels(self, node_id: str, names: Collection[str]) -> None:
        binding = self._bound.get(node_id)
        if binding is None or not binding.labels.keys() & set(names):
            return
        kept = {name: text for name, text in binding.labels.items() if name not in names}
        changed = msgspec.structs.replace(binding, labels=kept)
        await self._store.put(_NODES + node_id, msgspec.json.encode(changed))
        self._bound[node_id] = changed

    def check_free(self, node_id: str, key_sha256: str) -> None:
        """Raises Denied when another key holds the id or it was thrown out, Busy when full."""
        if node_id in self._revoked:
            raise self._thrown_out(node_id)
        binding = self._bound.get(node_id)
        if binding is not None and binding.key_sha256 != key_sha256:
            raise _held(node_id)
        if binding is None and len(self._bound) >= NODES_MAX:
            raise Busy(f"{NODES_MAX} machines have joined this cluster already")

    async def revoke(self, node_id: str, name: str) -> bool:
        """Throw a node out for good; False when it was before."""
        async with self._turn:
            if node_id in self._revoked:
                return False
            revoked = Revoked(name, self._now_ms())
            await self._store.put(_REVOKED + node_id, msgspec.json.encode(revoked))
            self._revoked[node_id] = revoked
            return True

    def _thrown_out(self, node_id: str) -> Denied:
        name = self._revoked[node_id].name or node_id
        return Denied(f"node {name} was revoked", hint=_NEW_IDENTITY)


def _held(node_id: str) -> Denied:
    return Denied(
        f"node id {node_id} is held by another key",
        hint="was the state directory copied? " + _NEW_IDENTITY,
    )
