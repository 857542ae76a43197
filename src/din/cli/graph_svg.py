"""Slices of a model and what flows between them, as SVG. Pure: a view in, text out.

One box a slice, coloured by its node; inside it the operators, grouped in runs between single
tensors. Where tensors leave a slice for others stands a Split point, where they come in from others
a Merge point. Colours are the picture's own, background included: it reads the same on a dark page.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from html import escape
from typing import Final

from din.cli.display import byte_count, count
from din.cli.graph_layout import (
    LINE,
    MARGIN,
    OUTSIDE,
    WIDTH,
    Box,
    Flow,
    Layout,
    Way,
    laid_out,
)
from din.domain.model import GATEWAY
from din.domain.views import CutsView

COLOURS: Final = (
    "#cfe3f5", "#fde0c2", "#d3efd6", "#f3d4e8", "#fff3b8", "#dcd6f7", "#c9efec", "#e6e0d4",
)  # fmt: skip
"""Light fills, told apart by people who see few colours; nodes take them in turn."""
BORDERS: Final = ("", "6 3", "2 3")
"""Of boxes: where there are more nodes than colours, these tell them apart."""
UNPLACED: Final = "#ffffff"
"""Of what no node holds."""
INK: Final = "#1e293b"
LINES: Final = "#475569"
LEGEND: Final = 26
LEGEND_WIDTH: Final = 300
GROUPS_MAX: Final = 6
"""Of one slice; further runs are told as one."""
DETAILED_MAX: Final = 12
"""Slices of which operators are shown; of more, only how many each has."""
NAME_CHARS_MAX: Final = 46
TITLE_CHARS_MAX: Final = 40
KINDS_MAX: Final = 4
KIND_CHARS_MAX: Final = 14
TENSOR_CHARS_MAX: Final = 24
LANE_CHARS_MAX: Final = 16
"""Beside lanes, where tensor and target are named."""


def draw_graph(view: CutsView) -> str:
    """The picture of one model."""
    flows = flows_of(view)
    layout = laid_out(_boxes(view), flows)
    nodes = list(dict.fromkeys(node for _, node in view.slices))
    width = max(layout.width, WIDTH + 2 * MARGIN)
    columns = max(1, (width - 2 * MARGIN) // LEGEND_WIDTH)
    rows = -(-len(nodes) // columns)
    height = layout.height + LEGEND * (rows + 2) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12" fill="{INK}">',
        f"<title>{_text(view.model_id)} version {_text(view.version)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        f'markerHeight="8" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{LINES}"/></marker>'
        "</defs>",
        *_title(view, nodes),
    ]
    parts += [_line(way) for way in layout.ways]
    for box in layout.boxes.values():
        parts += _drawn_box(box, _fill(nodes, view.slices[box.number][1]), flows)
    parts += [part for flow in flows if not flow.is_inner for part in _outside(flow, layout)]
    parts += [_way_label(way, view) for way in layout.ways]
    parts += _legend(nodes, layout.height, columns)
    return "\n".join([*parts, "</svg>", ""])


def flows_of(view: CutsView) -> list[Flow]:
    """What goes between slices, in from the caller and back to it."""
    found: dict[tuple[int, int], list[tuple[str, int, bool]]] = defaultdict(list)
    for value in view.table.values:
        home = OUTSIDE if value.maker == GATEWAY else view.assignment[value.maker]
        targets = {view.assignment[reader] for reader in value.readers} - {home}
        if value.is_output:
            targets.add(OUTSIDE)
        for target in sorted(targets - ({OUTSIDE} if home == OUTSIDE else set())):
            found[home, target].append((value.tensor, value.nbytes, value.is_exact))
    return [
        Flow(
            source,
            target,
            tuple(tensor for tensor, _, _ in values),
            sum(nbytes for _, nbytes, _ in values),
            all(is_exact for _, _, is_exact in values),
        )
        for (source, target), values in sorted(found.items())
    ]


# What is in a box.


def _boxes(view: CutsView) -> list[Box]:
    members: list[list[int]] = [[] for _ in view.slices]
    for place, number in enumerate(view.assignment):
        members[number].append(place)
    is_detailed = len(view.slices) <= DETAILED_MAX
    boxes: list[Box] = []
    for number, ((name, node), places) in enumerate(zip(view.slices, members, strict=True)):
        where = f"on {node}" if node else "on no node yet"
        title = f"{_short(name, TITLE_CHARS_MAX // 2)} {_short(where, TITLE_CHARS_MAX // 2)}"
        groups = _groups(view, places) if is_detailed else [_group(view, places)] if places else []
        tip = "\n".join(
            [f"{name} {where}", *(view.table.operators[at].name for at in places[:400])]
        )
        boxes.append(Box(number, (title, count(len(places), "operator"), *groups), tip))
    return boxes


def _groups(view: CutsView, places: Sequence[int]) -> list[str]:
    """Runs of a slice's operators between single tensors, each as one line."""
    runs = _runs(view, places)
    if len(runs) > GROUPS_MAX:
        rest = [place for run in runs[GROUPS_MAX - 1 :] for place in run]
        runs = [*runs[: GROUPS_MAX - 1], rest]
    return [_group(view, run) for run in runs]


