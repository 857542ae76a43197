"""`din trace list | show`: who did what, as a table and as a waterfall."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import click
import msgspec

from din.cli.asking import ask
from din.cli.display import (
    UNKNOWN,
    Column,
    byte_count,
    is_terminal,
    number,
    repeat,
    show,
    show_document,
)
from din.cli.frame import Command, gateway_option, output_option, say, watch_option
from din.client.client import Client, decode_answer
from din.client.http import Answer
from din.domain.request import Span, Trace
from din.domain.result import CONTENT_TYPE, SUFFIX
from din.domain.views import TraceList
from din.errors import Conflict, NotFound, Unavailable, UsageError
from din.observability.printable import one_line, printable
from din.observability.waterfall import render

LABEL_COLUMNS_MAX: Final = 34
FIGURE_COLUMNS: Final = 11
WIDTH_DEFAULT: Final = 80
TRACES_MAX: Final = 1000
MARKS: Final = {"compute": "#", "transfer": "-", "queue": ".", "encode": "+"}
TERMINAL_COLOURS: Final = {
    "compute": "green",
    "transfer": "blue",
    "queue": "yellow",
    "encode": "cyan",
}
_COLOUR_OF: Final = {MARKS[kind]: colour for kind, colour in TERMINAL_COLOURS.items()}
COLUMNS: Final[tuple[Column[Trace], ...]] = (
    Column("REQUEST", lambda trace: trace.request_id),
    Column("MODEL", lambda trace: trace.model_id),
    Column("STATUS", lambda trace: trace.status),
    Column("MS", lambda trace: number(trace.duration_ms, 1), is_number=True),
    Column("TRIES", lambda trace: str(tries_of(trace)), is_number=True),
    Column("NODES", lambda trace: ", ".join(nodes_of(trace)) or UNKNOWN),
    Column("STARTED", lambda trace: trace.started_at, is_wide=True),
    Column("PATH", lambda trace: trace.path, is_wide=True),
)


def nodes_of(trace: Trace) -> list[str]:
    """Nodes that answered, each once, in order."""
    return list(dict.fromkeys(step.node for step in trace.execution_trace))


def tries_of(trace: Trace) -> int:
    """How often a request was tried; of one whose rows went apart, the shard tried most often."""
    return max((each.attempt for each in trace.attempts), default=1)


@click.command(
    "list",
    cls=Command,
    examples=("din trace list", "din trace list --limit 100 -o json", "din trace list -w"),
)
@click.option("--limit", type=click.IntRange(1, TRACES_MAX), default=20, show_default=True)
@gateway_option
@output_option
@watch_option
def list_traces(limit: int, gateway: str | None, output: str, watch: bool) -> None:
    """The newest requests, newest first."""
    repeat(lambda: _show_traces(limit, gateway, output), is_watching=watch)


def _show_traces(limit: int, gateway: str | None, output: str) -> None:
    with ask(gateway) as client:
        answer = client.call("GET", f"/api/v1/traces?limit={limit}")
    view = decode_answer(answer, TraceList)
    show(output, answer.body, view.items, COLUMNS, lambda trace: trace.request_id)
    if not view.items and output in ("table", "wide"):
        say("no request yet\nhint: din infer MODEL --input FILE")


@click.command(
    "show",
    cls=Command,
    examples=(
        "din trace show last",
        "din trace show req-8a3f",
        "din trace show last -o json",
        "din trace show last --save slow.dinr",
        "din trace show slow.dinr",
        "din trace show result.dinr -o json",
    ),
)
@click.argument("request", default="last")
@click.option(
    "--save",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.dinr",
    help="Keep it in binary (docs/protocol/result.md), to be shown again without a gateway.",
)
@gateway_option
@output_option
def show_trace(request: str, target: Path | None, gateway: str | None, output: str) -> None:
    """One request as a waterfall: its id, the start of it, `last`, or a file that was saved.

    Of a result that `din infer --output FILE.dinr` kept: its tensors and who made them.
    """
    if request.endswith(SUFFIX):
        from din.cli.kept import read_kept, show_kept

        result, kept = read_kept(request)
        if result.trace is None:
            show_kept(output, kept())
            return
        trace, body = result.trace, msgspec.json.encode(result.trace)
    else:
        with ask(gateway) as client:
            answer = find_trace(client, request)
            trace, body = decode_answer(answer, Trace), answer.body
            if target is not None:
                _save(client, trace.request_id, target)
    if output in ("json", "yaml"):
        show_document(output, body)
    elif output == "name":
        click.echo(one_line(trace.request_id))
    else:
        _show_waterfall(trace)


def _save(client: Client, request_id: str, target: Path) -> None:
    """Raises UsageError for a name that would not be known again, Unavailable."""
    if target.suffix != SUFFIX:
        raise UsageError(f"--save {str(target)!r} has no known ending", hint=f"end it in {SUFFIX}")
    answer = client.trace_answer(request_id, is_binary=True)
    if answer.headers.get("content-type") != CONTENT_TYPE:
        raise Unavailable(
            "the gateway gives no trace in binary", hint="it is older than this `din`: update it"
        )
    try:
        target.write_bytes(answer.body)
    except OSError as error:
        raise Unavailable(
            f"{target} cannot be written: {error.strerror or error}",
            hint="give a place that exists, is writable and has room",
        ) from None
    say(f"wrote {target}")


def find_trace(client: Client, request: str) -> Answer:
    """One trace by `last`, id or the start of an id. Raises NotFound or Conflict."""
    if request == "last":
        newest = client.traces(1).items
        if not newest:
            raise NotFound("there is no request yet", hint="din infer MODEL --input FILE")
        return client.trace_answer(newest[0].request_id)
    try:
        return client.trace_answer(request)
    except NotFound as error:
        ids = [each.request_id for each in client.traces(TRACES_MAX).items]
        found = [each for each in ids if each.startswith(request)]
        if not found:
            raise
        if len(found) > 1:
            raise Conflict(
                f"{request!r} is the start of {len(found)} request ids",
                hint=f"one of {', '.join(found[:8])}",
            ) from error
        return client.trace_answer(found[0])


def _show_waterfall(trace: Trace) -> None:
    head = f"{trace.request_id}  {trace.model_id} version {trace.version}  {trace.status}"
    workers = f"  workers of tenant {trace.isolated_for}" if trace.isolated_for else ""
    click.echo(printable(f"{head}  {trace.duration_ms:.1f} ms  {trace.path}{workers}"))
    if trace.error:
        click.echo(printable(trace.error))
    width = shutil.get_terminal_size((WIDTH_DEFAULT, 24)).columns if sys.stdout.isatty() else 0
    for line in waterfall(trace.spans, width or WIDTH_DEFAULT, is_coloured=is_terminal()):
        click.echo(line)
    for line in compression_lines(trace.spans):
        click.echo(line)
    has_failed = any(each.outcome != "completed" for each in trace.attempts)
    for attempt in trace.attempts:
        if has_failed or tries_of(trace) > 1:
            nodes = ", ".join(attempt.nodes)
            text = f"try {attempt.attempt}: {attempt.outcome} on {nodes} "
            click.echo(printable(f"{text}({attempt.duration_ms:.1f} ms)"))


def waterfall(spans: Sequence[Span], width: int, *, is_coloured: bool) -> list[str]:
    """Lines of at most `width` columns: slice and node, its bars on the common axis, and how long
    it computed."""
    if not spans:
        return ["no span was measured"]
    rows = _rows(spans)
    label_width = max(len(_label(row)) for row in rows)
    axis = max(width - label_width - FIGURE_COLUMNS - 2, 8)
    bars = dict(zip(map(id, spans), render(spans, axis), strict=False))
    lines: list[str] = []
    for row in rows:
        cells = [" "] * axis
        # Computing is drawn last: where bars share a column, it is what people look for.
        for span in sorted(row, key=lambda each: each.kind == "compute"):
            bar = bars.get(id(span))
            if bar is not None:
                mark = MARKS.get(span.kind, "#")
                cells[bar.start : bar.start + bar.length] = mark * bar.length
        drawn = _painted(cells) if is_coloured else "".join(cells)
        figure = f"{_figure(row):.1f} ms".rjust(FIGURE_COLUMNS)
        lines.append(f"{_label(row):{label_width}} {drawn} {figure}")
    legend = "  ".join(f"{mark} {kind}" for kind, mark in MARKS.items())
    return [*lines, f"({legend})"]


def compression_lines(spans: Sequence[Span]) -> Iterator[str]:
    """What each slice compressed for others, to how much and in what time."""
    for span in spans:
        if span.uncompressed_bytes > 0:
            share = span.compressed_bytes / span.uncompressed_bytes
            sizes = f"{byte_count(span.uncompressed_bytes)} to {byte_count(span.compressed_bytes)}"
            yield f"{_label([span])} compressed {sizes} ({share:.0%}), {span.duration_ms:.1f} ms"


def _rows(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans of one slice on one node belong to one line, in order of their start."""
    rows: dict[tuple[int, str, str], list[Span]] = {}
    for span in spans:
        rows.setdefault((span.slice_index, span.phase, span.node), []).append(span)
    return list(rows.values())


def _label(row: Sequence[Span]) -> str:
    """Slice and node; both are cut where together they would leave the bars no room."""
    phase, node = printable(row[0].phase), printable(row[0].node)
    if phase == node:
        return _fit(phase, LABEL_COLUMNS_MAX)
    if len(phase) + len(node) + 2 > LABEL_COLUMNS_MAX:
        phase, node = (
            _fit(phase, LABEL_COLUMNS_MAX // 2 - 1),
            _fit(node, LABEL_COLUMNS_MAX // 2 - 1),
        )
    return f"{phase} @{node}"


def _figure(row: Sequence[Span]) -> float:
    """What the line took: its computing, or all of it where nothing was computed."""
    computed = [span.duration_ms for span in row if span.kind == "compute"]
    return sum(computed or [span.duration_ms for span in row])


def _painted(cells: Sequence[str]) -> str:
    runs = ("".join(run) for _, run in groupby(cells))
    return "".join(click.style(run, fg=_COLOUR_OF.get(run[0])) for run in runs)


def _fit(text: str, columns: int) -> str:
    return text if len(text) <= columns else f"{text[: columns - 1]}~"
