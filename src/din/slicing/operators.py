"""The graph as DIN sees it: operators in one fixed order, what each reads, which are constants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import chain, starmap
from typing import Final

from msgspec import Struct
from onnx import GraphProto, NodeProto

from din.errors import BadModel
from din.slicing.nearest import listed
from din.slicing.randomness import random_functions, random_nodes
from din.slicing.source import Contents, Held, held_by, stored_names

Names = tuple[str, ...]
_GIVEN: Final = -1
"""In place of a node's place: an input or a stored value."""


class Operator(Struct, frozen=True):
    """One node of the top graph, at its place in the topological order."""

    index: int
    name: str
    """Unique in the graph: the file's own name where it is unique, else a made one."""
    proto: NodeProto
    held: Held
    reads: tuple[str, ...]
    """Values taken from the top graph, those captured by subgraphs included."""
    writes: tuple[str, ...]
    is_random: bool
    is_constant: bool
    """Deterministic and without a dynamic ancestor: moves into every slice that needs it."""
    is_live: bool
    """An output depends on it."""


@dataclass(frozen=True)
class OperatorGraph:
    """All operators of a model in topological order, with the outer values."""

    operators: tuple[Operator, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stored: frozenset[str]
    """Initialisers, dense and sparse."""
    duplicates: frozenset[str]
    """Node names that the file gives to more than one node."""

    @cached_property
    def producer(self) -> dict[str, int]:
        """Index of the operator that writes a value."""
        return {name: each.index for each in self.operators for name in each.writes}

    @cached_property
    def dynamic(self) -> tuple[Operator, ...]:
        """Operators that the slices are made of: live and not constant."""
        return tuple(each for each in self.operators if each.is_live and not each.is_constant)

    @cached_property
    def readers(self) -> dict[str, tuple[int, ...]]:
        """Indexes of the dynamic operators that read a value."""
        found: dict[str, list[int]] = {}
        for each in self.dynamic:
            for name in each.reads:
                found.setdefault(name, []).append(each.index)
        return {name: tuple(indexes) for name, indexes in found.items()}

    @cached_property
    def fixed(self) -> frozenset[str]:
        """Values that are the same in every request: stored, or computed from constants."""
        made = (name for each in self.operators if each.is_constant for name in each.writes)
        return self.stored.union(made)

    def is_fixed(self, name: str) -> bool:
        """Whether a value is the same in every request."""
        return name in self.fixed

    def constants_behind(self, names: list[str]) -> tuple[set[int], set[str]]:
        """Constant operators and initialisers that these fixed values are made from."""
        makers: set[int] = set()
        stored: set[str] = set()
        pending = [name for name in names if name in self.fixed]
        while pending:
            name = pending.pop()
            if name in self.stored:
                stored.add(name)
                continue
            index = self.producer[name]
            if index not in makers:
                makers.add(index)
                pending.extend(self.operators[index].reads)
        return makers, stored


def read_operators(contents: Contents) -> OperatorGraph:
    """Analyse the top graph. Raises BadModel for undefined or doubly defined values and cycles."""
    graph, nodes = contents.model.graph, contents.nodes
    inputs = tuple(value.name for value in graph.input)
    # One that is listed twice is one output: values are known by their names.
    outputs = tuple(dict.fromkeys(value.name for value in graph.output))
    stored = [tensor.name for tensor in graph.initializer]
    stored += [sparse.values.name for sparse in graph.sparse_initializer]
    reads = [*map(reads_of, nodes)]
    writes = [_named(held.node.output[:]) for held in nodes]
    order = _order(nodes, reads, _producers(writes, [*inputs, *stored]))
    nodes = [nodes[place] for place in order]
    reads = [reads[place] for place in order]
    writes = [writes[place] for place in order]
    protos = [held.node for held in nodes]
    names, duplicates = _unique_names(protos)
    is_random = random_nodes(nodes, graph.initializer, random_functions(contents.model))
    is_constant = _constant(reads, writes, is_random, inputs)
    is_live = _live(reads, writes, outputs)
    places = range(len(nodes))
    facts = zip(
        places, names, protos, nodes, reads, writes, is_random, is_constant, is_live, strict=True
    )
    found = OperatorGraph(
        tuple(starmap(Operator, facts)), inputs, outputs, frozenset(stored), duplicates
    )
    _check_outputs(found)
    return found


def reads_of(held: Held) -> tuple[str, ...]:
    """Values that a node takes from around it, in order, each once."""
    names = held.node.input[:]
    if not (names or held.graphs):
        return ()  # as of each Constant
    found = dict.fromkeys(_named(names))
    for graph in held.graphs:
        found.update(dict.fromkeys(captures_of(graph)))
    return tuple(found)


def _named(names: list[str]) -> Names:
    """Without the empty ones, which stand for what is left out."""
    return tuple(names) if "" not in names else tuple(filter(None, names))


def captures_of(graph: GraphProto) -> list[str]:
    """Values that a subgraph takes from the graphs around it."""
    inside = {value.name for value in graph.input} | stored_names(graph)
    captured: list[str] = []
    for node in graph.node:
        captured.extend(name for name in reads_of(held_by(node)) if name not in inside)
        inside.update(node.output)
    captured.extend(value.name for value in graph.output if value.name not in inside)
    return captured


def _producers(writes: list[Names], given: list[str]) -> dict[str, int]:
    """The place of the file that makes each value, _GIVEN for what no node does."""
    made = [*chain.from_iterable(writes)]
    producer = dict.fromkeys(given, _GIVEN)
    for place, names in enumerate(writes):
        for name in names:
            producer[name] = place
    if bytes in {*map(type, producer)}:  # the parser hands over so what is no text
        wrong = [each for each in map(repr, producer) if each.startswith("b")]
        raise BadModel(
            f"a value is called {wrong[0]}, which is no text in UTF-8",
            hint="the file is damaged: fetch or export it again",
        )
    if len(producer) < len(given) + len(made):
        doubled = [name for name, count in Counter(given + made).items() if count > 1]
        raise BadModel(
            f"the graph defines {listed(doubled)} more than once",
            hint="every value of an ONNX graph has one maker; export the model again",
        )
    return producer


def _order(nodes: list[Held], reads: list[Names], producer: dict[str, int]) -> Sequence[int]:
    """Places of the file in topological order; of several next ones the first in the file."""
    try:
        # All names are looked up, in order or not.
        late = [p for p, names in enumerate(reads) for name in names if producer[name] >= p]
    except KeyError:
        raise _unmade(nodes, reads, producer) from None
    if not late:
        return range(len(nodes))  # as ONNX asks of a file
    makers = [{producer[name] for name in names} - {_GIVEN} for names in reads]
    followers: dict[int, list[int]] = {}
    waiting = [*map(len, makers)]
    for place, before in enumerate(makers):
        for maker in before:
            followers.setdefault(maker, []).append(place)
    ready = [place for place, count in enumerate(waiting) if count == 0]
    heapify(ready)
    order: list[int] = []
    while ready:
        place = heappop(ready)
        order.append(place)
        for follower in followers.get(place, ()):
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heappush(ready, follower)
    if len(order) < len(nodes):
        stuck = (_label(nodes[place].node, place) for place, count in enumerate(waiting) if count)
        raise BadModel(
            f"operators wait for each other in a cycle: {', '.join(list(stuck)[:5])}",
            hint="an ONNX graph has no cycles; export the model again",
        )
    return order


def _unmade(nodes: list[Held], reads: list[Names], producer: dict[str, int]) -> BadModel:
    place, name = next(
        (place, name) for place, names in enumerate(reads) for name in names if name not in producer
    )
    return BadModel(
        f"operator {_label(nodes[place].node, place)} reads {name!r}, "
        "which nothing in the graph makes",
        hint="export the model again; onnx.checker names every such value",
    )


def _label(node: NodeProto, place: int) -> str:
    return repr(node.name) if node.name else f"{node.op_type} (number {place} of the file)"


def _unique_names(nodes: list[NodeProto]) -> tuple[list[str], frozenset[str]]:
    names = [node.name for node in nodes]
    counts = Counter(names)
    if len(counts) == len(names) and "" not in counts:
        return names, frozenset()
    duplicates = frozenset(name for name, count in counts.items() if count > 1 and name)
    taken = set(counts)
    for index, name in enumerate(names):
        if name and name not in duplicates:
            continue
        wanted = base = f"{name or nodes[index].op_type}_{index}"
        turn = 0
        while wanted in taken:
            turn += 1
            wanted = f"{base}_{turn}"
        taken.add(wanted)
        names[index] = wanted
    return names, duplicates


def _constant(
    reads: list[Names], writes: list[Names], is_random: list[bool], inputs: Names
) -> list[bool]:
    moving = set(inputs)
    found: list[bool] = []
    for taken, made, drawn in zip(reads, writes, is_random, strict=True):
        is_constant = not drawn and moving.isdisjoint(taken)
        if not is_constant:
            moving.update(made)
        found.append(is_constant)
    return found


def _live(reads: list[Names], writes: list[Names], outputs: Names) -> list[bool]:
    wanted = set(outputs)
    found: list[bool] = []
    for taken, made in zip(reversed(reads), reversed(writes), strict=True):
        is_live = not wanted.isdisjoint(made)
        if is_live:
            wanted.update(taken)
        found.append(is_live)
    return found[::-1]


def _check_outputs(graph: OperatorGraph) -> None:
    if all(name in graph.inputs for name in graph.outputs):
        raise BadModel(
            "every output is an input handed through unchanged: there is nothing to compute",
            hint="export the model again with the outputs that its operators make",
        )
    for name in graph.outputs:
        if name not in graph.producer and name not in graph.stored and name not in graph.inputs:
            raise BadModel(
                f"nothing in the graph makes the output {name!r}",
                hint="export the model again; onnx.checker names every such value",
            )
