"""Local functions of a model, and which of them a node calls."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import FunctionProto, ModelProto, NodeProto

from din.slicing.source import nodes_within

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


def _own(domain: str) -> str:
    """The standard's domain has two names."""
    return "" if domain == "ai.onnx" else domain
