"""What people see of nodes and models, and how they name them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
from gateway_fakes import chain_of
from gateway_play import NOW_MS, PEER, GatewayPlay
from stories import Story, perform

from din.domain.strategy import Strategy
from din.domain.trust import Caller
from din.errors import Conflict, NotFound, UsageError
from din.gateway.control import GatewayService


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Story], None]:
    return partial(perform, tmp_path)


def test_a_node_is_found_by_name_id_and_unique_beginning(run):
    async def story(play: GatewayPlay) -> None:
        first, second = play.add(), play.add()
        for wanted in ("node-1", first.node_id):
            assert play.service.inspect_node(wanted).node_id == first.node_id
        with pytest.raises(Conflict) as ambiguous:
            play.service.inspect_node("0000")
        assert "node-1" in ambiguous.value.hint
        with pytest.raises(NotFound) as missing:
            play.service.inspect_node("nod-2")
        assert "node-2" in missing.value.hint
        with pytest.raises(NotFound):
            play.service.inspect_node("")
        assert second.node_id

    run(story)


def test_what_was_not_measured_is_not_shown_as_zero(run):
    async def story(play: GatewayPlay) -> None:
        play.add()
        view = play.service.inspect_node("node-1")
        assert view.health.cpu_percent is None
        await asyncio.sleep(4)
        view = play.service.inspect_node("node-1")
        assert view.health.cpu_percent == 10.0
        assert view.health.temperature_c is None
        assert view.profile is not None
        assert play.service.list_nodes().items[0].profile is None
        assert 0 <= view.heartbeat_age_ms < 4_000

    run(story)


@pytest.mark.parametrize(
    ("ahead_s", "words"),
    [(3600, "3600 s ahead of"), (-7200, "7200 s behind"), (59, ""), (-59, ""), (None, "")],
)
def test_a_clock_that_is_wrong_is_warned_of_and_changes_nothing_else(run, ahead_s, words):
    """T12."""

    async def story(play: GatewayPlay) -> None:
        node = play.add()
        node.clock_ms = None if ahead_s is None else NOW_MS + ahead_s * 1000
        told = node.register().warnings
        shown = play.service.inspect_node(node.name)
        assert shown.warnings == told
        assert words in " ".join(told)
        assert bool(told) == bool(words)
        assert shown.status == "ready"
        node.clock_ms = NOW_MS
        assert node.register().warnings == ()
        assert play.service.inspect_node(node.name).warnings == ()

    run(story)


def test_a_clone_with_a_wrong_clock_is_warned_of_both(run):
    async def story(play: GatewayPlay) -> None:
        play.add()
        other = play.add()
        other.name, other.clock_ms = "node-1", NOW_MS + 3_600_000
        name, clock = other.register().warnings
        assert "'node-1' is taken" in name
        assert "ahead of" in clock
        assert play.service.inspect_node(other.node_id).warnings == (name, clock)

    run(story)


def test_the_gateway_says_who_it_is(run):
    async def story(play: GatewayPlay) -> None:
        play.add()
        await play.register(chain_of(1))
        view = play.service.gateway_view()
        assert (view.nodes, view.models, view.cluster) == (1, 1, "test")

    run(story)


def test_goodbye_of_an_older_session_is_a_conflict_and_of_a_stranger_not_found(run):
    async def story(play: GatewayPlay) -> None:
        node = play.add()
        with pytest.raises(Conflict):
            play.service.deregister_node(node.node_id, node.session - 1, PEER)
        with pytest.raises(NotFound):
            play.service.deregister_node("f" * 16, 1, PEER)
        assert play.service.inspect_node("node-1").status == "ready"

    run(story)


class Written:
    """Stands for the audit log: who did what to whom, and from where."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str, str, str]] = []

    def note(self, caller: Caller, what: str, target: str = "", **_: object) -> None:
        self.lines.append((caller.kind, caller.name, caller.address, what, target))

    @asynccontextmanager
    async def change(
        self, caller: Caller, what: str, target: str, **_: object
    ) -> AsyncGenerator[None]:
        self.note(caller, what, target)
        yield


def test_the_record_names_who_sent_a_node_away_and_the_node_by_its_id(run):
    async def story(play: GatewayPlay) -> None:
        written, key = Written(), Caller(kind="key", name="0badcafe", address="10.0.0.9")
        service = GatewayService(
            play.gateway, cluster="test", discovery_mode="unicast", state="/", audit=written
        )
        first, second = play.add(), play.add()
        first_id, second_id = first.node_id, second.node_id
        await service.remove_node("node-1", first.session, key)
        service.deregister_node("node-2", second.session, PEER)
        await service.undrain_node("node-2", key)
        assert written.lines == [
            ("key", "0badcafe", "10.0.0.9", "node.remove", first_id),
            ("node", second_id, PEER.address, "node.leave", second_id),
            ("key", "0badcafe", "10.0.0.9", "node.undrain", second_id),
        ]
        assert {each.reason for each in service.list_nodes().items} == {
            "was removed",
            "was stopped",
        }

    run(story)


