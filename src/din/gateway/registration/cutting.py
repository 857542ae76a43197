"""Where DIN cuts a model whose strategy leaves that to it: analysis, nodes, choice.

Knows nothing of carving: what comes out is a map of operators to slices, and the reasons.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace as with_fields

from din.domain.cuts import CutChoice, CutTable
from din.domain.model import AnalyseRequest
from din.domain.node import NodeId
from din.domain.strategy import Strategy
from din.domain.views import RegisterModel
from din.errors import CannotPlace
from din.placement.boundaries import Blocks
from din.placement.judging import cost_of
from din.placement.partitioning import Chosen, choose_cuts, prepare
from din.placement.places import SLICES_MAX_DEFAULT, CutWishes, Device, RangeRule
from din.placement.ways import Ways

TABLES_CACHED_MAX: Final = 64
"""Analyses kept in memory; one of 450 operators takes some 200 KB."""

Profiles = Mapping[str, Sequence[float]]
"""Measured milliseconds by operator, by class of devices."""


class Measured(Protocol):
    """The store of profiles: `ProfileBook.times_of`."""

    async def __call__(self, order: RegisterModel, table: CutTable, /) -> Profiles:
        """What was measured of a model with these settings."""
        ...


class Corrected(Protocol):
    """What runs now, against the profiles: `live_factors.live_factors`."""

    async def __call__(self, order: RegisterModel, table: CutTable, /) -> Mapping[str, float]:
        """By what times are to be multiplied, by class of devices."""
        ...


async def _nothing_measured(_order: RegisterModel, _table: CutTable) -> Profiles:
    return {}


async def _nothing_runs(_order: RegisterModel, _table: CutTable) -> Mapping[str, float]:
    return {}


class Terrain(Struct, frozen=True, kw_only=True):
    """The nodes that could take slices now, and the ways between them."""

    devices: tuple[Device, ...]
    ways: Ways
    named: Mapping[str, NodeId]
    """Nodes by name and by id, for strategies that name some."""


class Analysing(Protocol):
    """What is needed of the carver."""

    async def analyse(
        self, request: AnalyseRequest, source_sha256: str, external: Mapping[str, str]
    ) -> CutTable:
        """The table of one model with the files beside it."""
        ...


class Prepared(Struct, frozen=True):
    """A model ready to be decided about, as often as is wanted."""

    table: CutTable
    blocks: Blocks
    wishes: CutWishes


class CutChooser:
    """Chooses cuts for models of type `auto`, and keeps their analyses."""

    def __init__(
        self,
        carver: Analysing,
        terrain: Callable[[RegisterModel], Terrain],
        profiles: Measured = _nothing_measured,
        factors: Corrected = _nothing_runs,
    ) -> None:
        """`profiles`: what was measured of a model; `factors`: by what it takes longer now."""
        self._carver = carver
        self._factors = factors
        self.terrain = terrain
        self.profiles = profiles
        self._tables: OrderedDict[tuple[object, ...], CutTable] = OrderedDict()
        self._blocks: OrderedDict[str, tuple[CutTable, object, Blocks]] = OrderedDict()

    async def table(self, order: RegisterModel, ranges: tuple[str, ...] = ()) -> CutTable:
        """The analysis of a model at the order's input shapes. Raises as the carver."""
        files = repr(sorted(order.external.items()))
        rewrite = order.slicing_strategy.rewrite
        key = (order.source_sha256, files, repr(sorted(order.inputs.items())), ranges, rewrite)
        found = self._tables.get(key)
        if found is None:
            request = AnalyseRequest(
                model_path="", input_shapes=order.inputs, ranges=ranges, rewrite=rewrite
            )
            found = await self._carver.analyse(request, order.source_sha256, order.external)
            self._tables[key] = found
        self._tables.move_to_end(key)
        while len(self._tables) > TABLES_CACHED_MAX:
            self._tables.popitem(last=False)
        return found

    async def choose(self, order: RegisterModel) -> Chosen | None:
        """The best cuts for the nodes that are here; None when none is, or nothing can be cut.
        Raises CannotPlace with the reasons, BadStrategy for ranges that are not in the graph."""
        terrain = self.terrain(order)
        if not terrain.devices:
            return None
        ready = await self.prepared(order, terrain)
        if not ready.table.operators:
            return None
        profiles, notes = await self._corrected(order, ready.table)
        # Under limits it may take a quarter of a second: requests and beats go on meanwhile.
        chosen = await asyncio.to_thread(
            choose_cuts, ready.blocks, terrain.devices, ready.wishes, terrain.ways, profiles
        )
        return replace(
            chosen, choice=with_fields(chosen.choice, notes=(*chosen.choice.notes, *notes))
        )

    async def cost_now(
        self, order: RegisterModel, assignment: Sequence[int], nodes: Sequence[NodeId]
    ) -> float | None:
        """What slices on these nodes cost by what is known now; None when they may not stay."""
        terrain = self.terrain(order)
        ready = await self.prepared(order, terrain)
        if len(assignment) != len(ready.table.operators):
            return None
        profiles, _ = await self._corrected(order, ready.table)
        return cost_of(
            ready.blocks, terrain.devices, ready.wishes, terrain.ways, profiles, assignment, nodes
        )

    async def _corrected(
        self, order: RegisterModel, table: CutTable
    ) -> tuple[Profiles, tuple[str, ...]]:
        """Profiles as devices are now, and in words what was changed."""
        profiles = await self.profiles(order, table)
        factors = await self._factors(order, table) if profiles else {}
        corrected = {
            name: [ms * factors.get(name, 1.0) for ms in times] for name, times in profiles.items()
        }
        notes = tuple(
            f"times of {name} are its profile's times {factors[name]:.2f}, as live slices tell"
            for name in sorted(corrected.keys() & factors.keys())
        )
        return corrected, notes

    async def prepared(self, order: RegisterModel, terrain: Terrain) -> Prepared:
        """Analysis and wishes for an order."""
        strategy = order.slicing_strategy
        ranges = ranges_of(strategy)
        table = await self.table(order, ranges)
        wishes = CutWishes(
            objective=strategy.objective,
            slices_max=strategy.slices_max or SLICES_MAX_DEFAULT,
            memory_mib_max=strategy.memory_mib_max,
            rules=(*_rules(strategy, table, terrain.named), *_private(strategy, table)),
        )
        return Prepared(table, self._blocks_of(table, wishes.rules), wishes)

    def _blocks_of(self, table: CutTable, rules: Sequence[RangeRule]) -> Blocks:
        """Kept as long as the table: a decision for other nodes takes about a millisecond then."""
        ends = tuple((rule.first, rule.last) for rule in rules)
        kept = self._blocks.get(table.source_sha256)
        if kept is None or kept[0] is not table or kept[1] != ends:
            kept = self._blocks[table.source_sha256] = (table, ends, prepare(table, rules))
        self._blocks.move_to_end(table.source_sha256)
        while len(self._blocks) > TABLES_CACHED_MAX:
            self._blocks.popitem(last=False)
        return kept[2]


