"""Chooses cuts where the strategy names none: the fewest slices that each fit the memory, and of
those the ones across whose boundaries the fewest bytes go. Exact over cuts in topological order.

A quantised operator with its DequantizeLinear before and its QuantizeLinear behind is one unit,
which optimised kernels compute in integers: no cut that is chosen goes inside it. Between two units
integers cross, and the answer stays bit by bit what it was (docs/decisions/0012).
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from itertools import accumulate

from din.domain.estimates import memory_mib
from din.domain.strategy import SLICES_MAX
from din.errors import BadStrategy
from din.slicing.elements import word_of
from din.slicing.operators import Operator, OperatorGraph
from din.slicing.sizes import Sizes

Cost = tuple[int, int]
"""Slices, bytes across boundaries."""


@dataclass(frozen=True)
class Boundaries:
    """What each boundary costs; boundary b lies before the b-th dynamic operator."""

    nbytes: list[int]
    tensors: list[int]
    """Values made by operators that cross."""
    is_open: list[bool]
    """False where something crosses that cannot travel, and inside a quantised unit."""


def boundaries_of(graph: OperatorGraph, sizes: Sizes) -> Boundaries:
    """Sweep over all boundaries in the order of the dynamic operators."""
    count = len(graph.dynamic)
    place = {each.index: position for position, each in enumerate(graph.dynamic)}
    nbytes, tensors, closed = ([0] * (count + 1) for _ in range(3))
    for name, reading in graph.readers.items():
        maker = graph.producer.get(name)
        if graph.is_fixed(name):
            continue
        positions = [place[index] for index in reading]
        start = min(positions) if maker is None else place[maker]
        end = max(positions)
        kind = sizes.shapes.types.get(name)
        _add(nbytes, start, end, sizes.shapes.estimate(name))
        _add(closed, start, end, int(word_of(kind) is None))
        if maker is not None:
            _add(tensors, start, end, 1)
        tied = quantised_readers(graph, name)
        if tied:
            _add(closed, start, max(place[index] for index in tied), 1)
    return Boundaries(
        nbytes=list(accumulate(nbytes)),
        tensors=list(accumulate(tensors)),
        is_open=[total == 0 for total in accumulate(closed)],
    )


def splits_quantised(graph: OperatorGraph, tensor: str) -> bool:
    """Whether a cut through this tensor parts an operator from its (de)quantisation."""
    return bool(quantised_readers(graph, tensor))


def quantised_readers(graph: OperatorGraph, tensor: str) -> tuple[int, ...]:
    """Readers that belong into one slice with what makes a tensor: all of a DequantizeLinear, else
    those that quantise it."""
    maker = graph.producer.get(tensor)
    reading = graph.readers.get(tensor, ())
    if maker is None or graph.operators[maker].proto.op_type == "DequantizeLinear":
        return reading if maker is not None else ()
    return tuple(
        index for index in reading if graph.operators[index].proto.op_type == "QuantizeLinear"
    )


def _add(line: list[int], start: int, end: int, amount: int) -> None:
    line[start + 1] += amount
    if end + 1 < len(line):
        line[end + 1] -= amount


def slices_by_memory(graph: OperatorGraph, sizes: Sizes, memory_mib_max: int) -> dict[int, int]:
    """Slice of each dynamic operator. Raises BadStrategy naming what cannot fit."""
    count = len(graph.dynamic)
    bounds = boundaries_of(graph, sizes)
    first = _first_of_window(graph, sizes, memory_mib_max)
    costs: list[Cost | None] = [(0, 0)] + [None] * count
    before = [0] * (count + 1)
    window: deque[int] = deque()
    for end in range(1, count + 1):
        _push(window, costs, end - 1)
        while window and window[0] < first[end]:
            window.popleft()
        is_last = end == count
        if window and (is_last or bounds.is_open[end]):
            slices, nbytes = costs[window[0]] or (0, 0)
            costs[end] = (slices + 1, nbytes + (0 if is_last else bounds.nbytes[end]))
            before[end] = window[0]
    best = costs[count]
    if best is None:
        raise _no_cut(graph, costs, memory_mib_max)
    if best[0] > SLICES_MAX:
        raise BadStrategy(
            f"{memory_mib_max} MiB per slice would need {best[0]} slices, more than {SLICES_MAX}",
            hint="allow more memory per slice",
        )
    return _numbered(graph, before)


def _push(window: deque[int], costs: list[Cost | None], start: int) -> None:
    """Keep the window's costs rising, so that its head is the cheapest start that still fits."""
    cost = costs[start]
    if cost is None:
        return
    while window and (costs[window[-1]] or cost) >= cost:
        window.pop()
    window.append(start)


