"""Membership under any order of events: what must hold always, holds."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from members import profile

from din.discovery.events import (
    AnswerBeat,
    DispatchFailed,
    DrainRequested,
    LinkClosed,
    LinkOpened,
    NodeLeft,
    NodeRegistered,
    PublishChanged,
    PublishForgotten,
    PublishJoined,
    PublishLost,
    PublishUpdated,
    UndrainRequested,
    Woke,
)
from din.discovery.membership import Membership
from din.discovery.schedule import FLEET
from din.domain.node import NodeHealth, NodeId
from din.wire.heartbeat import Heartbeat

NODES = st.sampled_from([NodeId(f"{number:016x}") for number in (1, 2, 3)])
SESSIONS = st.integers(1, 3)
LINKS = st.integers(1, 3)


class MembershipMachine(RuleBasedStateMachine):
    """Folds the instructions into what a gateway would believe, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.membership = Membership()
        self.now_ms = 0
        self.counter = 0
        self.believed: dict[str, str] = {}
        self.names: dict[str, str] = {}

    def tell(self, event) -> tuple:
        out = self.membership.handle(self.now_ms, event)
        for order in out:
            match order:
                case PublishJoined(joined):
                    self.believed[joined.node_id] = "joining"
                    self.names[joined.node_id] = joined.name
                case PublishUpdated(updated):
                    assert updated.node_id in self.believed
                    self.names[updated.node_id] = updated.name
                case PublishChanged(node_id, status, reason):
                    assert self.believed[node_id] not in (status, "lost")
                    assert reason
                    self.believed[node_id] = status
                case PublishLost(node_id):
                    assert self.believed[node_id] != "lost"
                    self.believed[node_id] = "lost"
                case PublishForgotten(node_id):
                    assert self.believed.pop(node_id) == "lost"
                    del self.names[node_id]
                case _:
                    pass
        return out

    @rule(node_id=NODES, session=SESSIONS, name=st.sampled_from(["a", "b"]))
    def register(self, node_id, session, name) -> None:
        self.tell(NodeRegistered(profile(node_id, session, name)))

    @rule(node_id=NODES, session=SESSIONS, is_late=st.booleans())
    def beat(self, node_id, session, is_late) -> None:
        self.counter += 1
        number = 0 if is_late else self.counter
        out = self.tell(Heartbeat(node_id, session, number, NodeHealth()))
        assert isinstance(out[-1], AnswerBeat)
        member = self.membership.member(node_id)
        is_known = member and member.profile.session == session and member.status != "lost"
        assert (out[-1].answer != "register again") == bool(is_known)

    @rule(node_id=NODES, session=SESSIONS, link_id=LINKS)
    def open_link(self, node_id, session, link_id) -> None:
        self.tell(LinkOpened(node_id, session, link_id))

    @rule(node_id=NODES, session=SESSIONS, link_id=LINKS)
    def close_link(self, node_id, session, link_id) -> None:
        self.tell(LinkClosed(node_id, session, link_id, "reset"))

    @rule(node_id=NODES, session=SESSIONS)
    def fail_dispatch(self, node_id, session) -> None:
        self.tell(DispatchFailed(node_id, session, "not accepted", self.now_ms))
        member = self.membership.member(node_id)
        if member and member.profile.session == session:
            assert member.status != "ready"

    @rule(node_id=NODES)
    def drain(self, node_id) -> None:
        self.tell(DrainRequested(node_id))
        self.is_drained(node_id, True)

    @rule(node_id=NODES)
    def undrain(self, node_id) -> None:
        self.tell(UndrainRequested(node_id))
        self.is_drained(node_id, False)

    def is_drained(self, node_id, is_draining: bool) -> None:
        member = self.membership.member(node_id)
        if member is not None:
            assert member.is_draining == is_draining
            assert member.status != ("ready" if is_draining else "draining")

    @rule(node_id=NODES, session=SESSIONS)
    def leave(self, node_id, session) -> None:
        self.tell(NodeLeft(node_id, session))

    @rule(duration_ms=st.integers(0, 20_000))
    def wait(self, duration_ms) -> None:
        end_ms = self.now_ms + duration_ms
        while (due := self.membership.next_wakeup_ms()) is not None and due <= end_ms:
            self.now_ms = max(self.now_ms, due)
            self.tell(Woke())
        self.now_ms = end_ms

    @rule(duration_ms=st.integers(0, 400_000))
    def sleep_through(self, duration_ms) -> None:
        self.now_ms += duration_ms
        self.tell(Woke())

    @invariant()
    def the_instructions_tell_the_whole_truth(self) -> None:
        shown = {each.profile.node_id: each.status for each in self.membership.members()}
        assert shown == self.believed
        for each in self.membership.members():
            assert self.names[each.profile.node_id] == each.profile.name

    @invariant()
    def a_ready_node_has_an_open_link_and_was_heard(self) -> None:
        for record in self.membership._members.values():
            assert record.status != "ready" or record.links
            assert 0.0 <= record.score <= 1.0

    @invariant()
    def live_names_are_unique(self) -> None:
        live = [each.profile.name for each in self.membership.members() if each.status != "lost"]
        assert len(live) == len(set(live))

    @invariant()
    def every_member_has_a_timer(self) -> None:
        timers = self.membership._timers
        assert set(timers._rings_ms) == set(self.membership._members)
        due = self.membership.next_wakeup_ms()
        assert due is None or due > self.now_ms or not self.membership._members

    @invariant()
    def nobody_is_silent_for_long_and_still_ready(self) -> None:
        for each in self.membership.members():
            heard_ms = max(each.seen_ms, self.membership._amnesty_ms)
            if each.status == "ready":
                assert self.now_ms - heard_ms <= FLEET.suspect_after_ms


MembershipMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestMembership = MembershipMachine.TestCase
