"""What a slicing strategy says: the seeds' `slicing_strategy`, as files, HTTP and carver take it.

One type for all of them, so that a key means the same everywhere. Its JSON Schema is made from the
descriptions here. What only the graph can tell (unknown points, cover of ranges) the carver says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta, Struct

from din.errors import BadStrategy

SLICES_MAX: Final = 256
RANGES_MAX: Final = 256
NODES_NAMED_MAX: Final = 64
"""In one list of nodes."""
REWRITES_MAX: Final = 8
WAYS_MAX: Final = 64
"""Shards of one request."""
ROWS_MAX: Final = 2**31 - 1
MEMORY_MIB_MAX: Final = 2**30
NAME_CHARACTERS_MAX: Final = 128
"""Of the name of a slice."""
RANGE_CHARACTERS_MAX: Final = 1024
"""Of "from:to": each colon in it may be the one that parts the two."""
ADAPTER_NAMES: Final = ("before", "after")
"""Names of the slices that adapters are."""

StrategyType = Literal["graph_partition", "auto", "operator", "input_tiles"]
Objective = Literal["latency", "throughput", "energy", "bytes"]
Precision = Literal["exact", "fp16", "uint8", "auto"]
Compression = Literal["none", "zstd"]
Granularity = Literal["block", "operator"]
Rewrite = Literal["resize_half_pixel_to_asymmetric"]

Names = Annotated[tuple[str, ...], Meta(max_length=NODES_NAMED_MAX)]
_PINNED: Final = "Only these nodes may hold it: names or ids, as `din node list` shows them."
_FORBIDDEN: Final = "These nodes may not hold it: names or ids, as `din node list` shows them."
_TRUSTED: Final = "Only for nodes with the label `trust: high`."


class SliceSetting(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What the strategy says of one slice; {} leaves all open."""

    name: Annotated[
        str | None, Meta(description="What plans call it, and its phase in every trace.")
    ] = None
    device_type: Annotated[str | None, Meta(description="Exactly as `din node list` shows it.")] = (
        None
    )
    labels: Annotated[
        dict[str, str], Meta(description="Labels that a node must have, such as line: 4.")
    ] = {}
    backend: Annotated[str | None, Meta(description="Engine that runs it.")] = None
    sensitive: Annotated[bool, Meta(description=_TRUSTED)] = False
    nodes: Annotated[Names, Meta(description=_PINNED)] = ()
    not_nodes: Annotated[Names, Meta(description=_FORBIDDEN)] = ()


