"""Models that nobody asks for give their memory back, and are loaded again for who asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from gateway_fakes import chain_of
from gateway_play import LOAD_S, FakeNode, GatewayPlay
from stories import perform

from din.domain.tensor import TensorMeta
from din.errors import Unavailable
from din.gateway.service import InferenceAnswer, InferenceCall

IDLE_S = 60.0


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    return partial(perform, tmp_path)


async def serving_node(play: GatewayPlay, memory_mib: int = 1_000) -> FakeNode:
    """A node with the one slice of the model, which is unloaded after IDLE_S."""
    play.gateway.deployer.idling.unload_ms = IDLE_S * 1000
    node = play.add(memory_mib)
    node.output = "t1"
    node.answers = bytes
    await play.register(chain_of(1))
    await play.until_ready()
    return node


async def ask(play: GatewayPlay, timeout_ms: int = 10_000, body: bytes = b"abcd") -> bytes:
    meta = TensorMeta("t0", "UINT8", (len(body),), len(body))
    call = InferenceCall(
        model_id="faces",
        metas=(meta,),
        chunks=([body],),
        is_adapted=False,
        timeout_ms=timeout_ms,
    )
    answer: InferenceAnswer = await play.gateway.dispatch.infer(call)
    try:
        return bytes(answer.views[0])
    finally:
        answer.release()


def test_a_model_that_nobody_asks_for_gives_its_memory_back_and_says_so(run):
    async def story(play: GatewayPlay) -> None:
        node = await serving_node(play)
        await asyncio.sleep(IDLE_S - 5)
        assert play.state() == "ready"
        assert node.held
        await asyncio.sleep(7)
        view = play.service.inspect_model("faces")
        assert view.state == "idle"
        assert view.reason == "no request for 60 s: the next one has it loaded again"
        assert not node.held
        assert play.gateway.promised_mib(node.node_id) == 0
        assert play.service.is_ready("faces"), "whoever asks is answered"
        assert play.service.is_gateway_ready()

    run(story)


def test_the_next_requests_wait_until_it_is_loaded_once(run):
    async def story(play: GatewayPlay) -> None:
        node = await serving_node(play)
        await asyncio.sleep(IDLE_S + 5)
        assert play.state() == "idle"
        prepares, before_s = len(node.prepares), play.loop.time()
        assert await asyncio.gather(*(ask(play) for _ in range(8))) == [b"abcd"] * 8
        assert LOAD_S <= play.loop.time() - before_s < LOAD_S + 2
        assert len(node.prepares) == prepares + 1
        assert play.state() == "ready"
        for trace in play.service.list_traces(8):
            waited, done = trace.attempts
            assert waited.outcome == "waited: the model was idle and was loaded again"
            assert waited.duration_ms >= LOAD_S * 1000
            assert done.outcome == "completed"
        assert await ask(play) == b"abcd"
        assert len(play.service.list_traces(1)[0].attempts) == 1, "nobody waited"
        await asyncio.sleep(IDLE_S + 5)
        assert play.state() == "idle", "and the time begins anew"

    run(story)


def test_requests_and_what_runs_keep_it_loaded(run):
    async def story(play: GatewayPlay) -> None:
        node = await serving_node(play)
        for _ in range(5):
            await asyncio.sleep(IDLE_S * 0.8)
            assert await ask(play) == b"abcd"
        assert play.state() == "ready"
        assert len(node.prepares) == 1
        node.answers = lambda _: None  # it computes for long
        slow = asyncio.ensure_future(ask(play, timeout_ms=int(IDLE_S * 3000)))
        await asyncio.sleep(IDLE_S * 2)
        assert play.state() == "ready"
        assert node.held
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        await asyncio.sleep(IDLE_S * 0.8)
        assert play.state() == "ready", "its time begins when the last one has ended"
        await asyncio.sleep(IDLE_S)
        assert play.state() == "idle"

    run(story)


def test_where_it_finds_no_room_again_the_request_is_told_why(run):
    async def story(play: GatewayPlay) -> None:
        node = await serving_node(play, memory_mib=150)
        await asyncio.sleep(IDLE_S + 5)
        node.kill()
        await asyncio.sleep(30)
        assert play.state() == "idle", "who comes and goes meanwhile changes nothing"
        with pytest.raises(Unavailable, match=r"placing, not ready.*no node"):
            await ask(play, timeout_ms=2_000)
        node.start()
        await play.until_ready()
        assert await ask(play) == b"abcd"

    run(story)


def test_a_newer_version_takes_over_from_an_idle_one_which_serves_until_then(run):
    async def story(play: GatewayPlay) -> None:
        node = await serving_node(play)
        await asyncio.sleep(IDLE_S + 5)
        assert play.state() == "idle"
        node.faults[0] = None  # it never says that it has loaded
        await play.register(chain_of(1, memory_mib=50))
        await asyncio.sleep(1)
        assert play.gateway.models.serving("faces", None).deployment.manifest.version == "1"
        assert play.service.is_ready("faces")
        del node.faults[0]
        await play.until_ready()
        assert await ask(play) == b"abcd"
        node.kill()
        node.start()
        await asyncio.sleep(5)
        assert play.gateway.models.serving("faces", None).deployment.manifest.version == "2"
        assert play.state() == "ready"

    run(story)


def test_an_idle_model_can_be_removed(run):
    async def story(play: GatewayPlay) -> None:
        node = await serving_node(play)
        await asyncio.sleep(IDLE_S + 5)
        await play.service.remove_model("faces")
        await asyncio.sleep(1)
        assert not play.gateway.deployer.holdings()
        assert not node.held

    run(story)


def test_nothing_is_unloaded_unless_the_operator_says_so(run):
    async def story(play: GatewayPlay) -> None:
        node = await serving_node(play)
        play.gateway.deployer.idling.unload_ms = 0
        await asyncio.sleep(IDLE_S * 20)
        assert play.state() == "ready"
        play.gateway.deployer.idling.unload_ms = IDLE_S * 1000
        await asyncio.sleep(IDLE_S - 5)
        assert node.held, "its time begins when it is asked for"
        await asyncio.sleep(10)
        assert play.state() == "idle"
        play.gateway.deployer.idling.unload_ms = 0
        assert await ask(play) == b"abcd"
        await asyncio.sleep(IDLE_S * 20)
        assert play.state() == "ready"

    run(story)


def test_a_probe_that_runs_for_long_is_not_taken_for_idle(run):
    async def story(play: GatewayPlay) -> None:
        await serving_node(play)
        serving = play.gateway.models.serving("faces", None)
        serving.is_kept = True
        await asyncio.sleep(3 * IDLE_S)
        assert play.state() == "ready"

    run(story)
