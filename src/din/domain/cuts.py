"""A model as the choice of cuts sees it - operators and what flows between them - and the choice.

Operators are the dynamic ones in topological order; a *place* is an operator's number in it, and
boundary b lies before place b. Constants move into the slices that use them and are not here.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from din.domain.node import NodeId
from din.domain.strategy import Objective

UNITS: Final[dict[Objective, str]] = {
    "latency": "ms",
    "throughput": "ms",
    "energy": "mJ",
    "bytes": "bytes",
}
"""What a cost is counted in; of throughput it is the time between two answers."""


class OperatorFacts(Struct, frozen=True, array_like=True):
    """One operator."""

    name: str
    kind: str
    """The operator's type, such as Conv."""
    flops: int
    weight_bytes: int
    """Of what it alone uses, and of small things that it shares."""
    live_bytes: int
    """Of all values alive while it runs."""


class ValueFacts(Struct, frozen=True, array_like=True):
    """One value: who makes it, who reads it."""

    tensor: str
    maker: int
    """A place, or GATEWAY for an input of the model."""
    readers: tuple[int, ...]
    """Places, ascending."""
    nbytes: int
    is_exact: bool
    """False where `nbytes` is an estimate at typical sizes: the shape depends on the input."""
    is_output: bool
    """An output of the model."""
    can_travel: bool
    is_pair: bool
    """It ties an operator to its QuantizeLinear or DequantizeLinear."""


class SharedWeights(Struct, frozen=True, array_like=True):
    """Weights that several operators use: held once by a slice that has any of them."""

    nbytes: int
    readers: tuple[int, ...]


class CutTable(Struct, frozen=True, kw_only=True):
    """The analysis of one model at given input shapes."""

    schema: str = "din.cuts/1"
    source_sha256: str
    operators: tuple[OperatorFacts, ...]
    values: tuple[ValueFacts, ...]
    shared: tuple[SharedWeights, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    """First and last place of each range that was asked for."""


class ChosenSlice(Struct, frozen=True, kw_only=True):
    """One slice of a choice."""

    first: str
    """Name of its first operator."""
    last: str
    operators: int
    node_id: NodeId
    node: str
    """The node's name."""
    compute_ms: float
    memory_mib: int
    is_sensitive: bool = False
    """Holds operators of a range that only trusted nodes may have."""
    crossing_bytes: int = 0
    """What leaves it for other slices."""
    is_exact: bool = True
    """False where `crossing_bytes` is an estimate."""


class NodeAlone(Struct, frozen=True, kw_only=True):
    """The whole model on one node, for comparison."""

    node_id: NodeId
    node: str
    cost: float


class CutChoice(Struct, frozen=True, kw_only=True):
    """What was chosen, with the numbers and the reasons."""

    objective: Objective
    unit: str
    cost: float
    """Expected, in `unit`, of what was chosen."""
    slices: tuple[ChosenSlice, ...]
    alone: NodeAlone | None
    """The best node by itself; None when none may or can hold the whole model."""
    wins_by: float | None = None
    """Share of the cost alone that the split spares; None without a split or without `alone`."""
    is_split_refused: bool = False
    """One node alone is as good or better."""
    best_split: float | None = None
    """Cost of the best split that was refused, where there is one."""
    reason: str
    """One sentence."""
    times_from: Literal["profile", "flops", "both"]
    """Measured on such devices, or work over a device's assumed speed."""
    is_exact: bool = True
    """False: a better choice may exist, the search was cut short or is a heuristic."""
    nodes_considered: int
    blocks: int
    """Parts between the boundaries that were looked at."""
    notes: tuple[str, ...] = ()