def test_a_node_that_leaves_while_it_is_labelled_stays_away(run):
    class Slow(Written):
        def __init__(self) -> None:
            super().__init__()
            self.may_go_on = asyncio.Event()

        @asynccontextmanager
        async def change(self, *_: object, **__: object) -> AsyncGenerator[None]:
            await self.may_go_on.wait()
            yield

    async def story(play: GatewayPlay) -> None:
        written, node = Slow(), play.add()
        service = GatewayService(
            play.gateway, cluster="test", discovery_mode="unicast", state="/", audit=written
        )
        labelling = asyncio.create_task(service.label_node("node-1", {"rack": "r1"}))
        await asyncio.sleep(0)
        service.deregister_node(node.node_id, node.session, PEER)
        written.may_go_on.set()
        assert (await labelling).status == "lost"

    run(story)


@pytest.mark.parametrize("body", [b"", b"\x00", b"\xff" * 400, b"GET / HTTP/1.1"])
def test_garbage_in_place_of_a_registration_or_beat_is_a_usage_error(run, body: bytes):
    async def story(play: GatewayPlay) -> None:
        with pytest.raises(UsageError):
            play.service.register_node(body, PEER, None)
        with pytest.raises(UsageError):
            play.service.heartbeat(body, PEER)

    run(story)


def test_a_dry_run_asks_no_node_and_explains_those_not_chosen(run):
    async def story(play: GatewayPlay) -> None:
        nodes = [play.add(1_000), play.add(50)]
        await play.register(chain_of(2))
        await play.until_ready()
        before = [len(node.prepares) for node in nodes]
        plan = play.service.plan("faces", None, is_adapted=True)
        assert {each.node for each in plan.placements} == {"node-1"}
        assert all(each.memory_mib == 100 for each in plan.placements)
        assert {each.node for each in plan.rejections} == {"node-2"}
        assert [len(node.prepares) for node in nodes] == before
        with pytest.raises(NotFound):
            play.service.plan("faces", "9", is_adapted=False)

    run(story)


def test_a_backend_that_nobody_knows_is_noted_until_a_node_brings_it(run):
    async def story(play: GatewayPlay) -> None:
        strategy = Strategy(backend_map={"a:b": "tensorrtt"})
        await play.register(chain_of(1), slicing_strategy=strategy)
        (note,) = play.service.inspect_model("faces", None).notes
        assert note.startswith("slicing_strategy.backend_map.a:b: no backend is known by the name")
        assert "did you mean 'tensorrt'?" in note
        play.add(backends=("onnxruntime", "tensorrtt"))
        assert play.service.inspect_model("faces", None).notes == ()

    run(story)


def test_the_gateway_is_ready_when_every_model_is_and_not_while_it_stops(run):
    async def story(play: GatewayPlay) -> None:
        assert play.service.is_gateway_ready()
        await play.register(chain_of(1))
        assert not play.service.is_gateway_ready()
        play.add()
        await play.until_ready()
        assert play.service.is_gateway_ready()
        removal = asyncio.create_task(play.service.remove_model("faces"))
        while not removal.done():
            play.service.is_gateway_ready()
            play.service.list_models()
            await asyncio.sleep(0)
        play.gateway.dispatch.is_stopping = True
        assert not play.service.is_gateway_ready()

    run(story)


def test_watching_tells_of_changes_and_is_quiet_between_them(run):
    async def story(play: GatewayPlay) -> None:
        seen: list[tuple[str, bytes]] = []

        async def watch() -> None:
            async for event in play.service.watch():
                seen.append(event)  # noqa: PERF401 - as they come

        task = asyncio.create_task(watch())
        await asyncio.sleep(5)
        assert [name for name, _ in seen] == ["nodes", "models"]
        await play.register(chain_of(1))
        play.add()
        await play.until_ready()
        await asyncio.sleep(1)
        models = [msgspec.json.decode(body) for name, body in seen if name == "models"]
        assert models[-1]["items"][0]["state"] == "ready"
        play.gateway.dispatch.is_stopping = True
        await asyncio.wait_for(task, 5)

    run(story)


def test_removing_an_unknown_model_names_the_nearest(run):
    async def story(play: GatewayPlay) -> None:
        play.add()
        await play.register(chain_of(1))
        with pytest.raises(NotFound) as missing:
            await play.service.remove_model("face")
        assert "faces" in missing.value.hint
        assert play.service.manifest("faces").version == "1"

    run(story)


def test_stopping_ends_in_time_whatever_happens_to_the_links(run):
    async def story(play: GatewayPlay) -> None:
        for _ in range(4):
            play.add()
        await play.register(chain_of(1))
        await play.until_ready()
        for node in play.nodes:
            node.kill()
        started = play.loop.time()
        await play.stop()
        assert play.loop.time() - started < 11
        await play.start()

    run(story)
