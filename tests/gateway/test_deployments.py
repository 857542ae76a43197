"""Deployments over a real fleet in virtual time: placed, loaded, repaired, moved, replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from gateway_fakes import chain_of
from gateway_play import LOAD_S, FakeNode, GatewayPlay
from stories import perform

from din.discovery.schedule import FLEET
from din.domain.node import SLICES_HELD_MAX
from din.domain.support import Need, Needs
from din.errors import BadModel, CannotPlace, ExecutionFailed
from din.gateway.deployment.deployer import PREPARE_MS_MAX
from din.gateway.deployment.holding import RETRY_AFTER_MS
from din.wire.messages import Prepared, PrepareFailed

BEAT_S = FLEET.interval_ms / 1000
LOST_S = FLEET.lost_after_ms / 1000


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    return partial(perform, tmp_path)


def indexes_of(node: FakeNode) -> set[int]:
    return {index for _, index in node.held}


# Loading.


def test_slices_are_prepared_with_their_peers_and_then_ready(run):
    async def story(play: GatewayPlay) -> None:
        first, second = play.add(150), play.add(150)
        view = await play.register(chain_of(2), replicas=1)
        assert view.state == "placing"
        assert view.epoch != (0, 0)
        await play.until_ready()
        assert indexes_of(first) | indexes_of(second) == {0, 1}
        assert not indexes_of(first) & indexes_of(second)
        for prepare in (first.prepares[-1], second.prepares[-1]):
            assert set(prepare.peers) == {first.node_id, second.node_id}
            assert prepare.peers[first.node_id] == first.profile().addresses
            assert prepare.artifact_url == "http://gateway/"
        assert play.state() == "ready"
        assert play.service.is_gateway_ready()
        shown = play.service.inspect_model("faces")
        assert [replica.state for part in shown.slices for replica in part.replicas] == [
            "ready"
        ] * 2

    run(story)


def test_a_model_waits_for_its_first_node(run):
    async def story(play: GatewayPlay) -> None:
        await play.register(chain_of(1))
        await asyncio.sleep(1.5)
        view = play.service.inspect_model("faces")
        assert (view.state, view.reason) == ("placing", "no node has joined this cluster")
        assert view.hint
        play.add()
        await play.until_ready()
        assert play.service.inspect_model("faces").reason == ""

    run(story)


def test_a_second_replica_is_loaded_only_where_memory_allows(run):
    async def story(play: GatewayPlay) -> None:
        play.add(150)
        small = play.add(50)
        await play.register(chain_of(1, memory_mib=100))
        await play.until_ready()
        await asyncio.sleep(5)
        assert not small.held
        large = play.add(150)
        await asyncio.sleep(2)
        assert indexes_of(large) == {0}
        assert play.holders() == {"node-1", "node-3"}

    run(story)


def test_memory_counts_once_per_worker(run):
    async def story(play: GatewayPlay) -> None:
        play.carving.cut = BadModel("it is one operator")
        play.add(250)
        await play.register(chain_of(1, memory_mib=100), workers=3)
        await asyncio.sleep(3)
        assert play.state() == "placing"
        assert "memory" in play.service.inspect_model("faces").reason
        play.add(300)
        await play.until_ready()
        assert play.holders() == {"node-2"}

    run(story)


def test_a_node_that_holds_all_the_slices_it_may_is_no_place_for_another_model(run):
    async def story(play: GatewayPlay) -> None:
        full = play.add(1_000)
        await play.register(chain_of(SLICES_HELD_MAX, memory_mib=1), "many", replicas=1)
        await play.until_ready("many")
        await play.register(chain_of(1, memory_mib=1))
        await asyncio.sleep(5)
        assert play.gateway.slices_held(full.node_id) == SLICES_HELD_MAX
        assert len(full.held) == SLICES_HELD_MAX
        assert "node-1 has 256 slices, needs fewer than 256" in (
            play.service.inspect_model("faces").reason
        )
        play.add(1_000)
        await play.until_ready()
        assert play.holders() == {"node-2"}

    run(story)


def test_the_declared_memory_caps_what_is_promised(run):
    async def story(play: GatewayPlay) -> None:
        play.carving.cut = BadModel("it is one operator")
        node = play.add(250)
        for name in ("one", "two", "three"):
            await play.register(chain_of(1, memory_mib=100), name)
        await asyncio.sleep(10)
        assert play.gateway.promised_mib(node.node_id) == 200
        assert sorted(map(play.state, ("one", "two", "three"))) == ["placing", "ready", "ready"]

    run(story)


def test_memory_that_is_loaded_is_not_counted_twice(run):
    """The node measures its free memory with the slices in it: 400 - 200 are free, and hold one."""

    async def story(play: GatewayPlay) -> None:
        node = play.add(400)
        await play.register(chain_of(1, memory_mib=200), "one")
        await play.until_ready("one")
        await asyncio.sleep(3 * BEAT_S)
        await play.register(chain_of(1, memory_mib=200), "two")
        await play.until_ready("two")
        assert len(node.held) == 2
        view = play.service.inspect_node("node-1")
        assert view.memory_mib_reserved == 400
        assert view.slices == ("one/part0", "two/part0")

    run(story)


def test_memory_that_others_use_is_not_promised(run):
    async def story(play: GatewayPlay) -> None:
        play.carving.cut = BadModel("it is one operator")
        node = play.add(400)
        node.memory_mib_used = 250
        await asyncio.sleep(2 * BEAT_S)
        await play.register(chain_of(1, memory_mib=200))
        await asyncio.sleep(3)
        assert play.state() == "placing"

    run(story)


def test_a_slice_that_a_node_cannot_load_goes_to_another(run):
    async def story(play: GatewayPlay) -> None:
        bad, good = play.add(1_000), play.add(1_000)
        bad.faults[0] = ExecutionFailed("no such instruction")
        await play.register(chain_of(1), replicas=1)
        await play.until_ready()
        assert indexes_of(good) == {0}

    run(story)


def test_loading_that_fails_is_tried_again_after_a_pause_that_grows(run):
    async def story(play: GatewayPlay) -> None:
        node = play.add()
        node.faults[0] = ExecutionFailed("out of luck")
        await play.register(chain_of(1))
        await asyncio.sleep(RETRY_AFTER_MS / 1000 * 0.9)
        assert len(node.prepares) == 1
        view = play.service.inspect_model("faces")
        assert view.state == "placing"
        await asyncio.sleep(60)
        assert 4 <= len(node.prepares) <= 7
        node.faults.clear()
        await play.until_ready(seconds_max=130)

    run(story)


def test_bytes_that_are_no_model_fail_the_deployment_with_a_hint(run):
    async def story(play: GatewayPlay) -> None:
        node = play.add()
        node.faults[0] = BadModel("opset 99 is not known", hint="export it again")
        await play.register(chain_of(1))
        await asyncio.sleep(2)
        view = play.service.inspect_model("faces")
        assert (view.state, view.hint) == ("failed", "export it again")
        assert "opset 99" in view.reason
        await asyncio.sleep(60)
        assert len(node.prepares) == 1

    run(story)


def test_a_registration_that_failed_is_not_kept_and_listed_for_ten_minutes(run):
    async def story(play: GatewayPlay) -> None:
        node = play.add()
        node.faults[0] = BadModel("opset 99 is not known")
        await play.register(chain_of(1))
        await asyncio.sleep(500)
        assert play.state() == "failed"
        assert await play.store.list("models/") == ()
        await asyncio.sleep(200)
        assert play.gateway.models.model_ids() == ()
        assert not play.gateway.deployer.holdings()
        await play.register(chain_of(1))
        await play.crash()
        await asyncio.sleep(5)
        assert play.state() == "failed", "it had not failed before the crash"
        await play.crash()
        assert play.gateway.models.model_ids() == ()

    run(story)


def test_a_version_that_failed_leaves_the_older_one_and_may_be_tried_again(run):
    async def story(play: GatewayPlay) -> None:
        node = play.add()
        await play.register(chain_of(1))
        await play.until_ready()
        node.faults[1] = BadModel("opset 99 is not known")
        await play.register(chain_of(2))
        await asyncio.sleep(2)
        assert (play.state(), play.service.is_ready("faces")) == ("failed", True)
        await asyncio.sleep(700)
        assert (play.state(), play.service.inspect_model("faces").version) == ("ready", "1")
        await play.register(chain_of(2))
        await asyncio.sleep(2)
        failed = play.service.inspect_model("faces").version
        node.faults.clear()
        await play.register(chain_of(2))
        await asyncio.sleep(3)
        view = play.service.inspect_model("faces")
        assert view.state == "ready"
        assert int(view.version) > int(failed) - 1

    run(story)


def test_a_node_that_never_answers_a_prepare_is_given_up(run):
    async def story(play: GatewayPlay) -> None:
        slow, other = play.add(1_000), play.add(50)
        slow.faults[0] = None
        await play.register(chain_of(1, memory_mib=100), replicas=1)
        await asyncio.sleep(PREPARE_MS_MAX / 1000 - 5)
        assert play.state() == "loading"
        other.kill()
        third = play.add(1_000)
        await play.until_ready(seconds_max=15)
        assert indexes_of(third) == {0}
        states = {r.node: r.state for r in play.service.inspect_model("faces").slices[0].replicas}
        assert states["node-1"] == "failed"
        slow.tell(Prepared(slow.prepares[0].epoch, 0, 1.0, None, None))
        assert play.holders() == {"node-3"}
        await asyncio.sleep(0.1)
        assert slow.unloads[-1].slice_index == 0

    run(story)


def test_a_loaded_slice_that_fails_later_is_used_no_more_and_replaced(run):
    async def story(play: GatewayPlay) -> None:
        first = play.add()
        await play.register(chain_of(1), replicas=1)
        await play.until_ready()
        play.add()
        first.held.clear()
        epoch = first.prepares[0].epoch
        first.tell(PrepareFailed(epoch, 0, "DIN-330", "the worker died five times"))
        assert play.holders() == set()
        assert play.state() == "degraded"
        assert "died five times" in play.service.inspect_model("faces").reason
        await play.until_ready()
        assert play.holders() == {"node-2"}

    run(story)


def test_answers_for_what_was_never_asked_change_nothing(run):
    async def story(play: GatewayPlay) -> None:
        node = play.add()
        await play.register(chain_of(1))
        await play.until_ready()
        epoch = node.prepares[0].epoch
        holding = play.gateway.deployer.holdings()[0]
        for number in range(1, 200):
            node.tell(PrepareFailed(epoch, number, "DIN-330", "odd"))
            node.tell(Prepared(epoch, -number, 1.0, None, None))
        assert play.state() == "ready"
        assert not holding._troubles

    run(story)


def test_a_prepared_of_an_unknown_deployment_is_answered_with_unload(run):
    async def story(play: GatewayPlay) -> None:
        node = play.add()
        await play.register(chain_of(1))
        await play.until_ready()
        view = await play.service.remove_model("faces")
        await asyncio.sleep(0.1)
        assert view.model_id == "faces"
        assert not node.held
        node.unloads.clear()
        node.tell(Prepared(node.prepares[0].epoch, 0, 1.0, None, None))
        await asyncio.sleep(0.1)
        assert [each.epoch for each in node.unloads] == [node.prepares[0].epoch]

    run(story)


def test_pairs_that_cannot_dial_each_other_are_in_the_plan(run):
    async def story(play: GatewayPlay) -> None:
        first, second = play.add(150), play.add(150)
        first.undialable = (second.node_id,)
        second.undialable = (first.node_id,)
        await play.register(chain_of(2), replicas=1)
        await play.until_ready()
        plan = play.service.plan("faces", None, is_adapted=False)
        assert len(plan.relays) == 1
        assert [each.slice_index for each in plan.placements] == [0, 1]

    run(story)


# Losing and finding.


def test_a_killed_node_is_suspect_at_once_and_its_slices_get_a_new_home_then(run):
    """T15, T19: repair begins when the link closes, not when the node is lost."""

    async def story(play: GatewayPlay) -> None:
        first, second = play.add(), play.add()
        await play.register(chain_of(1), replicas=1)
        await play.until_ready()
        holder, other = (first, second) if first.held else (second, first)
        holder.kill()
        await asyncio.sleep(0.05)
        assert play.holders() == set()
        assert play.state() == "degraded"
        await play.until_ready(seconds_max=LOAD_S + 1.2)
        assert indexes_of(other) == {0}
        assert play.service.inspect_node(holder.name).status == "suspect"
        await asyncio.sleep(LOST_S + 1)
        assert play.service.inspect_node(holder.name).status == "lost"
        assert play.gateway.promised_mib(holder.node_id) == 0

    run(story)


def test_a_node_where_integers_come_out_otherwise_takes_over_and_is_never_mixed_in(run):
    """T40: which replica answers must not decide what the answer is."""

    async def story(play: GatewayPlay) -> None:
        needs = Needs(17, 9, (Need("QLinearConv", 10, "conv"),))
        first, other = play.add(cpu_isa=("avx2",)), play.add(cpu_isa=("avx2", "avx512_vnni"))
        await play.register(chain_of(1, needs=needs), replicas=2)
        await play.until_ready()
        await asyncio.sleep(15)
        (holder,) = (node for node in (first, other) if node.held)
        spare = other if holder is first else first
        assert play.holders() == {holder.name}, "no second replica of another kind"
        holder.beat()
        holder.is_mute = True
        await asyncio.sleep(FLEET.suspect_after_ms / 1000 + 0.5)
        await play.until_ready()
        assert play.holders() == {spare.name}
        holder.is_mute = False
        holder.beat()
        await asyncio.sleep(1)
        assert play.service.inspect_node(holder.name).status == "ready"
        assert holder.held
        assert play.holders() == {spare.name}, "it returned and is in reserve"
        (part,) = play.service.inspect_model("faces").slices
        (told,) = (each for each in part.replicas if each.node == holder.name)
        assert told.state == "ready"
        assert f"than on {spare.name}, which serves" in told.reason
        spare.kill()
        await asyncio.sleep(0.05)
        assert play.holders() == {holder.name}

    run(story)


def test_a_suspect_node_with_a_fellow_is_waited_for(run):
    async def story(play: GatewayPlay) -> None:
        nodes = [play.add(), play.add(), play.add()]
        await play.register(chain_of(1), replicas=2)
        await play.until_ready()
        await asyncio.sleep(2)
        holder = next(node for node in nodes if node.held)
        idle = next(node for node in nodes if not node.held)
        holder.break_link()
        await asyncio.sleep(0.1)
        assert len(play.holders()) == 1
        await asyncio.sleep(3)
        assert len(play.holders()) == 2
        assert not idle.held

    run(story)


def test_a_node_that_was_mute_is_used_again_when_it_speaks(run):
    """T14."""

    async def story(play: GatewayPlay) -> None:
        node = play.add()
        await play.register(chain_of(1))
        await play.until_ready()
        before = len(node.prepares)
        node.beat()
        node.is_mute = True
        await asyncio.sleep(FLEET.suspect_after_ms / 1000 + 0.5)
        assert play.service.inspect_node("node-1").status == "suspect"
        assert play.holders() == set()
        node.is_mute = False
        node.beat()
        await play.until_ready(seconds_max=2 * BEAT_S)
        assert len(node.prepares) == before

    run(story)


def test_a_node_that_was_lost_and_returns_in_the_same_session_is_used_again(run):
    """T11."""

    async def story(play: GatewayPlay) -> None:
        node, other = play.add(), play.add()
        await play.register(chain_of(1), replicas=2)
        await play.until_ready()
        await asyncio.sleep(2)
        node.is_mute = True
        await asyncio.sleep(LOST_S + 2)
        assert play.service.inspect_node("node-1").status == "lost"
        assert play.holders() == {other.name}
        node.is_mute = False
        await asyncio.sleep(3 * BEAT_S)
        assert play.service.inspect_node("node-1").status == "ready"
        assert play.holders() == {"node-1", "node-2"}

    run(story)


def test_what_a_node_held_while_it_was_away_is_unloaded_when_it_returns(run):
    async def story(play: GatewayPlay) -> None:
        node = play.add()
        await play.register(chain_of(1))
        await play.until_ready()
        node.is_mute = True
        node.break_link()
        await asyncio.sleep(0.1)
        await play.service.remove_model("faces")
        assert node.held
        node.is_mute = False
        await asyncio.sleep(3 * BEAT_S)
        assert not node.held

    run(story)


def test_a_restarted_node_keeps_its_id_and_prepares_again(run):
    """T10."""

    async def story(play: GatewayPlay) -> None:
        node = play.add()
        await play.register(chain_of(2))
        await play.until_ready()
        before = len(node.prepares)
        node.kill()
        await asyncio.sleep(0.5)
        node.start()
        assert not play.broken_promises()
        await play.until_ready()
        assert len(node.prepares) > before
        assert indexes_of(node) == {0, 1}
        assert len(play.service.list_nodes().items) == 1

    run(story)


def test_a_newer_session_that_comes_before_the_old_link_broke_is_not_trusted_blindly(run):
    async def story(play: GatewayPlay) -> None:
        node = play.add()
        await play.register(chain_of(1))
        await play.until_ready()
        old = node.link
        node.is_alive = False  # it stopped, but its end of the link has not said so yet
        node._beating.cancel()
        node.start()
        assert play.holders() == set()
        assert not old.is_open
        await play.until_ready()
        assert play.service.inspect_node("node-1").status == "ready"

    run(story)


def test_a_link_of_a_session_that_is_not_registered_is_closed_and_harms_nobody(run):
    async def story(play: GatewayPlay) -> None:
        node = play.add()
        await play.register(chain_of(1))
        await play.until_ready()
        play.gateway.fleet.link_opened(node.node_id, node.session - 1, 99)
        assert play.service.inspect_node("node-1").status == "ready"
        assert play.holders() == {"node-1"}
        play.gateway.fleet.link_closed(node.node_id, node.session - 1, 99, "bye", is_orderly=True)
        assert play.holders() == {"node-1"}

    run(story)


def test_a_node_that_says_goodbye_is_replaced_at_once(run):
    async def story(play: GatewayPlay) -> None:
        first, second = play.add(), play.add()
        await play.register(chain_of(1), replicas=1)
        await play.until_ready()
        holder, other = (first, second) if first.held else (second, first)
        holder.leave()
        await play.until_ready(seconds_max=LOAD_S + 1.2)
        assert play.holders() == {other.name}

    run(story)


# Removing and replacing.


def test_removing_a_model_unloads_it_everywhere_and_frees_the_memory(run):
    async def story(play: GatewayPlay) -> None:
        nodes = [play.add(), play.add()]
        await play.register(chain_of(2))
        await play.until_ready()
        await asyncio.sleep(2)
        assert all(node.held for node in nodes)
        await play.service.remove_model("faces")
        await asyncio.sleep(0.1)
        assert not any(node.held for node in nodes)
        assert not any(play.gateway.promised_mib(node.node_id) for node in nodes)
        assert play.service.list_models().items == ()

    run(story)


def test_a_new_version_takes_over_when_ready_and_then_the_old_one_is_unloaded(run):
    """T53."""

    async def story(play: GatewayPlay) -> None:
        node = play.add()
        await play.register(chain_of(1))
        await play.until_ready()
        old = play.gateway.models.serving("faces", None)
        view = await play.register(chain_of(2))
        assert view.version == "2"
        assert play.gateway.models.serving("faces", None) is old
        await asyncio.sleep(LOAD_S + 1.5)
        serving = play.gateway.models.serving("faces", None)
        assert serving.deployment.manifest.version == "2"
        assert {epoch for epoch, _ in node.held} == {serving.deployment.epoch}
        assert old.is_retired

    run(story)


def test_a_new_version_that_fails_leaves_the_old_one_serving(run):
    """T53."""

    async def story(play: GatewayPlay) -> None:
        node = play.add()
        await play.register(chain_of(1))
        await play.until_ready()
        node.faults[1] = BadModel("the second slice is broken")
        await play.register(chain_of(2))
        await asyncio.sleep(3)
        assert play.gateway.models.serving("faces", None).deployment.manifest.version == "1"
        assert play.service.is_ready("faces")
        view = play.service.inspect_model("faces")
        assert (view.version, view.serving_version) == ("2", "1")

    run(story)


# The gateway's own restarts.


def test_a_restarted_gateway_deploys_again_under_epochs_that_were_never_used(run):
    async def story(play: GatewayPlay) -> None:
        node = play.add()
        await play.register(chain_of(2))
        await play.until_ready()
        epochs = [play.service.inspect_model("faces").epoch]
        for _ in range(3):
            await play.crash()
            await play.until_ready(seconds_max=4 * BEAT_S)
            epochs.append(play.service.inspect_model("faces").epoch)
        await play.service.remove_model("faces")
        await play.register(chain_of(2))
        epochs.append(play.service.inspect_model("faces").epoch)
        assert len(set(epochs)) == len(epochs)
        assert [revision for _, revision in epochs] == sorted(revision for _, revision in epochs)
        assert play.service.inspect_node(node.name).status == "ready"

    run(story, is_durable=True)


def test_nodes_that_dial_before_they_register_again_are_sent_back_and_come(run):
    """T18: after a restart of the gateway the links come back first."""

    async def story(play: GatewayPlay) -> None:
        nodes = [play.add(), play.add()]
        await play.register(chain_of(1))
        await play.until_ready()
        await play.crash()
        await asyncio.sleep(4 * BEAT_S)
        assert {each.status for each in play.service.list_nodes().items} == {"ready"}
        assert play.service.is_ready("faces")
        assert len(nodes) == 2

    run(story)


def test_a_restarted_gateway_has_nodes_unload_what_they_held_before(run):
    """Else their memory would be full of what nobody asks for."""

    async def story(play: GatewayPlay) -> None:
        node = play.add(150)
        await play.register(chain_of(1, memory_mib=100))
        await play.until_ready()
        for _ in range(3):
            await play.crash()
            await play.until_ready(seconds_max=6 * BEAT_S)
            assert len(node.held) == 1
        assert len(play.carving.requests) == 1

    run(story, is_durable=True)


def test_a_node_that_slept_through_a_restart_of_the_gateway_unloads_too(run):
    async def story(play: GatewayPlay) -> None:
        node = play.add(150)
        await play.register(chain_of(1, memory_mib=100))
        await play.until_ready()
        node.is_mute = True
        await play.crash()
        await asyncio.sleep(5)
        await play.crash()
        node.is_mute = False
        node.break_link()
        await play.until_ready(seconds_max=6 * BEAT_S)
        assert len(node.held) == 1

    run(story)


# Cutting to fit.


def test_a_model_that_no_node_can_hold_is_cut(run):
    async def story(play: GatewayPlay) -> None:
        nodes = [play.add(120), play.add(120)]
        play.carving.cut = chain_of(2, memory_mib=100)
        await play.register(chain_of(1, memory_mib=200), replicas=1)
        await play.until_ready()
        assert play.carving.requests[-1].assignment == (0, 1)
        view = play.service.inspect_model("faces")
        assert view.version == "1"
        assert len(view.slices) == 2
        assert view.manifest.is_cut_by_din
        assert "DIN cut it" in view.notes[0]
        assert all(len(node.held) == 1 for node in nodes)
        assert len(play.carving.requests) == 2

    run(story)


def test_it_is_cut_also_when_the_nodes_come_later(run):
    async def story(play: GatewayPlay) -> None:
        play.carving.cut = chain_of(2, memory_mib=100)
        await play.register(chain_of(1, memory_mib=200), replicas=1)
        tiny = play.add(10)
        tiny.memory_mib_used = 10
        await asyncio.sleep(2 * BEAT_S)
        play.add(120)
        play.add(120)
        await play.until_ready()

    run(story)


def test_the_room_for_a_cut_counts_the_workers(run):
    async def story(play: GatewayPlay) -> None:
        play.add(150)
        play.add(150)
        play.carving.cut = chain_of(2, memory_mib=60)
        play.carving.weights_mib = 8
        await play.register(chain_of(1, memory_mib=100), workers=2, replicas=1)
        await play.until_ready()
        assert play.carving.requests[-1].assignment == (0, 1)

    run(story)


def test_a_cut_that_is_refused_is_told_and_not_tried_again(run):
    async def story(play: GatewayPlay) -> None:
        play.add(50)
        play.carving.cut = CannotPlace("one operator alone needs 180 MiB", hint="buy memory")
        await play.register(chain_of(1, memory_mib=200))
        await asyncio.sleep(10)
        view = play.service.inspect_model("faces")
        assert view.state == "placing"
        assert "one operator alone needs 180 MiB" in view.reason
        assert view.hint == "buy memory"
        assert len(play.carving.requests) == 1
        play.add(500)
        await play.until_ready()

    run(story)


def test_a_cut_that_does_not_fit_together_says_so(run):
    async def story(play: GatewayPlay) -> None:
        play.add(120)
        play.carving.cut = chain_of(2, memory_mib=100)
        await play.register(chain_of(1, memory_mib=200))
        await asyncio.sleep(5)
        view = play.service.inspect_model("faces")
        assert view.state == "placing"
        assert "no way to spread the model over 1 nodes" in view.reason
        assert len(play.carving.requests) == 1

    run(story)


def test_a_model_is_not_cut_because_its_node_restarts(run):
    async def story(play: GatewayPlay) -> None:
        large = play.add(300)
        play.add(120)
        await play.register(chain_of(1, memory_mib=200))
        await play.until_ready()
        large.kill()
        await asyncio.sleep(3)
        large.start()
        await play.until_ready()
        assert len(play.carving.requests) == 1

    run(story)


def test_a_model_whose_node_is_lost_for_good_is_cut_for_the_others(run):
    async def story(play: GatewayPlay) -> None:
        large = play.add(300)
        await play.register(chain_of(1, memory_mib=200), replicas=1)
        await play.until_ready()
        play.carving.cut = chain_of(2, memory_mib=100)
        play.add(120)
        play.add(120)
        large.kill()
        await asyncio.sleep(LOST_S + 1)
        await play.until_ready()
        assert play.holders(0) | play.holders(1) == {"node-2", "node-3"}

    run(story)


def test_what_the_user_cut_is_not_cut_by_din(run):
    async def story(play: GatewayPlay) -> None:
        play.add(120)
        await play.register(chain_of(2, memory_mib=200), partition_points=("404",))
        await asyncio.sleep(5)
        assert len(play.carving.requests) == 1
        assert play.state() == "placing"

    run(story)
