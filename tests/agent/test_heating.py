"""A node measures its cores when its gateway asks, a few windows at once and none for nonsense."""

from __future__ import annotations

import asyncio

import pytest

from din.agent.heating import WINDOWS_MAX, Heating
from din.domain.heat import CORE_MASK_DIGITS_MAX, SensorView
from din.system.accelerator_facts import AcceleratorSample
from din.wire.messages import AskHeat, Heat

SENSOR = SensorView(name="temperature", source="/sys/x", value=41.0)


def heating(told: list[Heat], sample: AcceleratorSample | None = None) -> Heating:
    def tell(message: object) -> bool:
        assert isinstance(message, Heat)
        told.append(message)
        return True

    return Heating(tell, lambda: sample, lambda: (SENSOR,), None)


async def answers(told: list[Heat], number: int) -> None:
    async with asyncio.timeout(20):
        while len(told) < number:  # noqa: ASYNC110 - a list tells nobody
            await asyncio.sleep(0.005)


def test_the_window_is_told_with_cores_reasons_and_sensors() -> None:
    async def story() -> list[Heat]:
        told: list[Heat] = []
        sample = AcceleratorSample(percent=50.0, source="npu-smi")
        heating(told, sample).ask(AskHeat(7, 20, "1"))
        assert told == [], "it takes its time"
        await answers(told, 1)
        return told

    (heat,) = asyncio.run(story())
    assert (heat.number, heat.reason, heat.sensors) == (7, "", (SENSOR,))
    assert heat.window_ms >= 19
    assert [(each.core, each.kind) for each in heat.cores] == [(0, "cpu"), (0, "npu")]
    assert "bandwidth_percent" in heat.unknown


@pytest.mark.parametrize(
    ("window_ms", "mask"),
    [(9, ""), (5001, ""), (100, "0"), (100, "x"), (100, "f" * (CORE_MASK_DIGITS_MAX + 1))],
)
def test_a_question_that_makes_no_sense_is_answered_so(window_ms: int, mask: str) -> None:
    told: list[Heat] = []
    heating(told).ask(AskHeat(1, window_ms, mask))
    assert told[0].reason
    assert told[0].cores == ()


def test_more_windows_than_a_few_are_refused_and_none_outlives_the_node() -> None:
    async def story() -> tuple[list[Heat], int]:
        told: list[Heat] = []
        found = heating(told)
        for number in range(WINDOWS_MAX + 1):
            found.ask(AskHeat(number, 5000))
        refused = list(told)
        found.close()
        await asyncio.sleep(0.01)
        return refused, len(found._windows)

    refused, left = asyncio.run(story())
    assert [(each.number, "windows are open" in each.reason) for each in refused] == [
        (WINDOWS_MAX, True)
    ]
    assert left == 0
