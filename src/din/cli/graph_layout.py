"""Where the slices of a model stand in its picture, and by which way each flow goes. Pure numbers.

Slices stand in layers by who waits for whom; where the layers would be too high, in several
columns. A flow to the next layer goes straight there. Any other leaves by the gap below its slice
for a lane of its own beside the column and comes back by the gap above its target, so that it
crosses no box.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from math import isqrt
from typing import Final

from din.domain.model import GATEWAY

WIDTH: Final = 360
"""Of a box."""
LINE: Final = 18
GAP_X: Final = 60
GAP_Y: Final = 96
MARGIN: Final = 40
TOP: Final = 76
"""Below it the picture begins: above are title and what comes in."""
LANE: Final = 12
LINES_APART_MAX: Final = 5
"""Heights of lines in one gap; more share them, and are told apart by their lanes."""
COLUMN_HEIGHT: Final = 2_400
"""From where on there are several; they grow as the picture grows wide."""
LABEL_WIDTH: Final = 290
"""Kept free beside the lanes for what goes along them."""
OUTSIDE: Final = GATEWAY

Point = tuple[int, int]


@dataclass(frozen=True)
class Flow:
    """What goes from one slice to another; OUTSIDE is the caller."""

    source: int
    target: int
    tensors: tuple[str, ...]
    nbytes: int
    is_exact: bool

    @property
    def is_inner(self) -> bool:
        """Between two slices."""
        return OUTSIDE not in (self.source, self.target)


@dataclass(frozen=True)
class Box:
    """One slice in the picture."""

    number: int
    lines: tuple[str, ...]
    tip: str
    layer: int = 0
    column: int = 0
    x: int = 0
    y: int = 0
    below: int = 0
    """Where its whole row ends: boxes of one row differ in height."""

    @property
    def height(self) -> int:
        """With room for its points."""
        return LINE * (len(self.lines) + 1) + 12

    @property
    def middle(self) -> int:
        """Where its points are."""
        return self.x + WIDTH // 2

    @property
    def bottom(self) -> int:
        """Its lower edge."""
        return self.y + self.height


@dataclass(frozen=True)
class Way:
    """The line of one flow between two slices, and where its words stand."""

    flow: Flow
    points: tuple[Point, ...]
    label: Point
    is_lane: bool = False
    is_label_left: bool = False
    """The words end at their place instead of beginning there."""


@dataclass
class Layout:
    """Everything with its place."""

    boxes: dict[int, Box]
    ways: list[Way] = field(default_factory=list[Way])
    width: int = 0
    height: int = 0


def laid_out(boxes: Sequence[Box], flows: Sequence[Flow]) -> Layout:
    """Boxes in layers and columns, and a way for each flow between two of them."""
    inner = [flow for flow in flows if flow.is_inner]
    layers = _layers(len(boxes), inner)
    ordered = [replace(box, layer=layers[box.number]) for box in boxes]
    columns = _columns(ordered)
    column_of = {layer: number for number, column in enumerate(columns) for layer in column}
    straight = [flow for flow in inner if _is_straight(flow, layers, column_of)]
    around = [flow for flow in inner if not _is_straight(flow, layers, column_of)]
    lanes: dict[int, list[Flow]] = defaultdict(list)
    for flow in around:
        lanes[column_of[layers[flow.source]]].append(flow)
    placed, edges = _placed(ordered, columns, lanes)
    layout = Layout(placed)
    crowded = {flow.target for flow in around}
    layout.ways = [*_straight_ways(straight, placed, crowded), *_lane_ways(lanes, placed, edges)]
    layout.width = edges[-1] + MARGIN
    layout.height = max((box.bottom for box in placed.values()), default=TOP) + GAP_Y
    return layout


def _layers(size: int, inner: Sequence[Flow]) -> list[int]:
    """Longest way from the caller to each slice. A map without a cycle ends in `size` rounds."""
    layers = [0] * size
    for _ in range(size):
        before = list(layers)
        for flow in inner:
            layers[flow.target] = max(layers[flow.target], layers[flow.source] + 1)
        if layers == before:
            break
    return layers


def _columns(boxes: Sequence[Box]) -> list[list[int]]:
    """Layers one below the other until a column is full."""
    heights: dict[int, int] = defaultdict(int)
    for box in boxes:
        heights[box.layer] = max(heights[box.layer], box.height)
    whole = sum(heights.values()) + GAP_Y * len(heights)
    height_max = max(COLUMN_HEIGHT, isqrt(whole * (WIDTH + LABEL_WIDTH + GAP_X)))
    columns: list[list[int]] = [[]]
    height = 0
    for layer in sorted(heights):
        if columns[-1] and height + heights[layer] > height_max:
            columns.append([])
            height = 0
        columns[-1].append(layer)
        height += heights[layer] + GAP_Y
    return columns


def _is_straight(flow: Flow, layers: Sequence[int], column_of: dict[int, int]) -> bool:
    source, target = layers[flow.source], layers[flow.target]
    return target == source + 1 and column_of[source] == column_of[target]


def _placed(
    boxes: Sequence[Box], columns: Sequence[Sequence[int]], lanes: dict[int, list[Flow]]
) -> tuple[dict[int, Box], list[int]]:
    """Boxes by number, and where each column ends without its lanes; last, where all end."""
    rows: dict[int, list[Box]] = defaultdict(list)
    for box in boxes:
        rows[box.layer].append(box)
    placed: dict[int, Box] = {}
    edges: list[int] = []
    left = MARGIN
    for number, column in enumerate(columns):
        widest = max((len(rows[layer]) for layer in column), default=1)
        whole = widest * WIDTH + (widest - 1) * GAP_X
        y = TOP + GAP_Y // 2
        for layer in column:
            row = rows[layer]
            x = left + (whole - len(row) * WIDTH - (len(row) - 1) * GAP_X) // 2
            below = y + max(each.height for each in row)
            for box in row:
                placed[box.number] = replace(box, column=number, x=x, y=y, below=below)
                x += WIDTH + GAP_X
            y = below + GAP_Y
        edges.append(left + whole)
        taken = len(lanes[number]) * LANE + LABEL_WIDTH if lanes[number] else 0
        left += whole + taken + GAP_X
    return placed, [*edges, left - GAP_X]


def _straight_ways(
    flows: Sequence[Flow], boxes: dict[int, Box], crowded: Collection[int]
) -> list[Way]:
    """Words stand where fewest others can be: at the end that the flow has for itself, above the
    lines of lanes where such come in as well (`crowded`), on the side from which it does not
    come."""
    into: dict[int, list[Flow]] = defaultdict(list)
    out_of: dict[int, list[Flow]] = defaultdict(list)
    for flow in flows:
        into[flow.target].append(flow)
        out_of[flow.source].append(flow)
    ways: list[Way] = []
    for flow in flows:
        source, target = boxes[flow.source], boxes[flow.target]
        start, end = (source.middle, source.bottom + 5), (target.middle, target.y - 6)
        is_left = False
        if len(into[flow.target]) == 1:
            is_left = start[0] > end[0]
            above = 38 if flow.target in crowded else 14
            label = (end[0] + (-10 if is_left else 10), end[1] - above)
        elif len(out_of[flow.source]) == 1:
            label = (start[0] + 10, source.below + 39)
        else:
            share = (into[flow.target].index(flow) + 1) / (len(into[flow.target]) + 1)
            label = tuple(
                round(a + (b - a) * share) for a, b in zip(start, end, strict=True)
            )  # along the line, each at another height
        points = (start, (start[0], source.below + 5), end)
        ways.append(Way(flow, points, (label[0], label[1]), is_label_left=is_left))
    return ways


def _lane_ways(
    lanes: dict[int, list[Flow]], boxes: dict[int, Box], edges: Sequence[int]
) -> list[Way]:
    """Each in a lane of its own; lines in one gap are at different heights."""
    used: dict[int, int] = defaultdict(int)

    def height(gap: int) -> int:
        used[gap] += 1
        return 4 * (used[gap] % LINES_APART_MAX)

    ways: list[Way] = []
    for column, flows in lanes.items():
        beside = edges[column] + LANE + len(flows) * LANE
        rows: dict[int, int] = defaultdict(int)
        for index, flow in enumerate(flows):
            source, target = boxes[flow.source], boxes[flow.target]
            lane = edges[column] + LANE * (index + 1)
            below = source.below + 16 + height(source.below)
            above = target.y - 20 - height(-target.y)
            points = [(source.middle, source.bottom + 5), (source.middle, below), (lane, below)]
            if target.column > column + 1:  # over the columns between
                rail, down = TOP - 4 * (index % 6), edges[target.column - 1] + LANE // 2
                points += [(lane, rail), (down, rail), (down, above)]
            else:
                points.append((lane, above))
            points += [(target.middle, above), (target.middle, target.y - 6)]
            row = rows[source.below]
            rows[source.below] += 1
            label = (beside, source.below + 20 + 14 * row)
            ways.append(Way(flow, tuple(points), label, is_lane=True))
    return ways
