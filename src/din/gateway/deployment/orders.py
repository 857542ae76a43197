"""What a node is told of a slice: signed, with the key of a sealed one, for the time of a lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from msgspec.structs import replace

from din.artifacts.files import ArtifactFolder
from din.domain.model import Slice
from din.domain.node import NodeId
from din.domain.support import NOTHING
from din.errors import CannotPlace
from din.gateway.deployment.foreign_book import ForeignBook
from din.gateway.deployment.holding import Holding
from din.gateway.requests.relay import Sender
from din.gateway.trust.vault import RENEWALS_PER_LEASE, Vault
from din.wire.messages import Prepare, Renew
from din.wire.statement import statement_of

PREPARE_MS_MAX: Final = 120_000
"""A node that has not loaded a slice by then is given up for this slice."""


class Keyholders(Protocol):
    """Which nodes a key can be granted to."""

    def is_local(self, node_id: NodeId) -> bool:
        """Linked by Unix socket: the same user on the same machine."""
        ...

    def is_trusted(self, node_id: NodeId) -> bool:
        """Whether it has the label `trust: high` now."""
        ...

    def public_key(self, node_id: NodeId) -> bytes | None:
        """DER, of its certificate; None without one, or once it was revoked."""
        ...


class Orders:
    """Makes PREPARE and RENEW. Knows what to say and not when."""

    def __init__(
        self,
        vault: Vault,
        artifacts: ArtifactFolder,
        nodes: Keyholders,
        addresses: Callable[[NodeId, NodeId], tuple[str, ...]],
        artifact_url: Callable[[NodeId], str],
    ) -> None:
        self.foreign = ForeignBook()
        self._vault = vault
        self._artifacts = artifacts
        self._nodes = nodes
        self._addresses = addresses
        self._artifact_url = artifact_url

    def takes_grants(self, node_id: NodeId) -> bool:
        """Whether sealed slices can be opened there."""
        return self._nodes.is_local(node_id) or self._nodes.public_key(node_id) is not None

    def may_hold(self, holding: Holding, node_id: NodeId) -> bool:
        """Whether a node may keep what it holds: trust can be taken back, and a server behind it
        may end."""
        parts = [holding.partition.slices[index] for index in holding.indexes_on(node_id)]
        if not self.foreign.may_hold(node_id, parts):
            return False
        return self._nodes.is_trusted(node_id) or not any(part.is_sensitive for part in parts)

    def prepare(self, holding: Holding, index: int, node_id: NodeId) -> Prepare:
        """The order to load one slice. Raises DinError when its key cannot be granted."""
        deployment, partition = holding.serving.deployment, holding.partition
        manifest, part = deployment.manifest, partition.slices[index]
        statement = statement_of(manifest.model_id, part, manifest.backend_options)
        grants = self._grants(part, node_id) if part.is_sealed else (b"",)
        return Prepare(
            deployment.epoch,
            manifest.model_id,
            replace(part, needs=NOTHING),  # that was for choosing the node
            partition.edges,
            partition.adapted_edges,
            manifest.workers,
            manifest.backend_options,
            self._artifact_url(node_id),
            {each: self._addresses(each, node_id) for each in holding.nodes()},
            PREPARE_MS_MAX,
            self._vault.sign(statement),
            grants[0],
            self._vault.lease_ms if part.is_sealed else 0,
            grants[1:],
        )

    def renew(self, holding: Holding, sender: Sender, now_ms: float) -> None:
        """Prolong the leases of a deployment's sealed slices, when it is time."""
        if now_ms < holding.renew_at_ms or not any(p.is_sealed for p in holding.partition.slices):
            return
        holding.renew_at_ms = now_ms + self._vault.lease_ms / RENEWALS_PER_LEASE
        order = Renew(holding.serving.deployment.epoch, self._vault.lease_ms)
        for node_id in holding.nodes():
            if self.takes_grants(node_id):
                sender.send(node_id, order)

    def _grants(self, part: Slice, node_id: NodeId) -> tuple[bytes, ...]:
        """One for each file of a slice, in order: every file has a key of its own."""
        recipient = None
        if not self._nodes.is_local(node_id):
            recipient = self._nodes.public_key(node_id)
            if recipient is None:
                raise CannotPlace(
                    f"slice {part.name!r} is sealed, and the node has no certificate to grant its "
                    "keys to",
                    hint="join that machine with a token: din node join -",
                )
        return tuple(
            self._vault.grant(self._artifacts.file(artifact.sha256), recipient)
            if artifact.is_sealed
            else b""
            for artifact in part.artifacts
        )
