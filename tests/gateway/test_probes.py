"""Probes over a real gateway in virtual time: nodes load them, answer, fail, die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cut_play import table_of
from gateway_fakes import chain_of, outcome_of
from gateway_play import FakeNode, GatewayPlay
from msgspec.structs import replace
from stories import perform

from din.domain.deployment import Epoch
from din.domain.probe import (
    REPORT_BYTES_MAX,
    REPORT_TENSOR,
    CalibrateReport,
    OperatorTime,
    ProbeOrder,
    ProbePart,
    ProfileReport,
)
from din.domain.profile import ProfileModel
from din.domain.strategy import Strategy
from din.errors import (
    BadTensor,
    Busy,
    CannotPlace,
    DeadlineExceeded,
    ExecutionFailed,
    NotFound,
    Unavailable,
)
from din.gateway.live_factors import live_factors
from din.gateway.probing.probes import RUNNING_MAX, WAITING_MAX, ProbeJob
from din.gateway.routes.serving import COMPUTES_MIN, LiveReplica, shapes_in

ORDER = ProbeOrder(kind="calibrate", parts=(ProbePart(),), tensors=("t",))
ANSWER = CalibrateReport(inputs=(), ranges=())
TIMEOUT_MS = 30_000


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    return partial(perform, tmp_path)


def job(**more: Any) -> ProbeJob:
    return ProbeJob(
        **({"order": ORDER, "subject": "faces", "artifacts": (), "memory_mib": 100} | more)
    )


def answering(play: GatewayPlay, report: Any = ANSWER, memory_mib: int = 1_000) -> FakeNode:
    node = play.add(memory_mib)
    node.output = REPORT_TENSOR
    node.answers = lambda _: msgspec.json.encode(report)
    return node


def probing(play: GatewayPlay, node: FakeNode | None = None, **more: Any) -> asyncio.Task[Any]:
    timeout_ms = more.pop("timeout_ms", TIMEOUT_MS)
    work = play.gateway.probes.run(job(**more), node.node_id if node else None, timeout_ms)
    return play.loop.create_task(work)


async def settled(play: GatewayPlay) -> None:
    """Everything that was told has been heard."""
    await asyncio.sleep(0.1)
    for node in play.nodes:
        assert not node.held
        assert play.gateway.promised_mib(node.node_id) == 0
    assert play.gateway.deployer.holdings() == ()
    assert play.gateway.traces.newest(10) == ()
    assert not [key for key in play.store.entries if key.startswith("deployments/")]


def test_a_probe_is_loaded_asked_once_and_unloaded(run):
    async def story(play: GatewayPlay) -> None:
        node = answering(play)
        found = await probing(play)
        assert (found.report, found.node_id, found.node) == (ANSWER, node.node_id, "node-1")
        (prepare,) = node.prepares
        assert (prepare.slice.backend, prepare.slice.name) == ("probe", "calibration of faces")
        assert prepare.workers == 1
        assert len(node.runs) == 1
        await settled(play)

    run(story)


def test_the_order_goes_to_the_probe_as_it_is(run):
    async def story(play: GatewayPlay) -> None:
        node = answering(play)
        heard: list[bytes] = []
        node.answers = lambda body: heard.append(body) or msgspec.json.encode(ANSWER)
        await probing(play)
        length = len(msgspec.json.encode(ORDER))
        assert msgspec.json.decode(heard[0][:length], type=ProbeOrder) == ORDER

    run(story)


def test_a_probe_runs_on_the_node_that_is_named_and_on_no_other(run):
    async def story(play: GatewayPlay) -> None:
        nodes = [answering(play) for _ in range(3)]
        found = await probing(play, nodes[1])
        assert found.node_id == nodes[1].node_id
        assert [len(each.prepares) for each in nodes] == [0, 1, 0]

    run(story)


def test_no_model_is_listed_while_a_probe_runs_and_the_node_shows_it(run):
    async def story(play: GatewayPlay) -> None:
        node = answering(play)
        node.answers = lambda _: None
        task = probing(play)
        await asyncio.sleep(3)
        assert play.service.list_models().items == ()
        assert play.service.is_gateway_ready()
        told = {(each["model"], each["state"]) for each in play.reports.of("deployment")}
        assert told == {("probe/calibration of faces", state) for state in ("loading", "ready")}
        assert play.service.inspect_node(node.name).slices == ("probe/calibration of faces",)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await settled(play)

    run(story)


def test_without_a_node_that_has_room_nothing_is_waited_for(run):
    async def story(play: GatewayPlay) -> None:
        answering(play, memory_mib=50)
        started = play.loop.time()
        refused = await outcome_of(probing(play))
        assert isinstance(refused, CannotPlace)
        assert "memory" in refused.message
        assert play.loop.time() - started < 2
        assert not play.reports.of("cut refused")
        await settled(play)

    run(story)


def test_what_a_node_cannot_load_is_told_and_not_tried_again(run):
    async def story(play: GatewayPlay) -> None:
        node = answering(play)
        node.faults[0] = Unavailable("the disk is full")
        refused = await outcome_of(probing(play))
        assert isinstance(refused, Unavailable)
        assert refused.message == "the disk is full"
        assert len(node.prepares) == 1
        await settled(play)

    run(story)


def test_what_a_probe_refuses_comes_back_as_it_was_said(run):
    async def story(play: GatewayPlay) -> None:
        node = answering(play)
        node.answers = lambda _: BadTensor("no such input")
        refused = await outcome_of(probing(play))
        assert isinstance(refused, BadTensor)
        assert refused.message == "slice calibration of faces on node node-1: no such input"
        await settled(play)

    run(story)


def test_a_worker_that_dies_is_not_asked_a_second_time(run):
    async def story(play: GatewayPlay) -> None:
        node = answering(play)
        node.answers = lambda _: ExecutionFailed("the worker died: killed by signal 9 (SIGKILL)")
        other = answering(play)
        refused = await outcome_of(probing(play, node))
        assert isinstance(refused, ExecutionFailed)
        assert "SIGKILL" in refused.message
        assert (len(node.runs), len(other.runs)) == (1, 0)
        await settled(play)

    run(story)


def test_a_node_that_is_lost_in_the_middle_ends_the_probe(run):
    async def story(play: GatewayPlay) -> None:
        node, other = answering(play), answering(play)
        node.answers = lambda _: None
        task = probing(play, node)
        await asyncio.sleep(2)
        assert node.runs
        node.kill()
        refused = await outcome_of(task)
        assert isinstance(refused, Unavailable)
        assert "node-1" in refused.message
        assert not other.prepares
        play.nodes.remove(node)
        await settled(play)

    run(story)


def test_a_node_that_is_lost_while_it_loads_ends_the_probe(run):
    async def story(play: GatewayPlay) -> None:
        node = answering(play)
        node.faults[0] = None
        task = probing(play, node)
        await asyncio.sleep(1)
        node.kill()
        assert isinstance(await outcome_of(task), CannotPlace)
        play.nodes.remove(node)
        await settled(play)

    run(story)


def test_a_probe_that_takes_its_time_blames_nobody_until_its_deadline(run):
    async def story(play: GatewayPlay) -> None:
        node = answering(play)
        node.answers = lambda _: None
        started = play.loop.time()
        refused = await outcome_of(probing(play, timeout_ms=60_000))
        assert isinstance(refused, DeadlineExceeded)
        assert play.loop.time() - started == pytest.approx(60, abs=1)
        assert play.service.inspect_node(node.name).status == "ready"
        await settled(play)

    run(story)


def test_a_probe_that_is_never_loaded_ends_at_its_deadline(run):
    async def story(play: GatewayPlay) -> None:
        node = answering(play)
        node.faults[0] = None
        refused = await outcome_of(probing(play, timeout_ms=5_000))
        assert isinstance(refused, DeadlineExceeded)
        assert refused.message == "the probe was not loaded in time"
        await settled(play)

    run(story)


@pytest.mark.parametrize("said", [b"{}", b"\xff", b'{"type": "other"}'])
def test_a_report_that_cannot_be_read_names_the_node(run, said: bytes):
    async def story(play: GatewayPlay) -> None:
        node = answering(play)
        node.answers = lambda _: said
        refused = await outcome_of(probing(play))
        assert isinstance(refused, ExecutionFailed)
        assert refused.message.startswith("the report of node node-1 cannot be read: ")
        await settled(play)

    run(story)


def test_a_report_over_its_limit_is_refused(run):
    async def story(play: GatewayPlay) -> None:
        play.gateway.relay._result_bytes_max = REPORT_BYTES_MAX + 64
        node = answering(play)
        node.answers = lambda _: b" " * (REPORT_BYTES_MAX + 1)
        refused = await outcome_of(probing(play))
        assert isinstance(refused, ExecutionFailed)
        assert (
            refused.message
            == f"the report has {REPORT_BYTES_MAX + 1} bytes, over {REPORT_BYTES_MAX}"
        )

    run(story)


def test_few_probes_run_at_once_and_a_bounded_number_waits(run):
    async def story(play: GatewayPlay) -> None:
        node = answering(play, memory_mib=100_000)
        node.answers = lambda _: None
        tasks = [probing(play) for _ in range(RUNNING_MAX + WAITING_MAX)]
        await asyncio.sleep(2)
        assert len(node.held) == RUNNING_MAX
        refused = await outcome_of(probing(play))
        assert isinstance(refused, Busy)
        assert refused.message == f"{WAITING_MAX} probes wait already"
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, DeadlineExceeded) for each in ends)
        await settled(play)

    run(story)


def test_nodes_unload_what_was_probed_when_the_gateway_died(run):
    async def story(play: GatewayPlay) -> None:
        node = answering(play)
        node.answers = lambda _: None
        task = probing(play)
        await asyncio.sleep(3)
        assert node.held
        before = dict(play.store.entries)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        play.store.entries = before  # it died before it could write
        node.held = {(Epoch(*msgspec.json.decode(_value(before))[:1], _revision(before)), 0)}
        await play.crash()
        await asyncio.sleep(2)
        await settled(play)

    run(story)


def _entry(entries: dict[str, Any]) -> Any:
    (entry,) = (each for key, each in entries.items() if key.startswith("deployments/probe/"))
    return entry


def _value(entries: dict[str, Any]) -> bytes:
    return _entry(entries).value


def _revision(entries: dict[str, Any]) -> int:
    return _entry(entries).revision


def test_a_model_called_probe_is_left_alone_when_the_gateway_starts(run):
    async def story(play: GatewayPlay) -> None:
        node = play.add()
        await play.register(chain_of(1), "probe")
        await play.until_ready("probe")
        await play.crash()
        await play.until_ready("probe")
        assert node.held

    run(story)


# Profiles.


REPORT = ProfileReport(
    inputs=(), operators=(), whole_ms=2.0, plain_ms=3.0, rounds=7, coverage=1.0, engine="e"
)


async def profiled(play: GatewayPlay, **more: Any) -> Any:
    record = play.gateway.models.record("faces")
    return await play.gateway.examiner.profile(record, ProfileModel(**more))


def test_one_node_of_each_class_is_profiled_and_found_again(run):
    async def story(play: GatewayPlay) -> None:
        nodes = [answering(play, REPORT) for _ in range(2)]
        other = play.add(device_type="aarch64")
        other.output, other.answers = REPORT_TENSOR, nodes[0].answers
        await play.register(chain_of(1))
        await play.until_ready()
        view = await profiled(play)
        assert [each.device.device_type for each in view.items] == ["aarch64", "x86_64"]
        assert [each.is_stored for each in view.items] == [False, False]
        assert all(each.profile.report == REPORT for each in view.items)
        runs = sum(len(each.runs) for each in play.nodes)
        assert runs == 2
        again = await profiled(play)
        assert [each.is_stored for each in again.items] == [True, True]
        assert sum(len(each.runs) for each in play.nodes) == runs
        await play.crash()
        await asyncio.sleep(5)
        after = await profiled(play)
        assert [each.profile for each in after.items] == [each.profile for each in view.items]

    run(story)


def test_a_fresh_profile_other_shapes_and_other_options_are_measured_anew(run):
    async def story(play: GatewayPlay) -> None:
        node = answering(play, REPORT)
        await play.register(chain_of(1))
        await play.until_ready()
        await profiled(play)
        await profiled(play, is_fresh=True)
        assert len(node.runs) == 2
        shaped = await profiled(play, shapes={"t0": (3, 4)})
        assert len(node.runs) == 3
        assert shaped.items[0].profile.bucket == "t0=3x4"
        await play.register(chain_of(1), backend_options={"threads": "1"})
        await play.until_ready()
        await profiled(play)
        assert len(node.runs) == 4

    run(story)


def test_what_one_class_cannot_do_is_said_beside_the_others(run):
    async def story(play: GatewayPlay) -> None:
        good = answering(play, REPORT)
        await play.register(chain_of(1))
        await play.until_ready()
        bad = play.add(device_type="aarch64")
        bad.output, bad.answers = REPORT_TENSOR, lambda _: BadTensor("no inputs", hint="give some")
        await asyncio.sleep(1)
        first, second = (await profiled(play)).items
        assert (first.node, first.profile, first.error_code) == (bad.name, None, "DIN-110")
        assert first.error == "slice profile of faces on node node-2: no inputs\nhint: give some"
        assert second.node == good.name
        assert second.profile is not None

    run(story)


def test_a_model_is_profiled_as_a_whole_and_its_file_goes_afterwards(run):
    async def story(play: GatewayPlay) -> None:
        node = answering(play, REPORT)
        await play.register(chain_of(2))
        await play.until_ready()
        play.carving.whole = chain_of(1)
        await profiled(play)
        probe = node.prepares[-1].slice
        assert probe.backend == "probe"
        assert len(play.carving.requests) == 2
        assert play.carving.requests[-1].strategy.partition_points == ()

    run(story)


def test_an_unknown_node_is_no_place_to_profile(run):
    async def story(play: GatewayPlay) -> None:
        answering(play, REPORT)
        await play.register(chain_of(1))
        await play.until_ready()
        refused = await outcome_of(profiled(play, node="nobody"))
        assert isinstance(refused, NotFound)
        assert "nobody" in refused.message

    run(story)


def timed(*ms: float) -> ProfileReport:
    operators = tuple(
        OperatorTime(name=f"op{place}", kind="MatMul", ms=each) for place, each in enumerate(ms)
    )
    return replace(REPORT, operators=operators, whole_ms=sum(ms))


def test_what_was_measured_is_what_cuts_are_chosen_by(run):
    async def story(play: GatewayPlay) -> None:
        node = answering(play, timed(3.0, 5.0))
        await play.register(chain_of(1))
        await play.until_ready()
        order = play.gateway.models.record("faces").order
        table = table_of(2, 1, order.source_sha256)
        assert await play.gateway.cutter.profiles(order, table) == {}
        await profiled(play)
        (device,) = play.gateway.cutter.terrain(order).devices
        assert device.node_id == node.node_id
        measured = await play.gateway.cutter.profiles(order, table)
        assert measured == {device.device_class: (3.0, 5.0)}
        other = replace(order, backend_options={"threads": "1"})
        assert await play.gateway.cutter.profiles(other, table) == {}
        assert await play.gateway.cutter.profiles(order, table_of(3, 1, order.source_sha256)) == {}
        assert await play.gateway.cutter.profiles(order, table_of(2, 1, "b" * 64)) == {}

    run(story)


def test_nodes_of_one_machine_share_what_they_compute_with(run):
    async def story(play: GatewayPlay) -> None:
        answering(play, REPORT)
        more = [{}, {"accelerator": "gpu"}, {"accelerator": "gpu"}, {"cpu_cores": 16.0}]
        nodes = [play.add(**each) for each in more]
        far = play.add()
        play.gateway.links._links[far.node_id].peer_host = "192.0.2.7"
        await play.register(chain_of(1))
        await play.until_ready()
        order = play.gateway.models.record("faces").order
        devices = {each.node_id: each for each in play.gateway.cutter.terrain(order).devices}
        cpu, gpu, same, wide = (devices[each.node_id] for each in nodes)
        assert "" != cpu.machine == wide.machine
        assert "" != gpu.machine == same.machine != cpu.machine
        assert devices[far.node_id].machine not in ("", cpu.machine, gpu.machine)
        assert (gpu.processor_share, wide.processor_share) == (1.0, 0.125)
        single = replace(order, backend_options={"threads": "1"})
        terrain = play.gateway.cutter.terrain(single)
        assert {each.processor_share for each in terrain.devices} >= {1.0, 0.0625}

    run(story)


def test_a_profile_says_by_what_live_slices_take_longer(run):
    async def story(play: GatewayPlay) -> None:
        play.carving.assignment = (0, 0)
        node = answering(play, timed(3.0, 5.0))
        await play.register(chain_of(1))
        await play.until_ready()
        (before,) = (await profiled(play)).items
        assert before.live_factor is None
        replica = play.gateway.models.serving("faces", None).replicas(0)[node.node_id]
        replica.observe(90.0, play.loop.clock_ms())  # most of it in a queue
        computes(play, replica, 16.0)
        (after,) = (await profiled(play)).items
        assert after.live_factor == pytest.approx(2.0)

    run(story)


def computes(play: GatewayPlay, replica: LiveReplica, ms: float, *shape: int) -> None:
    """A replica has run, with inputs of a shape; without one at the shape of the profile."""
    shapes = frozenset({("t0", shape)}) if shape else shapes_in(timed().inputs)
    for _ in range(COMPUTES_MIN):
        replica.observe_compute(shapes, ms, play.loop.clock_ms())


def test_cuts_are_chosen_by_profiles_as_far_as_live_slices_bear_them_out(run):
    async def story(play: GatewayPlay) -> None:
        play.carving.assignment = (0, 0)
        node = answering(play, timed(3.0, 5.0))
        strategy = Strategy(type="auto")
        await play.register(chain_of(1), slicing_strategy=strategy)
        await play.until_ready()
        await profiled(play)
        order = play.gateway.models.record("faces").order
        before = await play.gateway.cutter.choose(order)
        assert before is not None
        assert before.choice.times_from == "profile"
        assert before.choice.notes == ()
        assert before.choice.slices[0].compute_ms == pytest.approx(8.0)
        replica = play.gateway.models.serving("faces", None).replicas(0)[node.node_id]
        computes(play, replica, 80.0, 1, 9)  # of other shapes: the profile says nothing of these
        same = await play.gateway.cutter.choose(order)
        assert same is not None
        assert same.choice == before.choice
        computes(play, replica, 16.0)
        after = await play.gateway.cutter.choose(order)
        assert after is not None
        assert after.choice.slices[0].compute_ms == pytest.approx(16.0)
        assert "times 2.00, as live slices tell" in after.choice.notes[0]
        cost = await play.gateway.cutter.cost_now(order, (0, 0), [node.node_id])
        assert cost == pytest.approx(after.choice.cost, abs=0.01)

    run(story)


def test_a_class_on_which_nothing_ran_is_not_preferred_for_that(run):
    async def story(play: GatewayPlay) -> None:
        play.carving.assignment = (0, 0)
        node = answering(play, timed(3.0, 5.0))
        other = play.add(device_type="aarch64")
        other.output, other.answers = REPORT_TENSOR, node.answers
        await play.register(chain_of(1), replicas=1)
        await play.until_ready()
        await profiled(play)
        record = play.gateway.models.record("faces")
        table = table_of(2, 1, record.order.source_sha256)
        assert await live_factors(play.gateway, record.order, table) == {}
        replicas = play.gateway.models.serving("faces", None).replicas(0)
        assert len(replicas) == 1
        computes(play, next(iter(replicas.values())), 24.0)
        factors = await live_factors(play.gateway, record.order, table)
        assert list(factors.values()) == pytest.approx([3.0, 3.0])

    run(story)


def test_the_whole_is_rewritten_as_its_slices_are(run):
    async def story(play: GatewayPlay) -> None:
        answering(play, REPORT)
        rewrite = ("resize_half_pixel_to_asymmetric",)
        await play.register(chain_of(2), slicing_strategy=Strategy(rewrite=rewrite))
        await play.until_ready()
        play.carving.whole = chain_of(1)
        await profiled(play)
        assert play.carving.requests[-1].strategy == Strategy(rewrite=rewrite)

    run(story)
