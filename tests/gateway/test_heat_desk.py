"""Heat of a node: asked of it, and not believed beyond what can be true."""

from __future__ import annotations

import asyncio

import pytest
from gateway_fakes import NODE_A, NODE_B

from din.domain.heat import SensorView
from din.errors import Busy, DeadlineExceeded, Unreachable
from din.gateway.nodes import heat_desk
from din.gateway.nodes.heat_desk import ASKS_MAX, HeatDesk
from din.gateway.telemetry.metrics import GatewayMetrics
from din.gateway.telemetry.run_watch import WINDOWS_MAX, Runs, RunWatch
from din.wire.messages import AskHeat, Heat, HeatCore

NAN = float("nan")


class Asked(list[tuple[str, AskHeat]]):
    is_linked = True

    def __call__(self, node_id: str, message: AskHeat) -> bool:
        self.append((node_id, message))
        return self.is_linked


def test_what_a_node_says_is_shown_and_what_cannot_be_is_null() -> None:
    async def story() -> None:
        asked = Asked()
        desk = HeatDesk(asked)
        asking = asyncio.ensure_future(desk.ask(NODE_A, "edge-1", 100, 0xFF))
        await asyncio.sleep(0)
        ((node_id, question),) = asked
        assert (node_id, question.window_ms, question.core_mask) == (NODE_A, 100, "ff")
        cores = (
            HeatCore(0, "cpu", 50.0, 12.0),
            HeatCore(1, "cpu", 101.0, NAN),
            HeatCore(2, "cpu", -1.0, None),
        )
        sensors = (SensorView(name="temp\x1b[31m", value=NAN),) * 100
        said = Heat(question.number, 104, cores, {f"x{each}": "\n" for each in range(99)}, sensors)
        desk.heard(NODE_B, said)
        desk.heard(NODE_A, Heat(question.number + 1))
        assert not asking.done(), "another node, or another question"
        desk.heard(NODE_A, said)
        desk.heard(NODE_A, said)
        view = await asking
        assert (view.node, view.window_ms, view.core_mask) == ("edge-1", 104, "0xff")
        assert [(each.percent, each.bandwidth_percent) for each in view.cores] == [
            (50.0, 12.0), (None, None), (None, None),
        ]  # fmt: skip
        assert len(view.unknown) == heat_desk.UNKNOWN_MAX
        assert len(view.sensors) == heat_desk.SENSORS_MAX
        assert view.sensors[0].value is None
        assert "\x1b" not in view.sensors[0].name

    asyncio.run(story())


def test_a_node_that_does_not_answer_is_not_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(heat_desk, "ANSWER_S", 0.01)

    async def story() -> None:
        desk = HeatDesk(Asked())
        with pytest.raises(DeadlineExceeded, match="did not tell its heat"):
            await desk.ask(NODE_A, "edge-1", 10, 0)
        desk.heard(NODE_A, Heat(1))
        asked = Asked()
        asked.is_linked = False
        with pytest.raises(Unreachable, match="no link"):
            await HeatDesk(asked).ask(NODE_A, "edge-1", 10, 0)

    asyncio.run(story())


def test_a_node_that_refuses_says_why_and_questions_have_a_limit() -> None:
    async def story() -> None:
        asked = Asked()
        desk = HeatDesk(asked)
        asking = [
            asyncio.ensure_future(desk.ask(NODE_A, "edge-1", 100, 0)) for _ in range(ASKS_MAX)
        ]
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="asked for their heat"):
            await desk.ask(NODE_A, "edge-1", 100, 0)
        for _, question in asked:
            desk.heard(NODE_A, Heat(question.number, reason="4 windows are open there"))
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(each, Busy) and "4 windows" in each.message for each in found)
        assert not desk._asked

    asyncio.run(story())


def test_runs_that_end_in_the_window_are_compared_with_the_mean_of_their_slice() -> None:
    metrics = GatewayMetrics()
    metrics.know_models(["faces"])
    metrics.observe_slice("faces", "whole", "edge-1", 0.010)
    metrics.observe_slice("faces", "whole", "edge-1", 0.010)
    number = metrics.runs.begin("edge-1")
    metrics.observe_slice("faces", "whole", "edge-1", 0.025)
    metrics.observe_slice("faces", "whole", "edge-2", 9.0)
    metrics.observe_slice("faces", "head", "edge-1", 0.001)
    runs = metrics.runs.end(number)
    assert (runs.number, runs.peak_us) == (2, pytest.approx(25_000))
    assert runs.ratio_peak == pytest.approx(2.5)
    metrics.observe_slice("faces", "whole", "edge-1", 1.0)
    assert metrics.runs.end(number) == Runs()


def test_windows_that_nobody_ends_have_a_limit() -> None:
    watch = RunWatch()
    assert not watch.is_open
    numbers = [watch.begin("edge-1") for _ in range(WINDOWS_MAX + 1)]
    watch.saw("edge-1", 0.001, None)
    assert watch.end(numbers[0]) == Runs()
    assert watch.end(numbers[1]) == Runs(1, pytest.approx(1000.0), None)
