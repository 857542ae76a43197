"""Who is here: each case of failure that membership exists for, by virtual time."""

from random import Random

import pytest
from members import NODE_A, NODE_B, Play, profile

from din.discovery.events import (
    AnswerBeat,
    DispatchFailed,
    DrainRequested,
    EvictSession,
    LinkClosed,
    LinkOpened,
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
from din.discovery.member import TRANSITIONS
from din.discovery.membership import Membership
from din.discovery.schedule import FORGOTTEN_AFTER_MS, PIPELINE
from din.domain.node import NodeHealth, NodeId
from din.wire.heartbeat import Heartbeat


@pytest.fixture
def play() -> Play:
    return Play()


def kinds(instructions) -> list[type]:
    return [type(each) for each in instructions]


def changes(instructions) -> list[str]:
    return [each.status for each in instructions if isinstance(each, PublishChanged)]


def test_a_node_is_joining_until_its_link_is_open(play: Play) -> None:
    """T05: seen, but not reachable: never routable."""
    assert kinds(play.do(NodeRegistered(profile()))) == [PublishJoined]
    play.beat_for(30_000)
    assert play.status() == "joining"
    assert changes(play.do(LinkOpened(NODE_A, 1, 1))) == ["ready"]


def test_a_silent_node_is_suspect_after_6900_ms_and_lost_after_9000(play: Play) -> None:
    play.join()
    play.beat()
    assert play.to(6899) == []
    assert changes(play.to(6900)) == ["suspect"]
    assert PublishLost not in kinds(play.to(8999))
    assert kinds(play.to(9000)) == [EvictSession, PublishLost]
    assert play.status() == "lost"


def test_the_pipeline_preset_is_three_times_as_quick() -> None:
    play = Play(Membership(PIPELINE))
    play.join()
    assert changes(play.to(2300)) == ["suspect"]
    assert PublishLost in kinds(play.to(3000))


def test_a_lost_node_is_forgotten_after_ten_minutes(play: Play) -> None:
    play.join()
    play.to(9000)
    assert play.to(9000 + FORGOTTEN_AFTER_MS - 1) == []
    assert kinds(play.pass_ms(1)) == [PublishForgotten]
    assert play.membership.count() == 0
    assert play.membership.next_wakeup_ms() is None


def test_a_full_book_forgets_the_longest_lost_for_a_node_that_is_here(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of registrations that never beat does not keep the next node out for ten minutes."""
    monkeypatch.setattr("din.discovery.membership.MEMBERS_MAX", 2)
    play.join()
    play.pass_ms(1000)
    play.do(NodeRegistered(profile(NODE_B, name="edge-b")))
    play.to(10_500)
    third = NodeId("c" * 16)
    out = play.do(NodeRegistered(profile(third, name="edge-c")))
    assert kinds(out) == [PublishForgotten, PublishJoined]
    assert out[0].node_id == NODE_A
    assert play.membership.count() == 2
    play.to(20_000)
    assert play.membership.next_wakeup_ms() is not None


def test_a_closed_link_makes_a_node_suspect_at_once_and_a_new_one_ready_again(play: Play) -> None:
    play.join()
    out = play.do(LinkClosed(NODE_A, 1, 1, "connection reset"))
    assert out[0] == PublishChanged(NODE_A, "suspect", "link closed: connection reset")
    assert changes(play.do(LinkOpened(NODE_A, 1, 2))) == ["ready"]


def test_a_beat_does_not_clear_the_suspicion_of_a_closed_link(play: Play) -> None:
    play.join()
    play.do(LinkClosed(NODE_A, 1, 1, "reset"))
    play.beat_for(30_000)
    assert play.status() == "suspect"


def test_a_second_link_keeps_the_node_ready_when_the_first_closes(play: Play) -> None:
    play.join(link_id=1)
    play.do(LinkOpened(NODE_A, 1, 2))
    assert play.do(LinkClosed(NODE_A, 1, 1, "replaced")) == ()
    assert play.status() == "ready"


def test_one_failed_dispatch_makes_a_node_suspect_until_a_beat(play: Play) -> None:
    """T19: dead but routable for one request only."""
    play.join()
    assert changes(play.do(DispatchFailed(NODE_A, 1, "not accepted", play.now_ms))) == ["suspect"]
    play.pass_ms(2000)
    assert changes(play.beat()) == ["ready"]


def test_a_failure_of_what_was_dispatched_before_the_newest_link_says_nothing_of_it(
    play: Play,
) -> None:
    play.join()
    began_ms = play.now_ms
    play.pass_ms(5)
    play.do(LinkClosed(NODE_A, 1, 1, "replaced by a newer link"))
    assert changes(play.do(LinkOpened(NODE_A, 1, 2))) == ["ready"]
    assert play.do(DispatchFailed(NODE_A, 1, "its link closed", began_ms)) == ()
    assert changes(play.do(DispatchFailed(NODE_A, 1, "not accepted", play.now_ms))) == ["suspect"]


def test_a_restart_under_the_same_id_evicts_the_old_session_at_once(play: Play) -> None:
    """T10: no ghost."""
    play.join(session=1)
    out = play.do(NodeRegistered(profile(session=2)))
    assert kinds(out) == [EvictSession, PublishJoined]
    assert out[0].session == 1
    assert play.membership.count() == 1
    assert changes(play.do(LinkOpened(NODE_A, 2, 9))) == ["ready"]


def test_whatever_an_older_session_says_is_ignored(play: Play) -> None:
    """T10."""
    play.join(session=2)
    assert play.do(LinkClosed(NODE_A, 1, 1, "late")) == ()
    assert play.do(DispatchFailed(NODE_A, 1, "late", play.now_ms)) == ()
    assert play.do(NodeLeft(NODE_A, 1)) == ()
    assert kinds(play.do(LinkOpened(NODE_A, 1, 5))) == [EvictSession]
    assert play.beat(session=1) == (AnswerBeat("register again"),)
    assert play.status() == "ready"


def test_an_older_session_may_not_register_while_the_newer_lives(play: Play) -> None:
    play.join(session=2)
    (refusal,) = play.do(NodeRegistered(profile(session=1)))
    assert isinstance(refusal, RefuseNode)
    assert "session 1" in refusal.reason
    play.pass_ms(9000)
    assert kinds(play.do(NodeRegistered(profile(session=1)))) == [PublishJoined]


def test_registering_again_with_the_same_session_changes_nothing(play: Play) -> None:
    play.join()
    assert play.do(NodeRegistered(profile())) == ()
    assert play.status() == "ready"


def test_a_new_address_is_published_under_the_same_id(play: Play) -> None:
    """T06: DHCP gave another address."""
    play.join()
    moved = profile(addresses=("tcp:10.0.0.9:80",))
    assert play.do(NodeRegistered(moved)) == (PublishUpdated(moved),)
    assert play.status() == "ready"


def test_an_unknown_node_is_asked_to_register_again(play: Play) -> None:
    assert play.beat() == (AnswerBeat("register again"),)


def test_a_lost_node_that_beats_again_is_asked_to_register_and_comes_back(play: Play) -> None:
    """T11: suspect, gone, back: one entry, no duplicate."""
    play.join()
    play.to(300_000)
    assert play.status() == "lost"
    assert play.beat() == (AnswerBeat("register again"),)
    play.join(link_id=2)
    assert play.status() == "ready"
    assert play.membership.count() == 1


def test_an_older_counter_is_answered_but_not_recorded(play: Play) -> None:
    play.join()
    play.beat(counter=5, health=NodeHealth(cpu_percent=50.0))
    assert kinds(play.beat(counter=4, health=NodeHealth(cpu_percent=1.0))) == [AnswerBeat]
    member = play.membership.member(NODE_A)
    assert member.health.cpu_percent == 50.0


def test_only_the_receivers_clock_decides(play: Play) -> None:
    """T12: a beat carries no time; a clock that runs backwards here changes nothing either."""
    play.join()
    assert not any("time" in each or "clock" in each for each in Heartbeat.__struct_fields__)
    play.beat_for(60_000)
    play.now_ms -= 50_000
    assert changes(play.beat()) == []
    assert play.status() == "ready"
    seen_ms = play.membership.member(NODE_A).seen_ms
    assert seen_ms == play.now_ms + 50_000, "the beat came no earlier than the one before it"


def test_our_own_sleep_does_not_lose_the_fleet(play: Play) -> None:
    """T11: the gateway was suspended for five minutes."""
    play.join()
    play.join(NODE_B, name="other")
    play.beat_for(9000, NODE_A, NODE_B)
    play.now_ms += 300_000
    assert play.do(Woke()) == ()
    play.pass_ms(3000)
    play.beat(NODE_A)
    out = play.pass_ms(3900)
    assert out == [PublishChanged(NODE_B, "suspect", "no heartbeat for 306900 ms")]
    assert play.status(NODE_A) == "ready"
    assert PublishLost in kinds(play.pass_ms(2100))


def test_our_own_sleep_is_noticed_by_the_first_beat_too(play: Play) -> None:
    play.join()
    play.beat_for(3000)
    play.now_ms += 300_000
    assert kinds(play.beat()) == [RecordHealth, AnswerBeat]
    assert play.membership.member(NODE_A).health_score == 1.0


def flap(play: Play) -> int:
    """One silence, then beats until ready; answers how many beats that took."""
    play.pass_ms(6950)
    assert play.status() == "suspect"
    for count in range(1, 20):
        play.beat()
        if play.status() == "ready":
            return count
        play.pass_ms(3000)
    raise AssertionError("never ready again")


def test_a_flapping_node_must_hold_more_beats_each_time(play: Play) -> None:
    """T14."""
    play.join()
    assert [flap(play) for _ in range(5)] == [1, 2, 4, 8, 8]


def test_a_steady_minute_wipes_earlier_flaps(play: Play) -> None:
    """T14."""
    play.join()
    flap(play)
    flap(play)
    play.beat_for(63_000)
    assert flap(play) == 1


def test_a_backlog_of_beats_that_arrives_at_once_counts_once(play: Play) -> None:
    """T14: queued beats after a stall prove one thing, not ten."""
    play.join()
    flap(play)
    play.pass_ms(6950)
    for _ in range(10):
        play.beat()
    assert play.status() == "suspect"
    play.pass_ms(3000)
    play.beat()
    assert play.status() == "ready"


def test_a_restarted_node_begins_with_a_clean_sheet(play: Play) -> None:
    play.join()
    flap(play)
    flap(play)
    play.join(session=2, link_id=3)
    assert play.status() == "ready"
    assert play.membership.member(NODE_A).health_score == 1.0


def test_draining_is_told_with_each_beat_and_outlives_the_session(play: Play) -> None:
    play.join()
    assert changes(play.do(DrainRequested(NODE_A))) == ["draining"]
    assert play.do(DrainRequested(NODE_A)) == ()
    assert play.beat()[-1] == AnswerBeat("draining")
    play.join(session=2, link_id=2)
    assert play.status() == "draining"
    assert changes(play.do(UndrainRequested(NODE_A))) == ["ready"]
    assert play.do(UndrainRequested(NODE_A)) == ()
    assert play.beat(session=2)[-1] == AnswerBeat("ok")


def test_a_draining_node_is_watched_like_a_ready_one(play: Play) -> None:
    """What it still holds is asked for, so it must be suspected, and lost, when it falls silent."""
    play.join()
    play.do(DrainRequested(NODE_A))
    play.do(LinkClosed(NODE_A, 1, 1, "reset"))
    assert play.status() == "suspect"
    assert play.beat()[-1] == AnswerBeat("draining")
    play.do(LinkOpened(NODE_A, 1, 2))
    assert play.status() == "draining"
    play.do(DispatchFailed(NODE_A, 1, "not accepted", play.now_ms))
    assert play.status() == "suspect"
    play.to(play.now_ms + 20_000)
    assert play.status() == "lost"
    play.join(session=2, link_id=3)
    assert play.status() == "draining"


@pytest.mark.parametrize("is_taken_back", [True, False])
def test_a_node_that_is_not_ready_drains_once_it_is(play: Play, is_taken_back: bool) -> None:
    play.do(NodeRegistered(profile(NODE_A)))
    assert play.do(DrainRequested(NODE_A)) == ()
    assert play.status() == "joining"
    if is_taken_back:
        assert play.do(UndrainRequested(NODE_A)) == ()
    play.do(LinkOpened(NODE_A, 1, 1))
    assert play.status() == ("ready" if is_taken_back else "draining")


def test_a_goodbye_is_orderly_and_at_once(play: Play) -> None:
    play.join()
    out = play.do(NodeLeft(NODE_A, 1))
    assert out == (
        EvictSession(NODE_A, 1, "was stopped"),
        PublishLost(NODE_A, "was stopped", is_orderly=True),
    )


def test_a_clone_gets_a_longer_name_and_keeps_it(play: Play) -> None:
    """T08: same host name, two boards: both are in, under distinct ids and names."""
    clone = NodeId("beef00000000000b")
    play.join(NODE_A)
    out = play.join(clone)
    assert isinstance(out[0], RenameNode)
    assert out[0].name == "edge-beef"
    assert NODE_A in out[0].warning
    play.join(clone, session=2)
    assert play.membership.member(clone).profile.name == "edge-beef"
    play.to(20_000)
    play.join(clone, session=3)
    assert play.membership.member(clone).profile.name == "edge"


def test_a_long_name_stays_a_label(play: Play) -> None:
    play.join(NODE_A, name="x" * 63)
    play.join(NODE_B, name="x" * 63)
    name = play.membership.member(NODE_B).profile.name
    assert len(name) <= 63
    assert name.endswith("-0000")


def test_errors_lower_the_score_and_beats_restore_it(play: Play) -> None:
    play.join()
    scores = [play.do(SliceFailed(NODE_A, 1))[0].health_score for _ in range(2)]
    assert scores == [0.5, 0.25]
    assert play.status() == "ready"
    play.beat_for(90_000)
    assert play.membership.member(NODE_A).health_score > 0.95


def test_missed_beats_lower_the_score_once_for_each(play: Play) -> None:
    play.join()
    play.pass_ms(6900)
    assert play.membership.member(NODE_A).health_score == pytest.approx(0.64)
    play.pass_ms(100)
    play.beat()
    assert play.membership.member(NODE_A).health_score == pytest.approx(0.64)


def test_an_orderly_close_costs_no_score(play: Play) -> None:
    play.join()
    play.do(LinkClosed(NODE_A, 1, 1, "stopping", is_orderly=True))
    assert RecordScore not in kinds(play.log)


def test_ten_thousand_nodes_cost_a_beat_no_scan() -> None:
    play = Play()
    random = Random(7)
    nodes = [NodeId(f"{number:016x}") for number in range(10_000)]
    for number, node_id in enumerate(nodes):
        play.now_ms = number * 3000 // len(nodes)
        play.join(node_id, name=f"n{number}")
    timers = play.membership._timers
    size = len(timers)
    assert size <= 2 * len(nodes)
    for _ in range(3):
        for node_id in random.sample(nodes, 2000):
            play.beat(node_id)
    assert len(timers) == size
    lost = [each for each in play.to(12_000) if isinstance(each, PublishLost)]
    assert len(lost) == len(nodes)


def test_the_cluster_has_a_limit(monkeypatch: pytest.MonkeyPatch, play: Play) -> None:
    monkeypatch.setattr("din.discovery.membership.MEMBERS_MAX", 1)
    play.join(NODE_A)
    (refusal,) = play.do(NodeRegistered(profile(NODE_B, name="b")))
    assert isinstance(refusal, RefuseNode)


def test_the_table_knows_every_status() -> None:
    assert set(TRANSITIONS) == {"joining", "ready", "suspect", "lost", "draining"}
    assert all(set(row.values()) <= set(TRANSITIONS) for row in TRANSITIONS.values())


def test_a_name_that_is_kept_for_another_is_not_given_while_that_one_is_away() -> None:
    play = Play()
    play.membership.keep_names(lambda name: {"edge": NODE_B}.get(name, ""))
    (renamed,) = [
        each for each in play.do(NodeRegistered(profile())) if isinstance(each, RenameNode)
    ]
    assert (renamed.node_id, renamed.name) == (NODE_A, "edge-0000")
    assert f"taken by node {NODE_B}" in renamed.warning
    play.do(NodeRegistered(profile(NODE_B)))
    assert play.membership.name(NODE_B) == "edge"
