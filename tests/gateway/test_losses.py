"""Requests whose input ends the worker that computes it."""

from __future__ import annotations

from dispatch_play import NODE_A, NODE_B, NODE_C, Play, error_of, run

from din.domain.crash import Death, DeathKind
from din.domain.node import NodeId
from din.errors import WorkerLost
from din.wire.messages import Failed, Run

NODES = (NODE_A, NODE_B, NODE_C)


def ends_its_worker(play: Play, kind: DeathKind | None, delay_ms: float = 3.0) -> None:
    """Each node loses the worker, and tells a little later how; None = it never does."""

    def act(sent: Run, node_id: str) -> Failed:
        if kind is not None:
            death = Death(kind, "killed by signal 11 (SIGSEGV)", 90, "x FP32[1]")
            key = (sent.route.epoch, sent.slice_index, NodeId(node_id))
            told = (key, node_id, "m", "m/all", death)
            play.loop.call_later(delay_ms / 1000, lambda: play.crashes.died(*told))
        about = (sent.request_id, sent.attempt, sent.slice_index, node_id)
        return Failed(*about, "DIN-331", "the worker died")

    for node in play.nodes:
        play.nodes[node] = act


def test_what_ends_two_workers_is_not_tried_on_the_whole_fleet() -> None:
    async def story(play: Play) -> None:
        play.ready(*NODES)
        play.nodes |= dict.fromkeys(NODES, lambda *_: None)
        ends_its_worker(play, "crash")
        error = await error_of(play.ask())
        assert isinstance(error, WorkerLost)
        assert len(play.runs) == 2
        assert "the request ended 2 workers" in error.message
        assert error.message.count("SIGSEGV") == 2
        assert error.message.count("while it computed x FP32[1]") == 2
        assert "din node inspect" in error.hint
        assert not play.slice_failures

    run(story)


def test_the_only_node_loses_two_workers_and_no_more() -> None:
    async def story(play: Play) -> None:
        play.ready(NODE_A)
        play.nodes[NODE_A] = lambda *_: None
        ends_its_worker(play, "crash")
        error = await error_of(play.ask())
        assert isinstance(error, WorkerLost)
        assert len(play.runs) == 2

    run(story)


def test_workers_that_somebody_killed_do_not_count_against_a_request() -> None:
    async def story(play: Play) -> None:
        play.ready(*NODES)
        play.nodes |= dict.fromkeys(NODES[:2], lambda *_: None)
        ends_its_worker(play, "killed")
        answer = await play.ask()
        assert answer.steps[-1].node == "node-c"

    run(story)


def test_a_node_that_never_says_how_its_worker_ended_holds_a_request_up_for_a_second_only() -> None:
    async def story(play: Play) -> None:
        play.ready(*NODES)
        play.nodes |= dict.fromkeys(NODES, lambda *_: None)
        ends_its_worker(play, None)
        began_ms = play.loop.clock_ms()
        error = await error_of(play.ask())
        assert isinstance(error, WorkerLost)
        assert len(play.runs) == 4
        assert play.loop.clock_ms() - began_ms < 6_000

    run(story)


def test_a_request_that_is_given_up_says_how_its_last_worker_ended() -> None:
    async def story(play: Play) -> None:
        play.ready(NODE_A)
        play.nodes[NODE_A] = lambda *_: None
        ends_its_worker(play, "killed")
        error = await error_of(play.ask())
        assert isinstance(error, WorkerLost)
        assert len(play.runs) == 4
        assert "the request lost its worker" in error.message
        assert "SIGSEGV" in error.message

    run(story)