def _numbered(graph: OperatorGraph, before: list[int]) -> dict[int, int]:
    cuts: list[int] = []
    end = len(graph.dynamic)
    while end > 0:
        end = before[end]
        cuts.append(end)
    cuts.reverse()
    slice_of: dict[int, int] = {}
    for number, start in enumerate(cuts):
        stop = cuts[number + 1] if number + 1 < len(cuts) else len(graph.dynamic)
        for each in graph.dynamic[start:stop]:
            slice_of[each.index] = number
    return slice_of


def _first_of_window(graph: OperatorGraph, sizes: Sizes, memory_mib_max: int) -> list[int]:
    """By end: the first start from which operators start..end-1 fit. Raises BadStrategy when one
    operator alone does not."""
    weights = _Weights(graph, sizes)
    peaks: deque[int] = deque()
    live = [sizes.live_bytes[each.index] for each in graph.dynamic]
    first = [0]
    start = 0
    for end, operator in enumerate(graph.dynamic):
        weights.enter(operator)
        while peaks and live[peaks[-1]] <= live[end]:
            peaks.pop()
        peaks.append(end)
        while memory_mib(weights.total, live[peaks[0]]) > memory_mib_max:
            if start == end:
                needed = memory_mib(weights.total, live[end])
                raise _too_large(operator, needed, memory_mib_max)
            weights.leave(graph.dynamic[start])
            start += 1
            if peaks[0] < start:
                peaks.popleft()
        first.append(start)
    return first


class _Weights:
    """Bytes of weights of a moving window of operators; what two of them share counts once."""

    def __init__(self, graph: OperatorGraph, sizes: Sizes) -> None:
        self.total = 0
        self._graph = graph
        self._sizes = sizes
        self._uses: Counter[str | int] = Counter()
        self._needs: dict[int, list[tuple[str | int, int]]] = {}

    def enter(self, operator: Operator) -> None:
        """Take an operator in at the end."""
        makers, stored = self._graph.constants_behind(list(operator.reads))
        needs: list[tuple[str | int, int]] = [(each, self._sizes.held(each)) for each in makers]
        needs += [(name, self._sizes.stored(name)) for name in stored]
        needs.append((operator.index, self._sizes.held(operator.index)))
        self._needs[operator.index] = needs
        for key, nbytes in needs:
            self._uses[key] += 1
            if self._uses[key] == 1:
                self.total += nbytes

    def leave(self, operator: Operator) -> None:
        """Let the first operator go."""
        for key, nbytes in self._needs.pop(operator.index):
            self._uses[key] -= 1
            if self._uses[key] == 0:
                self.total -= nbytes


def _too_large(operator: Operator, needed: int, memory_mib_max: int) -> BadStrategy:
    return BadStrategy(
        f"{operator.proto.op_type} {operator.name!r} alone needs {needed} MiB, "
        f"{memory_mib_max} MiB are allowed",
        hint="use a node with more memory, a smaller input shape or a quantised model",
    )


def _no_cut(graph: OperatorGraph, costs: list[Cost | None], memory_mib_max: int) -> BadStrategy:
    reached = max(place for place, cost in enumerate(costs) if cost is not None)
    stuck = graph.dynamic[reached]
    return BadStrategy(
        f"no cut after {stuck.proto.op_type} {stuck.name!r} keeps a slice within "
        f"{memory_mib_max} MiB: what crosses there is no tensor that can travel, or inside a "
        "quantised operator",
        hint="allow more memory per slice",
    )
