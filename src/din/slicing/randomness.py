"""Which operators give another answer each time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from din.slicing.functions import FunctionKey, called_by, key_of
from din.slicing.source import nodes_within

RANDOM_KINDS: Final = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
        "BiasDropout",
        "BitmaskDropout",
        "BitmaskBiasDropout",
        "Sampling",
    }
)
"""By name in any domain: of the standard, and those of com.microsoft that draw."""


def random_functions(model: ModelProto) -> frozenset[FunctionKey]:
    """The local functions that draw, directly or through others."""
    callers: dict[FunctionKey, set[FunctionKey]] = {}
    drawing: set[FunctionKey] = set()
    for function in model.functions:
        off = _surely_false((), function.node)
        for node in nodes_within(function.node):
            callers.setdefault(called_by(node), set()).add(key_of(function))
            if _draws(node, off):
                drawing.add(key_of(function))
    pending = list(drawing)
    while pending:
        fresh = callers.get(pending.pop(), set()) - drawing
        drawing |= fresh
        pending.extend(fresh)
    return frozenset(drawing)


def random_nodes(graph: GraphProto, functions: frozenset[FunctionKey]) -> list[bool]:
    """By node, whether it, its subgraphs and the functions that it calls draw."""
    off = _surely_false(graph.initializer, graph.node)
    return [
        any(called_by(each) in functions or _draws(each, off) for each in nodes_within([node]))
        for node in graph.node
    ]


def _draws(node: NodeProto, off: frozenset[str]) -> bool:
    if node.op_type != "Dropout":
        return node.op_type in RANDOM_KINDS
    return len(node.input) > 2 and node.input[2] != "" and node.input[2] not in off


def _surely_false(stored: Iterable[TensorProto], nodes: Iterable[NodeProto]) -> frozenset[str]:
    """Names of truth values that are false in every run: what may switch Dropout off. A function
    sees its own only."""
    found = {each.name for each in stored if _is_false(each)}
    for node in nodes:
        if node.op_type == "Constant" and all(_is_false(each.t) for each in node.attribute):
            found.update(node.output)
    return frozenset(found)


def _is_false(tensor: TensorProto) -> bool:
    return (
        tensor.data_type == TensorProto.BOOL
        and not tensor.external_data
        and not any(tensor.raw_data)
        and not any(tensor.int32_data)
    )
