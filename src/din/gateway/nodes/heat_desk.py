"""Asks nodes how hot their cores run, and waits for what they say. What comes is not believed
beyond what can be true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import isfinite
from typing import Final

from msgspec.structs import replace

from din.domain.heat import CORES_MAX, CoreHeat, HeatView, SensorView
from din.domain.node import NodeId
from din.errors import Busy, DeadlineExceeded, Unreachable
from din.observability.printable import SAID_CHARACTERS_MAX, one_line
from din.wire.messages import AskHeat, Heat, HeatCore

ASKS_MAX: Final = 16
ANSWER_S: Final = 3.0
"""Beyond the window itself."""
UNKNOWN_MAX: Final = 16
SENSORS_MAX: Final = 16
KINDS: Final = ("cpu", "gpu", "npu")


class HeatDesk:
    """Questions under way. All calls in the loop's thread."""

    def __init__(self, send: Callable[[str, AskHeat], bool]) -> None:
        self._send = send
        self._asked: dict[int, tuple[NodeId, asyncio.Future[Heat]]] = {}
        self._number = 0

    async def ask(self, node_id: NodeId, name: str, window_ms: int, core_mask: int) -> HeatView:
        """What a node measures from now on for so long; mask 0 = every core. Raises Busy,
        Unreachable, DeadlineExceeded."""
        if len(self._asked) >= ASKS_MAX:
            raise Busy(f"{ASKS_MAX} nodes are asked for their heat already", hint="try again")
        self._number += 1
        number = self._number
        answer: asyncio.Future[Heat] = asyncio.get_running_loop().create_future()
        self._asked[number] = (node_id, answer)
        mask = f"{core_mask:x}" if core_mask else ""
        try:
            if not self._send(node_id, AskHeat(number, window_ms, mask)):
                raise Unreachable(f"node {name} has no link to this gateway now")
            async with asyncio.timeout(window_ms / 1000 + ANSWER_S):
                heat = await answer
        except TimeoutError:
            raise DeadlineExceeded(
                f"node {name} did not tell its heat in time",
                hint="it is overloaded, or its DIN is older than this gateway's",
            ) from None
        finally:
            del self._asked[number]
        if heat.reason:
            reason = one_line(heat.reason, SAID_CHARACTERS_MAX)
            raise Busy(f"node {name} does not tell its heat: {reason}", hint="try again")
        return _view(heat, name, f"0x{mask}" if mask else "all")

    def heard(self, node_id: NodeId, heat: Heat) -> None:
        """A node told; late ones and those that nobody asked are passed over."""
        asked, answer = self._asked.get(heat.number, (None, None))
        if answer is not None and asked == node_id and not answer.done():
            answer.set_result(heat)


def _view(heat: Heat, name: str, core_mask: str) -> HeatView:
    unknown = list(heat.unknown.items())[:UNKNOWN_MAX]
    return HeatView(
        node=name,
        window_ms=heat.window_ms,
        core_mask=core_mask,
        cores=tuple(_core(each) for each in heat.cores[:CORES_MAX] if each.kind in KINDS),
        unknown={one_line(what, 64): one_line(why, SAID_CHARACTERS_MAX) for what, why in unknown},
        sensors=tuple(_sensor(each) for each in heat.sensors[:SENSORS_MAX]),
    )


def _core(said: HeatCore) -> CoreHeat:
    return CoreHeat(
        core=said.core,
        kind=said.kind,
        percent=_share(said.percent),
        bandwidth_percent=_share(said.bandwidth_percent),
    )


def _sensor(said: SensorView) -> SensorView:
    value = said.value if said.value is not None and isfinite(said.value) else None
    return replace(
        said, name=one_line(said.name, 64), source=one_line(said.source, 128), value=value
    )


def _share(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= 100 else None  # NaN is neither
