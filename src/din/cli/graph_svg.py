"""Slices of a model and what flows between them, as SVG. Pure: a view in, text out.

One box a slice, coloured by its node, in layers by who waits for whom; inside it the operators,
grouped in runs between single tensors. Where tensors leave a slice for others stands a Split point,
where they come in from others a Merge point.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from din.cli.display import byte_count, count
from din.domain.model import GATEWAY
from din.domain.views import CutsView

COLOURS: Final = (
    "#cfe3f5", "#fde0c2", "#d3efd6", "#f3d4e8", "#fff3b8", "#dcd6f7", "#c9efec", "#e6e0d4",
)  # fmt: skip
"""Light fills, told apart by people who see few colours; nodes take them in turn."""
WIDTH: Final = 360
LINE: Final = 18
GAP_X: Final = 60
GAP_Y: Final = 90
MARGIN: Final = 40
LEGEND: Final = 26
GROUPS_MAX: Final = 6
"""Of one slice; further runs are told as one."""
NAME_CHARS_MAX: Final = 46
KINDS_MAX: Final = 4
OUTSIDE: Final = GATEWAY


@dataclass(frozen=True)
class Flow:
    """What goes from one slice to another; OUTSIDE is the caller."""

    source: int
    target: int
    tensors: tuple[str, ...]
    nbytes: int
    is_exact: bool

    @property
    def words(self) -> str:
        """`2 tensors, 400.0 KiB`."""
        size = byte_count(self.nbytes) if self.is_exact else f"about {byte_count(self.nbytes)}"
        what = self.tensors[0] if len(self.tensors) == 1 else count(len(self.tensors), "tensor")
        return f"{_short(what, 28)}, {size}"


@dataclass(frozen=True)
class Box:
    """One slice in the picture."""

    number: int
    lines: tuple[str, ...]
    tip: str
    layer: int
    x: int = 0
    y: int = 0

    @property
    def height(self) -> int:
        """With room for its points."""
        return LINE * (len(self.lines) + 1) + 12


def draw_graph(view: CutsView) -> str:
    """The picture of one model."""
    flows = flows_of(view)
    boxes = _placed(_boxes(view, flows))
    nodes = list(dict.fromkeys(node for _, node in view.slices))
    width = max(each.x + WIDTH for each in boxes) + MARGIN if boxes else 2 * MARGIN + WIDTH
    bottom = max((each.y + each.height for each in boxes), default=MARGIN)
    height = bottom + GAP_Y + LEGEND * len(nodes) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f"<title>{_text(view.model_id)} version {_text(view.version)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#475569"/></marker>'
        "</defs>",
    ]
    by_number = {each.number: each for each in boxes}
    parts += [part for flow in flows for part in _drawn_flow(flow, by_number, bottom + GAP_Y - 34)]
    for box in boxes:
        node = view.slices[box.number][1]
        parts += _drawn_box(box, COLOURS[nodes.index(node) % len(COLOURS)], flows)
    parts += _legend(nodes, bottom + GAP_Y)
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


def _boxes(view: CutsView, flows: Sequence[Flow]) -> list[Box]:
    layers = _layers(len(view.slices), flows)
    members: list[list[int]] = [[] for _ in view.slices]
    for place, number in enumerate(view.assignment):
        members[number].append(place)
    boxes: list[Box] = []
    for number, ((name, node), places) in enumerate(zip(view.slices, members, strict=True)):
        title = f"{name} on {node}" if node else f"{name}, on no node yet"
        lines = (title, count(len(places), "operator"), *_groups(view, places))
        tip = "\n".join(view.table.operators[place].name for place in places[:400])
        boxes.append(Box(number, lines, tip, layers[number]))
    return boxes


def _layers(size: int, flows: Sequence[Flow]) -> list[int]:
    """Longest way from the caller to each slice. A map without a cycle ends in `size` rounds."""
    layers = [0] * size
    for _ in range(size):
        for flow in flows:
            if OUTSIDE not in (flow.source, flow.target):
                layers[flow.target] = max(layers[flow.target], layers[flow.source] + 1)
    return layers


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
    kinds = Counter(each.kind for each in operators).most_common(KINDS_MAX + 1)
    words = [f"{number} {kind}" if number > 1 else kind for kind, number in kinds[:KINDS_MAX]]
    more = ", ..." if len(kinds) > KINDS_MAX else ""
    return f"{', '.join(words)}{more}"


def _placed(boxes: Sequence[Box]) -> list[Box]:
    """Layers below each other, the boxes of one beside each other."""
    by_layer: dict[int, list[Box]] = defaultdict(list)
    for box in boxes:
        by_layer[box.layer].append(box)
    widest = max((len(each) for each in by_layer.values()), default=1)
    whole = widest * WIDTH + (widest - 1) * GAP_X
    placed: list[Box] = []
    y = MARGIN + GAP_Y
    for layer in sorted(by_layer):
        row = by_layer[layer]
        x = MARGIN + (whole - len(row) * WIDTH - (len(row) - 1) * GAP_X) // 2
        for box in row:
            placed.append(Box(box.number, box.lines, box.tip, box.layer, x, y))
            x += WIDTH + GAP_X
        y += max(each.height for each in row) + GAP_Y
    return placed


def _drawn_box(box: Box, colour: str, flows: Sequence[Flow]) -> list[str]:
    parts = [
        f'<g class="slice"><title>{_text(box.tip)}</title>',
        f'<rect x="{box.x}" y="{box.y}" width="{WIDTH}" height="{box.height}" rx="8" '
        f'fill="{colour}" stroke="#475569"/>',
    ]
    for row, line in enumerate(box.lines):
        weight = ' font-weight="bold"' if row == 0 else ""
        parts.append(
            f'<text x="{box.x + 12}" y="{box.y + LINE * (row + 1) + 4}"{weight}>'
            f"{_text(_short(line, NAME_CHARS_MAX))}</text>"
        )
    parts.append("</g>")
    inner = [flow for flow in flows if OUTSIDE not in (flow.source, flow.target)]
    if any(flow.target == box.number for flow in inner):
        parts += _point(box.x + WIDTH // 2, box.y, "Merge")
    if any(flow.source == box.number for flow in inner):
        parts += _point(box.x + WIDTH // 2, box.y + box.height, "Split")
    return parts


def _point(x: int, y: int, word: str) -> list[str]:
    return [
        f'<circle cx="{x}" cy="{y}" r="5" fill="#ffffff" stroke="#475569" stroke-width="2"/>',
        f'<text x="{x + 10}" y="{y + (-6 if word == "Merge" else 14)}" fill="#475569" '
        f'font-size="10">{word}</text>',
    ]


def _drawn_flow(flow: Flow, boxes: dict[int, Box], bottom: int) -> list[str]:
    source, target = boxes.get(flow.source), boxes.get(flow.target)
    side = 0
    if source is None:
        assert target is not None, "a flow begins or ends at a slice"
        side = -WIDTH // 4
        x, y = target.x + WIDTH // 2 + side, MARGIN
        to_x, to_y, words = x, target.y, f"in: {flow.words}"
    elif target is None:
        side = -WIDTH // 4
        x, y = source.x + WIDTH // 2 + side, source.y + source.height
        to_x, to_y, words = (
            x,
            max(y + 40, bottom if source.layer == _last(boxes) else y + 40),
            (f"out: {flow.words}"),
        )
    else:
        x, y = source.x + WIDTH // 2, source.y + source.height
        to_x, to_y, words = target.x + WIDTH // 2, target.y, flow.words
    middle = (y + to_y) // 2
    label_x = (x + to_x) // 2 + 8
    return [
        f'<path d="M{x},{y} C{x},{middle} {to_x},{middle} {to_x},{to_y}" fill="none" '
        'stroke="#475569" stroke-width="1.5" marker-end="url(#tip)"/>',
        f'<text x="{label_x}" y="{middle + 4}" fill="#334155" font-size="11">'
        f"<title>{_text(', '.join(flow.tensors[:100]))}</title>{_text(words)}</text>",
    ]


def _last(boxes: dict[int, Box]) -> int:
    return max(each.layer for each in boxes.values())


def _legend(nodes: Sequence[str], y: int) -> list[str]:
    parts: list[str] = []
    for row, node in enumerate(nodes):
        top = y + row * LEGEND
        colour = COLOURS[row % len(COLOURS)]
        parts.append(
            f'<rect x="{MARGIN}" y="{top}" width="16" height="16" rx="3" fill="{colour}" '
            f'stroke="#475569"/><text x="{MARGIN + 24}" y="{top + 13}">'
            f"{_text(_short(node or 'no node yet', NAME_CHARS_MAX))}</text>"
        )
    return parts


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-most // 2 :]}"


def _text(text: str) -> str:
    """Escaped, without what XML cannot hold: names come from strangers' files."""
    kept = (
        each if each in "\n\t" or (each.isprintable() and each not in "\ufffe\uffff") else "\ufffd"
        for each in text
    )
    return escape("".join(kept))
