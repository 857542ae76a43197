"""Answers a gateway that asks how hot the cores run: one bounded window at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from din.domain.heat import CORE_MASK_DIGITS_MAX, CORE_MASK_MAX, WINDOW_MS_RANGE
from din.wire.messages import AnyMessage, AskHeat, Heat

if TYPE_CHECKING:
    from din.domain.heat import SensorView
    from din.system.accelerator_facts import AcceleratorSample

WINDOWS_MAX: Final = 4
"""At once; who asks meanwhile is told so."""


class Heating:
    """Of one node. All calls in the loop's thread; nothing is measured or loaded before the first
    question."""

    def __init__(
        self,
        tell: Callable[[AnyMessage], bool],
        accelerator: Callable[[], AcceleratorSample | None],
        sensors: Callable[[], tuple[SensorView, ...]],
        bandwidth_mib_per_second_max: int | None,
    ) -> None:
        self._tell = tell
        self._accelerator = accelerator
        self._sensors = sensors
        self._bandwidth = bandwidth_mib_per_second_max
        self._windows: set[asyncio.Task[None]] = set()

    def ask(self, question: AskHeat) -> None:
        """Measure, then tell. What cannot be is told as a reason."""
        low, high = WINDOW_MS_RANGE
        mask = _mask_of(question.core_mask)
        if mask is None or not low <= question.window_ms <= high:
            self._tell(Heat(question.number, reason="no such window or mask of cores"))
            return
        if len(self._windows) >= WINDOWS_MAX:
            self._tell(Heat(question.number, reason=f"{WINDOWS_MAX} windows are open there"))
            return
        work = self._measure(question.number, question.window_ms, mask)
        task = asyncio.get_running_loop().create_task(work)
        self._windows.add(task)
        task.add_done_callback(self._windows.discard)

    def close(self) -> None:
        """Measure no more."""
        for task in self._windows:
            task.cancel()

    async def _measure(self, number: int, window_ms: int, mask: int) -> None:
        from din.system.heat import HeatWindow  # most nodes are never asked

        loop = asyncio.get_running_loop()
        began_s = loop.time()
        window = HeatWindow(mask, self._bandwidth)
        await asyncio.sleep(window_ms / 1000)
        took_ms = round((loop.time() - began_s) * 1000)
        sample = self._accelerator()
        kind = "npu" if sample is not None and _is_npu(sample) else "gpu"
        cores = tuple(window.end(sample, kind))
        self._tell(Heat(number, took_ms, cores, window.unknown, self._sensors()))


def _is_npu(sample: AcceleratorSample) -> bool:
    return sample.source == "npu-smi" or bool(sample.core_percents)


def _mask_of(text: str) -> int | None:
    """Every core for an empty text; None for what is no mask."""
    if not text:
        return CORE_MASK_MAX
    try:
        mask = int(text, 16) if len(text) <= CORE_MASK_DIGITS_MAX else 0
    except ValueError:
        return None
    return mask if 0 < mask <= CORE_MASK_MAX else None
