"""The graph as DIN sees it: operators in one fixed order, what each reads, which are constants."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush

from onnx import GraphProto, ModelProto, NodeProto

from din.errors import BadModel
from din.slicing.nearest import listed
from din.slicing.randomness import random_functions, random_nodes
from din.slicing.source import stored_names, subgraphs_of


@dataclass(frozen=True)
class Operator:
    """One node of the top graph, at its place in the topological order."""

    index: int
    name: str
    """Unique in the graph: the file's own name where it is unique, else a made one."""
    proto: NodeProto
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

    def is_fixed(self, name: str) -> bool:
        """Whether a value is the same in every request: stored or computed from constants."""
        maker = self.producer.get(name)
        return name in self.stored or (maker is not None and self.operators[maker].is_constant)

    def constants_behind(self, names: list[str]) -> tuple[set[int], set[str]]:
        """Constant operators and initialisers that these fixed values are made from."""
        makers: set[int] = set()
        stored: set[str] = set()
        pending = [name for name in names if self.is_fixed(name)]
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


def read_operators(model: ModelProto) -> OperatorGraph:
    """Analyse the top graph. Raises BadModel for undefined or doubly defined values and cycles."""
    graph = model.graph
    nodes = list(graph.node)
    reads = [reads_of(node) for node in nodes]
    order = _order(graph, reads)
    names, duplicates = _unique_names([nodes[place] for place in order])
    draws = random_nodes(graph, random_functions(model))
    is_random = [draws[place] for place in order]
    inputs = tuple(value.name for value in graph.input)
    # One that is listed twice is one output: values are known by their names.
    outputs = tuple(dict.fromkeys(value.name for value in graph.output))
    ordered = [(nodes[place], reads[place]) for place in order]
    dynamic = _dynamic(ordered, is_random, inputs)
    live = _live(ordered, outputs)
    operators = tuple(
        Operator(
            index=index,
            name=names[index],
            proto=node,
            reads=taken,
            writes=tuple(name for name in node.output if name),
            is_random=is_random[index],
            is_constant=not dynamic[index],
            is_live=live[index],
        )
        for index, (node, taken) in enumerate(ordered)
    )
    stored = frozenset(stored_names(graph))
    found = OperatorGraph(operators, inputs, outputs, stored, duplicates)
    _check_outputs(found)
    return found


def reads_of(node: NodeProto) -> tuple[str, ...]:
    """Values that a node takes from around it, in order, each once."""
    found = dict.fromkeys(name for name in node.input if name)
    for graph in subgraphs_of(node):
        found.update(dict.fromkeys(captures_of(graph)))
    return tuple(found)


def captures_of(graph: GraphProto) -> list[str]:
    """Values that a subgraph takes from the graphs around it."""
    inside = {value.name for value in graph.input} | stored_names(graph)
    captured: list[str] = []
    for node in graph.node:
        captured.extend(name for name in reads_of(node) if name not in inside)
        inside.update(node.output)
    captured.extend(value.name for value in graph.output if value.name not in inside)
    return captured


def _order(graph: GraphProto, reads: list[tuple[str, ...]]) -> list[int]:
    """Places of the file in topological order; of several next ones the first in the file."""
    producer = _producers(graph)
    given = {value.name for value in graph.input} | stored_names(graph)
    followers: dict[int, list[int]] = {}
    waiting: list[int] = []
    for place, taken in enumerate(reads):
        makers = {producer[name] for name in taken if name in producer}
        unknown = [name for name in taken if name not in producer and name not in given]
        if unknown:
            raise BadModel(
                f"operator {_label(graph.node[place], place)} reads {unknown[0]!r}, "
                "which nothing in the graph makes",
                hint="export the model again; onnx.checker names every such value",
            )
        waiting.append(len(makers))
        for maker in makers:
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
    if len(order) < len(reads):
        stuck = (_label(graph.node[place], place) for place, count in enumerate(waiting) if count)
        raise BadModel(
            f"operators wait for each other in a cycle: {', '.join(list(stuck)[:5])}",
            hint="an ONNX graph has no cycles; export the model again",
        )
    return order


def _producers(graph: GraphProto) -> dict[str, int]:
    producer: dict[str, int] = {}
    taken = [value.name for value in graph.input]
    taken += [tensor.name for tensor in graph.initializer]
    taken += [sparse.values.name for sparse in graph.sparse_initializer]
    defined = Counter(taken)
    for place, node in enumerate(graph.node):
        for name in node.output:
            if name:
                defined[name] += 1
                producer[name] = place
    doubled = [name for name, count in defined.items() if count > 1]
    if doubled:
        raise BadModel(
            f"the graph defines {listed(doubled)} more than once",
            hint="every value of an ONNX graph has one maker; export the model again",
        )
    return producer


def _label(node: NodeProto, place: int) -> str:
    return f"{node.name!r}" if node.name else f"{node.op_type} (number {place} of the file)"


def _unique_names(nodes: list[NodeProto]) -> tuple[list[str], frozenset[str]]:
    counts = Counter(node.name for node in nodes if node.name)
    duplicates = frozenset(name for name, count in counts.items() if count > 1)
    taken = set(counts)
    names: list[str] = []
    for index, node in enumerate(nodes):
        if node.name and node.name not in duplicates:
            names.append(node.name)
            continue
        wanted = base = f"{node.name or node.op_type}_{index}"
        turn = 0
        while wanted in taken:
            turn += 1
            wanted = f"{base}_{turn}"
        taken.add(wanted)
        names.append(wanted)
    return names, duplicates


def _dynamic(
    ordered: list[tuple[NodeProto, tuple[str, ...]]], is_random: list[bool], inputs: tuple[str, ...]
) -> list[bool]:
    moving = set(inputs)
    found: list[bool] = []
    for (node, taken), drawn in zip(ordered, is_random, strict=True):
        dynamic = drawn or any(name in moving for name in taken)
        if dynamic:
            moving.update(name for name in node.output if name)
        found.append(dynamic)
    return found


def _live(ordered: list[tuple[NodeProto, tuple[str, ...]]], outputs: tuple[str, ...]) -> list[bool]:
    wanted = set(outputs)
    found: list[bool] = []
    for node, taken in reversed(ordered):
        live = any(name in wanted for name in node.output)
        if live:
            wanted.update(taken)
        found.append(live)
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
