"""What membership is told (events, past tense) and what it orders (instructions)."""

from __future__ import annotations

from msgspec import Struct

from din.domain.node import NodeHealth, NodeId, NodeProfile, NodeStatus
from din.wire.heartbeat import Heartbeat, HeartbeatAnswer


class NodeRegistered(Struct, frozen=True):
    """A checked registration arrived. Harmless when repeated."""

    profile: NodeProfile


class LinkOpened(Struct, frozen=True):
    """A link of this session said Hello and was welcomed."""

    node_id: NodeId
    session: int
    link_id: int


class LinkClosed(Struct, frozen=True):
    """That link is gone; `is_orderly` after Bye, else broken, silent or reset."""

    node_id: NodeId
    session: int
    link_id: int
    reason: str
    is_orderly: bool = False


class DispatchFailed(Struct, frozen=True):
    """A frame could not be handed over, or was never accepted: the link or the node is at fault."""

    node_id: NodeId
    session: int
    reason: str
    began_ms: int
    """When the attempt began, by the receiver's clock."""


class SliceFailed(Struct, frozen=True):
    """The node answered, but with a failure: lowers its score, makes it not suspect."""

    node_id: NodeId
    session: int


class DrainRequested(Struct, frozen=True):
    """An operator wants the node empty. Outlives sessions and losses, until it is taken back."""

    node_id: NodeId


class UndrainRequested(Struct, frozen=True):
    """The operator takes it back."""

    node_id: NodeId


class NodeLeft(Struct, frozen=True):
    """The node said goodbye."""

    node_id: NodeId
    session: int
    reason: str = "was stopped"


class Woke(Struct, frozen=True):
    """The time of `next_wakeup_ms` has come."""


MembershipEvent = (
    NodeRegistered
    | Heartbeat
    | LinkOpened
    | LinkClosed
    | DispatchFailed
    | SliceFailed
    | DrainRequested
    | UndrainRequested
    | NodeLeft
    | Woke
)


class PublishJoined(Struct, frozen=True):
    """A new member or a new session of a known one; `profile.name` is the accepted name."""

    profile: NodeProfile


class PublishUpdated(Struct, frozen=True):
    """The same session describes itself anew, for example with a new address."""

    profile: NodeProfile


class PublishChanged(Struct, frozen=True):
    """The status changed. Only `ready` takes new slices; `draining` serves what it still holds."""

    node_id: NodeId
    status: NodeStatus
    reason: str


class PublishLost(Struct, frozen=True):
    """The node left membership. It stays listed until PublishForgotten."""

    node_id: NodeId
    reason: str
    is_orderly: bool


class PublishForgotten(Struct, frozen=True):
    """Drop the node from every list."""

    node_id: NodeId


class EvictSession(Struct, frozen=True):
    """Close the links of this session and blame what still ran there."""

    node_id: NodeId
    session: int
    reason: str


class RenameNode(Struct, frozen=True):
    """Tell the registering node its accepted name and why."""

    node_id: NodeId
    name: str
    warning: str


class WarnOfNode(Struct, frozen=True):
    """Tell people and the node what is odd about it."""

    node_id: NodeId
    warning: str


class RefuseNode(Struct, frozen=True):
    """Answer this registration with a refusal."""

    node_id: NodeId
    reason: str
    hint: str


class RecordHealth(Struct, frozen=True):
    """Write the sample into the fleet table; it is the newest."""

    node_id: NodeId
    health: NodeHealth
    health_score: float


class RecordScore(Struct, frozen=True):
    """Write the score into the fleet table; the sample stays."""

    node_id: NodeId
    health_score: float


class AnswerBeat(Struct, frozen=True):
    """What to answer to this beat."""

    answer: HeartbeatAnswer


MembershipInstruction = (
    PublishJoined
    | PublishUpdated
    | PublishChanged
    | PublishLost
    | PublishForgotten
    | EvictSession
    | RenameNode
    | WarnOfNode
    | RefuseNode
    | RecordHealth
    | RecordScore
    | AnswerBeat
)
