"""Which message of which link goes to which room, and what the gateway relays between nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from gateway_fakes import EPOCH, NODE_A, NODE_B, PHOTO, SKIP_ROUTE, Reports

from din.domain.crash import Death
from din.errors import DinError, ExecutionFailed, TooLarge
from din.gateway.nodes.links import RELAYED_BYTES_MAX, NodeLinks
from din.observability.printable import SAID_CHARACTERS_MAX
from din.wire.messages import (
    Accepted,
    AnyMessage,
    BusyNode,
    Cancel,
    Failed,
    Offer,
    Prepared,
    PrepareFailed,
    Progress,
    Result,
    Revoke,
    Revoked,
    Run,
    WorkerDied,
)

NBYTES = 64
LONG = "no\nhint: \x1b[2J" + "x" * 9_000
RESULT = Result(1, 1, 0, (PHOTO,), (), 0)
OFFER = Offer(EPOCH, 0, 7, 8192, 4096)


def run_for(target: str, nbytes: int = 16) -> Run:
    del nbytes
    return Run(1, 1, 2, SKIP_ROUTE, 500, (PHOTO,), "origin", target, 0)


class FakeLink:
    """One link as NodeLinks sees it."""

    def __init__(self, peer_id: str, session: int = 1, *, is_local: bool = False) -> None:
        self.peer_id, self.peer_session, self.is_local = peer_id, session, is_local
        self.is_open = True
        self.is_full = False
        self.local_host = self.peer_host = ""
        self.error: DinError | None = None
        self.sent: list[tuple[AnyMessage, bytes]] = []
        self.waiting: list[Callable[[bool], None]] = []
        self.closed: list[str] = []

    def send(
        self,
        message: AnyMessage,
        body: Sequence[memoryview] = (),
        *,
        on_sent: Callable[[bool], None] | None = None,
    ) -> bool:
        if self.error is not None:
            raise self.error
        if not self.is_open or self.is_full:
            return False
        self.sent.append((message, b"".join(map(bytes, body))))
        if on_sent is not None:
            self.waiting.append(on_sent)
        return True

    def close(self, reason: str, *, is_orderly: bool = False) -> None:
        self.is_open = False
        self.closed.append(reason)


class Rooms:
    """Stands for relay, direct and events: keeps (call, arguments)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.offer_error: DinError | None = None
        self.strangers: set[str] = set()
        """Nodes without a part in any request."""
        self.is_late = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **_: Any) -> Any:
            self.calls.append((name, arguments))
            if name == "is_under_way":
                return not self.is_late
            if name in ("is_party", "is_edge"):
                return arguments[0] not in self.strangers
            if name == "place_result":
                return memoryview(bytearray(arguments[1]))
            if name == "revoke":
                arguments[2]()
            if name == "offered" and self.offer_error is not None and len(arguments) == 3:
                raise self.offer_error
            return None

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for call, arguments in self.calls if call == name]


class Play:
    """Links with two nodes."""

    def __init__(self) -> None:
        self.reports = Reports()
        self.rooms = Rooms()
        self.links = NodeLinks(self.reports)
        self.links.connect(self.rooms, self.rooms, self.rooms)
        self.a, self.b = FakeLink(NODE_A), FakeLink(NODE_B, is_local=True)
        for link in (self.a, self.b):
            self.links.on_open(link)

    def arrives(self, message: AnyMessage, nbytes: int = NBYTES, fds: tuple[int, ...] = ()) -> None:
        """From node A, as the transport hands it over."""
        body = self.links.place_body(self.a, message, nbytes) if nbytes else None
        self.links.on_message(self.a, message, body, fds)


@pytest.fixture
def play() -> Play:
    return Play()


def test_frames_go_to_open_links_only(play: Play):
    message = Cancel(1, 1, "origin", 100)
    assert play.links.send(NODE_A, message)
    assert play.a.sent == [(message, b"")]
    assert not play.links.send("0" * 16, message)
    assert (play.links.is_local(NODE_A), play.links.is_local(NODE_B)) == (False, True)
    play.a.is_open = False
    assert not play.links.is_open(NODE_A)
    assert not play.links.send(NODE_A, message)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        (RESULT, "on_result"),
        (Accepted(()), "on_accepted"),
        (Failed(1, 1, 0, NODE_A, "DIN-330", "x"), "on_failed"),
        (BusyNode(1, 1, 0, NODE_A, 3, 5), "on_busy"),
        (Prepared(EPOCH, 0, 1.0, None, None), "prepared"),
        (PrepareFailed(EPOCH, 0, "DIN-330", "x"), "prepare_failed"),
        (WorkerDied(EPOCH, 0, Death("killed", "signal 9")), "worker_died"),
    ],
)
def test_each_kind_reaches_its_room(play: Play, message: AnyMessage, call: str):
    play.arrives(message)
    assert len(play.rooms.named(call)) == 1