def _runs(view: CutsView, places: Sequence[int]) -> list[list[int]]:
    """Ends where a single tensor crosses, but no run is shorter than a sixth of the slice."""
    from din.placement.boundaries import boundaries_of

    width = boundaries_of(view.table).width
    least = max(1, len(places) // GROUPS_MAX)
    runs: list[list[int]] = [[]]
    for place in places:
        if len(runs[-1]) >= least and width[place] == 1:
            runs.append([])
        runs[-1].append(place)
    return [run for run in runs if run]


def _group(view: CutsView, places: Sequence[int]) -> str:
    operators = [view.table.operators[place] for place in places]
    if len(operators) == 1:
        return f"{operators[0].kind} {operators[0].name}"
    kinds = Counter(_short(each.kind, KIND_CHARS_MAX) for each in operators)
    common = kinds.most_common(KINDS_MAX + 1)
    words = [f"{number} {kind}" if number > 1 else kind for kind, number in common[:KINDS_MAX]]
    more = ", …" if len(common) > KINDS_MAX else ""
    return f"{', '.join(words)}{more}"


# Drawing.


def _title(view: CutsView, nodes: Sequence[str]) -> list[str]:
    placed = sum(1 for node in nodes if node)
    slices = f"version {view.version}: {count(len(view.slices), 'slice')}"
    where = f"{slices} on {count(placed, 'node')}" if placed else f"{slices}, on no node yet"
    return [
        f'<text x="{MARGIN}" y="26" font-size="16" font-weight="bold">'
        f"{_text(_short(view.model_id, TITLE_CHARS_MAX))}</text>",
        f'<text x="{MARGIN}" y="44" fill="{LINES}">'
        f"{_text(where)}, {count(len(view.table.operators), 'operator')}</text>",
    ]


def _drawn_box(box: Box, fill: str, flows: Sequence[Flow]) -> list[str]:
    parts = [
        f'<g class="slice"><title>{_text(box.tip)}</title>',
        f'<rect x="{box.x}" y="{box.y}" width="{WIDTH}" height="{box.height}" rx="8" {fill}/>',
    ]
    for row, line in enumerate(box.lines):
        weight = ' font-weight="bold"' if row == 0 else ""
        parts.append(
            f'<text x="{box.x + 12}" y="{box.y + LINE * (row + 1) + 4}"{weight}>'
            f"{_text(_short(line, NAME_CHARS_MAX))}</text>"
        )
    parts.append("</g>")
    inner = [flow for flow in flows if flow.is_inner]
    if any(flow.target == box.number for flow in inner):
        parts += _point(box.middle, box.y, "Merge")
    if any(flow.source == box.number for flow in inner):
        parts += _point(box.middle, box.bottom, "Split")
    return parts


def _point(x: int, y: int, word: str) -> list[str]:
    beside = y - 7 if word == "Merge" else y + 15
    return [
        f'<circle cx="{x}" cy="{y}" r="5" fill="#ffffff" stroke="{LINES}" stroke-width="2"/>',
        f'<text x="{x - 9}" y="{beside}" fill="{LINES}" font-size="10" text-anchor="end">'
        f"{word}</text>",
    ]


def _line(way: Way) -> str:
    (x, y), *others = way.points
    if way.is_lane:
        return _arrow(f"M{x},{y} " + " ".join(f"L{a},{b}" for a, b in others))
    (_, down), (to_x, to_y) = others
    middle = (down + to_y) // 2
    return _arrow(f"M{x},{y} L{x},{down} C{x},{middle} {to_x},{middle} {to_x},{to_y}")


def _way_label(way: Way, view: CutsView) -> str:
    if not way.is_lane:
        anchor = "end" if way.is_label_left else "start"
        return _label(way.flow, flow_words(way.flow), *way.label, anchor=anchor)
    name = _short(view.slices[way.flow.target][0], LANE_CHARS_MAX)
    return _label(way.flow, f"{flow_words(way.flow, LANE_CHARS_MAX)} to {name}", *way.label)


def _outside(flow: Flow, layout: Layout) -> list[str]:
    """An arrow from or to the caller, at the left of its box."""
    is_in = flow.source == OUTSIDE
    box = layout.boxes[flow.target if is_in else flow.source]
    x = box.x + 24
    if is_in:
        start, end, row = box.y - 40, box.y - 1, box.y - 30
    else:
        start, end, row = box.bottom, box.bottom + 40, box.bottom + 28
    words = f"{'in' if is_in else 'out'}: {flow_words(flow)}"
    return [_arrow(f"M{x},{start} L{x},{end}"), _label(flow, words, x + 9, row)]


def _arrow(shape: str) -> str:
    return (
        f'<path d="{shape}" fill="none" stroke="{LINES}" stroke-width="1.5" '
        'stroke-linejoin="round" marker-end="url(#tip)"/>'
    )


def _label(flow: Flow, words: str, x: int, y: int, *, anchor: str = "start") -> str:
    """On a halo of the background, so that a line behind it does not strike it out."""
    return (
        f'<text x="{x}" y="{y}" font-size="11" text-anchor="{anchor}" stroke="#ffffff" '
        'stroke-width="4" stroke-linejoin="round" paint-order="stroke">'
        f"<title>{_text(', '.join(flow.tensors[:100]))}</title>{_text(words)}</text>"
    )


def flow_words(flow: Flow, chars_max: int = TENSOR_CHARS_MAX) -> str:
    """`2 tensors, 400.0 KiB`."""
    several = len(flow.tensors) > 1
    what = count(len(flow.tensors), "tensor") if several else _short(flow.tensors[0], chars_max)
    if flow.nbytes == 0 and not flow.is_exact:
        return f"{what}, size not known"
    about = "" if flow.is_exact else "about "
    return f"{what}, {about}{byte_count(flow.nbytes)}"


def _legend(nodes: Sequence[str], y: int, columns: int) -> list[str]:
    parts: list[str] = []
    for place, node in enumerate(nodes):
        x, top = MARGIN + place % columns * LEGEND_WIDTH, y + place // columns * LEGEND
        parts.append(
            f'<rect x="{x}" y="{top}" width="16" height="16" rx="3" {_fill(nodes, node)}/>'
            f'<text x="{x + 24}" y="{top + 13}">'
            f"{_text(_short(node or 'on no node yet', TITLE_CHARS_MAX))}</text>"
        )
    below = y + -(-len(nodes) // columns) * LEGEND + 14
    for row, words in enumerate(
        (
            "Split: tensors leave a slice for others. Merge: they come in.",
            "Bytes are of one request. Names: point at a box or a line.",
        )
    ):
        parts.append(f'<text x="{MARGIN}" y="{below + 18 * row}" fill="{LINES}">{words}</text>')
    return parts


def _fill(nodes: Sequence[str], node: str) -> str:
    """Colour and border of what a node holds."""
    placed = [each for each in nodes if each]
    if not node:
        return f'fill="{UNPLACED}" stroke="{LINES}" stroke-dasharray="2 3"'
    turn, colour = divmod(placed.index(node), len(COLOURS))
    dashes = BORDERS[turn % len(BORDERS)]
    border = f' stroke-dasharray="{dashes}" stroke-width="2"' if dashes else ""
    return f'fill="{COLOURS[colour]}" stroke="{LINES}"{border}'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-most // 2 :]}"


def _text(text: str) -> str:
    """Escaped, without what XML cannot hold: names come from strangers' files."""
    kept = (
        each if each in "\n\t" or (each.isprintable() and each not in "\ufffe\uffff") else "\ufffd"
        for each in text
    )
    return escape("".join(kept))
