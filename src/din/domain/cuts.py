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


WaySource = Literal["assumed", "measured", "same machine", "inferred"]
"""From where the numbers of a way are; `inferred`: by the ways of both ends to the gateway."""

SOURCE_WORDS: Final[dict[WaySource, str]] = {
    "assumed": "assumed",
    "measured": "measured",
    "same machine": "one machine",
    "inferred": "from both ends' ways to the gateway",
}


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


class CutWay(Struct, frozen=True, kw_only=True):
    """Tensors between two nodes, or a node and the gateway, and what is reckoned for them."""

    source: str
    """The node's name, or `gateway`."""
    target: str
    nbytes: int
    """For each request."""
    ms: float
    """latency_ms and the time of the bytes."""
    latency_ms: float
    mib_per_second: float
    latency_from: WaySource
    rate_from: WaySource
    is_relayed: bool = False
    """Neither end can dial the other: it goes through the gateway, and both legs count."""


def way_words(way: CutWay) -> str:
    """One way in a line: what it takes, by what, and from where that is known."""
    relayed = ", relayed by the gateway as neither can dial the other" if way.is_relayed else ""
    return (
        f"{way.source} -> {way.target}: {way.ms:.1f} ms for {way.nbytes / 1024:.1f} KiB, by "
        f"{way.latency_ms:.1f} ms ({SOURCE_WORDS[way.latency_from]}) and "
        f"{way.mib_per_second:.1f} MiB/s ({SOURCE_WORDS[way.rate_from]}){relayed}"
    )


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
    ways: tuple[CutWay, ...] = ()
    """Those of what was chosen; of a refused split, those that it would have taken."""


def ways_of_choice(choice: CutChoice) -> tuple[str, ...]:
    """The ways of a choice in lines."""
    told = "the best split would go over " if choice.is_split_refused else ""
    return tuple(f"{told}{way_words(each)}" for each in choice.ways)
