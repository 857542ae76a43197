"""Membership: who is here, as a state machine over the receiver's monotonic clock.

Knows nothing of sockets, clocks or stores: `handle(now_ms, event)` returns orders, and
`next_wakeup_ms()` says when to call again with `Woke`. The node's own clock is never read.
The table of transitions is `member.TRANSITIONS`; this is what stands behind it.

Only `ready` and `draining` are routable, so suspicion is cheap and quick, while `lost`, which moves
slices away for good, waits. Suspicion from one side (a closed link) is not cleared by the other (a
beat): a node whose beats arrive but which cannot be reached stays suspect. What was dispatched
before the newest link was opened says nothing of it: the news of its failure often come later.

Sessions. A node id lives on its disk, a session counts its starts. A newer session evicts the
older at once, so a restart leaves no ghost. Whatever an older session still says is ignored; it
may not register while the newer lives. A beat from a session that is not known here (a restarted
gateway, a node that was lost) is answered "register again", which is always safe to do.

Hysteresis. The first suspicion ends with its cause. The second within `STEADY_BEATS` intervals
needs two beats in time, then four, then eight: a node that flaps under load spends its time
suspect instead of pulling work back and forth. Beats that were queued and arrive together count
once, since one receipt after a stall proves little. A new session starts with a clean sheet.

The gateway's own sleep. When `handle` is called much later than `next_wakeup_ms` asked for, this
process was stopped (suspend, SIGSTOP, a paused VM), and silence proves nothing: every node gets a
fresh period from that moment. Closed links and failed dispatches still count at once.

Cost. A beat touches one record and no timer: each member has one timer, which is corrected when it
comes up. Nothing scans the fleet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from din.discovery import health_score
from din.discovery.events import (
    AnswerBeat,
    DispatchFailed,
    DrainRequested,
    EvictSession,
    LinkClosed,
    LinkOpened,
    MembershipEvent,
    MembershipInstruction,
    NodeLeft,
    NodeRegistered,
    PublishChanged,
    PublishForgotten,
    PublishJoined,
    PublishLost,
    PublishUpdated,
    RecordHealth,
    RecordScore,
    RefuseNode,
    RenameNode,
    SliceFailed,
    UndrainRequested,
    Woke,
)
from din.discovery.member import Cause, Member, Record
from din.discovery.names import Names
from din.discovery.schedule import (
    FLEET,
    FORGOTTEN_AFTER_MS,
    MISSED_BEATS_SUSPECT,
    BeatSchedule,
)
from din.discovery.timers import Timers
from din.domain.node import NodeId, NodeProfile
from din.wire.heartbeat import Heartbeat

MEMBERS_MAX: Final = 20_000
DRAIN_REASON: Final = "drained by an operator"
STALL_MS_MIN: Final = 500
"""A wake-up may be this late, or half an interval, before it counts as a sleep of our own."""
_OK: Final = AnswerBeat("ok")
_DRAINING: Final = AnswerBeat("draining")
_AGAIN: Final = AnswerBeat("register again")


class Membership:
    """Decides which nodes are alive. Answers events with instructions; never acts."""

    def __init__(self, schedule: BeatSchedule = FLEET) -> None:
        self._schedule = schedule
        self._members: dict[NodeId, Record] = {}
        self._names = Names()
        self._timers = Timers()
        self._now_ms = 0
        self._amnesty_ms = 0
        self._out: list[MembershipInstruction] = []

    def keep_names(self, owner_of: Callable[[str], str]) -> None:
        """Names that belong to a node also while it is away; see Names."""
        self._names.owner_of = owner_of

    @property
    def schedule(self) -> BeatSchedule:
        """Interval and jitter that nodes are told."""
        return self._schedule

    def count(self) -> int:
        """How many nodes are listed, lost ones included."""
        return len(self._members)

    def members(self) -> tuple[Member, ...]:
        """All nodes, lost ones included until they are forgotten."""
        return tuple(each.shown() for each in self._members.values())

    def member(self, node_id: NodeId) -> Member | None:
        """One node, or None."""
        found = self._members.get(node_id)
        return None if found is None else found.shown()

    def name(self, node_id: NodeId) -> str | None:
        """What a node calls itself, or None."""
        found = self._members.get(node_id)
        return None if found is None else found.profile.name

    def next_wakeup_ms(self) -> int | None:
        """When to call `handle(now, Woke())` at the latest; None = nothing to wait for."""
        return self._timers.next_ms()

    def handle(self, now_ms: int, event: MembershipEvent) -> tuple[MembershipInstruction, ...]:
        """Take one event and answer with orders. Time never runs backwards here."""
        self._now_ms = max(self._now_ms, now_ms)
        wakeup_ms = self._timers.next_ms()
        if wakeup_ms is not None and wakeup_ms <= self._now_ms:
            self._notice_stall(wakeup_ms)
            self._expire()
        match event:
            case Heartbeat():  # first, since nothing else comes so often
                self._beat(event)
            case NodeRegistered():
                self._register(event.profile)
            case LinkOpened():
                self._link_opened(event)
            case LinkClosed():
                self._link_closed(event)
            case DispatchFailed():
                self._dispatch_failed(event)
            case SliceFailed():
                self._slice_failed(event)
            case DrainRequested():
                self._drain(event.node_id)
            case UndrainRequested():
                self._undrain(event.node_id)
            case NodeLeft():
                if member := self._current(event.node_id, event.session):
                    self._lose(member, "left", event.reason)
            case Woke():
                pass
        out, self._out = tuple(self._out), []
        return out

    # -- registration -------------------------------------------------------------------------

    def _register(self, profile: NodeProfile) -> None:
        known = self._members.get(profile.node_id)
        if known is None:
            self._admit(profile)
        elif known.status == "lost":
            self._readmit(known, profile)
        elif profile.session < known.profile.session:
            self._refuse_older(known, profile)
        elif profile.session > known.profile.session:
            old = known.profile.session
            reason = f"session {old} was replaced by session {profile.session}"
            self._out.append(EvictSession(profile.node_id, old, reason))
            self._readmit(known, profile)
        else:
            self._update(known, profile)

    def _admit(self, profile: NodeProfile) -> None:
        if len(self._members) >= MEMBERS_MAX and not self._forget_longest_lost():
            reason = f"the cluster has {MEMBERS_MAX} nodes, which is its limit"
            hint = "remove nodes, or start a second cluster"
            self._out.append(RefuseNode(profile.node_id, reason, hint))
            return
        member = Record(profile, self._now_ms)
        self._members[profile.node_id] = member
        self._join(member, profile)

    def _forget_longest_lost(self) -> bool:
        """Make room for a node that is here; False when nobody is lost."""
        lost = [each for each in self._members.values() if each.status == "lost"]
        if not lost:
            return False
        node_id = min(lost, key=lambda each: each.lost_ms).profile.node_id
        del self._members[node_id]
        self._timers.unset(node_id)
        self._out.append(PublishForgotten(node_id))
        return True

    def _readmit(self, member: Record, profile: NodeProfile) -> None:
        member.move("registered")
        member.begin(self._now_ms, is_new_session=profile.session != member.profile.session)
        self._join(member, profile)

    def _join(self, member: Record, profile: NodeProfile) -> None:
        member.reason = "registered, no link yet: it dials the gateway's --link-port"
        member.profile = self._named(profile)
        self._out.append(PublishJoined(member.profile))
        self._schedule_wakeup(member)

    def _update(self, member: Record, profile: NodeProfile) -> None:
        member.seen_ms = self._now_ms
        before = member.profile
        member.profile = self._named(profile)
        if member.profile != before:
            self._out.append(PublishUpdated(member.profile))

    def _refuse_older(self, member: Record, profile: NodeProfile) -> None:
        self._out.append(
            RefuseNode(
                profile.node_id,
                f"session {profile.session} of node id {profile.node_id} is older than "
                f"session {member.profile.session}, which is {member.status}",
                "two machines may carry copies of one state directory: remove `identity.json` "
                "on one of them",
            )
        )

    def _named(self, profile: NodeProfile) -> NodeProfile:
        """The profile under a name that no other live node has."""
        name, warning = self._names.give(profile.node_id, profile.name)
        if warning:
            self._out.append(RenameNode(profile.node_id, name, warning))
        return msgspec.structs.replace(profile, name=name)

    # -- beats ----------------------------------------------------------------------------------

    def _beat(self, beat: Heartbeat) -> None:
        member = self._members.get(beat.node_id)
        if member is None or member.profile.session != beat.session or member.status == "lost":
            self._out.append(_AGAIN)
            return
        if beat.counter > member.counter:
            self._accept_beat(member, beat)
        self._out.append(_DRAINING if member.is_draining else _OK)

    def _accept_beat(self, member: Record, beat: Heartbeat) -> None:
        now_ms, interval_ms, missed = self._now_ms, self._schedule.interval_ms, 0
        if now_ms - member.seen_ms > interval_ms:
            gap_ms = now_ms - max(member.seen_ms, self._amnesty_ms)
            missed = self._schedule.missed_in(gap_ms)
        member.take_beat(now_ms, beat.counter, missed, interval_ms)
        member.health = beat.health
        if member.status == "suspect":
            self._recover(member)
        self._out.append(RecordHealth(beat.node_id, beat.health, member.score))

    def _recover(self, member: Record) -> None:
        if member.status != "suspect" or not member.links:
            return
        if member.good_beats >= member.good_beats_needed and member.move("recovered"):
            words = f"recovered after: {member.reason}"
            self._publish(member, DRAIN_REASON if member.is_draining else words)

    # -- links and dispatches -------------------------------------------------------------------

    def _link_opened(self, event: LinkOpened) -> None:
        member = self._current(event.node_id, event.session)
        if member is None:
            reason = "the session is not registered here, or was replaced"
            self._out.append(EvictSession(event.node_id, event.session, reason))
            return
        member.open_link(event.link_id, self._now_ms)
        member.seen_ms = self._now_ms
        if member.move("link_opened"):
            words = DRAIN_REASON if member.is_draining else "registered and its link is open"
            self._publish(member, words)
        self._recover(member)

    def _link_closed(self, event: LinkClosed) -> None:
        member = self._current(event.node_id, event.session)
        if member is None:
            return
        member.links.discard(event.link_id)
        if not member.links:
            self._suspect(member, "link_closed", f"link closed: {event.reason}", good_beats=0)
            if not event.is_orderly:
                self._lower_score(member)

    def _dispatch_failed(self, event: DispatchFailed) -> None:
        member = self._current(event.node_id, event.session)
        if member is not None and event.began_ms >= member.linked_ms:
            self._suspect(member, "dispatch", f"dispatch failed: {event.reason}", good_beats=1)
            self._lower_score(member)

    def _slice_failed(self, event: SliceFailed) -> None:
        if member := self._current(event.node_id, event.session):
            self._lower_score(member)

    def _lower_score(self, member: Record) -> None:
        member.score = health_score.after_error(member.score)
        self._out.append(RecordScore(member.profile.node_id, member.score))

    def _drain(self, node_id: NodeId) -> None:
        if member := self._members.get(node_id):
            member.is_draining = True
            if member.move("drain"):
                self._publish(member, DRAIN_REASON)

    def _undrain(self, node_id: NodeId) -> None:
        if member := self._members.get(node_id):
            member.is_draining = False
            if member.move("undrain"):
                self._publish(member, "an operator ended its draining")

    # -- suspicion, loss, time ------------------------------------------------------------------

    def _suspect(self, member: Record, cause: Cause, reason: str, *, good_beats: int) -> None:
        if member.status == "suspect" and cause == "dispatch":
            member.good_beats = 0  # a second failure while suspect starts the count again
        if member.move(cause):
            member.count_suspicion(self._now_ms, self._schedule.interval_ms, good_beats)
            self._publish(member, reason)

    def _lose(self, member: Record, cause: Cause, reason: str) -> None:
        if not member.move(cause):
            return
        profile = member.profile
        member.lost_ms, member.reason = self._now_ms, reason
        member.links.clear()
        self._names.release(profile.node_id)
        self._out.append(EvictSession(profile.node_id, profile.session, reason))
        self._out.append(PublishLost(profile.node_id, reason, is_orderly=cause == "left"))
        self._schedule_wakeup(member)

    def _notice_stall(self, wakeup_ms: int) -> None:
        """A wake-up that comes far too late means that this process stood still."""
        tolerated_ms = max(STALL_MS_MIN, self._schedule.interval_ms // 2)
        if self._now_ms - wakeup_ms > tolerated_ms:
            self._amnesty_ms = self._now_ms

    def _expire(self) -> None:
        while (node_id := self._timers.pop(self._now_ms)) is not None:
            member = self._members[node_id]
            if self._deadline_ms(member) <= self._now_ms:
                self._time_out(member)
            if node_id in self._members:
                self._schedule_wakeup(member)

    def _time_out(self, member: Record) -> None:
        silence_ms = self._now_ms - member.seen_ms
        if member.status in ("ready", "draining"):
            member.miss(MISSED_BEATS_SUSPECT)
            self._suspect(member, "missed", f"no heartbeat for {silence_ms} ms", good_beats=1)
        elif member.status == "lost":
            del self._members[member.profile.node_id]
            self._out.append(PublishForgotten(member.profile.node_id))
        else:
            self._lose(member, "silent", f"no heartbeat for {silence_ms} ms")

    def _deadline_ms(self, member: Record) -> int:
        if member.status == "lost":
            return member.lost_ms + FORGOTTEN_AFTER_MS
        heard_ms = max(member.seen_ms, self._amnesty_ms)
        if member.status in ("ready", "draining"):
            return heard_ms + self._schedule.suspect_after_ms
        return heard_ms + self._schedule.lost_after_ms

    def _schedule_wakeup(self, member: Record) -> None:
        self._timers.set(member.profile.node_id, self._deadline_ms(member))

    # -- small steps ------------------------------------------------------------------------------

    def _current(self, node_id: NodeId, session: int) -> Record | None:
        """The live member of exactly this session, or None."""
        member = self._members.get(node_id)
        if member is None or member.status == "lost" or member.profile.session != session:
            return None
        return member

    def _publish(self, member: Record, reason: str) -> None:
        member.reason = reason
        self._out.append(PublishChanged(member.profile.node_id, member.status, reason))
        self._schedule_wakeup(member)  # another status waits for another deadline
