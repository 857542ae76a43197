"""Deployments under random joins, deaths, silences, returns, registrations and restarts.

Always: a replica may be used only on a routable node that has loaded it in its present session; no
node is promised more memory than it declared. In the end, when the nodes live and there is room,
every deployment is ready again.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from gateway_fakes import VirtualLoop, chain_of, finish
from gateway_play import FakeNode, GatewayPlay
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from din.errors import BadStrategy, ExecutionFailed

NODES_MAX = 6
MODELS = ("alpha", "beta", "gamma")
MODEL_MIB_MAX = 4 * 150 * 2
READY_SECONDS_MAX = 300.0
"""Longest back-off (120 s), a lost node and a few rounds of loading."""


class FleetMachine(RuleBasedStateMachine):
    """One gateway, a few nodes, a few models."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.play: GatewayPlay
        self.crashes = 0
        self.steps = 0

    def do(self, work: Any = None) -> None:
        async def whole() -> None:
            if work is not None:
                await work
            self.steps += 1
            # Now and then what was begun comes to its end; mostly the next blow falls before.
            await asyncio.sleep(1.5 if self.steps % 3 == 0 else 0.02)

        self.loop.run_until_complete(whole())

    def call(self, work: Any, *arguments: Any) -> None:
        async def called() -> None:
            work(*arguments)

        self.do(called())

    def nodes(self, *, is_alive: bool) -> list[FakeNode]:
        return [node for node in self.play.nodes if node.is_alive == is_alive]

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        async def made() -> None:
            self.play = GatewayPlay(Path(self.folder.name), seed=seed)
            self.play.carving.cut = BadStrategy("it is one operator")
            await self.play.start()
            for memory_mib in (400, 300):
                self.play.add(memory_mib)
            await self.play.register(chain_of(2, 100), MODELS[0])
            await asyncio.sleep(2.0)

        self.do(made())

    # Nodes.

    @precondition(lambda self: len(self.play.nodes) < NODES_MAX)
    @rule(memory_mib=st.integers(50, 700), used_mib=st.integers(0, 100))
    def join(self, memory_mib: int, used_mib: int) -> None:
        def joined() -> None:
            self.play.add(memory_mib).memory_mib_used = used_mib

        self.call(joined)

    @precondition(lambda self: self.nodes(is_alive=True))
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        self.call(data.draw(st.sampled_from(self.nodes(is_alive=True))).kill)

    @precondition(lambda self: self.nodes(is_alive=False))
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        self.call(data.draw(st.sampled_from(self.nodes(is_alive=False))).start)

    @precondition(lambda self: self.nodes(is_alive=True))
    @rule(data=st.data())
    def restart_before_the_old_link_breaks(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(self.nodes(is_alive=True)))

        def again() -> None:
            node.is_alive = False
            node._beating.cancel()
            node.start()

        self.call(again)

    @precondition(lambda self: self.nodes(is_alive=True))
    @rule(data=st.data(), is_mute=st.booleans())
    def mute_or_unmute(self, data: st.DataObject, is_mute: bool) -> None:
        data.draw(st.sampled_from(self.nodes(is_alive=True))).is_mute = is_mute

    @precondition(lambda self: self.nodes(is_alive=True))
    @rule(data=st.data())
    def break_link(self, data: st.DataObject) -> None:
        self.call(data.draw(st.sampled_from(self.nodes(is_alive=True))).break_link)

    @precondition(lambda self: self.play.nodes)
    @rule(data=st.data(), index=st.integers(0, 3), kind=st.sampled_from(["fail", "hang", "well"]))
    def change_luck(self, data: st.DataObject, index: int, kind: str) -> None:
        node = data.draw(st.sampled_from(self.play.nodes))
        node.faults.pop(index, None)
        if kind != "well":
            node.faults[index] = ExecutionFailed("bad luck") if kind == "fail" else None

    @precondition(lambda self: self.nodes(is_alive=True))
    @rule(data=st.data(), is_forced=st.booleans())
    def drain(self, data: st.DataObject, is_forced: bool) -> None:
        node = data.draw(st.sampled_from(self.nodes(is_alive=True)))
        if self.is_known(node):
            self.do(self.play.service.drain_node(node.node_id, is_forced=is_forced))

    @precondition(lambda self: self.nodes(is_alive=True))
    @rule(data=st.data())
    def undrain(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(self.nodes(is_alive=True)))
        if self.is_known(node):
            self.do(self.play.service.undrain_node(node.node_id))

    def is_known(self, node: FakeNode) -> bool:
        members = {each.profile.node_id for each in self.play.gateway.fleet.members()}
        return node.node_id in members

    @precondition(lambda self: self.nodes(is_alive=True))
    @rule(data=st.data())
    def dispatch_fails(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(self.nodes(is_alive=True)))
        fleet = self.play.gateway.fleet
        now_ms = self.play.gateway.effects.clock()
        self.call(fleet.dispatch_failed, node.node_id, "no answer", now_ms)

    # Models.

    @rule(
        name=st.sampled_from(MODELS),
        count=st.integers(1, 4),
        memory_mib=st.integers(20, 150),
        workers=st.integers(1, 2),
        replicas=st.integers(1, 3),
    )
    def register(self, name: str, count: int, memory_mib: int, workers: int, replicas: int) -> None:
        partition = chain_of(count, memory_mib)
        self.do(self.play.register(partition, name, workers=workers, replicas=replicas))

    @precondition(lambda self: self.play.gateway.models.model_ids())
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.play.gateway.models.model_ids()))
        self.do(self.play.service.remove_model(name))

    # Time and the gateway.

    @rule(seconds=st.floats(0.01, 15.0))
    def pass_time(self, seconds: float) -> None:
        self.do(asyncio.sleep(seconds))

    @rule()
    def crash_the_gateway(self) -> None:
        self.crashes += 1
        self.do(self.play.crash())

    # What always holds.

    @invariant()
    def promises_are_kept(self) -> None:
        if not hasattr(self, "play"):
            return
        assert not self.play.broken_promises()
        for text in ("background task failed", "deployment not reconciled"):
            assert not self.play.reports.of(text)

    @invariant()
    def states_say_what_is(self) -> None:
        if not hasattr(self, "play"):
            return
        for holding in self.play.gateway.deployer.holdings():
            serving = holding.serving
            is_ready = serving.is_ready(serving.raw)
            assert (serving.deployment.state == "ready") == is_ready, self.play.story(
                holding.record.manifest.model_id
            )

    def teardown(self) -> None:
        try:
            if hasattr(self, "play"):
                self.do(self.everything_recovers())
                self.promises_are_kept()
        finally:
            if hasattr(self, "play"):
                for node in self.play.nodes:
                    self.call(node.kill)
                self.do(self.play.stop())
            finish(self.loop)
            asyncio.set_event_loop(None)
            self.folder.cleanup()

    async def everything_recovers(self) -> None:
        for node in self.play.nodes:
            node.is_mute = False
            node.faults.clear()
            if not node.is_alive:
                node.start()
        for _ in MODELS:
            self.play.add(MODEL_MIB_MAX)
        end = self.loop.time() + READY_SECONDS_MAX
        while not self.play.service.is_gateway_ready():
            assert self.loop.time() < end, [
                self.play.story(each) for each in self.play.gateway.models.model_ids()
            ]
            await asyncio.sleep(0.5)
        await asyncio.sleep(30.0)
        drains = self.play.gateway.drains
        for holding in self.play.gateway.deployer.holdings():
            assert not drains.leaving().intersection(holding.nodes()), "there is room elsewhere"
        if not self.crashes:
            for node in self.play.nodes:
                for epoch, index in node.held:
                    found = [
                        each
                        for each in self.play.gateway.deployer.holdings()
                        if each.serving.deployment.epoch == epoch
                    ]
                    assert found, f"{node.name} holds {epoch}, which is over"
                    assert found[0].has(index, node.node_id), f"{node.name} holds {index}, unasked"


TestFleetMachine = FleetMachine.TestCase
TestFleetMachine.settings = settings(
    max_examples=40,
    derandomize=True,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
