"""How good each node is for a slice, as an array; and the choice of one.

score = (queue + 1) * t * (1 + penalty * (1 - health)) * (1 + cpu_weight * cpu_load) / capacity; the
smallest wins. t is the slice's measured time on the node, or what is known of it elsewhere;
capacity the share of its speed that heat or a weak supply leaves a node, 1 where nothing tells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from din.domain.model import Slice
from din.domain.node import NodeId
from din.placement.constraints import may_take
from din.placement.policy import Policy
from din.placement.table import FleetTable, Rows

if TYPE_CHECKING:
    from random import Random

Scores = npt.NDArray[np.float64]
TimesOf = Callable[[str, NodeId], float | None]
"""(slice id, node id) -> measured milliseconds, or None where it has not run."""

TEMPERATURE_STEP_C: Final = 5.0
"""Equal scores are settled by temperature first; closer than this is no difference."""
TEMPERATURE_UNKNOWN_C: Final = 50.0
FLOPS_PER_MS_PRIOR: Final = 5e6
"""Only to weigh slices against each other and against links until they have run somewhere."""
PRIOR_MS_MIN: Final = 0.5
_FORBIDDEN: Final = np.float32(1e30)
"""Added to the score of a row that may not be chosen: ten times faster than a masked write."""


def load_factor(table: FleetTable, policy: Policy) -> npt.NDArray[np.float32]:
    """Per row what a slice's time is multiplied by: queue, health, CPU load and slowness."""
    size = table.size
    weights = policy.weights
    factor = table.health[:size] * np.float32(-weights.penalty)
    factor += np.float32(1.0 + weights.penalty)
    queue = table.queue[:size]
    factor *= queue + np.float32(weights.queue_offset) if weights.queue_offset else queue
    if weights.cpu:
        load = table.cpu_load[:size] * np.float32(weights.cpu)
        load += np.float32(1.0)
        factor *= load
    factor *= table.slowness[:size]
    return factor


def prior_ms(part: Slice) -> float:
    """A stand-in for the time of a slice that has not run anywhere, from its size."""
    return max(part.flops / FLOPS_PER_MS_PRIOR, PRIOR_MS_MIN)


class Outlook:
    """What slices cost on the nodes of a table as it is now; each is asked for once a plan."""

    def __init__(self, table: FleetTable, policy: Policy, times: TimesOf | None) -> None:
        self.factor: Final = load_factor(table, policy)
        """By row."""
        self._table = table
        self._times = times
        self._elsewhere_ms: dict[str, float] = {}
        """By slice id: what stands for the time on a node without a measurement."""

    def measured_ms(self, part: Slice, node_id: NodeId) -> float | None:
        """What it took there, or None."""
        return None if self._times is None else self._times(part.slice_id, node_id)

    def times_ms(self, part: Slice, rows: Rows) -> Scores:
        """Per row the measured time, or the mean of the measured, or the prior."""
        measured = [self.measured_ms(part, each) for each in self._table.node_ids(rows)]
        known = [each for each in measured if each is not None]
        elsewhere_ms = sum(known) / len(known) if known else prior_ms(part)
        self._elsewhere_ms[part.slice_id] = elsewhere_ms
        return np.array([elsewhere_ms if each is None else each for each in measured])

    def score(self, part: Slice, row: int) -> float:
        """Of one slice on one node, by the same times as `times_ms` if that was asked before."""
        time_ms = self.measured_ms(part, self._table.node_id(row))
        if time_ms is None:
            time_ms = self._elsewhere_ms.get(part.slice_id, prior_ms(part))
        return time_ms * float(self.factor[row])


def choose_node(table: FleetTable, part: Slice, policy: Policy, random: Random) -> NodeId | None:
    """The best node for one slice by load alone, or None when nobody may take it."""
    if not table.size:
        return None
    scores = load_factor(table, policy)
    scores += ~may_take(table, part, policy) * _FORBIDDEN
    first = int(scores.argmin())
    lowest = scores[first]
    if lowest >= _FORBIDDEN:
        return None
    ties = scores == lowest
    if np.count_nonzero(ties) == 1:
        return table.node_id(first)
    best = np.flatnonzero(ties)
    coolest = temperature_steps(table, best)
    best = best[coolest == coolest.min()]
    return table.node_id(int(best[random.randrange(len(best))]))


def temperature_steps(table: FleetTable, rows: Rows) -> Scores:
    """Temperatures of rows, coarse, with the unknown in the middle: for settling equal scores."""
    measured = table.temperature_c[rows].astype(np.float64)
    return np.floor(
        np.where(np.isnan(measured), TEMPERATURE_UNKNOWN_C, measured) / TEMPERATURE_STEP_C
    )
