"""`din node heat`: the cores of one node over a short window."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

import click

from din.cli import complete
from din.cli.asking import ask
from din.cli.display import UNKNOWN, Column, number, repeat, show
from din.cli.frame import Command, gateway_option, output_option, say, watch_option
from din.client.client import decode_answer
from din.domain.heat import WINDOW_MS, WINDOW_MS_RANGE, CoreHeat, HeatView, SensorView, core_mask_of

BAR_CELLS: Final = 20
FULL, EMPTY = "#", "."


def bar(percent: float | None) -> str:
    """A share as twenty cells; nothing drawn where nothing was measured."""
    if percent is None:
        return UNKNOWN
    cells = round(percent / 100 * BAR_CELLS)
    return FULL * cells + EMPTY * (BAR_CELLS - cells)


COLUMNS: Final[tuple[Column[CoreHeat], ...]] = (
    Column("CORE", lambda core: f"{core.kind}{core.core}"),
    Column("BUSY", lambda core: bar(core.percent)),
    Column("%", lambda core: number(core.percent), is_number=True),
    Column("MEMORY %", lambda core: number(core.bandwidth_percent), is_number=True),
    Column("LONGEST RUN US", lambda core: number(core.latency_us_peak), is_number=True),
    Column("PATTERN", lambda core: core.pattern),
)


@click.command(
    "heat",
    cls=Command,
    examples=(
        "din node heat edge-1",
        "din node heat edge-1 --window-ms 1000 --core-mask 0xF",
        "din node heat edge-1 -o json",
    ),
)
@click.argument("node", shell_complete=complete.nodes)
@click.option(
    "--window-ms",
    type=click.IntRange(*WINDOW_MS_RANGE),
    default=WINDOW_MS,
    show_default=True,
    help="How long to look.",
)
@click.option("--core-mask", metavar="HEX", help="Which cores, 0x3 = cores 0 and 1; all.")
@gateway_option
@output_option
@watch_option
def node_heat(
    node: str, window_ms: int, core_mask: str | None, gateway: str | None, output: str, watch: bool
) -> None:
    """How busy each core of NODE is from now on for a short while, how full its memory's
    bandwidth, and how long runs of slices took meanwhile. `-` is what is not measured.

    Patterns: `bandwidth-bound` is a busy core whose memory is nearly used up, `compute-idle` one
    that has little to do while runs take twice their usual time.
    """
    core_mask_of(core_mask)
    query = urlencode(
        {"window_ms": window_ms, **({} if core_mask is None else {"core_mask": core_mask})}
    )
    path = f"/api/v1/nodes/{quote(node, safe='')}/heat?{query}"
    repeat(lambda: _show(path, gateway, output), is_watching=watch)


def _show(path: str, gateway: str | None, output: str) -> None:
    with ask(gateway) as client:
        answer = client.call("GET", path)
    view = decode_answer(answer, HeatView)
    show(output, answer.body, view.cores, COLUMNS, lambda core: f"{core.kind}{core.core}")
    if output not in ("table", "wide"):
        return
    slow = "" if view.latency_ratio_peak is None else (
        f", the longest {view.latency_ratio_peak:g} times its slice's mean"
    )  # fmt: skip
    say(f"{view.node}: {view.window_ms} ms, {view.runs} runs ended{slow}")
    for what, why in view.unknown.items():
        say(f"not measured: {what}: {why}")
    for sensor in view.sensors:
        say(_words(sensor))


def _words(sensor: SensorView) -> str:
    words = f"sensor {sensor.name}: {sensor.source or 'nothing found'}"
    if sensor.value is not None:
        words += f", {sensor.value:.1f}"
    if sensor.age_ms is not None:
        words += f", {sensor.age_ms} ms ago"
    for count, what in (
        (sensor.failures, "failed reads"),
        (sensor.hangs_ms, "ms without an answer"),
        (sensor.unchanged_ms // 1000, "s without any change"),
    ):
        words += f", {count} {what}" if count else ""
    return words