class Choosing(Protocol):
    """What the builder needs of a chooser."""

    async def choose(self, order: RegisterModel) -> Chosen | None:
        """See CutChooser."""
        ...

    async def table(self, order: RegisterModel, ranges: tuple[str, ...] = ()) -> CutTable:
        """See CutChooser."""
        ...


class Choice(NamedTuple):
    """What the builder carries out, and what it writes down."""

    chosen: Chosen | None = None
    assignment: tuple[int, ...] = ()
    """Empty: the strategy is carved as it is written."""
    notes: tuple[str, ...] = ()

    @property
    def facts(self) -> CutChoice | None:
        """For the record."""
        return self.chosen.choice if self.chosen is not None else None


def choice_of(chosen: Chosen) -> Choice:
    """A choice that was made."""
    note = f"DIN cut it: {chosen.choice.reason}"
    return Choice(chosen, chosen.assignment, () if chosen.choice.is_split_refused else (note,))


async def choice_for(order: RegisterModel, chooser: Choosing) -> Choice:
    """The choice for a model whose strategy leaves it to DIN; for others nothing.

    Where it cannot be made now, the model stays whole and says why: it waits for nodes. Raises as
    the carver.
    """
    strategy = order.slicing_strategy
    if strategy.type != "auto":
        return Choice()
    try:
        chosen = await chooser.choose(order)
        reason = "no node was here to choose cuts for"
    except CannotPlace as refusal:
        chosen, reason = None, refusal.message
    if chosen is not None:
        return choice_of(chosen)
    table = await chooser.table(order, ranges_of(strategy))
    later = f"din model slice {order.model_id} chooses again"
    return Choice(None, (0,) * len(table.operators), (f"not cut: {reason}; {later}",))


def ranges_of(strategy: Strategy) -> tuple[str, ...]:
    """Every range that a strategy names, rules before engines."""
    return (*(each.range for each in strategy.ranges), *strategy.backend_map)


def _rules(strategy: Strategy, table: CutTable, named: Mapping[str, NodeId]) -> Iterable[RangeRule]:
    places = table.ranges
    for rule, (first, last) in zip(strategy.ranges, places, strict=False):
        allowed = _ids(rule.nodes, named) if rule.nodes else None
        yield RangeRule(
            first=first,
            last=last,
            allowed=allowed,
            forbidden=_ids(rule.not_nodes, named),
            is_sensitive=rule.sensitive,
        )
    engines = strategy.backend_map.values()
    for backend, (first, last) in zip(engines, places[len(strategy.ranges) :], strict=True):
        yield RangeRule(first=first, last=last, backend=backend)


def _private(strategy: Strategy, table: CutTable) -> Iterable[RangeRule]:
    """`first-last`: whatever slice the first and the last operator end up in."""
    if strategy.private == "first-last":
        last = len(table.operators) - 1
        yield RangeRule(first=0, last=0, is_sensitive=True, ends_slices=False)
        yield RangeRule(first=last, last=last, is_sensitive=True, ends_slices=False)


def _ids(names: Iterable[str], named: Mapping[str, NodeId]) -> frozenset[NodeId]:
    """A node that is not here keeps its place in the rule: nothing else may take it."""
    return frozenset(named.get(name, NodeId(name)) for name in names)


def wished_nodes(choice: CutChoice | None) -> dict[int, NodeId]:
    """Where the slices of a choice should lie."""
    slices = choice.slices if choice is not None else ()
    return {number: each.node_id for number, each in enumerate(slices)}
