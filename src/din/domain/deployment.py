"""Where a model's slices are loaded, and the way one request takes through them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from din.domain.model import ModelManifest, Partition
from din.domain.node import NodeId

ReplicaState = Literal["assigned", "ready", "failed"]
DeploymentState = Literal["placing", "loading", "ready", "degraded", "idle", "failed"]
"""degraded: some slice has no ready replica now; repair is under way. idle: nothing is loaded, for
nobody asked; the next request has it loaded again."""


class Epoch(Struct, frozen=True, order=True, array_like=True):
    """(number by chance, store revision): never reused, neither by a restart nor by a second
    gateway or a new store."""

    deployment: int
    revision: int


class Replica(Struct, frozen=True, kw_only=True):
    """One slice on one node."""

    slice_index: int
    node_id: NodeId
    state: ReplicaState = "assigned"
    reason: str = ""
    """Why it failed, in the node's own words."""


class Deployment(Struct, frozen=True, kw_only=True):
    """A model version, its partition and the replicas that hold it."""

    epoch: Epoch
    manifest: ModelManifest
    partition: Partition
    replicas: tuple[Replica, ...] = ()
    state: DeploymentState = "placing"
    reason: str = ""
    tenant: str = ""
    """For whose requests alone it is; empty = for those of all who may use the model."""


class Route(Struct, frozen=True, array_like=True):
    """The nodes of one attempt: `nodes[i]` runs slice i; empty text = slice not on this way."""

    epoch: Epoch
    is_adapted: bool
    nodes: tuple[NodeId, ...]
