"""The life of one node: the table of its statuses, and what is remembered of it.

    status     cause           becomes     meaning
    joining    link_opened     ready       registered and reachable: work may go there
    joining    silent          lost        nothing more was heard of it
    ready      missed          suspect     two beats missing (6.9 s at 3 s and 15 %)
    ready      link_closed     suspect     at once: the last link is gone
    ready      dispatch        suspect     at once: one failed hand-over is enough
    suspect    recovered       ready       link open and enough beats in time
    suspect    silent          lost        9 s after the last receipt
    ready      drain           draining    an operator wants it empty: it takes nothing new and
                                           serves what it holds until others do
    draining   undrain         ready       the operator took it back
    any live   left            lost        said goodbye
    any        registered      joining     same node id: a newer session, or after being lost

The wish to drain is remembered beside the status and outlives it: whoever would become ready
becomes draining while it stands. A draining node is watched, and suspected, like a ready one. A
lost node is forgotten ten minutes later. What is not in the table changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from msgspec import Struct

from din.discovery import health_score
from din.domain.node import NodeHealth, NodeProfile, NodeStatus

LINKS_MAX: Final = 16
STEADY_BEATS: Final = 20
"""So many intervals without a suspicion wipe the record of earlier ones."""
GOOD_BEATS_MAX: Final = 8
_NOT_MEASURED: Final = NodeHealth()

Cause = Literal[
    "link_opened", "missed", "link_closed", "dispatch", "recovered", "drain", "undrain", "silent",
    "left", "registered",
]  # fmt: skip

TRANSITIONS: Final[dict[NodeStatus, dict[Cause, NodeStatus]]] = {
    "joining": {
        "link_opened": "ready", "silent": "lost", "left": "lost", "registered": "joining",
    },
    "ready": {
        "missed": "suspect", "link_closed": "suspect", "dispatch": "suspect",
        "drain": "draining", "left": "lost", "registered": "joining",
    },
    "suspect": {
        "recovered": "ready", "silent": "lost", "left": "lost", "registered": "joining",
    },
    "draining": {
        "missed": "suspect", "link_closed": "suspect", "dispatch": "suspect",
        "undrain": "ready", "left": "lost", "registered": "joining",
    },
    "lost": {"registered": "joining"},
}  # fmt: skip


class Member(Struct, frozen=True, kw_only=True):
    """What others may see of one node."""

    profile: NodeProfile
    health: NodeHealth
    status: NodeStatus
    reason: str
    health_score: float
    is_draining: bool
    """An operator wants it empty, whatever its status is."""
    seen_ms: int
    """Receiver's monotonic clock at the last receipt."""


@dataclass(slots=True, eq=False)
class Record:
    """Everything that membership remembers of one node. Mutable, never handed out. Each beat writes
    six fields, which costs a Struct three times as much."""

    profile: NodeProfile
    seen_ms: int
    status: NodeStatus = "joining"
    reason: str = ""
    health: NodeHealth = _NOT_MEASURED
    score: float = 1.0
    counter: int = -1
    links: set[int] = field(default_factory=set[int])
    linked_ms: int = 0
    """When the newest link was opened."""
    suspicions: int = 0
    suspected_ms: int = 0
    good_beats: int = 0
    good_beats_needed: int = 0
    good_beat_ms: int = 0
    missed_beats: int = 0
    """Missed beats of the present silence that the score has paid for already."""
    lost_ms: int = 0
    is_draining: bool = False

    def move(self, cause: Cause) -> bool:
        """Follow the table; False = this cause changes nothing in this status."""
        status = TRANSITIONS[self.status].get(cause)
        if status is None:
            return False
        self.status = "draining" if status == "ready" and self.is_draining else status
        return True

    def begin(self, now_ms: int, *, is_new_session: bool) -> None:
        """A known node joins again: its links are gone; a new session has a clean sheet."""
        if is_new_session:
            self.counter, self.suspicions, self.score = -1, 0, 1.0
            self.health = NodeHealth()
        self.links.clear()
        self.seen_ms = now_ms
        self.good_beats = self.good_beats_needed = self.missed_beats = 0

    def open_link(self, link_id: int, now_ms: int) -> None:
        """Remember an open link; beyond LINKS_MAX the number is all that matters."""
        self.linked_ms = now_ms
        if len(self.links) < LINKS_MAX:
            self.links.add(link_id)

    def take_beat(self, now_ms: int, counter: int, missed: int, interval_ms: int) -> None:
        """Count a beat. A backlog of beats that arrives at once proves one thing once."""
        if missed:
            self.miss(missed)
            self.good_beats = 0
        elif self.score < 1.0:
            self.score = health_score.after_beat(self.score)
        self.missed_beats = 0
        self.seen_ms, self.counter = now_ms, counter
        if self.good_beats == 0 or now_ms - self.good_beat_ms >= interval_ms // 2:
            self.good_beats += 1
            self.good_beat_ms = now_ms

    def miss(self, missed: int) -> None:
        """Lower the score by what this silence has not cost yet."""
        fresh = max(0, missed - self.missed_beats)
        self.score = health_score.after_missed(self.score, fresh)
        self.missed_beats += fresh

    def count_suspicion(self, now_ms: int, interval_ms: int, good_beats: int) -> None:
        """Set how many good beats it takes to be ready again: more for each recent suspicion."""
        if now_ms - self.suspected_ms > STEADY_BEATS * interval_ms:
            self.suspicions = 0
        self.suspicions += 1
        self.suspected_ms = now_ms
        damping = 0 if self.suspicions == 1 else 2 ** min(self.suspicions - 1, 8)
        self.good_beats = 0
        self.good_beats_needed = max(good_beats, min(GOOD_BEATS_MAX, damping))

    def shown(self) -> Member:
        """What others may see."""
        return Member(
            profile=self.profile,
            health=self.health,
            status=self.status,
            reason=self.reason,
            health_score=self.score,
            is_draining=self.is_draining,
            seen_ms=self.seen_ms,
        )