@pytest.mark.parametrize(
    ("message", "call", "fields"),
    [
        (Failed(1, 1, 0, NODE_A, "DIN-330", LONG, hint=LONG), "on_failed", ("message", "hint")),
        (
            PrepareFailed(EPOCH, 0, "DIN-330", LONG, LONG),
            "prepare_failed",
            ("message", "hint"),
        ),
    ],
)
def test_what_a_node_says_is_one_line_and_bounded(
    play: Play, message: AnyMessage, call: str, fields: tuple[str, ...]
):
    play.arrives(message)
    ((*_, told),) = play.rooms.named(call)
    for field in fields:
        said = getattr(told, field)
        assert said.isprintable()
        assert len(said) < 2 * SAID_CHARACTERS_MAX


def test_what_a_node_says_of_a_crash_is_one_line_and_bounded(play: Play):
    play.arrives(WorkerDied(EPOCH, 0, Death("crash", LONG, 1, LONG)))
    ((*_, told),) = play.rooms.named("worker_died")
    for said in (told.death.reason, told.death.running):
        assert said.isprintable()
        assert len(said) < 2 * SAID_CHARACTERS_MAX


@pytest.mark.parametrize(
    "message",
    [
        RESULT,
        Failed(1, 1, 0, NODE_B, "DIN-330", "x"),
        BusyNode(1, 1, 0, NODE_B, 3, 5),
        run_for(NODE_B),
    ],
)
def test_a_node_without_a_part_in_a_request_says_nothing_about_it(play: Play, message: AnyMessage):
    play.rooms.strangers.add(NODE_A)
    for _ in range(3):
        play.arrives(message)
    for call in ("on_result", "on_failed", "on_busy"):
        assert play.rooms.named(call) == []
    assert play.b.sent == []
    assert play.links._relayed_bytes == 0
    (told,) = play.reports.of("frame refused")
    assert (told["node"], told["kind"], told["frames"]) == (NODE_A, type(message).__name__, 1)


def test_marks_of_requests_without_a_part_in_them_are_left_out(play: Play):
    play.rooms.strangers.add(NODE_A)
    play.arrives(Accepted((Progress(1, 1, 0, "accepted"),)))
    assert play.rooms.named("on_accepted") == [(Accepted(()),)]
    assert play.reports.of("frame refused")


def test_a_frame_to_relay_that_comes_too_late_is_dropped_without_a_word(play: Play):
    play.rooms.is_late = True
    play.arrives(run_for(NODE_B))
    assert play.b.sent == []
    assert play.reports.of("frame refused") == []


def test_bodies_are_taken_only_for_results_and_frames_to_relay(play: Play):
    assert play.links.place_body(play.a, RESULT, NBYTES) is not None
    assert play.links.place_body(play.a, run_for(NODE_B), NBYTES) is not None
    assert play.links.place_body(play.a, run_for(""), NBYTES) is None
    assert play.links.place_body(play.a, run_for("0" * 16), NBYTES) is None
    assert play.links.place_body(play.a, Accepted(()), NBYTES) is None


def test_unexpected_kinds_are_reported_and_their_descriptors_closed(play: Play):
    reader, writer = os.pipe()
    play.arrives(Cancel(1, 1, "origin", 100), 0, (reader, writer))
    assert play.reports.of("unexpected message") == [{"node": NODE_A, "kind": "Cancel"}]
    for descriptor in (reader, writer):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_an_offer_goes_on_with_its_descriptors(play: Play):
    play.arrives(OFFER, 0, (100, 101))
    first, second = play.rooms.named("offered")
    assert first == (NODE_A, OFFER, (100, 101))
    assert second == (NODE_A, OFFER)


def test_a_refused_offer_is_reported_and_tells_nobody(play: Play):
    play.rooms.offer_error = ExecutionFailed("no arena")
    play.arrives(OFFER, 0, (100, 101))
    assert len(play.rooms.named("offered")) == 1
    assert play.reports.of("offer refused")[0]["error"] == "no arena"