class RangeSetting(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What holds for a range of operators: a slice that holds one of them inherits it."""

    range: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=RANGE_CHARACTERS_MAX,
            description='"from:to" of name prefixes, as in backend_map.',
        ),
    ]
    nodes: Annotated[Names, Meta(description=_PINNED)] = ()
    not_nodes: Annotated[Names, Meta(description=_FORBIDDEN)] = ()
    sensitive: Annotated[bool, Meta(description=_TRUSTED)] = False


class Strategy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a model is cut, and where its slices may run."""

    type: Annotated[
        StrategyType,
        Meta(
            description="graph_partition: at the points and ranges named here; auto: DIN chooses; "
            "operator: at every place where one tensor crosses, or at every operator; "
            "input_tiles: the model stays whole and large batches are spread over its replicas."
        ),
    ] = "graph_partition"
    partition_points: Annotated[
        tuple[str, ...],
        Meta(description="Names of nodes or of output tensors; each ends a slice."),
    ] = ()
    backend_map: Annotated[
        dict[Annotated[str, Meta(max_length=RANGE_CHARACTERS_MAX)], str],
        Meta(description='Ranges "from:to" of name prefixes -> backend; they cover the graph.'),
    ] = {}
    slices: Annotated[
        tuple[SliceSetting, ...],
        Meta(max_length=SLICES_MAX, description="One entry per slice, in order."),
    ] = ()
    private: Annotated[
        Literal["", "first-last"],
        Meta(
            description="first-last: the first and the last slice, and the adapters, only on nodes "
            "with the label trust: high."
        ),
    ] = ""
    ranges: Annotated[
        tuple[RangeSetting, ...],
        Meta(max_length=RANGES_MAX, description="What holds for ranges of operators."),
    ] = ()
    objective: Annotated[
        Objective, Meta(description="What `auto` makes small; throughput it makes large.")
    ] = "latency"
    slices_max: Annotated[
        Annotated[int, Meta(ge=1, le=SLICES_MAX)] | None,
        Meta(description="`auto` makes no more slices than this."),
    ] = None
    memory_mib_max: Annotated[
        Annotated[int, Meta(ge=1, le=MEMORY_MIB_MAX)] | None,
        Meta(description="No slice needs more memory, in MiB."),
    ] = None
    precision: Annotated[
        Precision,
        Meta(
            description="How tensors cross between slices: exact; fp16 or uint8 by channel, after "
            "a check; auto: uint8, else fp16, where a way is slow and the check passes."
        ),
    ] = "exact"
    precision_tolerance: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(
            description="How far an output may be off by `precision`, as a share of its largest "
            "magnitude; otherwise 0.01 for fp16 and 0.05 for uint8."
        ),
    ] = None
    compression: Annotated[
        Compression,
        Meta(
            description="Of tensors that go from a slice on one machine to a slice on another: "
            "none; zstd: without loss, for slow links."
        ),
    ] = "none"
    granularity: Annotated[
        Granularity,
        Meta(
            description="Of `operator`: block = operators between places where one tensor crosses; "
            "operator = each for itself."
        ),
    ] = "block"
    rewrite: Annotated[
        tuple[Rewrite, ...],
        Meta(
            max_length=REWRITES_MAX,
            description="Changes of operators for backends that lack something; they change the "
            "numbers, so none is made unless it stands here.",
        ),
    ] = ()
    axis: Annotated[
        int, Meta(ge=0, le=0, description="Of `input_tiles`: the axis of the batch.")
    ] = 0
    rows_max: Annotated[
        Annotated[int, Meta(ge=1, le=ROWS_MAX)] | None,
        Meta(description="Of `input_tiles`: rows of one shard at most."),
    ] = None
    ways: Annotated[
        Annotated[int, Meta(ge=2, le=WAYS_MAX)] | None,
        Meta(description="Of `input_tiles`: shards of one request."),
    ] = None

    @property
    def is_uncut(self) -> bool:
        """Nothing in it says where to cut, so that DIN may when no node can hold the whole."""
        return self.type == "graph_partition" and not self.partition_points


DEFAULT: Final = Strategy()


class Fault(NamedTuple):
    """What is wrong in a strategy, and where: keys and positions below `slicing_strategy`."""

    path: tuple[str | int, ...]
    message: str
    hint: str


_KEYS_OF: Final[dict[str, tuple[StrategyType, ...]]] = {
    "partition_points": ("graph_partition",),
    "backend_map": ("graph_partition", "auto", "operator"),
    "slices": ("graph_partition", "input_tiles"),
    "ranges": ("graph_partition", "auto", "operator"),
    "objective": ("auto",),
    "slices_max": ("auto",),
    "memory_mib_max": ("graph_partition", "auto"),
    "precision": ("graph_partition", "auto", "operator"),
    "precision_tolerance": ("graph_partition", "auto", "operator"),
    "compression": ("graph_partition", "auto", "operator"),
    "granularity": ("operator",),
    "axis": ("input_tiles",),
    "rows_max": ("input_tiles",),
    "ways": ("input_tiles",),
}
"""Keys that mean something for some types only."""


def check_strategy(strategy: Strategy) -> None:
    """Raises BadStrategy for what no graph could make right."""
    for fault in faults_of(strategy):
        raise BadStrategy(f"{dotted(fault.path)}: {fault.message}", hint=fault.hint)


