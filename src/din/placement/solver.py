"""The cheapest assignment of a few units to a few nodes, exactly.

Minimise the sum of cost[u, k] over the chosen nodes, plus `penalty` for every pair of units that
exchange tensors and lie on different nodes, so that what lies on one
node fits its memory and its slots together.

Two steps. A dynamic programme from the back gives a bound: `tail[u, k]` is the least that units
u, u+1, ... can cost when a run of consecutive units starts at u on node k, every run fitting its
node by itself. It is exact on a chain whose nodes do not repeat, and never too high: pairs further
apart and memory shared by two runs only add. Then a depth-first search in the order of the bound,
which on most inputs walks straight to the optimum and prunes the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Matrix = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

EXPANSIONS_MAX: Final = 4_000
"""Partial assignments looked into before the best so far is taken (some 50 ms)."""
_EPSILON: Final = 1e-9


class Problem(Struct, frozen=True):
    """What is to be solved. `cost` is infinite where a unit may not go."""

    cost: Matrix
    """units x nodes"""
    penalties: Mapping[tuple[int, int], float]
    """(earlier unit, later unit) -> cost of lying apart; absent = they exchange nothing."""
    memory: Sequence[float]
    """By unit, MiB."""
    room: Matrix
    """By node, MiB."""
    order: Matrix
    """By node: among equal bounds the smallest is tried first."""
    parts: Sequence[int] = ()
    """By unit, slices; empty = they are not counted."""
    slots: Numbers | None = None
    """By node, slices that it can take; None = any number."""


class Solution(Struct, frozen=True):
    """Node position by unit, what it costs, and whether that is proven to be the least."""

    nodes: tuple[int, ...]
    cost: float
    is_exact: bool


def solve(problem: Problem, expansions_max: int = EXPANSIONS_MAX) -> Solution | None:
    """The cheapest assignment, or None when there is none (or none was found in the allowance)."""
    search = _Search(problem, expansions_max)
    search.descend(0, 0.0)
    if search.best is None:
        return None
    return Solution(search.best, search.best_cost, search.expansions < expansions_max)


class _Search:
    """State of one depth-first search."""

    def __init__(self, problem: Problem, expansions_max: int) -> None:
        self.problem = problem
        self.units, self.nodes = problem.cost.shape
        self.expansions_max = expansions_max
        self.expansions = 0
        self.best: tuple[int, ...] | None = None
        self.best_cost = float("inf")
        self.chosen: list[int] = []
        self.parts = problem.parts or [0] * self.units
        slots = np.zeros(self.nodes) if problem.slots is None else problem.slots
        self.slots: list[int] = slots.astype(int).tolist()
        self.counts_slots = problem.slots is not None and min(self.slots, default=0) < sum(
            self.parts
        )
        """Whether they could ever run out."""
        self.left: dict[int, tuple[float, int]] = {}
        """Memory and slots left on the nodes that hold something already."""
        self.step = [problem.penalties.get((u, u + 1), 0.0) for u in range(self.units - 1)]
        self.partners: list[list[tuple[int, float]]] = [[] for _ in range(self.units)]
        for (earlier, later), penalty in problem.penalties.items():
            self.partners[later].append((earlier, penalty))
        self.tail, self.least = self._tails()

    def descend(self, unit: int, spent: float) -> None:
        """Try every node for `unit`, the most promising first."""
        if unit == self.units:
            if spent < self.best_cost:
                self.best, self.best_cost = tuple(self.chosen), spent
            return
        if self.expansions >= self.expansions_max:
            return
        self.expansions += 1
        apart, bound = self._bounds(unit, spent)
        for node in np.lexsort((self.problem.order, bound)).tolist():
            if not bound[node] < self.best_cost - _EPSILON:
                return
            self._choose(unit, node, spent + float(apart[node]))

    def _choose(self, unit: int, node: int, spent: float) -> None:
        before = self.left.get(node)
        room, slots = before or (float(self.problem.room[node]), self.slots[node])
        self.left[node] = (room - self.problem.memory[unit], slots - self.parts[unit])
        self.chosen.append(node)
        self.descend(unit + 1, spent + float(self.problem.cost[unit, node]))
        self.chosen.pop()
        if before is None:
            del self.left[node]
        else:
            self.left[node] = before

    def _bounds(self, unit: int, spent: float) -> tuple[Matrix, Matrix]:
        """Per node: the penalties that the choice brings at once, and the bound on the whole."""
        apart = np.zeros(self.nodes)
        for earlier, penalty in self.partners[unit]:
            apart += penalty
            apart[self.chosen[earlier]] -= penalty
        bound = spent + apart + self.tail[unit]
        for node, left in self.left.items():
            bound[node] = spent + apart[node] + self._tail_within(unit, node, *left)
        return apart, bound

    def _tail_within(self, unit: int, node: int, left: float, slots: int) -> float:
        """As tail[unit, node] with this much memory and so many slots left there."""
        best = float("inf")
        cost = 0.0
        for end in range(unit, self.units):
            cost += float(self.problem.cost[end, node])
            left -= self.problem.memory[end]
            slots -= self.parts[end]
            if left < 0 or slots < 0 or cost >= best:
                break
            best = min(best, cost + self._after(end))
        return best

    def _tails(self) -> tuple[Matrix, list[float]]:
        slots = np.array(self.slots)
        tail = np.full((self.units, self.nodes), np.inf)
        self.least = [float("inf")] * self.units
        for unit in range(self.units - 1, -1, -1):
            cost = np.zeros(self.nodes)
            memory, parts = 0.0, 0
            for end in range(unit, self.units):
                cost = cost + self.problem.cost[end]
                memory += self.problem.memory[end]
                parts += self.parts[end]
                fits = self.problem.room >= memory
                if self.counts_slots:
                    fits &= slots >= parts
                value = np.where(fits, cost + self._after(end), np.inf)
                np.minimum(tail[unit], value, out=tail[unit])
            self.least[unit] = float(tail[unit].min(initial=np.inf))
        return tail, self.least

    def _after(self, end: int) -> float:
        """The least that comes after a run that ends with unit `end`."""
        return self.step[end] + self.least[end + 1] if end + 1 < self.units else 0.0
