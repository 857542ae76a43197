"""Local functions of a model, and which of them a node calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from onnx import FunctionProto, ModelProto, NodeProto

from din.errors import BadModel, TooLarge
from din.slicing.nearest import listed
from din.slicing.source import nodes_within

INLINED_MAX: Final = 200_000
"""Operators when every call of a function is replaced by what the function holds, as inference of
shapes and engines do it: a file of a few lines can stand for billions."""

FunctionKey = tuple[str, str, str]
"""Domain, name and overload: all three tell functions apart."""


def key_of(function: FunctionProto) -> FunctionKey:
    """What a node names that calls it."""
    return _own(function.domain), function.name, function.overload


def called_by(node: NodeProto) -> FunctionKey:
    """The function that a node calls, if the model has it; else an operator."""
    return _own(node.domain), node.op_type, node.overload


def functions_of(model: ModelProto) -> dict[FunctionKey, FunctionProto]:
    """The local functions of a model."""
    return {key_of(each): each for each in model.functions}


def reached(model: ModelProto, nodes: Iterable[NodeProto]) -> list[FunctionProto]:
    """Functions that these nodes call, in subgraphs and through other functions too, in the order
    of the model."""
    known = functions_of(model)
    wanted: set[FunctionKey] = set()
    pending = list(nodes) if known else []
    while pending:
        called = {called_by(node) for node in nodes_within(pending)}
        fresh = (called & known.keys()) - wanted
        wanted |= fresh
        pending = [node for key in fresh for node in known[key].node]
    return [each for each in model.functions if key_of(each) in wanted]


def check_functions(model: ModelProto) -> None:
    """Raises BadModel for functions that call themselves, TooLarge over INLINED_MAX."""
    known = functions_of(model)
    if not known:
        return
    calls = {key: Counter(map(called_by, nodes_within(each.node))) for key, each in known.items()}
    callers: dict[FunctionKey, list[FunctionKey]] = {}
    for key, called in calls.items():
        for each in called.keys() & known.keys():
            callers.setdefault(each, []).append(key)
    waiting = {key: len(called.keys() & known.keys()) for key, called in calls.items()}
    free = [key for key, count in waiting.items() if count == 0]
    sizes: dict[FunctionKey, int] = {}
    while free:
        key = free.pop()
        found = sum(count * sizes.get(each, 1) for each, count in calls[key].items())
        sizes[key] = min(found, INLINED_MAX + 1)
        for caller in callers.get(key, ()):
            waiting[caller] -= 1
            if waiting[caller] == 0:
                free.append(caller)
    if len(sizes) < len(known):
        circle = [f"{key[0]}.{key[1]}" for key in known if key not in sizes]
        raise BadModel(
            f"local functions call themselves, directly or through others: {listed(circle)}",
            hint="no engine can run that; export the model again",
        )
    if sum(sizes.get(called_by(each), 1) for each in nodes_within(model.graph.node)) > INLINED_MAX:
        raise TooLarge(
            f"the graph has over {INLINED_MAX} operators once its local functions are put in place",
            hint="simplify or split the model before registering it",
        )


def _own(domain: str) -> str:
    """The standard's domain has two names."""
    return "" if domain == "ai.onnx" else domain