def test_a_revoke_is_answered_on_the_link_that_asked(play: Play):
    play.arrives(Revoke(7), 0)
    assert play.a.sent == [(Revoked(7), b"")]


# Links of one node.


def test_the_end_of_an_older_link_does_not_disturb_the_newer(play: Play):
    newer = FakeLink(NODE_A, session=2)
    play.links.on_open(newer)
    play.links.on_closed(play.a, "replaced", False)
    assert play.links.is_open(NODE_A)
    assert not play.rooms.named("drop_node")
    assert not play.rooms.named("node_down")
    numbers = [arguments[2] for arguments in play.rooms.named("link_opened")]
    assert len(set(numbers)) == 3
    assert play.rooms.named("link_closed")[0][:3] == (NODE_A, 1, numbers[0])


def test_the_end_of_the_link_ends_what_ran_on_the_node(play: Play):
    play.links.on_closed(play.a, "reset", False)
    assert not play.links.is_open(NODE_A)
    assert play.rooms.named("drop_node") == [(NODE_A,)]
    assert play.rooms.named("node_down") == [(NODE_A, "reset")]


def test_only_the_session_asked_for_is_closed(play: Play):
    play.links.close_session(NODE_A, 5, "old")
    assert play.a.is_open
    play.links.close_session(NODE_A, 1, "old")
    assert play.a.closed == ["old"]
    play.links.close_session("0" * 16, 1, "old")


# Relaying.


def test_a_frame_with_a_target_is_passed_on_as_it_came(play: Play):
    message = run_for(NODE_B)
    body = play.links.place_body(play.a, message, NBYTES)
    assert body is not None
    body[:4] = b"data"
    play.links.on_message(play.a, message, body, ())
    assert play.b.sent[0][0] == message
    assert play.b.sent[0][1][:4] == b"data"
    assert play.links._relayed_bytes == NBYTES
    play.b.waiting.pop()(True)
    assert play.links._relayed_bytes == 0


def test_memory_for_relayed_tensors_is_bounded_and_comes_back(play: Play):
    half = RELAYED_BYTES_MAX // 2
    play.arrives(run_for(NODE_B), half)
    play.arrives(run_for(NODE_B), half)
    assert play.links.place_body(play.a, run_for(NODE_B), 1) is None
    play.arrives(run_for(NODE_B))
    (failure,) = play.rooms.named("on_failed")[-1]
    assert (failure.code, failure.node_id, failure.is_retryable) == ("DIN-320", NODE_B, True)
    for told in play.b.waiting:
        told(False)
    assert play.links._relayed_bytes == 0
    assert play.links.place_body(play.a, run_for(NODE_B), 1) is not None


def test_a_body_that_broke_off_gives_its_memory_back(play: Play):
    message = run_for(NODE_B)
    body = play.links.place_body(play.a, message, NBYTES)
    assert body is not None
    play.links.on_body_abandoned(play.a, message, body)
    assert play.links._relayed_bytes == 0


def test_a_target_without_a_link_is_blamed_as_unreachable(play: Play):
    message = run_for(NODE_B)
    body = play.links.place_body(play.a, message, NBYTES)
    play.links.on_closed(play.b, "reset", False)
    play.links.on_message(play.a, message, body, ())
    (failure,) = play.rooms.named("on_failed")[-1]
    assert (failure.node_id, failure.code) == (NODE_B, "DIN-310")
    assert (failure.request_id, failure.attempt, failure.slice_index) == (1, 1, 2)
    assert play.links._relayed_bytes == 0
    assert play.reports.of("relay refused")[0]["target"] == NODE_B


def test_a_target_with_a_full_queue_is_busy(play: Play):
    play.b.is_full = True
    play.arrives(run_for(NODE_B))
    (failure,) = play.rooms.named("on_failed")[-1]
    assert (failure.node_id, failure.code) == (NODE_B, "DIN-320")
    assert play.links._relayed_bytes == 0


def test_a_frame_over_the_targets_limit_fails_with_that_error(play: Play):
    play.b.error = TooLarge("too many bytes")
    play.arrives(run_for(NODE_B))
    (failure,) = play.rooms.named("on_failed")[-1]
    assert (failure.code, failure.is_retryable) == ("DIN-140", False)
    assert play.links._relayed_bytes == 0


def test_a_frame_that_was_meant_for_a_node_but_names_none_fails(play: Play):
    play.arrives(run_for(""), 0)
    assert len(play.rooms.named("on_failed")) == 1
