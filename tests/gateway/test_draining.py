"""Emptying a node, in virtual time: nobody waits for it, it lasts, and it says what holds it up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from gateway_fakes import chain_of
from gateway_play import LOAD_S, FakeNode, GatewayPlay
from stories import perform

from din.domain.node import NodeId
from din.domain.plan import Rejection
from din.errors import BadStrategy, CannotPlace, Conflict, ExecutionFailed, NotFound, Unavailable
from din.gateway.deployment.drains import DrainBook
from din.gateway.draining import _line


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    return partial(perform, tmp_path, cut=BadStrategy("it is one operator"))


async def one_holder(play: GatewayPlay) -> tuple[FakeNode, FakeNode]:
    """A model of one slice on one of two nodes; the holder comes first."""
    first, second = play.add(), play.add()
    await play.register(chain_of(1), replicas=1)
    await play.until_ready()
    return (first, second) if first.held else (second, first)


async def serving_all_the_while(play: GatewayPlay, seconds: float) -> None:
    for _ in range(int(seconds / 0.01)):
        assert play.service.is_ready("faces"), play.story()
        await asyncio.sleep(0.01)


def test_the_only_holder_serves_until_another_node_is_ready(run):
    async def story(play: GatewayPlay) -> None:
        holder, other = await one_holder(play)
        view = await play.service.drain_node(holder.name)
        assert (view.status, view.is_draining, view.stuck) == ("draining", True, ())
        assert play.holders() == {holder.name}
        await serving_all_the_while(play, LOAD_S + 2)
        assert play.holders() == {other.name}
        assert not holder.held
        await asyncio.sleep(20)
        assert not holder.held
        shown = play.service.inspect_node(holder.name)
        assert (shown.status, shown.slices) == ("draining", ())

    run(story)


def test_each_slice_moves_by_itself_and_one_that_others_have_is_let_go_at_once(run):
    async def story(play: GatewayPlay) -> None:
        nodes = [play.add(), play.add()]
        await play.register(chain_of(3), replicas=2)
        await play.until_ready()
        await asyncio.sleep(LOAD_S + 2)
        assert all(len(node.held) == 3 for node in nodes)
        await play.service.drain_node(nodes[0].name)
        assert play.holders(0) == play.holders(1) == play.holders(2) == {nodes[1].name}
        await asyncio.sleep(0.01)
        assert not nodes[0].held
        await serving_all_the_while(play, 2)

    run(story)


def test_a_slice_that_nobody_else_can_take_stays_and_says_why(run):
    async def story(play: GatewayPlay) -> None:
        holder = play.add()
        await play.register(chain_of(2), replicas=1)
        await play.until_ready()
        small = play.add(memory_mib=10)
        await asyncio.sleep(1)
        would = await play.service.drain_node(holder.name, is_dry_run=True)
        assert not would.is_draining
        view = await play.service.drain_node(holder.name)
        assert [each.slice for each in view.stuck] == ["faces/part0", "faces/part1"]
        for stuck in (*view.stuck, *would.stuck):
            (reason,) = stuck.reasons
            assert reason.startswith(f"{small.name}: memory is 10 MiB, needs ")
        assert await play.service.drain_node(holder.name) == view
        await serving_all_the_while(play, 30)
        (listed,) = (each for each in play.service.list_nodes().items if each.name == holder.name)
        assert [each.slice for each in listed.stuck] == ["faces/part0", "faces/part1"]
        assert len(listed.slices) == 2
        roomy = play.add()
        await serving_all_the_while(play, 2 * LOAD_S + 3)
        assert play.holders(0) == play.holders(1) == {roomy.name}
        assert not holder.held
        assert play.service.inspect_node(holder.name).stuck == ()

    run(story)


def test_without_any_other_node_it_says_so(run):
    async def story(play: GatewayPlay) -> None:
        holder = play.add()
        await play.register(chain_of(1), replicas=1)
        await play.until_ready()
        (stuck,) = (await play.service.drain_node(holder.name)).stuck
        assert stuck.reasons == ("no other node is in the cluster",)

    run(story)


def test_of_two_drained_nodes_neither_is_a_home_for_the_other(run):
    async def story(play: GatewayPlay) -> None:
        holder, other = await one_holder(play)
        await play.service.drain_node(other.name)
        (stuck,) = (await play.service.drain_node(holder.name)).stuck
        assert any(other.name in reason for reason in stuck.reasons)
        await serving_all_the_while(play, 15)
        assert play.holders() == {holder.name}
        await play.service.undrain_node(other.name)
        await serving_all_the_while(play, LOAD_S + 2)
        assert play.holders() == {other.name}

    run(story)


def test_a_new_home_that_fails_to_load_leaves_the_old_one_serving(run):
    async def story(play: GatewayPlay) -> None:
        holder, other = await one_holder(play)
        other.faults[0] = ExecutionFailed("bad luck")
        await play.service.drain_node(holder.name)
        await serving_all_the_while(play, LOAD_S + 1)
        (stuck,) = play.service.inspect_node(holder.name).stuck
        assert stuck.reasons == (f"{other.name}: could not load it: bad luck",)
        del other.faults[0]
        await serving_all_the_while(play, 15)
        assert play.holders() == {other.name}

    run(story)


def test_force_stops_it_at_once_and_says_what_that_costs(run):
    async def story(play: GatewayPlay) -> None:
        holder = play.add()
        await play.register(chain_of(1), replicas=1)
        await play.until_ready()
        view = await play.service.drain_node(holder.name, is_forced=True)
        assert view.is_drain_forced
        assert [each.slice for each in view.stuck] == ["faces/part0"]
        assert not play.service.is_ready("faces")
        await asyncio.sleep(0.01)
        assert not holder.held
        await play.service.drain_node(holder.name)
        assert play.service.inspect_node(holder.name).is_drain_forced, "force once given stays"
        await asyncio.sleep(15)
        assert not holder.held
        await play.service.undrain_node(holder.name)
        await play.until_ready()
        assert play.holders() == {holder.name}

    run(story)


def test_force_ends_a_drain_that_waits(run):
    async def story(play: GatewayPlay) -> None:
        holder = play.add()
        await play.register(chain_of(1), replicas=1)
        await play.until_ready()
        await play.service.drain_node(holder.name)
        assert play.holders() == {holder.name}
        await play.service.drain_node(holder.name, is_forced=True)
        assert play.holders() == set()
        await asyncio.sleep(0.01)
        assert not holder.held

    run(story)


def test_undrain_leaves_what_is_there_and_may_be_said_to_any_node(run):
    async def story(play: GatewayPlay) -> None:
        holder = play.add()
        await play.register(chain_of(1), replicas=1)
        await play.until_ready()
        for _ in range(2):
            view = await play.service.undrain_node(holder.name)
            assert (view.status, view.is_draining) == ("ready", False)
            await play.service.drain_node(holder.name)
        await play.service.undrain_node(holder.name)
        await serving_all_the_while(play, 3)
        assert play.holders() == {holder.name}
        with pytest.raises(NotFound, match="drained"):
            await play.service.undrain_node("nobody")

    run(story)


def test_the_audit_log_names_a_drained_node_by_its_id_whatever_it_was_called_by(run, monkeypatch):
    noted: list[tuple[str, str]] = []

    class Log:
        @asynccontextmanager
        async def change(self, caller, what, target, **facts):
            noted.append((what, target))
            yield

    async def story(play: GatewayPlay) -> None:
        holder = play.add()
        await asyncio.sleep(1)
        monkeypatch.setattr(play.service, "_audit", Log())
        await play.service.drain_node(holder.name)
        await play.service.undrain_node(holder.name)
        assert noted == [("node.drain", holder.node_id), ("node.undrain", holder.node_id)]

    run(story)


def test_a_drain_outlives_a_restart_of_the_gateway_and_so_does_what_it_serves(run):
    async def story(play: GatewayPlay) -> None:
        holder = play.add()
        await play.register(chain_of(1), replicas=1)
        await play.register(chain_of(1), "moved", replicas=1)
        await play.until_ready()
        await play.until_ready("moved")
        small = play.add(memory_mib=10)
        await asyncio.sleep(1)
        await play.service.drain_node(holder.name)
        await play.crash()
        await play.until_ready(seconds_max=20)
        assert play.service.inspect_node(holder.name).status == "draining"
        assert play.holders() == {holder.name}
        assert not small.held
        roomy = play.add()
        await serving_all_the_while(play, 2 * LOAD_S + 3)
        assert not holder.held
        roomy.kill()
        await play.crash()
        await asyncio.sleep(20)
        assert not holder.held, "what has moved away does not come back"

    run(story)


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_drained_node_that_was_lost_is_drained_when_it_returns(run, is_forced):
    async def story(play: GatewayPlay) -> None:
        holder = play.add()
        await play.register(chain_of(1), replicas=1)
        await play.until_ready()
        await play.service.drain_node(holder.name, is_forced=is_forced)
        holder.kill()
        await asyncio.sleep(15)
        assert play.service.inspect_node(holder.name).status == "lost"
        holder.start()
        await asyncio.sleep(LOAD_S + 3)
        assert play.service.inspect_node(holder.name).status == "draining"
        assert play.service.is_ready("faces") == (not is_forced)
        holder.kill()
        await asyncio.sleep(700)
        with pytest.raises(NotFound):
            play.service.inspect_node(holder.name)
        view = await play.service.undrain_node(holder.name)
        assert (view.node_id, view.is_draining) == (holder.node_id, False)
        assert not play.gateway.drains.leaving()

    run(story)


def test_a_drained_node_that_returns_gets_nothing_of_a_newer_version(run):
    """Slices that did not change have the same id in both versions."""

    async def story(play: GatewayPlay) -> None:
        node = play.add(300)
        await play.register(chain_of(2, 100))
        await play.until_ready()
        held = set(node.held)
        await play.service.drain_node(node.name)
        await play.register(chain_of(2, 100), workers=2)
        await asyncio.sleep(2.0)
        assert set(node.held) == held
        node.kill()
        node.start()
        for _ in range(100):
            await asyncio.sleep(0.05)
            assert set(node.held) <= held
            assert not play.broken_promises()
        assert set(node.held) == held

    run(story)


def test_a_node_without_a_link_is_told_to_unload_when_it_is_back(run):
    async def story(play: GatewayPlay) -> None:
        holder, other = await one_holder(play)
        await play.service.drain_node(holder.name)
        assert holder.link is not None
        holder.link.send = lambda *_, **__: False  # it has not been noticed yet
        await asyncio.sleep(LOAD_S + 2)
        assert play.holders() == {holder.name, other.name}
        assert holder.held
        holder.break_link()
        await asyncio.sleep(3)
        assert not holder.held

    run(story)


def test_a_disk_that_is_full_leaves_the_node_as_it_is(run):
    async def story(play: GatewayPlay) -> None:
        holder, _ = await one_holder(play)
        put = play.store.put

        async def full(*_: object, **__: object) -> int:
            raise Unavailable("the disk is full")

        play.store.put = full
        with pytest.raises(Unavailable, match="full"):
            await play.service.drain_node(holder.name)
        play.store.put = put
        await asyncio.sleep(3)
        assert play.service.inspect_node(holder.name).status == "ready"
        assert play.holders() == {holder.name}

    run(story)


def test_drains_that_cannot_be_read_cost_nothing_else(run):
    async def story(play: GatewayPlay) -> None:
        await play.store.put("drains/000000000000000a", b"{broken")
        await play.store.put("drains/000000000000000b", b'{"node_id": "b", "name": "edge"}')
        await play.store.put("drains/000000000000000c", b'{"node_id": "c", "name": "edge"}')
        book = DrainBook(play.store, play.reports)
        await book.load()
        assert book.leaving() == {"b", "c"}
        assert play.reports.of("drain unreadable")
        with pytest.raises(Conflict, match="means 2 nodes"):
            book.find("edge")

    run(story)


def test_the_answer_names_a_plan_that_cannot_be_made_at_all(run):
    async def story(play: GatewayPlay) -> None:
        holder = play.add(memory_mib=400)
        other = play.add(memory_mib=10)
        await play.register(chain_of(2, 100), replicas=1)
        await play.until_ready()
        view = await play.service.drain_node(holder.name)
        assert len(view.stuck) == 2
        assert not other.held
        with pytest.raises(CannotPlace):
            play.gateway.fleet.plan(
                play.gateway.deployer.holdings()[0].known(
                    lambda _: False, play.gateway.drains.leaving(), 0.0
                )
            )

    run(story)


@pytest.mark.parametrize(
    ("constraint", "observed", "words"),
    [
        ("trust", "no trust label", "edge-2: no trust label, needs trust: high"),
        ("trust", "trust: low", "edge-2: trust: low, needs trust: high"),
        ("status", "lost", "edge-2: status is lost, needs trust: high"),
    ],
)
def test_why_a_node_takes_no_slice_reads_as_a_sentence(
    constraint: str, observed: str, words: str
) -> None:
    refused = Rejection(
        slice_index=0, node_id=NodeId("ab" * 8), node="edge-2", constraint=constraint,
        observed=observed, required="trust: high",
    )  # fmt: skip
    assert _line(refused, "") == words