def dotted(path: tuple[str | int, ...]) -> str:
    """A place below `slicing_strategy` as text: `slicing_strategy.slices[1].name`."""
    words = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "slicing_strategy" + "".join(words)


def faults_of(strategy: Strategy) -> Iterator[Fault]:
    """Everything in a strategy that no graph could make right."""
    for key, types in _KEYS_OF.items():
        if getattr(strategy, key) != getattr(DEFAULT, key) and strategy.type not in types:
            yield Fault(
                (key,),
                f"means nothing for type {strategy.type!r}",
                f"leave it out, or use type {' or '.join(types)}",
            )
    if strategy.partition_points and strategy.memory_mib_max is not None:
        yield Fault(
            ("memory_mib_max",),
            "the partition points say already where the model is cut",
            "leave one of the two out",
        )
    if strategy.precision_tolerance is not None and strategy.precision == "exact":
        yield Fault(
            ("precision_tolerance",),
            "means nothing where tensors cross exactly",
            'leave it out, or use "precision": "auto", "fp16" or "uint8"',
        )
    yield from _slice_faults(strategy)
    yield from _range_faults(strategy)
    yield from _tile_faults(strategy)


def _slice_faults(strategy: Strategy) -> Iterator[Fault]:
    points, slices = len(strategy.partition_points), len(strategy.slices)
    is_counted = not (strategy.backend_map or strategy.ranges or strategy.memory_mib_max)
    if (points or is_counted) and slices > points + 1:
        yield Fault(
            ("slices", points + 1),
            f"{slices} slices are described, but {points} partition points make {points + 1}",
            "give one entry per slice, in order; entries may be {}",
        )
    seen: dict[str, int] = {}
    for index, each in enumerate(strategy.slices):
        if each.name is not None and seen.setdefault(each.name, index) != index:
            yield Fault(
                ("slices", index, "name"),
                f"two slices are called {each.name!r}",
                "traces and plans tell them by their names",
            )
        if each.name is not None:
            yield from _name_faults(index, each.name, strategy.slices)
        yield from _node_faults(("slices", index), each)


def default_name(index: int) -> str:
    """What a slice without a name is called."""
    return f"slice-{index}"


def _name_faults(index: int, name: str, slices: Sequence[SliceSetting]) -> Iterator[Fault]:
    path = ("slices", index, "name")
    if name in ADAPTER_NAMES:
        yield Fault(path, f"{name!r} is what an adapter is called", "choose another name")
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        yield Fault(
            path,
            f"{name[:NAME_CHARACTERS_MAX]!r} can be no name",
            f"1 to {NAME_CHARACTERS_MAX} printable characters",
        )
    for other in range(SLICES_MAX):
        is_named = other < len(slices) and slices[other].name is not None
        if other != index and not is_named and name == default_name(other):
            yield Fault(
                path,
                f"{name!r} is what slice {other} is called, which has no name of its own",
                "traces and plans tell slices by their names: choose another",
            )


def _range_faults(strategy: Strategy) -> Iterator[Fault]:
    for index, each in enumerate(strategy.ranges):
        if not (each.nodes or each.not_nodes or each.sensitive):
            yield Fault(
                ("ranges", index),
                f"says nothing of range {each.range!r}",
                'give "nodes", "not_nodes" or "sensitive"',
            )
        yield from _node_faults(("ranges", index), each)


def _node_faults(
    path: tuple[str | int, ...], setting: SliceSetting | RangeSetting
) -> Iterator[Fault]:
    for node in setting.nodes:
        if node in setting.not_nodes:
            yield Fault(
                (*path, "not_nodes"),
                f"node {node!r} is in nodes as well",
                "a node is either wanted or not",
            )


def _tile_faults(strategy: Strategy) -> Iterator[Fault]:
    if strategy.type == "input_tiles" and (strategy.rows_max is None) == (strategy.ways is None):
        yield Fault(
            ("type",),
            "input_tiles needs rows_max or ways, and not both",
            'for example "rows_max": 8: a request of 20 rows becomes shards of 7, 7 and 6',
        )
